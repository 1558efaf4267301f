//! The persistent cache of compiled programs: a folder of files that any number of processes share.
//!
//! A cache must never make a run worse than one without it. So an entry is written beside its place and renamed into
//! it, and carries its key and a checksum: a reader gets the whole of what was put or nothing, whatever was killed, cut
//! or overwritten. What cannot be read is a miss, what cannot be written is a warning. The folder's size is bounded, and
//! the entries that were not used for the longest time go first.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};
use shardax_pjrt::Error as RuntimeError;
use shardax_pjrt::find::{Environment, hex};

use crate::error::{Error, Result};

/// Changes whenever an entry (so also the order that `LoadedExecutable::serialize` writes), or what a key is made of, gets
/// another meaning; older entries are then never found and go with time.
const FORMAT_VERSION: u32 = 3;
const MAGIC: &[u8; 8] = b"shardax\0";
/// Magic, version, key, length of the payload, SHA-256 of the payload.
const HEADER_BYTES: usize = 8 + 4 + 32 + 8 + 32;
const ENTRY_SUFFIX: &str = ".compiled";
const TEMPORARY_PREFIX: &str = ".writing-";
/// A writer locks its temporary file right after creating it; until this age a file without a lock may be a new one.
const TEMPORARY_AGE: Duration = Duration::from_secs(10);

/// What a compiled program is found by: a SHA-256 over everything that its bytes depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheKey([u8; 32]);

impl CacheKey {
    /// The key of a program compiled from `parts`: its text, the serialized compile options, and the hash of the
    /// plugin (two plugins can give a program the same fingerprint), in a fixed order.
    pub fn new(parts: &[&[u8]]) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(FORMAT_VERSION.to_le_bytes());
        for part in parts {
            // With its length before each part, no two lists of parts give the same bytes.
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Self(hasher.finalize().into())
    }
}

/// A folder of compiled programs, or no folder at all. Safe to share between threads, and the folder between processes.
#[derive(Debug)]
pub struct CompileCache {
    folder: Option<PathBuf>,
    limit: u64,
    warning: OnceLock<String>,
}

/// How much a [`CompileCache`] holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheUse {
    /// Number of compiled programs.
    pub entries: usize,
    /// Size of their files together.
    pub bytes: u64,
}

struct Entry {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

impl CompileCache {
    /// The bound on the folder's size where `SHARDAX_CACHE_LIMIT` says no other: 4 GiB.
    pub const DEFAULT_LIMIT: u64 = 4 << 30;

    /// The cache in the folder `compiled` of [`Environment::cache_dir`], bounded by `SHARDAX_CACHE_LIMIT` (bytes, or
    /// with a suffix as in `512M`, `4G`; 0 keeps nothing). Without any cache folder it is [`disabled`](Self::disabled).
    pub fn from_environment(environment: &Environment) -> Self {
        let limit = environment.variable("SHARDAX_CACHE_LIMIT");
        let parsed = limit.map(|text| text.to_str().and_then(parse_size).ok_or(text));
        let bytes = match parsed {
            Some(Ok(bytes)) => bytes,
            Some(Err(_)) | None => Self::DEFAULT_LIMIT,
        };
        let cache = match environment.cache_dir() {
            Some(folder) if bytes > 0 => Self::open(folder.join("compiled"), bytes),
            _ => Self::disabled(),
        };
        if let Some(Err(text)) = parsed {
            cache.warn(format!(
                "SHARDAX_CACHE_LIMIT is {text:?}, which is no size; write bytes, or a size as 512M or 4G (4G is used)"
            ));
        }
        cache
    }

    /// A cache in `folder`, which is created when something is put, of at most `limit` bytes.
    pub fn open(folder: impl Into<PathBuf>, limit: u64) -> Self {
        Self {
            folder: Some(folder.into()),
            limit,
            warning: OnceLock::new(),
        }
    }

    /// A cache that keeps nothing and finds nothing.
    pub fn disabled() -> Self {
        Self {
            folder: None,
            limit: 0,
            warning: OnceLock::new(),
        }
    }

    /// The folder of the entries; `None` when the cache is disabled.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The bound on the size of all entries, in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// What the cache holds at the moment.
    pub fn usage(&self) -> CacheUse {
        let entries = self.folder().map(list_entries).unwrap_or_default();
        CacheUse {
            entries: entries.len(),
            bytes: entries.iter().map(|entry| entry.bytes).sum(),
        }
    }

    /// Whether the folder can be written to; it is created if it does not exist. A disabled cache has nothing to check.
    ///
    /// # Errors
    /// [`Io`](RuntimeError::Io) with the system's reason.
    pub fn check(&self) -> Result<()> {
        let Some(folder) = self.folder() else {
            return Ok(());
        };
        let fault = |source| {
            Error::from(RuntimeError::Io {
                doing: "write to",
                path: folder.to_owned(),
                source,
            })
        };
        fs::create_dir_all(folder).map_err(fault)?;
        let mut file = tempfile::Builder::new()
            .prefix(TEMPORARY_PREFIX)
            .tempfile_in(folder)
            .map_err(fault)?;
        file.write_all(MAGIC).map_err(fault)
    }

    /// The first thing that went wrong with the folder (a full or a read-only disk for one), if anything did. The
    /// first one in a process is printed to standard error as well. The cache goes on trying.
    pub fn warning(&self) -> Option<&str> {
        self.warning.get().map(String::as_str)
    }

    /// What was put under `key`, and marks it as used. A damaged entry is removed, and is a miss.
    pub fn get(&self, key: &CacheKey) -> Option<Vec<u8>> {
        let path = entry_path(self.folder()?, key);
        let (file, mut bytes) = match read_entry(&path) {
            Ok(read) => read,
            // A folder that cannot be is told of when something is put there.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                return None;
            }
            Err(error) => {
                self.warn(format!("{} cannot be read: {error}", path.display()));
                return None;
            }
        };
        if !is_whole(&bytes, key) {
            // Another process may have replaced it meanwhile by a good one, which is then compiled once more.
            let _ = fs::remove_file(&path);
            return None;
        }
        // On a read-only disk nothing is evicted either.
        let _ = file.set_modified(SystemTime::now());
        bytes.drain(..HEADER_BYTES);
        Some(bytes)
    }

    /// Keeps `payload` under `key`, in place of what was there, and removes what then exceeds the bound. When that
    /// cannot be done there is a [`warning`](Self::warning), and nothing is kept.
    pub fn put(&self, key: &CacheKey, payload: &[u8]) {
        self.put_with(key, payload, |path| {
            File::options().write(true).create_new(true).open(path)
        });
    }

    fn put_with(&self, key: &CacheKey, payload: &[u8], create: fn(&Path) -> io::Result<File>) {
        let Some(folder) = self.folder() else {
            return;
        };
        let bytes = (HEADER_BYTES + payload.len()) as u64;
        if bytes > self.limit {
            self.warn(format!(
                "a compiled program of {bytes} bytes exceeds the whole cache of {} bytes and is not kept; \
                 set SHARDAX_CACHE_LIMIT to more",
                self.limit
            ));
            return;
        }
        if let Err(error) = write_entry(folder, key, payload, create) {
            self.warn(format!(
                "compiled programs cannot be kept in {} and will be compiled again by the next run: {error}; \
                 free some room there, or set SHARDAX_CACHE to another folder (SHARDAX_CACHE_LIMIT=0 keeps none)",
                folder.display()
            ));
        }
        remove_abandoned(folder);
        self.evict(folder, key);
    }

    /// Removes the entries that were not used for the longest time until the rest is within the bound.
    fn evict(&self, folder: &Path, newest: &CacheKey) {
        let newest = entry_path(folder, newest);
        let mut entries = list_entries(folder);
        entries.sort_by_key(|entry| entry.used);
        let mut total: u64 = entries.iter().map(|entry| entry.bytes).sum();
        for entry in entries.iter().filter(|entry| entry.path != newest) {
            if total <= self.limit {
                break;
            }
            // An entry that another process removed first is gone as well.
            match fs::remove_file(&entry.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {}
                _ => total -= entry.bytes,
            }
        }
    }

    fn warn(&self, message: String) {
        static PRINTED: AtomicBool = AtomicBool::new(false);
        if !PRINTED.swap(true, Ordering::Relaxed) {
            eprintln!("shardax: warning: {message}");
        }
        // Only the first is of interest: what follows mostly has the same cause.
        let _ = self.warning.set(message);
    }
}

/// Reads a size in bytes, with an optional suffix K, M, G or T (powers of 1024).
fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, unit) = match text.char_indices().last()? {
        (last, suffix) if suffix.is_ascii_alphabetic() => {
            let power = "KMGT".find(suffix.to_ascii_uppercase())?;
            (&text[..last], 1 << (10 * (power + 1)))
        }
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

fn entry_path(folder: &Path, key: &CacheKey) -> PathBuf {
    folder.join(format!("{}{ENTRY_SUFFIX}", hex(&key.0)))
}

fn header(key: &CacheKey, payload: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    let (magic, rest) = header.split_at_mut(8);
    let (version, rest) = rest.split_at_mut(4);
    let (key_bytes, rest) = rest.split_at_mut(32);
    let (length, sum) = rest.split_at_mut(8);
    magic.copy_from_slice(MAGIC);
    version.copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    key_bytes.copy_from_slice(&key.0);
    length.copy_from_slice(&(payload.len() as u64).to_le_bytes());
    sum.copy_from_slice(&Sha256::digest(payload));
    header
}

/// Whether `entry` is what was written for `key`, from the first byte to the last.
fn is_whole(entry: &[u8], key: &CacheKey) -> bool {
    match entry.split_at_checked(HEADER_BYTES) {
        Some((found, payload)) => found == header(key, payload),
        None => false,
    }
}

fn read_entry(path: &Path) -> io::Result<(File, Vec<u8>)> {
    let mut file = File::open(path)?;
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut file, &mut bytes)?;
    Ok((file, bytes))
}

fn write_entry(
    folder: &Path,
    key: &CacheKey,
    payload: &[u8],
    create: fn(&Path) -> io::Result<File>,
) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let name = tempfile::Builder::new()
        .prefix(TEMPORARY_PREFIX)
        .make_in(folder, create)?;
    // The lock goes with the process: it tells others that this file is being written. Where locks do not exist
    // nobody can take one either, and the file is left alone.
    let _ = name.as_file().lock();
    let mut file = name.as_file();
    file.write_all(&header(key, payload))?;
    file.write_all(payload)?;
    // No sync: what a power failure leaves of the file does not pass the checksum.
    name.persist(entry_path(folder, key))?;
    Ok(())
}

/// Removes the temporary files of processes that were killed while they wrote.
fn remove_abandoned(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if !name
            .as_encoded_bytes()
            .starts_with(TEMPORARY_PREFIX.as_bytes())
        {
            continue;
        }
        let age = entry
            .metadata()
            .and_then(|data| data.modified())
            .ok()
            .and_then(|modified| modified.elapsed().ok());
        let Ok(file) = File::open(entry.path()) else {
            continue;
        };
        if age.is_some_and(|age| age >= TEMPORARY_AGE) && file.try_lock().is_ok() {
            // If it cannot be removed now, a later call will.
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn list_entries(folder: &Path) -> Vec<Entry> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            name.as_encoded_bytes().ends_with(ENTRY_SUFFIX.as_bytes())
        })
        .filter_map(|entry| {
            let data = entry.metadata().ok()?;
            Some(Entry {
                path: entry.path(),
                bytes: data.len(),
                used: data.modified().ok()?,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests;
