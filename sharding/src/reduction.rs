//! In which element type values are summed across devices.
//!
//! Where a contracted dimension is split, each device has a partial sum, and the partitioner adds an all-reduce or a
//! reduce-scatter. XLA adds in the element type of the product. In bf16 that rounds once a device: half the bytes, and
//! an error that grows with the number of devices. Gradients, which are added up further, are worth the bytes;
//! activations mostly are not.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, RuleConflict};

/// The element type in which sums over devices are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReductionType {
    /// That of the value that is summed.
    Own,
    /// f32 for bf16, f16 and eight-bit floats; the sum is rounded to their own type once. Wider values keep theirs.
    F32,
}

impl fmt::Display for ReductionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ReductionType::Own => "own",
            ReductionType::F32 => "f32",
        })
    }
}

/// Parses `own` or `f32`.
impl FromStr for ReductionType {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "own" => Ok(ReductionType::Own),
            "f32" => Ok(ReductionType::F32),
            _ => Err(Error::UnknownName {
                what: "type of reductions",
                name: text.to_owned(),
                known: &["own", "f32"],
            }),
        }
    }
}

/// What is summed across devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Summed {
    Gradients,
    Activations,
}

impl Summed {
    pub(crate) const ALL: [Summed; 2] = [Summed::Gradients, Summed::Activations];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Summed::Gradients => "gradients",
            Summed::Activations => "activations",
        }
    }
}

/// What a layout says of the types of reductions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Reductions {
    gradients: Option<ReductionType>,
    activations: Option<ReductionType>,
}

impl Reductions {
    pub(crate) fn said(&self, of: Summed) -> Option<ReductionType> {
        match of {
            Summed::Gradients => self.gradients,
            Summed::Activations => self.activations,
        }
    }

    pub(crate) fn say(&mut self, of: Summed, ty: ReductionType) {
        match of {
            Summed::Gradients => self.gradients = Some(ty),
            Summed::Activations => self.activations = Some(ty),
        }
    }

    /// Puts together what two layouts say.
    pub(crate) fn merge(&mut self, other: &Self) -> Vec<RuleConflict> {
        let mut conflicts = Vec::new();
        for of in Summed::ALL {
            match (self.said(of), other.said(of)) {
                (None, Some(ty)) => self.say(of, ty),
                (Some(own), Some(others)) if own != others => conflicts.push(RuleConflict {
                    rule: format!("the type in which {} are reduced", of.name()),
                    axes: [own.to_string(), others.to_string()],
                }),
                _ => {}
            }
        }
        conflicts
    }
}
