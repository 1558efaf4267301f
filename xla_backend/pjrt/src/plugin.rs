//! Loading a PJRT plugin: a shared library with one entry point, `GetPjrtApi`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libloading::{Library, Symbol};

use super::ffi::{self, Api, ApiTable, NamedValue};
use crate::error::{Error, Result};

/// A loaded PJRT plugin.
///
/// A plugin starts threads and registers static state, so it is never unloaded; this is a reference that can be copied.
#[derive(Clone, Copy, Debug)]
pub struct Plugin {
    loaded: &'static Loaded,
}

#[derive(Debug)]
struct Loaded {
    path: PathBuf,
    api: Api,
    attributes: Vec<(String, Attribute)>,
    handlers: Mutex<Handlers>,
}

/// The address of each handler of XLA's FFI that was registered, by name and platform.
pub(super) type Handlers = HashMap<(String, String), usize>;

/// A value that a plugin tells about itself.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    /// Text.
    String(String),
    /// A whole number.
    Int(i64),
    /// Whole numbers, for example the parts of a version.
    IntList(Vec<i64>),
    /// A number.
    Float(f32),
    /// A boolean.
    Bool(bool),
}

/// Every plugin of this process. Loading is rare, so one lock for all of it is enough.
static LOADED: Mutex<Vec<Plugin>> = Mutex::new(Vec::new());

impl Plugin {
    /// Loads the shared library at `path` and initializes it. Loading a path again gives the plugin that is there.
    ///
    /// XLA writes information and warnings to standard error unless `TF_CPP_MIN_LOG_LEVEL` says otherwise; if that
    /// variable is not set, it is set to 2 (errors only) first, since XLA reads it once, while it is loaded. Call this
    /// before other threads read the environment.
    ///
    /// # Errors
    /// [`Error::PluginLoad`] for a file that is missing or no plugin, [`Error::ApiVersion`] for one with another version
    /// of the C API, [`Error::Pjrt`] when the plugin's own initialization fails.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let fault = |reason: String| Error::PluginLoad {
            path: path.to_owned(),
            reason,
        };
        let canonical = path.canonicalize().map_err(|e| fault(e.to_string()))?;
        if canonical.is_dir() {
            return Err(fault("it is a directory, not a shared library".into()));
        }
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&plugin) = loaded.iter().find(|p| p.loaded.path == canonical) {
            return Ok(plugin);
        }
        if std::env::var_os("TF_CPP_MIN_LOG_LEVEL").is_none() {
            // SAFETY: Rust's own environment functions lock against each other; C code that reads the environment at this
            // moment is excluded by the advice above, and there is no other way to reach a library's static initializers.
            unsafe { std::env::set_var("TF_CPP_MIN_LOG_LEVEL", "2") };
        }
        // SAFETY: this runs the library's initializers; that they are sound is the trust that the user puts in a plugin.
        let library = unsafe { Library::new(&canonical) }.map_err(|e| fault(reason(&e)))?;
        // Never dropped: the function table and everything reached through it lives in the library.
        let library: &'static Library = Box::leak(Box::new(library));
        // SAFETY: this is the type of the entry point in every version of the C API.
        let entry: Symbol<unsafe extern "C" fn() -> *mut ApiTable> =
            unsafe { library.get("GetPjrtApi") }.map_err(|e| {
                fault(format!(
                    "it has no function GetPjrtApi, so it is no PJRT plugin ({})",
                    reason(&e)
                ))
            })?;
        // SAFETY: the entry point takes nothing and may be called at any time.
        let table = NonNull::new(unsafe { entry() })
            .ok_or_else(|| fault("GetPjrtApi returned null".into()))?;
        // SAFETY: the table comes from `GetPjrtApi`, and the library stays loaded.
        let api = unsafe { Api::new(table) }?;
        // SAFETY: takes no pointers; called once for a library, under the lock.
        unsafe { api.call(&mut ffi::PluginInitialize::default()) }?;
        let plugin = Plugin {
            loaded: Box::leak(Box::new(Loaded {
                path: canonical,
                api,
                attributes: attributes(api)?,
                handlers: Mutex::default(),
            })),
        };
        loaded.push(plugin);
        Ok(plugin)
    }

    /// The library's path, absolute and without symbolic links.
    pub fn path(&self) -> &Path {
        &self.loaded.path
    }

    /// The version of the PJRT C API that the plugin was built with: major, minor.
    pub fn api_version(&self) -> (i32, i32) {
        self.loaded.api.version()
    }

    /// What the plugin tells about itself, for example `xla_version` and `stablehlo_current_version`.
    pub fn attributes(&self) -> &[(String, Attribute)] {
        &self.loaded.attributes
    }

    /// The attribute of this name, if the plugin has it.
    pub fn attribute(&self, name: &str) -> Option<&Attribute> {
        let mut all = self.loaded.attributes.iter();
        all.find(|(key, _)| key == name).map(|(_, value)| value)
    }

    pub(super) fn api(&self) -> Api {
        self.loaded.api
    }

    /// The handlers that were registered, to look and to add.
    pub(super) fn handlers(&self) -> MutexGuard<'_, Handlers> {
        let handlers = self.loaded.handlers.lock();
        handlers.unwrap_or_else(PoisonError::into_inner)
    }
}

/// The loader's own words, which the library keeps apart from what failed.
fn reason(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}

/// Reads the plugin's attributes.
fn attributes(api: Api) -> Result<Vec<(String, Attribute)>> {
    let mut arguments = ffi::PluginAttributes::default();
    // SAFETY: takes no pointers.
    unsafe { api.call(&mut arguments) }?;
    // SAFETY: the plugin returns an array of this length that lives as long as the process.
    let values = unsafe { ffi::slice(arguments.attributes, arguments.num_attributes) };
    let read = |named: &NamedValue| {
        // SAFETY: a name lives with its attribute, and the union's field is the one that `kind` tells.
        unsafe {
            let value = match named.kind {
                NamedValue::STRING => {
                    Attribute::String(ffi::string(named.value.string, named.value_size))
                }
                NamedValue::INT64 => Attribute::Int(named.value.int64),
                NamedValue::INT64_LIST => Attribute::IntList(
                    ffi::slice(named.value.int64_list, named.value_size).to_vec(),
                ),
                NamedValue::FLOAT => Attribute::Float(named.value.float),
                NamedValue::BOOL => Attribute::Bool(named.value.boolean),
                _ => return None,
            };
            Some((ffi::string(named.name, named.name_size), value))
        }
    };
    Ok(values.iter().filter_map(read).collect())
}
