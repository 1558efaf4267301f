//! What a compiled program does, by the compiler's own word, and why.
//!
//! `shardax-hlo` reads the program: every collective, its bytes, its mesh axes. What is added here is what the traced program
//! knows: which parameter, gradient or activation a collective moves, for which line of the user's, why it must, and what is
//! probably not meant. A report is printed for a terminal, as JSON and as a page.

mod attribution;
mod explain;
mod memory;
mod page;
mod split;
mod subject;
mod summary;
mod terminal;
mod warning;
mod why;

pub use memory::{HostMemory, MemoryReport};
pub use shardax_hlo::{
    ArrayShape, Branch, Collective, CollectiveKind, CollectiveReport, Computation, Element,
    HloModule, Instruction, Loop, Pass, Shape, SourceLine, Total, human_bytes,
};
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
    //! Compiled programs for the tests of this folder; `fixtures/generate.py` of `shardax-hlo` wrote them.

    use shardax_sharding::Mesh;

    /// Three scanned layers trained with data=2, model=4.
    pub(super) const MEGATRON: &[u8] = include_bytes!("../../hlo/src/fixtures/megatron.hlo.pb");
    /// Each kind of collective once, some in loops and branches, with data=2, model=4.
    pub(super) const KINDS: &[u8] = include_bytes!("../../hlo/src/fixtures/kinds.hlo.pb");

    pub(super) fn mesh(text: &str) -> Mesh {
        text.parse().unwrap()
    }

    #[test]
    fn compiled_programs_call_the_backward_pass_as_the_tracer_does() {
        assert_eq!(shardax_hlo::words::BACKWARD, shardax_core::ir::BACKWARD);
    }
}
