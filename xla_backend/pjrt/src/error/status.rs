//! Errors in the plugin's own words.

use std::fmt;

/// An error that a PJRT plugin reported.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
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
