//! Standard output, which may be closed before all is written: `shardax layouts | head` is no fault.

use std::error::Error;
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

/// Writes a line.
pub(crate) fn line(text: impl Display) -> io::Result<()> {
    writeln!(io::stdout(), "{text}")
}

/// Writes a text that has its own ends of lines.
pub(crate) fn text(text: impl Display) -> io::Result<()> {
    write!(io::stdout(), "{text}")
}

/// Says what went wrong, unless it is that nobody reads the output any more.
pub(crate) fn failed(error: &(dyn Error + 'static)) -> ExitCode {
    let io = error.downcast_ref::<io::Error>();
    if io.is_none_or(|error| error.kind() != io::ErrorKind::BrokenPipe) {
        // Nobody may be there to read this either.
        let _ = writeln!(io::stderr(), "error: {error}");
    }
    ExitCode::FAILURE
}
