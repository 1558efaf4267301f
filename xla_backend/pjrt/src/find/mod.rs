//! PJRT plugins: the shared libraries that carry XLA and drive the devices, how one is found, fetched and verified.
//!
//! [`PluginFile::find_or_fetch`] looks at these places, in this order, and takes the first usable library:
//!
//! 1. The package's variable (`SHARDAX_PLUGIN` for the plugin of the CPU), the path of a library. When it is set nothing
//!    else is looked at, and any library is taken.
//! 2. The cache folder ([`Environment::cache_dir`]), where an earlier fetch put the pinned package.
//! 3. The pinned package among the installed Python packages.
//! 4. A download of the pinned package by `python3 -m pip`, which is kept in the cache folder.
//!
//! In 2, 3 and 4 a library is usable only with the SHA-256 of [`PINNED`], so all three give the same bytes and the order
//! among them is a matter of time only: the cache folder goes before the Python packages because a look at it takes
//! microseconds, while asking an interpreter for its search path takes a good part of a second. A package found in 3
//! is linked into the cache folder for the same reason. Hence only the first start on a machine ever runs Python.

mod environment;
mod fetch;
mod hash;
mod pinned;
mod python;

use std::fmt;
use std::path::{Path, PathBuf};

pub use environment::Environment;
pub use fetch::Progress;
pub use hash::{hex, plugin_hash};
pub use pinned::{PINNED, Package};
pub use python::{Interpreter, describe_interpreters};

use crate::error::{Error, Result};

/// The PJRT plugin library to load: where it is, how it was found, and its SHA-256.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginFile {
    path: PathBuf,
    origin: Origin,
    sha256: [u8; 32],
}

/// How a plugin library was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Named by the package's environment variable, `SHARDAX_PLUGIN` for the plugin of the CPU.
    Variable(&'static str),
    /// Fetched earlier into the cache folder, or linked there.
    Cache,
    /// An installed Python package.
    Python,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Variable(name) => name,
            Self::Cache => "cache folder",
            Self::Python => "Python package",
        })
    }
}

/// A place that a plugin library was looked for, and what was there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// How the place was come to.
    pub origin: Origin,
    /// The library looked for.
    pub path: PathBuf,
    /// What was found.
    pub state: CandidateState,
}

/// What was found at a [`Candidate`]'s path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CandidateState {
    /// A library that can be loaded.
    Usable {
        /// Its SHA-256.
        sha256: [u8; 32],
    },
    /// No file.
    Absent,
    /// A file that cannot be read, with the reason.
    Unreadable(String),
    /// Not the pinned library: another version, or damaged.
    WrongChecksum {
        /// The SHA-256 of [`PINNED`], in hexadecimal.
        expected: String,
        /// The SHA-256 of the file, in hexadecimal.
        found: String,
    },
}

impl fmt::Display for CandidateState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usable { .. } => f.write_str("usable"),
            Self::Absent => f.write_str("no such file"),
            Self::Unreadable(reason) => write!(f, "cannot be read: {reason}"),
            Self::WrongChecksum { expected, found } => write!(
                f,
                "refused, not the pinned library: SHA-256 {found} where {expected} is expected"
            ),
        }
    }
}

impl PluginFile {
    /// The plugin for the CPU, if there is one on this machine. Nothing is downloaded.
    ///
    /// # Errors
    /// [`Error::PluginVariable`] when `SHARDAX_PLUGIN` names no readable file, and [`Error::PluginNotFound`], with all
    /// places looked at, when there is no plugin.
    pub fn find() -> Result<Self> {
        let environment = Environment::of_process();
        Self::find_in(&environment, Package::for_backend("cpu", &environment)?)
    }

    /// The plugin for the CPU, downloaded if there is none on this machine. Takes seconds the first time, and
    /// microseconds later.
    ///
    /// # Errors
    /// Those of [`find`](Self::find) but the last, and, when the download is needed: [`Error::NoCacheDir`],
    /// [`Error::NoPython`], [`Error::NoPip`], [`Error::Fetch`] when pip fails (without a network for one),
    /// [`Error::Checksum`], and [`Error::Io`]. Each says what to do.
    pub fn find_or_fetch(progress: Progress) -> Result<Self> {
        let environment = Environment::of_process();
        let package = Package::for_backend("cpu", &environment)?;
        Self::find_or_fetch_in(&environment, package, progress)
    }

    /// [`find`](Self::find) in another environment and for another package.
    ///
    /// # Errors
    /// Those of [`find`](Self::find).
    pub fn find_in(environment: &Environment, package: &Package) -> Result<Self> {
        let mut seen = Vec::new();
        if let Some(found) = first_usable(environment, package, &mut seen)? {
            return Ok(found);
        }
        let mut searched: String = seen
            .iter()
            .map(|candidate| format!("\n  {}: {}", candidate.path.display(), candidate.state))
            .collect();
        for python in environment.interpreters() {
            searched += &format!(
                "\n  the packages of {}: no other {}",
                python.display(),
                package.library
            );
        }
        Err(Error::PluginNotFound {
            package: Box::new(*package),
            searched,
        })
    }

    /// [`find_or_fetch`](Self::find_or_fetch) in another environment and for another package.
    ///
    /// # Errors
    /// Those of [`find_or_fetch`](Self::find_or_fetch).
    pub fn find_or_fetch_in(
        environment: &Environment,
        package: &Package,
        progress: Progress,
    ) -> Result<Self> {
        match first_usable(environment, package, &mut Vec::new())? {
            Some(found) => Ok(found),
            None => fetch::fetch(environment, package, progress),
        }
    }

    /// The absolute path of the library, with links followed.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How the library was found.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// The SHA-256 of the library.
    pub fn sha256(&self) -> [u8; 32] {
        self.sha256
    }
}

impl Package {
    /// The pinned package for a kind of device on the machine of `environment`.
    ///
    /// A file that is named by the package's variable needs no pinned package: when it is set the machine is not
    /// compared.
    ///
    /// # Errors
    /// [`Error::UnsupportedPlatform`] when no pinned package runs on this machine.
    pub fn for_backend(backend: &str, environment: &Environment) -> Result<&'static Self> {
        let for_backend = || PINNED.iter().filter(|package| package.backend == backend);
        for_backend()
            .find(|package| {
                environment.variable(package.variable).is_some()
                    || package.platform == environment.platform()
            })
            .ok_or_else(|| Error::UnsupportedPlatform {
                variable: for_backend()
                    .next()
                    .map_or("SHARDAX_PLUGIN", |p| p.variable),
                backend: backend.to_owned(),
                platform: environment.platform().to_owned(),
                supported: for_backend()
                    .map(|package| format!("{} on {}", package.backend, package.platform))
                    .collect(),
            })
    }
}

/// Every place that a search looks at, with what is there: what [`PluginFile::find`] goes by, without stopping at the
/// first usable library. Runs Python.
pub fn candidates(environment: &Environment, package: &Package) -> Vec<Candidate> {
    let mut candidates: Vec<Candidate> = Vec::new();
    candidates.extend(named_by_variable(environment, package));
    candidates.extend(in_cache(environment, package));
    candidates.extend(in_python(environment, package));
    candidates
}

/// The first usable library; what was looked at before it is added to `seen`.
fn first_usable(
    environment: &Environment,
    package: &Package,
    seen: &mut Vec<Candidate>,
) -> Result<Option<PluginFile>> {
    if let Some(candidate) = named_by_variable(environment, package) {
        let reason = candidate.state.to_string();
        let path = candidate.path.clone();
        return match usable(candidate) {
            Some(found) => Ok(Some(found)),
            None => Err(Error::PluginVariable {
                variable: package.variable,
                wanted: package.wanted(),
                path,
                reason,
            }),
        };
    }
    if let Some(candidate) = in_cache(environment, package) {
        seen.push(candidate.clone());
        if let Some(found) = usable(candidate) {
            return Ok(Some(found));
        }
    }
    for candidate in in_python(environment, package) {
        seen.push(candidate.clone());
        if let Some(found) = usable(candidate) {
            fetch::link_installed(environment, package, &found.path);
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn named_by_variable(environment: &Environment, package: &Package) -> Option<Candidate> {
    let path = PathBuf::from(environment.variable(package.variable)?);
    let origin = Origin::Variable(package.variable);
    Some(examine(environment, origin, path, None))
}

fn in_cache(environment: &Environment, package: &Package) -> Option<Candidate> {
    let path = fetch::kept_library(&environment.cache_dir()?, package);
    let expected = Some(package.library_sha256);
    Some(examine(environment, Origin::Cache, path, expected))
}

/// The installed package in each folder that has it.
fn in_python(environment: &Environment, package: &Package) -> Vec<Candidate> {
    let expected = Some(package.library_sha256);
    python::package_folders(environment)
        .into_iter()
        .filter(|folder| package.companions.iter().all(|c| folder.join(c).exists()))
        .map(|folder| folder.join(package.library))
        .filter(|library| library.exists())
        .map(|library| examine(environment, Origin::Python, library, expected))
        .collect()
}

/// What is at `path`, compared with the expected SHA-256 if there is one.
fn examine(
    environment: &Environment,
    origin: Origin,
    path: PathBuf,
    expected: Option<&str>,
) -> Candidate {
    let state = match path.metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => CandidateState::Absent,
        Err(error) => CandidateState::Unreadable(error.to_string()),
        Ok(data) if !data.is_file() => CandidateState::Unreadable("it is not a file".to_owned()),
        Ok(_) => match hash::remembered_hash(environment, &path) {
            Err(error) => CandidateState::Unreadable(error.to_string()),
            Ok(sha256) => match expected {
                Some(expected) if expected != hex(&sha256) => CandidateState::WrongChecksum {
                    expected: expected.to_owned(),
                    found: hex(&sha256),
                },
                _ => CandidateState::Usable { sha256 },
            },
        },
    };
    Candidate {
        origin,
        path,
        state,
    }
}

fn usable(candidate: Candidate) -> Option<PluginFile> {
    match candidate.state {
        CandidateState::Usable { sha256 } => Some(PluginFile {
            path: candidate.path.canonicalize().unwrap_or(candidate.path),
            origin: candidate.origin,
            sha256,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
