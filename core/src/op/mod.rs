//! The primitives: what one equation of a graph can do.
//!
//! They are kept at the level of StableHLO; everything else (softmax, layer norm, einsum) is a
//! function over them. Every primitive has its rules in parallel places, found by its name:
//! shapes in `rules/shape.rs`, derivative in `rules/jvp.rs` and `rules/transpose.rs`, lowering in
//! the backend. The matches there have no catch-all arm, so a new variant does not compile before
//! it has them all.

mod elementwise;
mod manual;
mod parameters;
mod regions;

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::dtype::DType;
use crate::graph::Graph;
use crate::literal::Literal;
use crate::types::{Shape, TensorType};

pub use elementwise::{Binary, Combine, Comparison, Reducer, Unary};
pub use manual::{Collective, CollectiveOp, Manual, ManualAxis};
pub use parameters::{
    Constraint, Conv, ConvLayout, Cumulative, DotDims, Fft, FftKind, GatherDims, Memory, Name,
    Sort, TriangularSolve, Window,
};
pub use regions::{
    Cond, Custom, CustomLinear, CustomRule, Foreign, HostClosure, HostFunction, Policy, Remat,
    Scan, Target, While,
};

/// Dimension numbers.
pub type Dims = SmallVec<[usize; 4]>;

/// What an equation computes.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// A value written in the program.
    Constant(Literal),
    /// Counts along `dimension`.
    Iota {
        /// Type of the result.
        ty: TensorType,
        /// The dimension along which it counts from 0.
        dimension: usize,
    },
    /// One operand, element by element.
    Unary(Unary),
    /// Two operands of one type, element by element.
    Binary(Binary),
    /// Compares two operands of one type; the result is boolean.
    Compare(Comparison),
    /// `predicate, on_true, on_false`, element by element.
    Select,
    /// Converts the element type.
    Convert(DType),
    /// Reinterprets the bits of each element as another type of as many bits.
    BitcastConvert(DType),
    /// Operand dimension `i` becomes result dimension `dims[i]`; others repeat.
    Broadcast {
        /// Shape of the result.
        shape: Shape,
        /// Ascending result dimensions of the operand's dimensions.
        dims: Dims,
    },
    /// The same elements in row-major order under another shape.
    Reshape(Shape),
    /// Result dimension `i` is operand dimension `permutation[i]`.
    Transpose(Dims),
    /// A strided window with fixed bounds.
    Slice {
        /// First index by dimension.
        starts: Dims,
        /// One past the last index by dimension.
        limits: Dims,
        /// Step by dimension.
        strides: Dims,
    },
    /// `operand, value`: puts `value` around and between elements.
    Pad {
        /// Elements before each dimension.
        low: Dims,
        /// Elements after each dimension.
        high: Dims,
        /// Elements between neighbors.
        interior: Dims,
    },
    /// Joins operands along a dimension.
    Concatenate(usize),
    /// Reverses the order along dimensions.
    Reverse(Dims),
    /// Reduces over `dims`, which disappear.
    Reduce(Reducer, Dims),
    /// `lhs, rhs`: multiplies and sums over the contracted dimensions. Result dimensions: batch,
    /// free ones of lhs, free ones of rhs.
    DotGeneral(Box<DotDims>),
    /// `operand, start_0, start_1, ...`: a window of these sizes; starts are clamped.
    DynamicSlice(Dims),
    /// `operand, update, start_0, ...`: replaces a window; starts are clamped.
    DynamicUpdateSlice,
    /// `operand, indices`: windows of the operand that index vectors name. A window that would begin
    /// outside is moved so that it fits.
    Gather {
        /// Which dimensions are what.
        dims: Box<GatherDims>,
        /// Size of a window, by dimension of the operand.
        sizes: Dims,
    },
    /// `operand, indices, updates`: the operand with windows combined with updates. A window that is
    /// not wholly inside is left out; an index that occurs twice counts twice, and of two that set the
    /// same element one wins.
    Scatter {
        /// Which dimensions are what; `offset` ones are the updates'.
        dims: Box<GatherDims>,
        /// What is done with an element and its update.
        combine: Combine,
    },
    /// `operand, kernel`
    Conv(Box<Conv>),
    /// Reduces windows over all dimensions.
    ReduceWindow(Reducer, Box<Window>),
    /// Reduces what comes before each element along a dimension, itself included.
    Cumulative(Cumulative),
    /// Puts elements in order along a dimension.
    Sort(Sort),
    /// The lower triangle `l` of symmetric matrices `l l^T`, whose lower triangles are read.
    Cholesky,
    /// `a, b`: the solution of triangular systems.
    TriangularSolve(TriangularSolve),
    /// Discrete Fourier transform.
    Fft(Fft),
    /// Rounds to fewer exponent and mantissa bits, in the same element type.
    ReducePrecision {
        /// Bits of the exponent.
        exponent: u32,
        /// Bits of the mantissa.
        mantissa: u32,
    },
    /// States how a value lies on the mesh; the value is unchanged.
    Shard(Box<Constraint>),
    /// The operands unchanged; the compiler does not move computation across it.
    OptimizationBarrier,
    /// The operand, without a derivative. To ask for one is an error where the operand is the parameter of
    /// a draw, of which this is the name.
    StopGradient(Option<&'static str>),
    /// The operand; a policy of rematerialization and a layout know it by this name.
    Name(Name),
    /// The operand, in another memory.
    Place(Memory),
    /// A loop with a fixed number of iterations.
    Scan(Scan),
    /// A choice.
    Cond(Cond),
    /// A loop with a condition.
    While(While),
    /// `body(operands)`, recomputed where its derivative needs its values.
    Remat(Remat),
    /// A function with a derivative of its own.
    Custom(Box<Custom>),
    /// The derivative of such a function, of which the transpose is known.
    CustomLinear(CustomLinear),
    /// A call of what is not a part of the program.
    Foreign(Foreign),
    /// A function that every device computes for itself.
    Manual(Manual),
    /// What devices tell each other in such a function.
    Collective(Collective),
    /// A tangent with respect to which a linear program is transposed. Exists only between
    /// linearization and transposition.
    Tangent(TensorType),
}

impl Op {
    /// The name that is printed in a graph.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Constant(_) => "constant",
            Op::Iota { .. } => "iota",
            Op::Unary(op) => op.name(),
            Op::Binary(op) => op.name(),
            Op::Compare(op) => op.name(),
            Op::Select => "select",
            Op::Convert(_) => "convert",
            Op::BitcastConvert(_) => "bitcast_convert",
            Op::Broadcast { .. } => "broadcast",
            Op::Reshape(_) => "reshape",
            Op::Transpose(_) => "transpose",
            Op::Slice { .. } => "slice",
            Op::Pad { .. } => "pad",
            Op::Concatenate(_) => "concatenate",
            Op::Reverse(_) => "reverse",
            Op::Reduce(reducer, _) => reducer.reduce_name(),
            Op::DotGeneral(_) => "dot_general",
            Op::DynamicSlice(_) => "dynamic_slice",
            Op::DynamicUpdateSlice => "dynamic_update_slice",
            Op::Gather { .. } => "gather",
            Op::Scatter { combine, .. } => combine.name(),
            Op::Conv(_) => "conv",
            Op::ReduceWindow(reducer, _) => reducer.window_name(),
            Op::Cumulative(cumulative) => cumulative.reducer.cumulative_name(),
            Op::Sort(_) => "sort",
            Op::Cholesky => "cholesky",
            Op::TriangularSolve(_) => "triangular_solve",
            Op::Fft(_) => "fft",
            Op::ReducePrecision { .. } => "reduce_precision",
            Op::Shard(_) => "shard",
            Op::OptimizationBarrier => "optimization_barrier",
            Op::StopGradient(_) => "stop_gradient",
            Op::Name(_) => "name",
            Op::Place(_) => "place",
            Op::Scan(_) => "scan",
            Op::Cond(_) => "cond",
            Op::While(_) => "while",
            Op::Remat(_) => "remat",
            Op::Custom(custom) => match custom.rule {
                CustomRule::Untraced(name) => name,
                CustomRule::Jvp(_) => "custom_jvp",
                CustomRule::Vjp { .. } => "custom_vjp",
            },
            Op::CustomLinear(_) => "custom_linear",
            Op::Foreign(_) => "foreign",
            Op::Manual(_) => "manual",
            Op::Collective(collective) => collective.kind.name(),
            Op::Tangent(_) => "tangent",
        }
    }

    /// The graphs inside the operation that are computed by it, and what each is called.
    pub fn regions(&self) -> SmallVec<[(&'static str, &Arc<Graph>); 2]> {
        match self {
            Op::Scan(scan) => smallvec![("body", &scan.body)],
            Op::Remat(remat) => smallvec![("body", &remat.body)],
            Op::Manual(manual) => smallvec![("body", &manual.body)],
            Op::Custom(custom) => smallvec![("body", &custom.body)],
            Op::Cond(cond) => cond.branches.iter().map(|b| ("branch", b)).collect(),
            Op::While(looped) => smallvec![("cond", &looped.cond), ("body", &looped.body)],
            Op::Constant(_)
            | Op::Iota { .. }
            | Op::Unary(_)
            | Op::Binary(_)
            | Op::Compare(_)
            | Op::Select
            | Op::Convert(_)
            | Op::BitcastConvert(_)
            | Op::Broadcast { .. }
            | Op::Reshape(_)
            | Op::Transpose(_)
            | Op::Slice { .. }
            | Op::Pad { .. }
            | Op::Concatenate(_)
            | Op::Reverse(_)
            | Op::Reduce(..)
            | Op::DotGeneral(_)
            | Op::DynamicSlice(_)
            | Op::DynamicUpdateSlice
            | Op::Gather { .. }
            | Op::Scatter { .. }
            | Op::Conv(_)
            | Op::ReduceWindow(..)
            | Op::Cumulative(_)
            | Op::Sort(_)
            | Op::Cholesky
            | Op::TriangularSolve(_)
            | Op::Fft(_)
            | Op::ReducePrecision { .. }
            | Op::Shard(_)
            | Op::OptimizationBarrier
            | Op::StopGradient(_)
            | Op::Name(_)
            | Op::Place(_)
            | Op::CustomLinear(_)
            | Op::Foreign(_)
            | Op::Collective(_)
            | Op::Tangent(_) => SmallVec::new(),
        }
    }

    /// Whether it does something beside computing results, so that it stays without readers and
    /// keeps its place among others like it.
    pub fn has_effect(&self) -> bool {
        match self {
            Op::Foreign(foreign) => foreign.effect,
            _ => self.regions().iter().any(|(_, graph)| graph.has_effect()),
        }
    }
}
