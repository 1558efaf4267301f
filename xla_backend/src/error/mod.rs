//! Everything that can go wrong between a traced program and its results, as one enum in sections.

mod message;

use message::{At, Place, by_cause, each_on_a_line};

use shardax_hlo::Error as HloError;
use shardax_pjrt::Error as RuntimeError;

use crate::lower::LayoutFault;
use crate::report::Warning;

/// What the fallible functions of this crate return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the XLA backend.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // ---- The runtime ----
    /// A plugin that cannot be had, or what it or the runtime refuses.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),

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
    #[error("cannot call `{program}`:{}{}", each_on_a_line(.faults), At(source_line))]
    Call {
        /// The program's name.
        program: String,
        /// Every fault found.
        faults: Vec<String>,
        /// The user's line of the call, where that is known.
        source_line: Option<shardax_core::Source>,
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

    /// A program that XLA's compiler refuses.
    #[error(
        "`{program}` is refused by XLA's compiler{}\n  in its words: {said}",
        Place(at)
    )]
    Refused {
        /// The program's name.
        program: String,
        /// The user's line that it is about, where the compiler tells.
        at: Option<String>,
        /// What it said.
        said: String,
    },

    // ---- Compilation without devices ----
    /// A program that does not fit the cluster it is to be compiled for; nothing was compiled.
    #[error("`{program}` cannot be compiled for {cluster}:{}", each_on_a_line(.faults))]
    AheadUnfit {
        /// The program's name.
        program: String,
        /// The cluster.
        cluster: String,
        /// Every fault found.
        faults: Vec<String>,
    },

    /// A program that the compiler gave no result for.
    #[error("`{program}` could not be compiled for {cluster}: {fault}")]
    Ahead {
        /// The program's name.
        program: String,
        /// The cluster.
        cluster: String,
        /// What happened.
        fault: shardax_pjrt::AheadFault,
    },

    // ---- Reports on compiled programs ----
    /// Warnings of the kinds that [`Jit::strict`](crate::Jit::strict) makes errors.
    #[error("`{program}` is compiled strictly, and has warnings:{}", each_on_a_line(.warnings))]
    Strict {
        /// The program's name.
        program: String,
        /// All that were found.
        warnings: Vec<Warning>,
    },

    /// A compiled program that cannot be read.
    #[error(transparent)]
    Hlo(#[from] HloError),
}

shardax_sharding::debug_is_the_message!(Error);

impl From<Vec<LayoutFault>> for Error {
    fn from(faults: Vec<LayoutFault>) -> Self {
        Error::Layout { faults }
    }
}

impl Error {
    /// With the user's line of the call that it is an error of.
    pub(crate) fn called_at(mut self, source: shardax_core::Source) -> Self {
        if let Error::Call { source_line, .. } = &mut self {
            source_line.get_or_insert(source);
        }
        self
    }

    /// What the compiler said of a program, with the user's line: before the error, where the program is read, and later
    /// under a heading, for XLA takes every source for one of Python.
    pub(crate) fn of_compiling(program: &str, error: Error) -> Self {
        const HEADING: &str = "Suspected Python Code Location:";
        let Error::Runtime(RuntimeError::Pjrt(error)) = error else {
            return error;
        };
        let headed = error.message.split_once(HEADING);
        let said = headed.map_or(error.message.as_str(), |(said, _)| said);
        let under = headed.and_then(|(_, places)| places.split_whitespace().next());
        let before = said
            .lines()
            .find_map(|line| line.split_once(": error: "))
            .map(|(at, _)| at)
            .filter(|at| !at.starts_with('<'));
        Error::Refused {
            program: program.to_owned(),
            at: under.or(before).map(str::to_owned),
            said: format!("{}: {}", error.code, said.trim()),
        }
    }

    /// One array whose spec does not fit it.
    pub(crate) fn misfit(what: String, faults: Vec<shardax_sharding::SpecFault>) -> Self {
        let fault = |fault| LayoutFault {
            what: what.clone(),
            source: None,
            fault,
            help: None,
        };
        Self::Layout {
            faults: faults.into_iter().map(fault).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use shardax_pjrt::{ErrorCode, PjrtError};

    use super::*;

    fn refused(message: &str) -> String {
        let error = PjrtError {
            function: "PJRT_Client_Compile",
            code: ErrorCode::InvalidArgument,
            message: message.to_owned(),
        };
        Error::of_compiling("step", RuntimeError::from(error).into()).to_string()
    }

    #[test]
    fn the_compilers_words_stand_below_the_users_line() {
        let read =
            "src/main.rs:17:16: error: types differ\nsrc/main.rs:17:16: note: see operation\n";
        assert_eq!(
            refused(read),
            "`step` is refused by XLA's compiler\n  --> src/main.rs:17:16\n  in its words: INVALID_ARGUMENT: \
             src/main.rs:17:16: error: types differ\nsrc/main.rs:17:16: note: see operation"
        );
        let compiled =
            "No kernel\n\nSuspected Python Code Location:\nsrc/main.rs:17:16\nsrc/main.rs:3:1";
        assert_eq!(
            refused(compiled),
            "`step` is refused by XLA's compiler\n  --> src/main.rs:17:16\n  in its words: INVALID_ARGUMENT: No kernel"
        );
        assert_eq!(
            refused("<unknown>:0: error: no module"),
            "`step` is refused by XLA's compiler\n  in its words: INVALID_ARGUMENT: <unknown>:0: error: no module"
        );
        let other = RuntimeError::NoCacheDir {
            package: "plugin==1".to_owned(),
        };
        let text = other.to_string();
        assert_eq!(Error::of_compiling("step", other.into()).to_string(), text);
    }
}
