//! What the tests share that start processes of their own.

use std::fs;
use std::path::{Path, PathBuf};

use shardax::xla::plugin::{PluginFile, Progress};

/// An empty folder of this name for the files of one test.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{error}"),
        _ => fs::create_dir_all(&folder).unwrap(),
    }
    folder
}

/// The plugin that this machine has, for processes whose cache folder does not have it.
pub(crate) fn plugin() -> PathBuf {
    PluginFile::find_or_fetch(Progress::Stderr)
        .unwrap()
        .path()
        .to_owned()
}
