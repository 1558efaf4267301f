//! What can be wrong with a program, found while it is traced.
//!
//! Model code has no `?`: a mistake unwinds from the operation to the enclosing [`trace`](crate::trace)
//! (or `jit`), which returns it as an [`Error`]. Each one names the user's own file and line.

use std::fmt;
use std::panic::Location;

use shardax_sharding::debug_is_the_message;

/// Where in the user's source an operation was written.
pub type Source = &'static Location<'static>;

/// A mistake in a traced program.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind}\n  --> {}:{}:{}{}", source_line.file(), source_line.line(), source_line.column(), Help(help))]
pub struct Error {
    /// What is wrong.
    pub kind: ErrorKind,
    /// The user's line on which it is wrong.
    pub source_line: Source,
    /// What to do about it.
    pub help: Option<String>,
}

debug_is_the_message!(Error, ErrorKind);

/// The kinds of mistakes that tracing finds.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum ErrorKind {
    /// Shapes do not fit the operation.
    #[error("`{op}`: {problem}")]
    Shape {
        /// The operation, as the user called it.
        op: &'static str,
        /// The shapes, dimensions and sizes that do not fit.
        problem: String,
    },
    /// Element types do not fit the operation.
    #[error("`{op}`: {problem}")]
    DType {
        /// The operation, as the user called it.
        op: &'static str,
        /// The element types that do not fit.
        problem: String,
    },
    /// An argument is wrong in another way: out of its range, or not like another one.
    #[error("`{op}`: {problem}")]
    Argument {
        /// The operation, as the user called it.
        op: &'static str,
        /// The argument, its value and its range.
        problem: String,
    },
    /// A tensor was used outside of the function that was traced with it.
    #[error("`{op}`: a tensor of another trace is used, one that has ended or is around this one")]
    Escaped {
        /// The operation, as the user called it.
        op: &'static str,
    },
    /// A tensor was made where nothing is traced.
    #[error("`{op}`: there is no program to add to outside of a traced function")]
    Outside {
        /// The operation, as the user called it.
        op: &'static str,
    },
    /// A function calls itself, and does not come to an end.
    #[error("`{op}`: {problem}")]
    Recursion {
        /// The operation, as the user called it.
        op: &'static str,
        /// How deep it is.
        problem: String,
    },
    /// A derivative was asked for that does not exist.
    #[error("`{op}`: {problem}")]
    Derivative {
        /// The operation, as the user called it.
        op: &'static str,
        /// Why there is none.
        problem: String,
    },
}

impl ErrorKind {
    /// The same mistake, made by a method that is written with the operation.
    pub(crate) fn of_method(mut self, method: &'static str) -> Self {
        match &mut self {
            ErrorKind::Shape { op, .. }
            | ErrorKind::DType { op, .. }
            | ErrorKind::Argument { op, .. }
            | ErrorKind::Escaped { op }
            | ErrorKind::Outside { op }
            | ErrorKind::Recursion { op, .. }
            | ErrorKind::Derivative { op, .. } => *op = method,
        }
        self
    }
}

struct Help<'a>(&'a Option<String>);

impl fmt::Display for Help<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(help) => write!(f, "\n  help: {help}"),
            None => Ok(()),
        }
    }
}

/// The result of tracing.
pub type Result<T, E = Error> = std::result::Result<T, E>;
