//! `shardax doctor`: examines what training needs, and says what is wrong and how to mend it.
//!
//! [`examine`] gathers the facts into a [`Findings`], which is what `--json` prints; [`text`] writes them for a reader.

mod text;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use shardax::xla::cache::CompileCache;
use shardax::xla::plugin::{
    self, CandidateState, Environment, Origin, Package, PluginFile, Progress,
};

use crate::out;
use crate::probe::{self, Probe};

/// The variables that Shardax reads.
const VARIABLES: [&str; 6] = [
    "SHARDAX_CACHE",
    "SHARDAX_CACHE_LIMIT",
    "SHARDAX_CUDA_PLUGIN",
    "SHARDAX_LOG",
    "SHARDAX_PLUGIN",
    "SHARDAX_PTXAS",
];

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Print the findings as JSON.
    #[arg(long)]
    json: bool,
    /// Fetch the plugin first if there is none.
    #[arg(long)]
    fetch: bool,
}

/// Everything that the doctor found.
#[derive(Serialize)]
struct Findings {
    /// The version of Shardax.
    version: &'static str,
    /// Operating system and architecture.
    platform: String,
    /// The places that were looked at for a plugin.
    plugins: Vec<Place>,
    /// The library that training uses.
    plugin: Option<PathBuf>,
    /// What that library says of itself; absent when it could not be loaded or run.
    probe: Option<Probe>,
    /// The cache folder.
    cache: Cache,
    /// The Python interpreters, the first one that has pip being used for a fetch.
    pythons: Vec<Python>,
    /// Environment variables that have an effect.
    variables: BTreeMap<String, String>,
    /// What is wrong.
    problems: Vec<Problem>,
}

/// A place that was looked at for a plugin.
#[derive(Serialize)]
struct Place {
    origin: String,
    path: PathBuf,
    usable: bool,
    state: String,
}

/// The cache folder and the compiled programs in it.
#[derive(Serialize)]
struct Cache {
    folder: Option<PathBuf>,
    /// Size of everything in the folder, fetched plugins included.
    bytes: u64,
    /// Whether compiled programs are kept.
    enabled: bool,
    compiled_entries: usize,
    compiled_bytes: u64,
    compiled_limit: u64,
}

#[derive(Serialize)]
struct Python {
    path: PathBuf,
    version: Option<String>,
    pip: Option<String>,
}

/// Something that is wrong, and how to mend it.
#[derive(Serialize)]
struct Problem {
    /// Whether training cannot run because of it.
    fatal: bool,
    what: String,
    mend: String,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> ExitCode {
    let findings = examine(&Environment::of_process(), options.fetch);
    let written = match options.json {
        true => match serde_json::to_string_pretty(&findings) {
            Ok(json) => out::line(json),
            Err(error) => Err(error.into()),
        },
        false => out::text(text::write(&findings)),
    };
    if let Err(error) = written {
        return out::failed(&error);
    }
    match findings.probe {
        Some(_) => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
    }
}

fn examine(environment: &Environment, fetch: bool) -> Findings {
    let mut problems = Vec::new();
    let pythons: Vec<Python> = plugin::describe_interpreters(environment)
        .into_iter()
        .map(|python| Python {
            path: python.path,
            version: python.version,
            pip: python.pip,
        })
        .collect();
    let (file, plugins) = examine_plugins(environment, fetch, &pythons, &mut problems);
    let probe = file
        .as_ref()
        .and_then(|file| examine_plugin(environment, file.path(), &mut problems));
    let cache = examine_cache(environment, &mut problems);
    let variables = examine_variables(environment, &mut problems);
    Findings {
        version: env!("CARGO_PKG_VERSION"),
        platform: environment.platform().to_owned(),
        plugins,
        plugin: file.map(|file| file.path().to_owned()),
        probe,
        cache,
        pythons,
        variables,
        problems,
    }
}

/// Finds the plugin that training uses, and all the others.
fn examine_plugins(
    environment: &Environment,
    fetch: bool,
    pythons: &[Python],
    problems: &mut Vec<Problem>,
) -> (Option<PluginFile>, Vec<Place>) {
    let package = match Package::for_backend("cpu", environment) {
        Ok(package) => package,
        Err(error) => {
            problems.push(fatal(error, ""));
            return (None, Vec::new());
        }
    };
    let found = if fetch {
        PluginFile::find_or_fetch_in(environment, package, Progress::Stderr)
    } else {
        PluginFile::find_in(environment, package)
    };
    let candidates = plugin::candidates(environment, package);
    for candidate in &candidates {
        if matches!(candidate.state, CandidateState::WrongChecksum { .. }) {
            let what = format!("{} is not the pinned library", candidate.path.display());
            let mend = match candidate.origin {
                Origin::Cache => "it is damaged; the next fetch replaces it",
                _ => {
                    "another version is no fault, it is only not used; to use it set SHARDAX_PLUGIN to its path"
                }
            };
            problems.push(note(what, mend));
        }
    }
    let places = candidates
        .into_iter()
        .map(|candidate| Place {
            usable: matches!(candidate.state, CandidateState::Usable { .. }),
            origin: candidate.origin.to_string(),
            path: candidate.path,
            state: candidate.state.to_string(),
        })
        .collect();
    match found {
        Ok(file) => (Some(file), places),
        Err(error) => {
            let by_variable = environment.variable("SHARDAX_PLUGIN").is_some();
            problems.push(if fetch || by_variable {
                fatal(error, "")
            } else if pythons.iter().any(|python| python.pip.is_some()) {
                let mend = "`shardax doctor --fetch` fetches it now; the first training run does so by itself";
                fatal("there is no plugin yet", mend)
            } else {
                let mend = "install Python 3 with pip, then run `shardax doctor --fetch`; or set SHARDAX_PLUGIN";
                fatal("there is no plugin, and no python3 with pip to fetch it", mend)
            });
            (None, places)
        }
    }
}

/// Loads the plugin and runs a program, in a child process.
fn examine_plugin(
    environment: &Environment,
    path: &Path,
    problems: &mut Vec<Problem>,
) -> Option<Probe> {
    match probe::in_child(path) {
        Ok(probe) => Some(probe),
        Err(reason) => {
            let mend = if environment.variable("XLA_FLAGS").is_some() {
                "unset XLA_FLAGS and look again: XLA ends the process at a flag that it does not know"
            } else if environment.variable("SHARDAX_PLUGIN").is_some() {
                "unset SHARDAX_PLUGIN to use the pinned plugin"
            } else {
                "remove the folder `plugins` from the cache folder and run `shardax doctor --fetch`"
            };
            let what = format!("the plugin {} does not work: {reason}", path.display());
            problems.push(fatal(what, mend));
            None
        }
    }
}

fn examine_cache(environment: &Environment, problems: &mut Vec<Problem>) -> Cache {
    let folder = environment.cache_dir();
    if folder.is_none() {
        problems.push(note(
            "there is no cache folder: every run compiles anew, and no plugin can be fetched",
            "set SHARDAX_CACHE to a folder (or HOME, or XDG_CACHE_HOME)",
        ));
    }
    let cache = CompileCache::from_environment(environment);
    if let Err(error) = cache.check() {
        problems.push(note(
            format!("compiled programs cannot be kept, so every run compiles anew: {error}"),
            "free some room or make the folder writable, or set SHARDAX_CACHE to another folder",
        ));
    }
    if let Some(warning) = cache.warning() {
        problems.push(note(warning, ""));
    }
    let compiled = cache.usage();
    Cache {
        bytes: folder.as_deref().map(size_below).unwrap_or_default(),
        folder,
        enabled: cache.folder().is_some(),
        compiled_entries: compiled.entries,
        compiled_bytes: compiled.bytes,
        compiled_limit: cache.limit(),
    }
}

/// The variables of Shardax and of XLA that are set.
fn examine_variables(
    environment: &Environment,
    problems: &mut Vec<Problem>,
) -> BTreeMap<String, String> {
    let mut set = BTreeMap::new();
    for prefix in ["SHARDAX_", "XLA_", "TF_CPP_"] {
        for (name, value) in environment.variables_with_prefix(prefix) {
            let name = name.to_string_lossy().into_owned();
            if prefix == "SHARDAX_" && !VARIABLES.contains(&name.as_str()) {
                problems.push(note(
                    format!("{name} is set, and Shardax has no such variable"),
                    &format!("it reads {}", VARIABLES.join(", ")),
                ));
            }
            set.insert(name, value.to_string_lossy().into_owned());
        }
    }
    set
}

/// Bytes in the files below `folder`, links not followed.
fn size_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(data) if data.is_dir() => size_below(&entry.path()),
            Ok(data) => data.len(),
            Err(_) => 0,
        })
        .sum()
}

fn fatal(what: impl ToString, mend: &str) -> Problem {
    Problem {
        fatal: true,
        what: what.to_string(),
        mend: mend.to_owned(),
    }
}

fn note(what: impl ToString, mend: &str) -> Problem {
    Problem {
        fatal: false,
        ..fatal(what, mend)
    }
}
