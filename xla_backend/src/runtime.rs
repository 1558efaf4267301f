//! The process's own clients.
//!
//! Model code names no device. A mesh of N devices runs on a client of at least N, which is made when
//! it is first needed and kept; the plugin is found, or fetched, at the same time.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use shardax_pjrt::find::{Environment, PluginFile, Progress};
use shardax_pjrt::{Client, CompileOptions, LoadedExecutable, Plugin};
use shardax_sharding::Mesh;

use crate::cache::{CacheKey, CompileCache};
use crate::error::Result;

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
    /// What others keep for this client, one value of a type.
    kept: Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
}

/// The plugin and the cache, found once.
struct Found {
    plugin: Plugin,
    plugin_hash: [u8; 32],
    cache: Arc<CompileCache>,
}

static FOUND: OnceLock<Found> = OnceLock::new();
static SHARED: Mutex<Vec<Runtime>> = Mutex::new(Vec::new());
/// Every runtime there is, so that an array finds its own.
static ALL: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

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
        let client = Client::cpu(&found.plugin, devices)?;
        Ok(Self::new(client, found.cache.clone(), found.plugin_hash))
    }

    fn new(client: Client, cache: Arc<CompileCache>, plugin_hash: [u8; 32]) -> Self {
        let inner = Arc::new(Inner {
            client,
            cache,
            plugin_hash,
            kept: Mutex::default(),
        });
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|runtime| runtime.strong_count() > 0);
        all.push(Arc::downgrade(&inner));
        Runtime { inner }
    }

    /// The runtime of an array's client; another one with the same client, if that has ended.
    pub(crate) fn of_client(client: &Client) -> Result<Self> {
        {
            let all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
            let mut alive = all.iter().filter_map(Weak::upgrade);
            if let Some(inner) = alive.find(|runtime| runtime.client.is_same(client)) {
                return Ok(Runtime { inner });
            }
        }
        let found = found()?;
        Ok(Self::new(
            client.clone(),
            found.cache.clone(),
            found.plugin_hash,
        ))
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

    /// Where an array of a client goes that is to lie on this many devices: to the runtime that jitted
    /// functions without one of their own use, except that an array of a runtime of its own stays there
    /// if that has enough devices.
    pub(crate) fn for_array(client: Option<&Client>, devices: usize) -> Result<Self> {
        let shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let is_shared = |client: &Client| shared.iter().any(|r| r.client().is_same(client));
        let own = client.filter(|client| client.device_count() >= devices && !is_shared(client));
        drop(shared);
        match own {
            Some(client) => Self::of_client(client),
            None => Self::shared(devices),
        }
    }

    /// The same client, with another cache for compiled programs.
    #[must_use]
    pub fn with_cache(&self, cache: CompileCache) -> Self {
        let (client, hash) = (self.inner.client.clone(), self.inner.plugin_hash);
        Self::new(client, Arc::new(cache), hash)
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

    /// The value of this type that is kept for as long as the client; an empty one when it is first asked for.
    pub(crate) fn kept<T: Any + Default + Send + Sync>(&self) -> Arc<T> {
        let mut all = self
            .inner
            .kept
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let value = all
            .entry(TypeId::of::<T>())
            .or_insert_with(|| Arc::<T>::default());
        // The type is the key, so that this is the value of it.
        Arc::downcast(value.clone()).unwrap_or_default()
    }

    /// Whether there are the devices of a mesh.
    pub(crate) fn check_mesh(&self, mesh: &Mesh) -> Result<()> {
        let available = self.client().device_count();
        if mesh.device_count() > available {
            mesh.check_devices(available)?;
        }
        Ok(())
    }

    /// A program from the cache on disk, or compiled, and whether it was there. It runs on the first
    /// devices, as many as `options` say; `identity` is what of its text makes it another program.
    pub(crate) fn load_or_compile(
        &self,
        identity: &str,
        text: &str,
        options: &CompileOptions,
    ) -> Result<(LoadedExecutable, bool)> {
        let client = self.client();
        let key = CacheKey::new(&[
            identity.as_bytes(),
            &options.encode(),
            self.plugin_hash(),
            // A program is loaded with the devices of its client.
            &client.device_count().to_le_bytes(),
            // XLA read its options from there when it was loaded.
            std::env::var_os("XLA_FLAGS")
                .unwrap_or_default()
                .as_encoded_bytes(),
        ]);
        if let Some(bytes) = self.cache().get(&key) {
            // What the plugin cannot load is compiled again.
            if let Ok(executable) = client.deserialize_and_load(&bytes) {
                return Ok((executable, true));
            }
        }
        let executable = client.compile(text.as_bytes(), options)?;
        if let Ok(bytes) = executable.serialize() {
            self.cache().put(&key, &bytes);
        }
        Ok((executable, false))
    }

    /// The ids of the first devices, which a mesh of this many takes.
    pub(crate) fn first_devices(&self, count: usize) -> Vec<i32> {
        let devices = self.client().devices().iter().take(count);
        devices.map(|device| device.id()).collect()
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
