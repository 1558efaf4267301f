//! The primitives: what one equation of a graph can do.
//!
//! They are kept at the level of StableHLO; everything else (softmax, layer norm, einsum) is a
//! function over them. Every primitive has its rules in parallel places, found by its name:
//! shapes in `rules/shape.rs`, derivative in `rules/jvp.rs` and `rules/transpose.rs`, lowering in
//! the backend. The matches there have no catch-all arm, so a new variant does not compile before
//! it has them all.

use std::sync::Arc;

use shardax_sharding::{Dim, Role};
use smallvec::SmallVec;

use crate::dtype::DType;
use crate::graph::Graph;
use crate::literal::Literal;
use crate::types::{Shape, TensorType};

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
    DotGeneral(DotDims),
    /// `operand, start_0, start_1, ...`: a window of these sizes; starts are clamped.
    DynamicSlice(Dims),
    /// `operand, update, start_0, ...`: replaces a window; starts are clamped.
    DynamicUpdateSlice,
    /// `operand, indices`: rows of the operand along one axis, by index.
    Take {
        /// The operand dimension that `indices` index.
        axis: usize,
    },
    /// `operand, indices, updates`: adds updates to the rows of `operand` along one axis that
    /// the indices name; the transpose of [`Op::Take`].
    ScatterAdd {
        /// The operand dimension that `indices` index.
        axis: usize,
    },
    /// `operand, indices` with all dimensions but `axis` in common: one element per index.
    TakeAlong {
        /// The dimension that `indices` index.
        axis: usize,
    },
    /// `operand, indices, updates`: adds one element per index; the transpose of
    /// [`Op::TakeAlong`].
    ScatterAddAlong {
        /// The dimension that `indices` index.
        axis: usize,
    },
    /// States how a value lies on the mesh; the value is unchanged.
    Shard(Constraint),
    /// The operands unchanged; the compiler does not move computation across it.
    OptimizationBarrier,
    /// The operand, without a derivative.
    StopGradient,
    /// A loop with a fixed number of iterations.
    Scan(Scan),
    /// `body(operands)`, recomputed where its derivative needs its values.
    Remat(Remat),
    /// A tangent with respect to which a linear program is transposed. Exists only between
    /// linearization and transposition.
    Tangent(TensorType),
}

/// Element-wise functions of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unary {
    /// Absolute value.
    Abs,
    /// Cosine.
    Cos,
    /// Error function.
    Erf,
    /// e^x.
    Exp,
    /// e^x - 1, accurate near 0.
    Expm1,
    /// Largest integer not above.
    Floor,
    /// Natural logarithm.
    Log,
    /// log(1 + x), accurate near 0.
    Log1p,
    /// 1 / (1 + e^-x).
    Logistic,
    /// Negation.
    Neg,
    /// Logical or bitwise complement.
    Not,
    /// 1 / sqrt(x).
    Rsqrt,
    /// -1, 0 or 1.
    Sign,
    /// Sine.
    Sin,
    /// Square root.
    Sqrt,
    /// Hyperbolic tangent.
    Tanh,
}

/// Element-wise functions of two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binary {
    /// Sum.
    Add,
    /// Logical or bitwise and.
    And,
    /// Quotient; rounds towards 0 for integers.
    Div,
    /// The larger.
    Max,
    /// The smaller.
    Min,
    /// Product.
    Mul,
    /// Logical or bitwise or.
    Or,
    /// Power.
    Pow,
    /// Remainder with the sign of the dividend.
    Rem,
    /// Shift left.
    ShiftLeft,
    /// Shift right, filling with the sign bit in signed types and with zeros in unsigned ones.
    ShiftRight,
    /// Difference.
    Sub,
    /// Logical or bitwise exclusive or.
    Xor,
}

/// Directions of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Comparison {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Less.
    Lt,
    /// Less or equal.
    Le,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
}

/// How a reduction combines elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reducer {
    /// Sum.
    Sum,
    /// Largest element.
    Max,
    /// Smallest element.
    Min,
    /// Whether all are true; bitwise and.
    And,
    /// Whether any is true; bitwise or.
    Or,
}

/// Which dimensions a dot pairs and contracts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DotDims {
    /// Batch dimensions of the left operand.
    pub lhs_batch: Dims,
    /// Batch dimensions of the right operand, in the same order.
    pub rhs_batch: Dims,
    /// Contracted dimensions of the left operand.
    pub lhs_contract: Dims,
    /// Contracted dimensions of the right operand, in the same order.
    pub rhs_contract: Dims,
    /// Element type of the result, in which products are summed.
    pub result: DType,
}

impl DotDims {
    /// Dimensions of the left operand that are neither batch nor contracted, ascending.
    pub fn lhs_free(&self, rank: usize) -> Dims {
        (0..rank)
            .filter(|d| !self.lhs_batch.contains(d) && !self.lhs_contract.contains(d))
            .collect()
    }

    /// Dimensions of the right operand that are neither batch nor contracted, ascending.
    pub fn rhs_free(&self, rank: usize) -> Dims {
        (0..rank)
            .filter(|d| !self.rhs_batch.contains(d) && !self.rhs_contract.contains(d))
            .collect()
    }
}

/// How a value lies on the mesh, in the model's own names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Constraint {
    /// A name for each dimension.
    pub dims: SmallVec<[Dim; 4]>,
    /// Which of the layout's rules apply.
    pub role: Role,
}

/// A loop over a leading dimension.
///
/// Operands and body inputs: carries, then scanned arrays (one element of each in the body), then
/// constants. Results and body outputs: carries, then stacked outputs (one element in the body).
#[derive(Clone, Debug, PartialEq)]
pub struct Scan {
    /// One iteration.
    pub body: Arc<Graph>,
    /// Number of iterations.
    pub length: usize,
    /// Whether it goes from the last element to the first.
    pub reverse: bool,
    /// Number of carries.
    pub carries: usize,
    /// Number of scanned arrays.
    pub xs: usize,
}

/// A function whose values are recomputed rather than kept for its derivative.
#[derive(Clone, Debug, PartialEq)]
pub struct Remat {
    /// The function.
    pub body: Arc<Graph>,
    /// Whether this is the recomputation, which must not be merged with the first computation.
    pub recomputes: bool,
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
            Op::Reduce(reducer, _) => reducer.name(),
            Op::DotGeneral(_) => "dot_general",
            Op::DynamicSlice(_) => "dynamic_slice",
            Op::DynamicUpdateSlice => "dynamic_update_slice",
            Op::Take { .. } => "take",
            Op::ScatterAdd { .. } => "scatter_add",
            Op::TakeAlong { .. } => "take_along",
            Op::ScatterAddAlong { .. } => "scatter_add_along",
            Op::Shard(_) => "shard",
            Op::OptimizationBarrier => "optimization_barrier",
            Op::StopGradient => "stop_gradient",
            Op::Scan(_) => "scan",
            Op::Remat(_) => "remat",
            Op::Tangent(_) => "tangent",
        }
    }

    /// The graph inside the operation, if it has one.
    pub fn region(&self) -> Option<&Arc<Graph>> {
        match self {
            Op::Scan(scan) => Some(&scan.body),
            Op::Remat(remat) => Some(&remat.body),
            _ => None,
        }
    }
}

impl Unary {
    /// The name that is printed in a graph.
    pub const fn name(self) -> &'static str {
        match self {
            Unary::Abs => "abs",
            Unary::Cos => "cos",
            Unary::Erf => "erf",
            Unary::Exp => "exp",
            Unary::Expm1 => "expm1",
            Unary::Floor => "floor",
            Unary::Log => "log",
            Unary::Log1p => "log1p",
            Unary::Logistic => "logistic",
            Unary::Neg => "neg",
            Unary::Not => "not",
            Unary::Rsqrt => "rsqrt",
            Unary::Sign => "sign",
            Unary::Sin => "sin",
            Unary::Sqrt => "sqrt",
            Unary::Tanh => "tanh",
        }
    }
}

impl Binary {
    /// The name that is printed in a graph.
    pub const fn name(self) -> &'static str {
        match self {
            Binary::Add => "add",
            Binary::And => "and",
            Binary::Div => "div",
            Binary::Max => "max",
            Binary::Min => "min",
            Binary::Mul => "mul",
            Binary::Or => "or",
            Binary::Pow => "pow",
            Binary::Rem => "rem",
            Binary::ShiftLeft => "shift_left",
            Binary::ShiftRight => "shift_right",
            Binary::Sub => "sub",
            Binary::Xor => "xor",
        }
    }
}

impl Comparison {
    /// The name that is printed in a graph.
    pub const fn name(self) -> &'static str {
        match self {
            Comparison::Eq => "eq",
            Comparison::Ne => "ne",
            Comparison::Lt => "lt",
            Comparison::Le => "le",
            Comparison::Gt => "gt",
            Comparison::Ge => "ge",
        }
    }
}

impl Reducer {
    /// The name that is printed in a graph.
    pub const fn name(self) -> &'static str {
        match self {
            Reducer::Sum => "reduce_sum",
            Reducer::Max => "reduce_max",
            Reducer::Min => "reduce_min",
            Reducer::And => "reduce_and",
            Reducer::Or => "reduce_or",
        }
    }
}
