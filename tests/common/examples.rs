//! Examples, as programs that a test runs.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The executable of an example, built as the tests are.
pub(crate) fn example(name: &str) -> PathBuf {
    // This test is `target/PROFILE/deps/NAME`.
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().and_then(Path::parent).unwrap();
    let profile = match folder.file_name().and_then(|name| name.to_str()).unwrap() {
        "debug" => "dev",
        other => other,
    };
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--workspace", "--example", name])
        .args(["--profile", profile])
        .arg("--target-dir")
        .arg(folder.parent().unwrap())
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    assert!(built.unwrap().success());
    folder.join("examples").join(name)
}
