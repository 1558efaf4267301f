//! What is wrong with one annotation of several.

use std::fmt;

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
