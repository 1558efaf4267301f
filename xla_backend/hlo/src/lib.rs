//! Reading what XLA's compiler made of a program.
//!
//! A layout is a promise: this much communication over that mesh axis. XLA's partitioner and its passes decide what becomes
//! of it. So what is said of a compiled program is read from the optimized HLO, never from what was asked for.
//!
//! The path is bytes -> `proto` -> [`HloModule`] (checked, in a form that is easy to walk) -> a `walk` over its computations,
//! with loops multiplied by their `trip_count` and replica `groups` turned into mesh axes -> [`CollectiveReport`], which
//! `table` prints. `dataflow` tells where a value comes from and what becomes of it, and `parts` what that says of the arrays
//! that a collective moves; [`words`] how all of these are called.

#![forbid(unsafe_code)]

mod collectives;
mod dataflow;
mod error;
mod groups;
mod kind;
mod module;
mod parts;
mod proto;
mod shape;
mod table;
mod text;
mod trip_count;
mod walk;
pub mod words;

pub use collectives::{Branch, Collective, CollectiveReport, Loop, Part, Pass, Total};
pub use error::{Error, Result};
pub use kind::CollectiveKind;
pub use module::{Computation, HloModule, Instruction, SourceLine};
pub use shape::{ArrayShape, Element, Shape};
pub use table::{SMALL, small_line};
pub use words::human_bytes;

#[cfg(test)]
mod tests {
    //! Compiled programs for the tests of this folder; `fixtures/generate.py` wrote them.

    use prost::Message;
    use shardax_sharding::Mesh;

    use super::proto::ModuleWithConfig;
    use super::{Collective, CollectiveKind, CollectiveReport, HloModule};

    /// Three scanned layers trained with data=8.
    pub(super) const DDP: &[u8] = include_bytes!("fixtures/ddp.hlo.pb");
    /// The same with data=2, model=4.
    pub(super) const MEGATRON: &[u8] = include_bytes!("fixtures/megatron.hlo.pb");
    /// Each kind of collective once, some in loops and branches, with data=2, model=4.
    pub(super) const KINDS: &[u8] = include_bytes!("fixtures/kinds.hlo.pb");

    pub(super) fn decode_proto(bytes: &[u8]) -> ModuleWithConfig {
        ModuleWithConfig::decode(bytes).unwrap()
    }

    pub(super) fn mesh(text: &str) -> Mesh {
        text.parse().unwrap()
    }

    pub(super) fn report(bytes: &[u8], over: &str) -> CollectiveReport {
        CollectiveReport::new(&HloModule::decode(bytes).unwrap(), &mesh(over)).unwrap()
    }

    /// Kind, axes, times, bytes of one execution.
    pub(super) fn summary(report: &CollectiveReport) -> Vec<(CollectiveKind, String, u64, u64)> {
        let axes = |c: &Collective| c.axes.as_ref().unwrap().join(" ");
        report
            .collectives
            .iter()
            .map(|c| (c.kind, axes(c), c.times, c.payload_bytes))
            .collect()
    }
}
