//! What a program is: its equations, its operations and their parameters, and what is known of them.
//!
//! A model needs none of this. It is for those who read or write programs: a lowering, a report, a planner, a test of what was
//! traced. `docs/core.md` walks through a small one.

pub use crate::blocks::block_count;
pub use crate::catalogue::{OpInfo, Rule, catalogue};
pub use crate::expand::{cumulative_in_blocks, scatter_of_two, shift_by_padding};
pub use crate::graph::{Equation, Graph, Scope, ValueId, Values};
pub use crate::op::{
    Binary, Collective, CollectiveOp, Combine, Comparison, Cond, Constraint, Conv, ConvLayout,
    Cumulative, Custom, CustomLinear, CustomRule, Dims, DotDims, Fft, FftKind, Foreign, GatherDims,
    HostClosure, HostFunction, Manual, ManualAxis, Memory, Name, Op, Policy, Reducer, Remat, Scan,
    Sort, Target, TriangularSolve, Unary, While, Window,
};
pub use crate::rules::split;
pub use crate::trace::BACKWARD;
