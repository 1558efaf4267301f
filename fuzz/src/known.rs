//! Faults that are known and not yet mended: the list is to become empty.

use crate::check::{Failure, traced};
use crate::program::Program;

/// A kind of fault.
struct Known {
    name: &'static str,
    /// Whether a failure is of it.
    is: fn(&Program, &Failure) -> bool,
}

const KNOWN: &[Known] = &[Known {
    name: "GSPMD merges constants of XLA's special functions in a region with those outside, and aborts",
    is: |program, failure| {
        program.place.gspmd
            && failure.message.contains("!IsManualLeaf()")
            && uses(program, &["manual"])
    },
}];

/// The name of the kind that a failure is of.
pub fn known(program: &Program, failure: &Failure) -> Option<&'static str> {
    let found = KNOWN.iter().find(|known| (known.is)(program, failure));
    found.map(|known| known.name)
}

/// Whether the program has an operation whose name contains one of these.
fn uses(program: &Program, names: &[&str]) -> bool {
    let graph = traced(program).ok().and_then(Result::ok);
    let text = graph.map(|graph| graph.to_string()).unwrap_or_default();
    names.iter().any(|name| text.contains(name))
}
