//! Everything that can go wrong between a program and a device, as one enum in sections.

mod ahead;
mod argument;
mod host;
mod status;

use std::fmt;
use std::io;
use std::path::PathBuf;

pub use ahead::AheadFault;
pub use argument::ArgumentFault;
pub use host::HostFault;
pub use status::{ErrorCode, PjrtError};

use crate::find::Package;

/// What the fallible functions of this crate return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the runtime.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // ---- PJRT ----
    /// The plugin itself reported an error.
    #[error(transparent)]
    Pjrt(#[from] PjrtError),

    /// The shared library could not be loaded, or it is no PJRT plugin.
    #[error("cannot load {} as a PJRT plugin: {reason}", path.display())]
    PluginLoad {
        /// The library's path as given.
        path: PathBuf,
        /// What the loader said.
        reason: String,
    },

    /// The plugin speaks a version of the PJRT C API that this crate does not.
    #[error(
        "the plugin speaks PJRT API {major}.{minor}, this crate needs major version 0 and minor version 81 or newer; \
         use another plugin"
    )]
    ApiVersion {
        /// Major version of the plugin's API.
        major: i32,
        /// Minor version of the plugin's API.
        minor: i32,
    },

    /// The plugin lacks a function of the PJRT C API.
    #[error("the PJRT plugin (API {major}.{minor}) has no function {function}; use a newer plugin")]
    MissingFunction {
        /// C name of the function.
        function: &'static str,
        /// Major version of the plugin's API.
        major: i32,
        /// Minor version of the plugin's API.
        minor: i32,
    },

    /// The plugin answered in a way that the PJRT C API does not allow.
    #[error(
        "the PJRT plugin broke its contract: {what}; this is a fault of the plugin, use another version of it"
    )]
    PluginContract {
        /// What it did.
        what: String,
    },

    /// More virtual CPU devices than a client may have, or none.
    #[error(
        "{count} virtual CPU devices were asked for, one for each of the mesh or as many as the runtime was to have: there may be 1 to {most}"
    )]
    DeviceCount {
        /// How many were asked for.
        count: usize,
        /// How many there may be.
        most: i64,
    },

    /// An option for creating a client has a value that would abort the process.
    #[error("client option `{name}` is {value}: {advice}")]
    ClientOption {
        /// The option's name.
        name: String,
        /// Its value.
        value: String,
        /// What is allowed.
        advice: &'static str,
    },

    /// Options for compiling that contradict each other or the client.
    #[error("compile options: {}", .faults.join("; "))]
    CompileOptions {
        /// Every fault found.
        faults: Vec<String>,
    },

    /// A program that would not run as it was compiled when it is loaded from bytes.
    #[error("the program cannot be kept as bytes: {reason}; compile it where it is to run")]
    Serialize {
        /// What its bytes lack.
        reason: String,
    },

    /// A device number beyond the client's devices, or a device of another process.
    #[error("device {device}: {reason}")]
    Device {
        /// Position in the client's list of devices.
        device: usize,
        /// What is wrong with it.
        reason: String,
    },

    /// Host data whose size is not that of the array it should become, or the other way round.
    #[error(
        "{operation}: {array} takes {expected} bytes on the host, but the slice has {actual}; {advice}"
    )]
    HostSize {
        /// What was being done.
        operation: &'static str,
        /// Element type and dimensions, as `f32[8,64]`.
        array: String,
        /// Bytes needed.
        expected: usize,
        /// Bytes given.
        actual: usize,
        /// What to do about it.
        advice: &'static str,
    },

    /// Dimensions that no array can have.
    #[error("dimensions {dims:?} of {element_type}: {reason}")]
    Dimensions {
        /// Name of the element type.
        element_type: String,
        /// The dimensions.
        dims: Vec<usize>,
        /// What is wrong with them.
        reason: &'static str,
    },

    /// An element type that this crate or the tracer has no name for.
    #[error("element type {element_type} is not supported here: {advice}")]
    ElementType {
        /// The type's name, or its number in the PJRT C API.
        element_type: String,
        /// What to do about it.
        advice: &'static str,
    },

    /// The buffer's memory was given away by a donation, or deleted.
    #[error(
        "{operation}: this buffer ({array} on device {device}) was donated or deleted and holds no data any more; \
         use the result that took its memory, or do not donate it"
    )]
    BufferDeleted {
        /// What was being done.
        operation: &'static str,
        /// Element type and dimensions.
        array: String,
        /// Position of the buffer's device in the client's list.
        device: usize,
    },

    /// A launch whose arguments do not fit the program; nothing was launched.
    #[error("cannot run `{program}`: {}", list(.faults))]
    Arguments {
        /// Name of the compiled program.
        program: String,
        /// Every fault found.
        faults: Vec<ArgumentFault>,
    },

    // ---- Foreign code ----
    /// A closure that a program called returned an error, panicked, or returned arrays of other types than declared.
    #[error(transparent)]
    HostFunction(#[from] HostFault),

    /// A program launched from a closure that a program called, or from the callback of an event.
    #[error(
        "`{program}` cannot be launched from a host function or a callback, whose thread it may wait for: launch it before, \
         and pass its results as arguments"
    )]
    LaunchedInCallback {
        /// Name of the compiled program.
        program: String,
    },

    /// Code that a program is to call, which cannot be called.
    #[error("custom call target `{target}`: {reason}")]
    Foreign {
        /// The target's name.
        target: String,
        /// What is wrong, and what to do.
        reason: String,
    },

    // ---- Plugins, folders and files ----
    /// `SHARDAX_PLUGIN`, or the variable of another package, names something that cannot be used.
    #[error(
        "{variable} is set to {}, which cannot be used: {reason}\n\
         set it to the path of {wanted}, or unset it to let Shardax find or fetch one",
        path.display()
    )]
    PluginVariable {
        /// The variable.
        variable: &'static str,
        /// What it should name.
        wanted: &'static str,
        /// The value of the variable.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// No plugin is on this machine, and none was to be fetched.
    #[error(
        "no PJRT plugin was found; looked for:{searched}\n{}",
        package.by_hand()
    )]
    PluginNotFound {
        /// The pinned package.
        package: Box<Package>,
        /// The places looked at, each on a line of its own.
        searched: String,
    },

    /// There is no pinned plugin for this machine.
    #[error(
        "there is no pinned PJRT plugin for {backend} on {platform} (there is: {}); build one for this machine and \
         set {variable} to the path of the library",
        .supported.join(", ")
    )]
    UnsupportedPlatform {
        /// The variable that names a library of the user's own.
        variable: &'static str,
        /// The kind of device wanted.
        backend: String,
        /// Operating system and architecture.
        platform: String,
        /// What there are pinned plugins for.
        supported: Vec<String>,
    },

    /// A plugin must be fetched, and there is no folder to keep it in.
    #[error(
        "{package} must be fetched, but there is no folder to keep it in, since none of SHARDAX_CACHE, \
         XDG_CACHE_HOME and HOME is set; set SHARDAX_CACHE to a folder"
    )]
    NoCacheDir {
        /// The pinned package, as `name==version`.
        package: String,
    },

    /// A plugin must be fetched, and there is no Python to do it.
    #[error(
        "{} must be fetched with pip, but there is no python3 on PATH or in VIRTUAL_ENV; install Python 3 with \
         pip and try again\n{}",
        package.requirement(),
        package.by_hand()
    )]
    NoPython {
        /// The pinned package.
        package: Box<Package>,
    },

    /// A plugin must be fetched, and no Python has pip.
    #[error(
        "{} must be fetched with pip, but none of these has it: {}; install it (`python3 -m ensurepip`, or the \
         system's package python3-pip) and try again\n{}",
        package.requirement(),
        paths(interpreters),
        package.by_hand()
    )]
    NoPip {
        /// The pinned package.
        package: Box<Package>,
        /// The interpreters tried.
        interpreters: Vec<PathBuf>,
    },

    /// pip could not fetch the plugin; without a network for one.
    #[error(
        "{} could not be fetched: `{} -m pip download` failed:{output}\nIs there a network?\n{}",
        package.requirement(),
        interpreter.display(),
        package.by_hand()
    )]
    Fetch {
        /// The pinned package.
        package: Box<Package>,
        /// The interpreter whose pip failed.
        interpreter: PathBuf,
        /// What pip said last, each line on a line of its own.
        output: String,
    },

    /// A fetched file is not the pinned one, and is refused.
    #[error(
        "{what} is refused, its checksum is wrong:\n  expected SHA-256 {expected}\n  found    SHA-256 {found}\n\
         see what pip fetches from (`python3 -m pip config list`); if you trust a library nevertheless, set \
         {variable} to its path"
    )]
    Checksum {
        /// The variable that names a file to use in any case.
        variable: &'static str,
        /// The file.
        what: String,
        /// The pinned SHA-256, in hexadecimal.
        expected: String,
        /// The SHA-256 of the file, in hexadecimal.
        found: String,
    },

    /// A fetched wheel has the right checksum and cannot be unpacked.
    #[error("the wheel of {package} cannot be unpacked: {reason}")]
    Wheel {
        /// The pinned package, as `name==version`.
        package: String,
        /// What is wrong with it.
        reason: String,
    },

    /// The operating system refused a file operation.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What was tried, as `read` or `create a folder in`.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Writes `Debug` for errors as their message: it is what a `main` that returns an error prints.
macro_rules! debug_is_the_message {
    ($($error:ty),+) => {$(
        impl fmt::Debug for $error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )+};
}
debug_is_the_message!(Error, PjrtError, HostFault);

impl Error {
    /// An [`Error::Io`].
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Io {
            doing,
            path: path.into(),
            source,
        }
    }
}

fn paths(paths: &[PathBuf]) -> String {
    let shown: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    shown.join(", ")
}

/// Faults in one line; after the first few only their number, since one mistake can concern every device.
fn list(faults: &[ArgumentFault]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = faults.iter().take(SHOWN).map(ToString::to_string).collect();
    let mut text = shown.join("; ");
    if faults.len() > SHOWN {
        text.push_str(&format!("; and {} more", faults.len() - SHOWN));
    }
    text
}
