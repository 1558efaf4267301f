//! Everything that can go wrong between a traced program and the device, as one enum in sections.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// What the fallible functions of this crate return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the XLA backend.
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
    /// `SHARDAX_PLUGIN` names something that is no plugin.
    #[error(
        "SHARDAX_PLUGIN is set to {}, which cannot be used: {reason}\n\
         set it to the path of a PJRT plugin library (.so), or unset it to let Shardax find or fetch one",
        path.display()
    )]
    PluginVariable {
        /// The value of the variable.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// No plugin is on this machine, and none was to be fetched.
    #[error(
        "no PJRT plugin was found; looked for:{searched}\n{}",
        install_advice(package)
    )]
    PluginNotFound {
        /// The pinned package, as `name==version`.
        package: String,
        /// The places looked at, each on a line of its own.
        searched: String,
    },

    /// There is no pinned plugin for this machine.
    #[error(
        "there is no pinned PJRT plugin for {backend} on {platform} (there is: {}); build one for this machine and \
         set SHARDAX_PLUGIN to the path of the library",
        .supported.join(", ")
    )]
    UnsupportedPlatform {
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
        "{package} must be fetched with pip, but there is no python3 on PATH or in VIRTUAL_ENV; install Python 3 with \
         pip and try again\n{}",
        install_advice(package)
    )]
    NoPython {
        /// The pinned package, as `name==version`.
        package: String,
    },

    /// A plugin must be fetched, and no Python has pip.
    #[error(
        "{package} must be fetched with pip, but none of these has it: {}; install it (`python3 -m ensurepip`, or the \
         system's package python3-pip) and try again\n{}",
        paths(interpreters),
        install_advice(package)
    )]
    NoPip {
        /// The pinned package, as `name==version`.
        package: String,
        /// The interpreters tried.
        interpreters: Vec<PathBuf>,
    },

    /// pip could not fetch the plugin; without a network for one.
    #[error(
        "{package} could not be fetched: `{} -m pip download` failed:{output}\nIs there a network?\n{}",
        interpreter.display(),
        install_advice(package)
    )]
    Fetch {
        /// The pinned package, as `name==version`.
        package: String,
        /// The interpreter whose pip failed.
        interpreter: PathBuf,
        /// What pip said last, each line on a line of its own.
        output: String,
    },

    /// A fetched file is not the pinned one, and is refused.
    #[error(
        "{what} is refused, its checksum is wrong:\n  expected SHA-256 {expected}\n  found    SHA-256 {found}\n\
         see what pip fetches from (`python3 -m pip config list`); if you trust a library nevertheless, set \
         SHARDAX_PLUGIN to its path"
    )]
    Checksum {
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

    // ---- Tracing, layouts and `jit` ----
    /// A mistake in the traced function.
    #[error(transparent)]
    Trace(#[from] shardax_core::Error),

    /// A mesh or layout that contradicts itself, or needs more devices than there are.
    #[error(transparent)]
    Sharding(#[from] shardax_sharding::Error),

    /// Annotations that the layout cannot follow.
    #[error("the layout does not fit the program:{}", by_cause(.faults))]
    Layout {
        /// Every fault found.
        faults: Vec<LayoutFault>,
    },

    /// Arguments of a call, or their donation, that do not fit; nothing was launched.
    #[error("cannot call `{program}`:{}", each_on_a_line(.faults))]
    Call {
        /// The program's name.
        program: String,
        /// Every fault found.
        faults: Vec<String>,
    },

    /// A program that looks for it has found a number that is not finite.
    #[error(
        "`{program}`: {what}{}\n  help: look at what it is computed from with `.print(\"name\")`",
        At(source_line)
    )]
    NonFinite {
        /// The program's name.
        program: String,
        /// The operation or argument, and its type.
        what: String,
        /// The user's line of the operation.
        source_line: Option<shardax_core::Source>,
    },

    /// Host data of another length than the shape has.
    #[error("{actual} elements were given for {array}, which has {expected}")]
    ElementCount {
        /// Element type and dimensions.
        array: String,
        /// Elements of the shape.
        expected: usize,
        /// Elements given.
        actual: usize,
    },

    /// An array read as another element type than its own.
    #[error(
        "{array} cannot be read as {asked}; read it as {}, or convert it in the program with `.cast(...)`",
        array.split('[').next().unwrap_or(array)
    )]
    ReadType {
        /// Element type and dimensions.
        array: String,
        /// The type asked for.
        asked: shardax_core::DType,
    },

    /// An array of several elements read as one.
    #[error("{array} has not exactly one element; read it with `to_vec`")]
    NotOneElement {
        /// Element type and dimensions.
        array: String,
    },

    /// An array of a tree that could not be moved or read.
    #[error("{what}: {source}")]
    Leaf {
        /// Its path in the tree, and its type.
        what: String,
        /// What is wrong.
        source: Box<Error>,
    },

    /// A callback that was to give a block of an array, and failed or gave another number of elements.
    #[error("{what}: the callback for its block {block:?} failed: {source}")]
    BlockCallback {
        /// The array: its path in a tree where it has one, and its type.
        what: String,
        /// The part of the array that was asked for.
        block: Vec<std::ops::Range<usize>>,
        /// The callback's own error, or what is wrong with what it gave.
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    // ---- Reports on compiled programs ----
    /// Bytes that are no optimized HLO.
    #[error(
        "the compiled program's HLO cannot be decoded: {source}; give the bytes of an HloModuleProtoWithConfig \
         (PJRT format `hlo_with_config`)"
    )]
    HloDecode {
        /// What the decoder found.
        source: prost::DecodeError,
    },

    /// HLO that contradicts itself, or says something that this crate does not know.
    #[error(
        "the HLO of `{module}` cannot be read: {problem}; it is damaged, or from an XLA that this crate does not know"
    )]
    HloMalformed {
        /// Name of the HLO module.
        module: String,
        /// What is wrong, and in which instruction.
        problem: String,
    },

    /// A mesh for the report that is not the one the program was compiled for.
    #[error(
        "mesh {mesh} has {mesh_devices} devices, but `{module}` was compiled for {program_devices}; give the mesh of \
         the layout that it was compiled with"
    )]
    ReportMesh {
        /// Name of the HLO module.
        module: String,
        /// The mesh given.
        mesh: String,
        /// Its number of devices.
        mesh_devices: usize,
        /// Replicas times partitions of the program.
        program_devices: usize,
    },
}

/// The message: it is what a `main` that returns an error prints.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// One array whose spec does not fit it.
    pub(crate) fn misfit(what: String, faults: Vec<shardax_sharding::SpecFault>) -> Self {
        let fault = |fault| LayoutFault {
            what: what.clone(),
            source: None,
            fault,
        };
        Self::Layout {
            faults: faults.into_iter().map(fault).collect(),
        }
    }

    /// An [`Error::Io`].
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Io {
            doing,
            path: path.into(),
            source,
        }
    }
}

/// How to bring the pinned plugin by hand.
fn install_advice(package: &str) -> String {
    format!(
        "To bring it by hand, run\n  python3 -m pip install --no-deps {package}\n\
         or, for a machine without a network, run where there is one\n  \
         python3 -m pip download --no-deps --only-binary :all: {package}\n\
         copy the .whl file here, unzip it, and set SHARDAX_PLUGIN to the path of the .so file in it"
    )
}

fn paths(paths: &[PathBuf]) -> String {
    let shown: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    shown.join(", ")
}

/// An annotation that the layout cannot follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutFault {
    /// The argument, result or value that is annotated, with its type.
    pub what: String,
    /// The user's line, for a value that an operation makes.
    pub source: Option<shardax_core::Source>,
    /// What is wrong.
    pub fault: shardax_sharding::SpecFault,
}

impl fmt::Display for LayoutFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.fault)?;
        match self.source {
            Some(at) => write!(f, "\n    --> {}:{}:{}", at.file(), at.line(), at.column()),
            None => Ok(()),
        }
    }
}

/// Each fault on a line; after some only their number, since one mistake can concern every parameter.
fn each_on_a_line<T: fmt::Display>(faults: &[T]) -> String {
    const SHOWN: usize = 8;
    let shown = faults.iter().take(SHOWN);
    let mut text: String = shown.map(|fault| format!("\n  {fault}")).collect();
    if faults.len() > SHOWN {
        text.push_str(&format!("\n  and {} more", faults.len() - SHOWN));
    }
    text
}

/// Each fault on a line, those of one cause together: one rule that does not fit concerns many
/// parameters, and the optimizer state of each.
fn by_cause(faults: &[LayoutFault]) -> String {
    const SHOWN: usize = 6;
    let mut text = String::new();
    for (i, fault) in faults.iter().enumerate() {
        let same = |other: &&LayoutFault| fault.fault.has_cause_of(&other.fault);
        if faults[..i].iter().any(|other| same(&other)) {
            continue;
        }
        text.push_str(&format!("\n  {fault}"));
        let others: Vec<_> = faults[i + 1..].iter().filter(same).collect();
        for other in others.iter().take(SHOWN) {
            text.push_str(&format!("\n    and {}", other.what));
            if let Some(at) = other.source {
                text.push_str(&format!(" --> {}:{}:{}", at.file(), at.line(), at.column()));
            }
        }
        if let Some(more @ 1..) = others.len().checked_sub(SHOWN) {
            text.push_str(&format!("\n    and {more} more"));
        }
    }
    text
}

/// What is wrong with the arguments of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ArgumentFault {
    /// The number of arguments is not the program's.
    Count {
        /// Arguments that the program takes.
        expected: usize,
        /// Arguments given.
        actual: usize,
    },
    /// Element type or dimensions differ from what the program was compiled for.
    Type {
        /// Position of the argument.
        argument: usize,
        /// Position of the device in the executable's list.
        device: usize,
        /// Type of one shard, as compiled.
        expected: String,
        /// Type of the buffer given.
        actual: String,
    },
    /// The buffer lies on another device than the one it is an argument for.
    Device {
        /// Position of the argument.
        argument: usize,
        /// Device that the program expects, by its position in the client's list.
        expected: usize,
        /// Device that the buffer is on.
        actual: usize,
    },
    /// The buffer belongs to another client.
    Client {
        /// Position of the argument.
        argument: usize,
        /// Position of the device in the executable's list.
        device: usize,
    },
    /// The buffer was donated or deleted before.
    Deleted {
        /// Position of the argument.
        argument: usize,
        /// Position of the device in the executable's list.
        device: usize,
    },
    /// The buffer is to be donated, but is an argument a second time or is in use by another thread at this moment.
    DonatedInUse {
        /// Position of the argument.
        argument: usize,
        /// Position of the device in the executable's list.
        device: usize,
    },
    /// An index in `non_donatable_inputs` beyond the arguments.
    NonDonatableIndex {
        /// The index given.
        index: usize,
        /// Arguments that the program takes.
        arguments: usize,
    },
}

impl fmt::Display for ArgumentFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ArgumentFault::Count { expected, actual } => {
                write!(f, "it takes {expected} arguments, {actual} were given")
            }
            ArgumentFault::Type {
                argument,
                device,
                expected,
                actual,
            } => write!(
                f,
                "argument {argument} on device {device} must be {expected}, but is {actual}"
            ),
            ArgumentFault::Device {
                argument,
                expected,
                actual,
            } => write!(
                f,
                "argument {argument} must be on device {expected}, but is on device {actual}; copy it there first"
            ),
            ArgumentFault::Client { argument, device } => write!(
                f,
                "argument {argument} on device {device} belongs to another client; move it through host memory"
            ),
            ArgumentFault::Deleted { argument, device } => write!(
                f,
                "argument {argument} on device {device} was donated or deleted before and holds no data any more"
            ),
            ArgumentFault::DonatedInUse { argument, device } => write!(
                f,
                "argument {argument} on device {device} is donated, but the same buffer is also another argument or \
                 another thread uses it at this moment; pass a copy, or do not donate it"
            ),
            ArgumentFault::NonDonatableIndex { index, arguments } => write!(
                f,
                "non-donatable input {index} does not exist, there are {arguments} arguments"
            ),
        }
    }
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

/// What went wrong in a closure that a program called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the host function `{name}` called at {line} failed: {message}")]
pub struct HostFault {
    /// What the closure is called.
    pub name: String,
    /// The user's line of the call, `src/model.rs:12:5`.
    pub line: String,
    /// The closure's own message, or what is wrong with what it returned.
    pub message: String,
}

impl HostFault {
    /// Before, between and after the parts, in the plugin's message: control characters, which messages do not have.
    const MARKS: [char; 3] = ['\u{1}', '\u{2}', '\u{3}'];

    /// The fault as text for the plugin, which gives it back inside of a message of its own.
    pub(crate) fn encode(&self) -> String {
        let [start, middle, end] = Self::MARKS;
        let clean = |text: &str| text.replace(Self::MARKS, " ");
        let parts = [&self.name, &self.line, &self.message].map(|part| clean(part));
        format!(
            "host function {start}{}{end}",
            parts.join(&middle.to_string())
        )
    }

    /// The fault that a message of the plugin's carries.
    pub(crate) fn decode(message: &str) -> Option<Self> {
        let [start, middle, end] = Self::MARKS;
        let (_, text) = message.split_once(start)?;
        let (text, _) = text.split_once(end)?;
        let (name, text) = text.split_once(middle)?;
        let (line, message) = text.split_once(middle)?;
        Some(HostFault {
            name: name.to_owned(),
            line: line.to_owned(),
            message: message.to_owned(),
        })
    }
}

/// The user's line, on a line of its own.
struct At<'a>(&'a Option<shardax_core::Source>);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(at) => write!(f, "\n  --> {}:{}:{}", at.file(), at.line(), at.column()),
            None => Ok(()),
        }
    }
}

/// An error that a PJRT plugin reported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{function}: {code}: {message}")]
pub struct PjrtError {
    /// C name of the function that failed.
    pub function: &'static str,
    /// Kind of the error.
    pub code: ErrorCode,
    /// The plugin's own words.
    pub message: String,
}

/// The kind of a [`PjrtError`]: the canonical status codes that XLA shares with gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorCode {
    /// The operation was cancelled.
    Cancelled,
    /// An error of no known kind.
    Unknown,
    /// An argument was wrong whatever the state.
    InvalidArgument,
    /// A time limit passed.
    DeadlineExceeded,
    /// Something asked for does not exist.
    NotFound,
    /// Something to be made exists.
    AlreadyExists,
    /// The caller may not do this.
    PermissionDenied,
    /// Memory or another resource ran out.
    ResourceExhausted,
    /// The system is not in the state that the operation needs.
    FailedPrecondition,
    /// The operation was given up, for example for a conflict.
    Aborted,
    /// A position beyond the valid range.
    OutOfRange,
    /// The plugin does not have this feature.
    Unimplemented,
    /// A fault inside the plugin.
    Internal,
    /// A service is not there at the moment.
    Unavailable,
    /// Data is lost or corrupt.
    DataLoss,
    /// The caller is not known.
    Unauthenticated,
}

impl ErrorCode {
    /// The code for a number of the C API; a number without a name is [`ErrorCode::Unknown`].
    pub(crate) fn from_raw(code: u32) -> Self {
        match code {
            1 => ErrorCode::Cancelled,
            3 => ErrorCode::InvalidArgument,
            4 => ErrorCode::DeadlineExceeded,
            5 => ErrorCode::NotFound,
            6 => ErrorCode::AlreadyExists,
            7 => ErrorCode::PermissionDenied,
            8 => ErrorCode::ResourceExhausted,
            9 => ErrorCode::FailedPrecondition,
            10 => ErrorCode::Aborted,
            11 => ErrorCode::OutOfRange,
            12 => ErrorCode::Unimplemented,
            13 => ErrorCode::Internal,
            14 => ErrorCode::Unavailable,
            15 => ErrorCode::DataLoss,
            16 => ErrorCode::Unauthenticated,
            _ => ErrorCode::Unknown,
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorCode::Cancelled => "CANCELLED",
            ErrorCode::Unknown => "UNKNOWN",
            ErrorCode::InvalidArgument => "INVALID_ARGUMENT",
            ErrorCode::DeadlineExceeded => "DEADLINE_EXCEEDED",
            ErrorCode::NotFound => "NOT_FOUND",
            ErrorCode::AlreadyExists => "ALREADY_EXISTS",
            ErrorCode::PermissionDenied => "PERMISSION_DENIED",
            ErrorCode::ResourceExhausted => "RESOURCE_EXHAUSTED",
            ErrorCode::FailedPrecondition => "FAILED_PRECONDITION",
            ErrorCode::Aborted => "ABORTED",
            ErrorCode::OutOfRange => "OUT_OF_RANGE",
            ErrorCode::Unimplemented => "UNIMPLEMENTED",
            ErrorCode::Internal => "INTERNAL",
            ErrorCode::Unavailable => "UNAVAILABLE",
            ErrorCode::DataLoss => "DATA_LOSS",
            ErrorCode::Unauthenticated => "UNAUTHENTICATED",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_comes_back_from_the_message_of_a_plugin() {
        let fault = HostFault {
            name: "sort".to_owned(),
            line: "src/model.rs:12:5".to_owned(),
            message: "key `\u{e9}`: not found\n(of 3)".to_owned(),
        };
        let message = format!("INTERNAL: call failed: {} [device 3]", fault.encode());
        assert_eq!(HostFault::decode(&message), Some(fault));
        assert_eq!(HostFault::decode("INTERNAL: out of memory"), None);
    }

    #[test]
    fn marks_in_a_message_do_no_harm() {
        let fault = HostFault {
            name: "a\u{1}b".to_owned(),
            line: "c\u{2}d".to_owned(),
            message: "e\u{3}f".to_owned(),
        };
        let decoded = HostFault::decode(&fault.encode()).map(|f| (f.name, f.line, f.message));
        let expected = ["a b", "c d", "e f"].map(str::to_owned);
        assert_eq!(decoded, Some(expected.into()));
    }
}
