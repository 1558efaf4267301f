//! The process's own clients.
//!
//! Model code names no device. A mesh of N devices runs on a client of at least N, which is made when
//! it is first needed and kept; the plugin is found, or fetched, at the same time.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::cache::CompileCache;
use crate::error::Result;
use crate::pjrt::{Client, Plugin};
use crate::plugin::{Environment, PluginFile, Progress};

/// A client, with what compiling for it needs.
#[derive(Clone, Debug)]
pub struct Runtime {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    client: Client,
    cache: Arc<CompileCache>,
    /// SHA-256 of the plugin's library.
    plugin_hash: [u8; 32],
}

/// The plugin and the cache, found once.
struct Found {
    plugin: Plugin,
    plugin_hash: [u8; 32],
    cache: Arc<CompileCache>,
}

static FOUND: OnceLock<Found> = OnceLock::new();
static SHARED: Mutex<Vec<Runtime>> = Mutex::new(Vec::new());

impl Runtime {
    /// A CPU client of its own with this number of virtual devices.
    ///
    /// Arrays of two clients cannot meet in one program: most programs want [`Runtime::shared`].
    ///
    /// # Errors
    ///
    /// When no plugin is there and none can be fetched, or the plugin refuses.
    pub fn cpu(devices: usize) -> Result<Self> {
        let found = found()?;
        Ok(Runtime {
            inner: Arc::new(Inner {
                client: Client::cpu(&found.plugin, devices)?,
                cache: found.cache.clone(),
                plugin_hash: found.plugin_hash,
            }),
        })
    }

    /// The process's client with at least this number of devices; made on first use.
    ///
    /// # Errors
    ///
    /// As for [`Runtime::cpu`].
    pub fn shared(devices: usize) -> Result<Self> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |runtime: &&Runtime| runtime.client().device_count() >= devices;
        if let Some(runtime) = shared.iter().find(fits) {
            return Ok(runtime.clone());
        }
        let runtime = Self::cpu(devices)?;
        shared.push(runtime.clone());
        Ok(runtime)
    }

    /// The same client, with another cache for compiled programs.
    #[must_use]
    pub fn with_cache(&self, cache: CompileCache) -> Self {
        Runtime {
            inner: Arc::new(Inner {
                client: self.inner.client.clone(),
                cache: Arc::new(cache),
                plugin_hash: self.inner.plugin_hash,
            }),
        }
    }

    /// The client.
    pub fn client(&self) -> &Client {
        &self.inner.client
    }

    /// The cache of compiled programs.
    pub fn cache(&self) -> &CompileCache {
        &self.inner.cache
    }

    /// The SHA-256 of the plugin's library, a part of every cache key.
    pub fn plugin_hash(&self) -> &[u8; 32] {
        &self.inner.plugin_hash
    }
}

fn found() -> Result<&'static Found> {
    if let Some(found) = FOUND.get() {
        return Ok(found);
    }
    let file = PluginFile::find_or_fetch(Progress::Stderr)?;
    let found = Found {
        plugin: Plugin::load(file.path())?,
        plugin_hash: file.sha256(),
        cache: Arc::new(CompileCache::from_environment(&Environment::of_process())),
    };
    Ok(FOUND.get_or_init(|| found))
}
