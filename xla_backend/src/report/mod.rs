//! What a compiled program does, by the compiler's own word.
//!
//! A layout is a promise: this much communication over that mesh axis, this much memory on a device.
//! XLA's partitioner and its passes decide what becomes of it. So the reports here are read from the
//! optimized HLO and the buffer assignment of the program that will run, never from what was asked for:
//! [`CollectiveReport`] counts the communication of one launch, [`MemoryReport`] the memory.
//!
//! The path is bytes -> `proto` -> [`HloModule`] (checked) -> walk over its computations, with loops
//! multiplied by their `trip_count` and replica groups turned into device `groups` and mesh axes.

mod attribution;
mod collectives;
mod cost;
mod dataflow;
mod explain;
mod groups;
mod hlo;
mod memory;
mod order;
mod page;
mod parts;
mod proto;
mod shape;
mod split;
mod subject;
mod summary;
mod table;
mod terminal;
mod text;
mod trip_count;
mod walk;
mod warning;
mod why;

pub use collectives::{Branch, Collective, CollectiveReport, Loop, Pass, Total};
pub use cost::CollectiveKind;
pub use hlo::{Computation, HloModule, Instruction, SourceLine};
pub use memory::{HostMemory, MemoryReport, human_bytes};
pub use shape::{ArrayShape, Element, Shape};
pub use split::{DimSplit, Partial, Split};
pub use subject::{ArgumentRole, Placed, Subject, TracedFrom};
pub(crate) use summary::set_place;
pub use summary::{
    AxesTotal, AxisSize, ExplainedCollective, KindTotal, REPORT_VERSION, Report, ReportOptions,
    ReportedArgument, RoleBytes, Sum,
};
pub use warning::{Warning, WarningKind};
pub use why::{Cause, MovedTensor, TensorRole, Why};

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
