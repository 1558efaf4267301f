//! What the search for a plugin knows of the machine: the environment variables and the platform.
//!
//! Everything that decides where a plugin or a cache is found goes through [`Environment`] and not through the process,
//! so that a search can be repeated with other variables: by the tests, and by a program that wants its own folders.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The environment variables and the platform that a search for plugins and caches goes by.
///
/// | variable | meaning |
/// |---|---|
/// | `SHARDAX_PLUGIN` | path of the PJRT plugin to use, instead of any search |
/// | `SHARDAX_CUDA_PLUGIN` | path of the PJRT plugin that compiles for clusters, instead of any search |
/// | `SHARDAX_PTXAS` | path of `bin/ptxas` of the CUDA toolkit that it uses, instead of any search |
/// | `SHARDAX_CACHE` | folder of fetched plugins and compiled programs |
/// | `SHARDAX_CACHE_LIMIT` | bound on the compiled programs kept there, as `4G`; `0` keeps none |
/// | `XDG_CACHE_HOME`, `HOME` | the cache folder is `shardax` in the first, or `.cache/shardax` in the second |
/// | `VIRTUAL_ENV`, `PATH` | which Python interpreters are asked for installed packages and for pip |
#[derive(Clone, Debug)]
pub struct Environment {
    variables: BTreeMap<OsString, OsString>,
    platform: String,
}

impl Environment {
    /// The environment of this process, as it is now.
    pub fn of_process() -> Self {
        Self::from_variables(std::env::vars_os())
    }

    /// An environment of the given variables and no others, on this machine.
    pub fn from_variables(
        variables: impl IntoIterator<Item = (impl Into<OsString>, impl Into<OsString>)>,
    ) -> Self {
        let variables = variables
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        let platform = format!("{} {}", std::env::consts::OS, std::env::consts::ARCH);
        Self {
            variables,
            platform,
        }
    }

    /// The same variables on another machine, such as `macos aarch64`.
    #[must_use]
    pub fn with_platform(mut self, platform: impl Into<String>) -> Self {
        self.platform = platform.into();
        self
    }

    /// Operating system and architecture, such as `linux x86_64`.
    pub fn platform(&self) -> &str {
        &self.platform
    }

    /// The value of a variable; one that is set to nothing counts as not set.
    pub fn variable(&self, name: &str) -> Option<&OsStr> {
        self.variables
            .get(OsStr::new(name))
            .map(OsString::as_os_str)
            .filter(|value| !value.is_empty())
    }

    /// All variables whose name begins with `prefix`, in the order of their names.
    pub fn variables_with_prefix<'a>(
        &'a self,
        prefix: &'a str,
    ) -> impl Iterator<Item = (&'a OsStr, &'a OsStr)> {
        self.variables
            .iter()
            .filter(move |(name, _)| name.as_encoded_bytes().starts_with(prefix.as_bytes()))
            .map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }

    /// The folder that holds fetched plugins and compiled programs: `SHARDAX_CACHE`, else `$XDG_CACHE_HOME/shardax`,
    /// else `$HOME/.cache/shardax`; `None` when none of the three variables is set. The folder may not exist yet.
    pub fn cache_dir(&self) -> Option<PathBuf> {
        if let Some(folder) = self.variable("SHARDAX_CACHE") {
            return std::path::absolute(folder).ok();
        }
        // A relative XDG folder is invalid and to be ignored, by the XDG base directory specification.
        let xdg = self.variable("XDG_CACHE_HOME").map(PathBuf::from);
        if let Some(folder) = xdg.filter(|folder| folder.is_absolute()) {
            return Some(folder.join("shardax"));
        }
        self.home().map(|home| home.join(".cache").join("shardax"))
    }

    /// The Python interpreters, the one of an active virtual environment first, then every `python3` on `PATH`.
    pub fn interpreters(&self) -> Vec<PathBuf> {
        let mut folders = Vec::new();
        if let Some(folder) = self.variable("VIRTUAL_ENV") {
            folders.push(Path::new(folder).join("bin"));
        }
        if let Some(path) = self.variable("PATH") {
            folders.extend(std::env::split_paths(path).filter(|folder| folder.is_absolute()));
        }
        // Folders are compared and not interpreters: `python3` of a virtual environment is a link to the interpreter
        // it was made from, and yet has other packages.
        let mut seen = Vec::new();
        let mut interpreters = Vec::new();
        for folder in folders {
            let python = folder.join("python3");
            let Ok(folder) = folder.canonicalize() else {
                continue;
            };
            if python.is_file() && !seen.contains(&folder) {
                seen.push(folder);
                interpreters.push(python);
            }
        }
        interpreters
    }

    pub(super) fn home(&self) -> Option<PathBuf> {
        self.variable("HOME")
            .map(PathBuf::from)
            .filter(|home| home.is_absolute())
    }

    /// A command that sees these variables only, and no input.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .envs(&self.variables)
            .stdin(Stdio::null());
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Environment {
        Environment::from_variables(variables.iter().copied())
    }

    #[test]
    fn cache_folder_follows_the_first_variable_that_is_set() {
        let all = [
            ("SHARDAX_CACHE", "/a"),
            ("XDG_CACHE_HOME", "/b"),
            ("HOME", "/c"),
        ];
        assert_eq!(of(&all).cache_dir(), Some("/a".into()));
        assert_eq!(of(&all[1..]).cache_dir(), Some("/b/shardax".into()));
        assert_eq!(of(&all[2..]).cache_dir(), Some("/c/.cache/shardax".into()));
        assert_eq!(of(&[]).cache_dir(), None);
    }

    #[test]
    fn empty_and_relative_folders_are_not_taken() {
        let environment = of(&[
            ("SHARDAX_CACHE", ""),
            ("XDG_CACHE_HOME", "cache"),
            ("HOME", "/c"),
        ]);
        assert_eq!(environment.cache_dir(), Some("/c/.cache/shardax".into()));
    }

    #[test]
    fn interpreters_are_listed_once_a_folder() -> std::io::Result<()> {
        let root = tempfile::tempdir()?;
        for folder in ["venv/bin", "usr/bin", "empty"] {
            std::fs::create_dir_all(root.path().join(folder))?;
        }
        std::fs::write(root.path().join("usr/bin/python3"), "")?;
        let usr = root.path().join("usr/bin/python3");
        std::os::unix::fs::symlink(&usr, root.path().join("venv/bin/python3"))?;
        std::os::unix::fs::symlink(root.path().join("usr/bin"), root.path().join("bin"))?;
        let root = root.path().display();
        let environment = Environment::from_variables([
            ("VIRTUAL_ENV", format!("{root}/venv")),
            (
                "PATH",
                format!("{root}/venv/bin:{root}/empty:{root}/usr/bin:{root}/bin:relative"),
            ),
        ]);
        let found = environment.interpreters();
        assert_eq!(
            found,
            [format!("{root}/venv/bin/python3").into(), usr] as [PathBuf; 2]
        );
        Ok(())
    }
}
