//! Parts that messages of several errors have in common.

use std::fmt;

use crate::lower::LayoutFault;

/// Each fault on a line; after some only their number, since one mistake can concern every parameter.
pub(super) fn each_on_a_line<T: fmt::Display>(faults: &[T]) -> String {
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
pub(super) fn by_cause(faults: &[LayoutFault]) -> String {
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

/// The user's line, on a line of its own.
pub(super) struct At<'a>(pub(super) &'a Option<shardax_core::Source>);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(at) => write!(f, "\n  --> {}:{}:{}", at.file(), at.line(), at.column()),
            None => Ok(()),
        }
    }
}

/// A line of the user's that the compiler told, on a line of its own.
pub(super) struct Place<'a>(pub(super) &'a Option<String>);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(at) => write!(f, "\n  --> {at}"),
            None => Ok(()),
        }
    }
}
