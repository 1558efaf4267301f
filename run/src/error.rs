//! What can go wrong around a training run: its files.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// What the fallible functions of this crate return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the data or the log of a training run.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder of training text could not be read.
    #[error("cannot read the text at {}: {source}", path.display())]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// A file that was named as training text is something else.
    #[error(
        "{} is no text: it is not valid UTF-8, or contains a zero byte; give a text file, or a \
         folder, of which other files are left out",
        path.display()
    )]
    NotText {
        /// The file.
        path: PathBuf,
    },

    /// There is less text than one window for training and one for validation take.
    #[error(
        "the text at {} is too short: it has {found} bytes and at least {needed} are needed for \
         windows of {window} tokens; give more text or a shorter context",
        path.display()
    )]
    TooShort {
        /// The file or folder.
        path: PathBuf,
        /// Bytes of text there.
        found: usize,
        /// Bytes needed.
        needed: usize,
        /// Tokens of one window.
        window: usize,
    },

    /// The log file could not be created or written.
    #[error("cannot write the log {}: {source}", path.display())]
    Log {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// The message: it is what a `main` that returns an error prints.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
