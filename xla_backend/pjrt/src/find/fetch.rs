//! Fetches a pinned package through pip into the cache folder, once for all processes.
//!
//! The work is done in a staging folder under an exclusive lock, and the finished package is renamed into place: a
//! reader sees a whole package or none. The system drops the lock of a killed process, and whoever holds the lock next
//! knows that every staging folder it finds was left by such a process.

use std::fs::{self, File, Permissions, TryLockError};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::{Environment, Origin, Package, PluginFile, hash};
use crate::error::{Error, Result};

const STAGING_PREFIX: &str = ".fetch-";

/// Whether a download tells of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A progress bar on standard error if that is a terminal, else a line for each stage.
    Stderr,
    /// Nothing is printed.
    Silent,
}

/// Where the library of `package` is once fetched.
pub(super) fn kept_library(cache: &Path, package: &Package) -> PathBuf {
    plugins_folder(cache)
        .join(package.folder())
        .join(package.library)
}

/// Links an installed package into the cache folder, so that the next start finds it without Python. If that cannot be
/// done the next start asks Python again.
pub(super) fn link_installed(environment: &Environment, package: &Package, library: &Path) {
    let Some(cache) = environment.cache_dir() else {
        return;
    };
    // `library` is `site-packages` and `package.library`; the link stands for `site-packages`.
    let depth = Path::new(package.library).components().count();
    let Some(packages) = library.ancestors().nth(depth) else {
        return;
    };
    let place = plugins_folder(&cache).join(package.folder());
    let Ok(lock) = open_lock(&cache) else { return };
    // A place that holds a folder belongs to a fetch; a link that got here leads nowhere and is replaced.
    if lock.try_lock().is_ok() && !place.is_dir() {
        let _ = fs::remove_file(&place);
        let _ = std::os::unix::fs::symlink(packages, &place);
    }
}

/// Downloads, verifies and keeps `package`, or waits for another process that does.
pub(super) fn fetch(
    environment: &Environment,
    package: &Package,
    progress: Progress,
) -> Result<PluginFile> {
    let cache = environment.cache_dir().ok_or(Error::NoCacheDir {
        package: package.requirement(),
    })?;
    let report = Report::new(package, progress);
    let lock = open_lock(&cache)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            report.stage("waiting for another process that fetches it");
            lock.lock()
                .map_err(|source| Error::io("lock", lock_path(&cache), source))?;
        }
        Err(TryLockError::Error(source)) => {
            return Err(Error::io("lock", lock_path(&cache), source));
        }
    }
    if let Some(found) = super::in_cache(environment, package).and_then(super::usable) {
        return Ok(found);
    }
    let plugins = plugins_folder(&cache);
    remove_abandoned(&plugins);
    let staging = tempfile::Builder::new()
        .prefix(STAGING_PREFIX)
        .tempdir_in(&plugins)
        .map_err(|source| Error::io("create a folder in", &plugins, source))?;
    let wheel = download(environment, package, &staging, &report)?;
    report.stage("verifying and unpacking");
    verify_wheel(&wheel, package)?;
    let sha256 = unpack(&wheel, &staging.path().join("package"), package)?;
    put_in_place(&staging, &plugins.join(package.folder()))?;
    // The first start remembers the sum of the library, for the starts that follow.
    let path = kept_library(&cache, package);
    hash::remembered_hash(environment, &path)?;
    Ok(PluginFile {
        path: path.canonicalize().unwrap_or(path),
        origin: Origin::Cache,
        sha256,
    })
}

fn plugins_folder(cache: &Path) -> PathBuf {
    cache.join("plugins")
}

fn lock_path(cache: &Path) -> PathBuf {
    plugins_folder(cache).join("lock")
}

/// The lock file, created with its folder; held while locked, by whoever has the open file.
fn open_lock(cache: &Path) -> Result<File> {
    let folder = plugins_folder(cache);
    fs::create_dir_all(&folder).map_err(|source| Error::io("create", &folder, source))?;
    let path = lock_path(cache);
    File::options()
        .create(true)
        .append(true)
        .open(&path)
        .map_err(|source| Error::io("open", path, source))
}

/// Removes the staging folders of processes that were killed. To be called with the lock held.
fn remove_abandoned(plugins: &Path) {
    for entry in fs::read_dir(plugins).into_iter().flatten().flatten() {
        if entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(STAGING_PREFIX.as_bytes())
        {
            // What is left of it costs room only; the next fetch tries again.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Runs pip, with the first interpreter that has it, and gives the path of the wheel.
fn download(
    environment: &Environment,
    package: &Package,
    staging: &TempDir,
    report: &Report,
) -> Result<PathBuf> {
    let requirements = staging.path().join("requirements.txt");
    let line = format!(
        "{} --hash=sha256:{}\n",
        package.requirement(),
        package.wheel_sha256
    );
    fs::write(&requirements, line).map_err(|source| Error::io("write", &requirements, source))?;
    let wheels = staging.path().join("wheels");
    fs::create_dir(&wheels).map_err(|source| Error::io("create", &wheels, source))?;

    let interpreters = environment.interpreters();
    if interpreters.is_empty() {
        return Err(Error::NoPython {
            package: Box::new(*package),
        });
    }
    report.stage("downloading");
    for python in &interpreters {
        let log = staging.path().join("pip.log");
        let writing = |source| Error::io("write", &log, source);
        let output = File::create(&log).map_err(writing)?;
        let errors = output.try_clone().map_err(writing)?;
        let mut command = environment.command(python);
        command
            .args(["-m", "pip", "download", "--no-input"])
            .args(["--disable-pip-version-check", "--progress-bar", "off"])
            // The library has nothing to do with the version of Python that brings it.
            .args(["--no-deps", "--ignore-requires-python"])
            .args(["--require-hashes", "--only-binary", ":all:", "-r"])
            .arg(&requirements)
            .arg("-d")
            .arg(&wheels)
            // Unfinished downloads go where their size can be seen, and are removed with the rest.
            .env("TMPDIR", staging.path())
            .stdout(output)
            .stderr(errors);
        let mut pip = command
            .spawn()
            .map_err(|source| Error::io("run", python, source))?;
        let status = loop {
            match pip.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) => report.bytes(size_below(staging.path())),
                Err(source) => return Err(Error::io("wait for", python, source)),
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let said = fs::read(&log).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        if status.success() {
            return only_wheel(&wheels, python, package, &said);
        }
        if !said.contains("No module named pip") {
            return Err(failure(python, package, &said));
        }
    }
    Err(Error::NoPip {
        package: Box::new(*package),
        interpreters,
    })
}

fn only_wheel(wheels: &Path, python: &Path, package: &Package, said: &str) -> Result<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(wheels)
        .map_err(|source| Error::io("read", wheels, source))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .collect();
    match (found.pop(), found.is_empty()) {
        (Some(wheel), true) => Ok(wheel),
        _ => Err(failure(python, package, said)),
    }
}

/// The error for a pip that failed, with what it said last.
fn failure(python: &Path, package: &Package, said: &str) -> Error {
    // pip compares the sum itself; then its message is a paragraph on tampering, with the sum behind "Got".
    let got = said
        .lines()
        .find_map(|line| line.trim().strip_prefix("Got "))
        .map(str::trim);
    if let Some(found) = got {
        return Error::Checksum {
            variable: package.variable,
            what: format!("the wheel of {}", package.requirement()),
            expected: package.wheel_sha256.to_owned(),
            found: found.to_owned(),
        };
    }
    // pip ends with what was wrong, after warnings for each attempt; other failures end with a traceback.
    let mut lines: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("ERROR"))
        .collect();
    if lines.is_empty() {
        lines = said
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect();
    }
    let last = &lines[lines.len().saturating_sub(4)..];
    Error::Fetch {
        package: Box::new(*package),
        interpreter: python.to_owned(),
        output: last.iter().map(|line| format!("\n  {line}")).collect(),
    }
}

/// Compares the wheel with its pin. pip has done so too, but which pip that was is the user's affair.
fn verify_wheel(wheel: &Path, package: &Package) -> Result<()> {
    let reading = |source| Error::io("read", wheel, source);
    let sum = hash::hash_reader(File::open(wheel).map_err(reading)?).map_err(reading)?;
    let found = hash::hex(&sum);
    if found == package.wheel_sha256 {
        return Ok(());
    }
    Err(Error::Checksum {
        variable: package.variable,
        what: format!("the wheel of {}", package.requirement()),
        expected: package.wheel_sha256.to_owned(),
        found,
    })
}

/// Takes the library, what it needs and the licenses from the wheel into `target`, and verifies the library.
fn unpack(wheel: &Path, target: &Path, package: &Package) -> Result<[u8; 32]> {
    let broken = |reason: String| Error::Wheel {
        package: package.requirement(),
        reason,
    };
    let file = File::open(wheel).map_err(|source| Error::io("read", wheel, source))?;
    let mut archive = zip::ZipArchive::new(file).map_err(|error| broken(error.to_string()))?;
    let mut library_sum = None;
    for index in 0..archive.len() {
        let mut entry = archive
            .by_index(index)
            .map_err(|error| broken(error.to_string()))?;
        // `enclosed_name` refuses paths that lead out of the target.
        let Some(inside) = entry.enclosed_name() else {
            continue;
        };
        let is_library = inside == Path::new(package.library);
        let is_companion = package.companions.iter().any(|c| inside == Path::new(c));
        if !is_library && !is_companion && !is_license(&inside) {
            continue;
        }
        let runs = entry.unix_mode().is_some_and(|mode| mode & 0o100 != 0);
        let path = target.join(inside);
        let writing = |source| Error::io("write", &path, source);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(writing)?;
        }
        let mut output = Summed::new(File::create(&path).map_err(writing)?);
        io::copy(&mut entry, &mut output).map_err(writing)?;
        let (file, sum) = output.finish();
        if runs {
            file.set_permissions(Permissions::from_mode(0o755))
                .map_err(writing)?;
        }
        if is_library {
            // A power failure must not leave a library whose sum was verified and whose blocks were never written.
            file.sync_all().map_err(writing)?;
            library_sum = Some(sum);
        }
    }
    let sum = library_sum.ok_or_else(|| broken(format!("it has no {}", package.library)))?;
    let found = hash::hex(&sum);
    if found == package.library_sha256 {
        return Ok(sum);
    }
    Err(Error::Checksum {
        variable: package.variable,
        what: format!("{} in {}", package.library, package.requirement()),
        expected: package.library_sha256.to_owned(),
        found,
    })
}

fn is_license(inside: &Path) -> bool {
    let name = inside.file_name().unwrap_or_default().to_string_lossy();
    ["LICENSE", "NOTICE", "THIRD_PARTY"]
        .iter()
        .any(|start| name.to_uppercase().starts_with(start))
}

/// Renames the unpacked package to its place; what was there (a damaged package or a dead link) goes with the staging
/// folder.
fn put_in_place(staging: &TempDir, place: &Path) -> Result<()> {
    match fs::rename(place, staging.path().join("replaced")) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(Error::io("replace", place, source)),
    }
    fs::rename(staging.path().join("package"), place)
        .map_err(|source| Error::io("create", place, source))
}

/// Bytes in the files below `folder`; files that come and go meanwhile are not counted.
fn size_below(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(data) if data.is_dir() => size_below(&entry.path()),
            Ok(data) => data.len(),
            Err(_) => 0,
        })
        .sum()
}

/// A writer that sums what passes through.
struct Summed {
    file: File,
    hasher: Sha256,
}

impl Summed {
    fn new(file: File) -> Self {
        Self {
            file,
            hasher: Sha256::new(),
        }
    }

    fn finish(self) -> (File, [u8; 32]) {
        (self.file, self.hasher.finalize().into())
    }
}

impl Write for Summed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.hasher.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The progress of a fetch on standard error: a bar, or a line a stage.
struct Report {
    bar: ProgressBar,
    /// What each line begins with; `None` when there are no lines.
    lines: Option<String>,
}

impl Report {
    fn new(package: &Package, progress: Progress) -> Self {
        let what = format!("fetching {}", package.requirement());
        let terminal = io::stderr().is_terminal();
        let bar = match progress {
            Progress::Stderr if terminal => ProgressBar::new(package.wheel_bytes),
            _ => ProgressBar::hidden(),
        };
        let template = "{prefix} {bar:24} {bytes}/{total_bytes} {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_prefix(what.clone());
        let megabytes = package.wheel_bytes.div_ceil(1_000_000);
        let lines = progress == Progress::Stderr && !terminal;
        Self {
            bar,
            lines: lines.then(|| format!("shardax: {what} ({megabytes} MB), once")),
        }
    }

    fn stage(&self, what: &'static str) {
        self.bar.set_message(what);
        self.bar.tick();
        if let Some(start) = &self.lines {
            eprintln!("{start}: {what}");
        }
    }

    fn bytes(&self, count: u64) {
        let total = self.bar.length().unwrap_or(count);
        self.bar.set_position(count.min(total));
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
