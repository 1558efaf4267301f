//! SHA-256 of plugin libraries, remembered so that a start does not read hundreds of megabytes.
//!
//! The sum of a library is part of the key of every compiled program, because XLA's own fingerprints do not differ
//! between plugins. It is remembered in the cache folder together with what the file system says of the file (device,
//! inode, size, times of change): a file that was replaced or written to is read again.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::Environment;
use crate::error::{Error, Result};

/// The SHA-256 of the plugin library at `path`, from memory if the file is unchanged since it was last read.
///
/// # Errors
/// [`Error::Io`] when the file cannot be read. A memory that cannot be read or written is no error: the file is read.
pub fn plugin_hash(path: &Path) -> Result<[u8; 32]> {
    remembered_hash(&Environment::of_process(), path)
}

/// [`plugin_hash`] with the memory in the cache folder of `environment`.
pub(super) fn remembered_hash(environment: &Environment, path: &Path) -> Result<[u8; 32]> {
    let reading = |source| Error::io("read the plugin", path, source);
    let file = File::open(path).map_err(reading)?;
    let identity = identity(&file).map_err(reading)?;
    let memory = environment
        .cache_dir()
        .map(|cache| memory_path(&cache, path));
    if let Some(memory) = &memory
        && let Ok(text) = fs::read_to_string(memory)
        && let Some(sum) = recall(&text, &identity)
    {
        return Ok(sum);
    }
    let sum = hash_reader(file).map_err(reading)?;
    if let Some(memory) = memory {
        // Only the next start pays if this fails, on a read-only disk for one.
        let _ = remember(&memory, &format!("{identity} {}\n", hex(&sum)));
    }
    Ok(sum)
}

/// The SHA-256 of everything that `reader` yields.
pub(super) fn hash_reader(mut reader: impl Read) -> io::Result<[u8; 32]> {
    let mut hasher = Sha256::new();
    let mut block = vec![0; 1 << 18];
    loop {
        match reader.read(&mut block) {
            Ok(0) => return Ok(hasher.finalize().into()),
            Ok(count) => hasher.update(&block[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// `bytes` in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// What changes when the file is replaced or written to.
fn identity(file: &File) -> io::Result<String> {
    let data = file.metadata()?;
    Ok(format!(
        "{} {} {} {}.{:09} {}.{:09}",
        data.dev(),
        data.ino(),
        data.size(),
        data.mtime(),
        data.mtime_nsec(),
        data.ctime(),
        data.ctime_nsec(),
    ))
}

fn memory_path(cache: &Path, library: &Path) -> PathBuf {
    let name = Sha256::digest(library.as_os_str().as_encoded_bytes());
    cache.join("hashes").join(hex(&name[..16]))
}

fn recall(text: &str, identity: &str) -> Option<[u8; 32]> {
    let sum = text
        .strip_suffix('\n')?
        .strip_prefix(identity)?
        .strip_prefix(' ')?;
    let mut bytes = [0; 32];
    if sum.len() != 64 || !sum.is_ascii() {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(sum.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}

fn remember(memory: &Path, text: &str) -> io::Result<()> {
    let folder = memory.parent().unwrap_or(memory);
    fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.persist(memory)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    struct Setting {
        root: tempfile::TempDir,
        library: PathBuf,
        environment: Environment,
    }

    fn setting() -> Setting {
        let root = tempfile::tempdir().expect("a temporary folder");
        let library = root.path().join("plugin.so");
        fs::write(&library, "abc").expect("written");
        let environment = Environment::from_variables([("SHARDAX_CACHE", root.path().join("c"))]);
        Setting {
            root,
            library,
            environment,
        }
    }

    fn hash(setting: &Setting) -> String {
        hex(&remembered_hash(&setting.environment, &setting.library).expect("hashed"))
    }

    #[test]
    fn second_time_comes_from_memory() {
        let setting = setting();
        assert_eq!(hash(&setting), ABC);
        let memory = memory_path(&setting.root.path().join("c"), &setting.library);
        let text = fs::read_to_string(&memory).expect("remembered");
        let other = "0".repeat(64);
        fs::write(&memory, text.replace(ABC, &other)).expect("written");
        assert_eq!(hash(&setting), other, "the library was read again");
    }

    #[test]
    fn changed_library_is_read_again() {
        let setting = setting();
        hash(&setting);
        fs::write(&setting.library, "another").expect("written");
        assert_ne!(hash(&setting), ABC);
        fs::write(&setting.library, "abc").expect("written");
        assert_eq!(hash(&setting), ABC);
    }

    #[test]
    fn damaged_memory_is_ignored() {
        let setting = setting();
        hash(&setting);
        let memory = memory_path(&setting.root.path().join("c"), &setting.library);
        let text = fs::read_to_string(&memory).expect("remembered");
        for cut in 0..text.len() {
            fs::write(&memory, &text[..cut]).expect("written");
            assert_eq!(hash(&setting), ABC, "cut after {cut} bytes");
        }
    }

    #[test]
    fn unwritable_memory_and_missing_file() {
        let mut setting = setting();
        setting.environment =
            Environment::from_variables([("SHARDAX_CACHE", setting.library.join("below"))]);
        assert_eq!(hash(&setting), ABC);
        let missing = setting.root.path().join("missing.so");
        let error = remembered_hash(&setting.environment, &missing).expect_err("no file");
        assert!(
            error.to_string().contains("cannot read the plugin"),
            "{error}"
        );
    }
}
