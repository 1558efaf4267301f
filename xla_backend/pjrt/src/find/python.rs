//! The Python interpreters of a machine: what they are, and where their packages are installed. Asked of the
//! interpreters themselves.

use std::path::PathBuf;

use super::Environment;

/// A Python interpreter, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interpreter {
    /// Where it is.
    pub path: PathBuf,
    /// Its version, as `3.12.1`; `None` when it does not run.
    pub version: Option<String>,
    /// The version of its pip; `None` when it has none.
    pub pip: Option<String>,
}

/// The interpreters of [`Environment::interpreters`], each started to ask for its version and for its pip.
pub fn describe_interpreters(environment: &Environment) -> Vec<Interpreter> {
    let ask = |path: &PathBuf, arguments: &[&str]| {
        let output = environment.command(path).args(arguments).output().ok()?;
        // `Python 3.12.1`, `pip 24.0 from ...`
        let said = String::from_utf8_lossy(&output.stdout);
        let version = said.split_whitespace().nth(1)?;
        output.status.success().then(|| version.to_owned())
    };
    environment
        .interpreters()
        .into_iter()
        .map(|path| Interpreter {
            version: ask(&path, &["--version"]),
            pip: ask(&path, &["-m", "pip", "--version"]),
            path,
        })
        .collect()
}

/// Every folder that installed Python packages are found in, each once: the search path of each interpreter, then
/// `~/.local` (which a virtual environment hides from its interpreter).
pub(super) fn package_folders(environment: &Environment) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = Vec::new();
    for python in environment.interpreters() {
        // `sys` is built in: no module of the user's folder can take its place, and nothing heavy is imported.
        let output = environment
            .command(&python)
            .args(["-c", "import sys; print('\\n'.join(sys.path))"])
            .output();
        if let Ok(output) = output {
            let listed = String::from_utf8_lossy(&output.stdout);
            folders.extend(listed.lines().map(PathBuf::from));
        }
    }
    if let Some(home) = environment.home()
        && let Ok(versions) = std::fs::read_dir(home.join(".local/lib"))
    {
        let mut user: Vec<PathBuf> = versions
            .flatten()
            .map(|version| version.path().join("site-packages"))
            .collect();
        user.sort();
        folders.extend(user);
    }
    let mut kept: Vec<PathBuf> = Vec::new();
    for folder in folders {
        if folder.is_absolute() && folder.is_dir() && !kept.contains(&folder) {
            kept.push(folder);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreters_tell_their_versions() -> std::io::Result<()> {
        let root = tempfile::tempdir()?;
        let bin = root.path().join("bin");
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/src/find/fixtures");
        std::fs::create_dir(&bin)?;
        std::os::unix::fs::symlink(format!("{fixtures}/fake_python.sh"), bin.join("python3"))?;
        let describe = |pip: &str| {
            describe_interpreters(&Environment::from_variables([
                ("PATH", bin.as_os_str()),
                ("FAKE_CALLS", root.path().join("calls").as_os_str()),
                ("FAKE_PIP", pip.as_ref()),
            ]))
        };
        let expected = |pip: Option<&str>| Interpreter {
            path: bin.join("python3"),
            version: Some("3.0".to_owned()),
            pip: pip.map(str::to_owned),
        };
        assert_eq!(describe(""), [expected(Some("1.0"))]);
        assert_eq!(describe("missing"), [expected(None)]);
        Ok(())
    }
}
