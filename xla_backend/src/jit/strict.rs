//! Warnings that the user has made errors.

use super::program::Program;
use crate::error::{Error, Result};
use crate::report::WarningKind;

/// An error if the program's report has warnings of these kinds.
pub(super) fn check(program: &Program, kinds: &[WarningKind]) -> Result<()> {
    if kinds.is_empty() {
        return Ok(());
    }
    let report = program.report()?;
    let warnings: Vec<_> = report.warnings_of(kinds).cloned().collect();
    if warnings.is_empty() {
        return Ok(());
    }
    Err(Error::Strict {
        program: program.name().to_owned(),
        warnings,
    })
}
