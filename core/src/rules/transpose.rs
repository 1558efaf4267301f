//! The transpose of each primitive that is linear in some operands.
//!
//! Given the cotangents of an equation's results (`None` is zero), a rule emits the cotangents of
//! its linear operands. Only what `rules/jvp.rs` emits ever gets here; an operation that is not
//! linear in an operand that should be is a mistake of a rule, reported with the user's line.

use smallvec::{SmallVec, smallvec};

use super::{collective, conv, gather, linalg, window};
use crate::error::ErrorKind;
use crate::graph::Equation;
use crate::lax;
use crate::op::{
    Binary, Combine, Constraint, Cumulative, Dims, DotDims, Op, Reducer, TriangularSolve, Unary,
};
use crate::tensor::Tensor;
use crate::trace::fail_at;
use crate::transform::{
    Tangents, transpose_body, transpose_cond, transpose_custom, transpose_manual, transpose_remat,
    transpose_scan,
};
use crate::types::TensorType;
use shardax_sharding::Role;

/// An operand of an equation that is transposed.
#[derive(Clone, Copy)]
pub(crate) struct Operand {
    /// Its value; of a linear operand only the type is meant.
    pub tensor: Tensor,
    /// Whether the equation is taken as a linear function of it.
    pub linear: bool,
}

/// The cotangents of the operands; `None` for those that are not linear, or zero.
pub(crate) fn transpose(
    equation: &Equation,
    operands: &[Operand],
    cotangents: &[Option<Tensor>],
) -> Tangents {
    match &equation.op {
        Op::Scan(scan) => return transpose_scan(scan, operands, cotangents, equation.source),
        Op::Remat(remat) => return transpose_remat(remat, operands, cotangents, equation.source),
        Op::Cond(cond) => return transpose_cond(cond, operands, cotangents, equation.source),
        Op::Manual(manual) => {
            return transpose_manual(manual, operands, cotangents, equation.source);
        }
        Op::CustomLinear(linear) => return transpose_custom(linear, operands, cotangents),
        // A rule has applied the function to its tangent.
        Op::Custom(custom) => {
            return transpose_body(&custom.body, operands, cotangents, equation.source);
        }
        Op::OptimizationBarrier => return barrier(operands, cotangents),
        Op::While(_) => unbounded(equation),
        _ => {}
    }
    match cotangents.iter().flatten().next() {
        Some(&ct) => one(equation, operands, ct),
        None => smallvec![None; operands.len()],
    }
}

fn one(equation: &Equation, operands: &[Operand], ct: Tensor) -> Tangents {
    let ty = |i: usize| operands[i].tensor.ty();
    let linear = |i: usize| operands[i].linear;
    match &equation.op {
        Op::Unary(Unary::Neg) => smallvec![Some(lax::neg(ct))],
        Op::Binary(Binary::Add) => smallvec![linear(0).then_some(ct), linear(1).then_some(ct)],
        Op::Binary(Binary::Sub) => {
            smallvec![linear(0).then_some(ct), linear(1).then(|| lax::neg(ct))]
        }
        Op::Binary(op @ (Binary::Mul | Binary::MulOrZero)) if linear(0) != linear(1) => smallvec![
            linear(0).then(|| lax::binary(*op, ct, operands[1].tensor)),
            linear(1).then(|| lax::binary(*op, operands[0].tensor, ct)),
        ],
        Op::Binary(op @ (Binary::Div | Binary::DivOrZero)) if !linear(1) => {
            smallvec![Some(lax::binary(*op, ct, operands[1].tensor)), None]
        }
        Op::Select => {
            let predicate = operands[0].tensor;
            let zero = lax::zeros(&ct.ty());
            smallvec![
                None,
                linear(1).then(|| lax::select(predicate, ct, zero)),
                linear(2).then(|| lax::select(predicate, zero, ct)),
            ]
        }
        Op::Convert(_) => smallvec![Some(lax::convert(ct, ty(0).dtype))],
        Op::Broadcast { dims, .. } => smallvec![Some(broadcast(ct, &ty(0), dims))],
        Op::Reshape(_) => smallvec![Some(lax::reshape(ct, &ty(0).shape))],
        Op::Transpose(permutation) => {
            smallvec![Some(lax::transpose(ct, &inverse(permutation)))]
        }
        Op::Slice {
            starts,
            limits,
            strides,
        } => smallvec![Some(slice(ct, &ty(0), starts, limits, strides))],
        Op::Pad {
            low,
            high,
            interior,
        } => pad(ct, operands, low, high, interior),
        Op::Concatenate(dimension) => concatenate(ct, operands, *dimension),
        Op::Reverse(dims) => smallvec![Some(lax::reverse(ct, dims))],
        Op::Reduce(Reducer::Sum, dims) => {
            let operand = ty(0);
            let kept: Dims = (0..operand.rank()).filter(|d| !dims.contains(d)).collect();
            smallvec![Some(lax::broadcast(ct, &operand.shape, &kept))]
        }
        Op::DotGeneral(dims) if linear(0) != linear(1) => dot(ct, operands, dims),
        Op::DynamicSlice(_) => {
            let starts = tensors(&operands[1..]);
            let ct = lax::dynamic_update_slice(lax::zeros(&ty(0)), ct, &starts);
            first(ct, operands.len())
        }
        Op::DynamicUpdateSlice => {
            let starts = tensors(&operands[2..]);
            let update = ty(1);
            let mut cts: Tangents = smallvec![None; operands.len()];
            cts[0] = linear(0).then(|| lax::dynamic_update_slice(ct, lax::zeros(&update), &starts));
            cts[1] = linear(1).then(|| lax::dynamic_slice(ct, &starts, &update.shape));
            cts
        }
        Op::Gather { dims, .. } => {
            let zeros = lax::zeros(&ty(0));
            let ct = lax::scatter(zeros, operands[1].tensor, ct, *dims.clone(), Combine::Add);
            first(ct, 2)
        }
        Op::Scatter { dims, combine } => gather::transpose_scatter(dims, *combine, operands, ct),
        Op::Conv(conv) if linear(0) != linear(1) => conv::transpose_conv(conv, operands, ct),
        Op::ReduceWindow(Reducer::Sum, window) => {
            smallvec![Some(window::transpose_window_sum(window, &ty(0), ct))]
        }
        Op::Cumulative(cumulative) if cumulative.reducer == Reducer::Sum => {
            let op = Cumulative {
                reverse: !cumulative.reverse,
                ..*cumulative
            };
            smallvec![Some(lax::cumulative(ct, op))]
        }
        Op::TriangularSolve(solve) if !linear(0) => {
            let solve = TriangularSolve {
                transpose: !solve.transpose,
                ..*solve
            };
            smallvec![
                None,
                Some(lax::triangular_solve(operands[0].tensor, ct, solve))
            ]
        }
        Op::Fft(fft) => smallvec![Some(linalg::transpose_fft(fft, &ty(0), ct))],
        Op::ReducePrecision { exponent, mantissa } => {
            smallvec![Some(lax::reduce_precision(ct, *exponent, *mantissa))]
        }
        Op::Name(_) => smallvec![Some(ct)],
        // Where the value was, its cotangent is wanted: it came from the other memory.
        Op::Place(memory) => smallvec![Some(lax::place(ct, memory.other()))],
        Op::Shard(constraint) => smallvec![Some(shard(ct, constraint))],
        Op::Collective(of) if of.kind.is_linear() => {
            smallvec![collective::transpose_collective(of, ct)]
        }
        Op::Unary(Unary::Real) => {
            smallvec![Some(lax::binary(Binary::Complex, ct, lax::zeros(&ct.ty())))]
        }
        Op::Unary(Unary::Imag) => {
            let zero = lax::zeros(&ct.ty());
            smallvec![Some(lax::binary(Binary::Complex, zero, lax::neg(ct)))]
        }
        Op::Binary(Binary::Complex) => smallvec![
            linear(0).then(|| lax::unary(Unary::Real, ct)),
            linear(1).then(|| lax::neg(lax::unary(Unary::Imag, ct))),
        ],
        Op::Unary(_)
        | Op::Binary(_)
        | Op::Reduce(..)
        | Op::ReduceWindow(..)
        | Op::Cumulative(_)
        | Op::Conv(_)
        | Op::Sort(_)
        | Op::Cholesky
        | Op::TriangularSolve(_)
        | Op::DotGeneral(_)
        | Op::Constant(_)
        | Op::Iota { .. }
        | Op::Compare(_)
        | Op::BitcastConvert(_)
        | Op::OptimizationBarrier
        | Op::StopGradient(_)
        | Op::Scan(_)
        | Op::Cond(_)
        | Op::While(_)
        | Op::Remat(_)
        | Op::Custom(_)
        | Op::CustomLinear(_)
        | Op::Foreign(_)
        | Op::Manual(_)
        | Op::Collective(_)
        | Op::Tangent(_) => {
            let kind = ErrorKind::Derivative {
                op: equation.op.name(),
                problem: "is not linear where its derivative should be".into(),
            };
            fail_at(kind, None, equation.source)
        }
    }
}

/// Nothing bounds what would have to be kept of such a loop's iterations.
fn unbounded(equation: &Equation) -> ! {
    let kind = ErrorKind::Derivative {
        op: "while_loop",
        problem: "reverse mode through a loop that runs as often as its condition says".into(),
    };
    let help = "use `scan`, or `fori_loop` between numbers, which run a known number of times; or \
                forward mode (`jvp`, `jacfwd`); or put `.stop_gradient()` on the result";
    fail_at(kind, Some(help.into()), equation.source)
}

fn tensors(operands: &[Operand]) -> SmallVec<[Tensor; 4]> {
    operands.iter().map(|o| o.tensor).collect()
}

fn first(ct: Tensor, count: usize) -> Tangents {
    let mut cts: Tangents = smallvec![None; count];
    cts[0] = Some(ct);
    cts
}

pub(super) fn inverse(permutation: &[usize]) -> Dims {
    let mut inverse: Dims = smallvec![0; permutation.len()];
    for (to, &from) in permutation.iter().enumerate() {
        inverse[from] = to;
    }
    inverse
}

/// The cotangent of a parameter that was gathered for use is summed as it was used, and then cut as
/// gradients rest: together a reduce-scatter. The first constraint keeps the partitioner from
/// carrying the cut on into the activations that the cotangent is computed from.
fn shard(ct: Tensor, constraint: &Constraint) -> Tensor {
    let ct = lax::shard(ct, constraint.clone());
    match constraint.role {
        Role::ParameterAtUse => lax::shard(
            ct,
            Constraint {
                role: Role::Gradient,
                ..constraint.clone()
            },
        ),
        Role::Parameter | Role::Gradient | Role::State | Role::Activation => ct,
    }
}

fn broadcast(ct: Tensor, operand: &TensorType, dims: &Dims) -> Tensor {
    let shape = ct.ty().shape;
    let repeated = |d: usize| match dims.iter().position(|&to| to == d) {
        Some(from) => operand.shape[from] == 1 && shape[d] != 1,
        None => true,
    };
    let summed: Dims = (0..shape.len()).filter(|&d| repeated(d)).collect();
    lax::reshape(lax::sum(ct, &summed), &operand.shape)
}

fn slice(ct: Tensor, operand: &TensorType, starts: &Dims, limits: &Dims, strides: &Dims) -> Tensor {
    let shape = ct.ty().shape;
    let interior: Dims = strides.iter().map(|s| s - 1).collect();
    let high = (0..operand.rank())
        .map(|d| {
            let spanned = if limits[d] > starts[d] {
                (shape[d] - 1) * strides[d] + 1
            } else {
                0
            };
            operand.shape[d] - starts[d] - spanned
        })
        .collect();
    let zero = lax::zeros(&TensorType::scalar(operand.dtype));
    lax::pad(ct, zero, starts.clone(), high, interior)
}

fn pad(ct: Tensor, operands: &[Operand], low: &Dims, high: &Dims, interior: &Dims) -> Tangents {
    let padded = ct.ty().shape;
    let limits = padded
        .iter()
        .zip(high)
        .map(|(size, high)| size - high)
        .collect();
    let strides = interior.iter().map(|i| i + 1).collect();
    let inner = lax::slice(ct, low.clone(), limits, strides);
    let all = |x: Tensor| {
        let dims: Dims = (0..x.ty().rank()).collect();
        lax::sum(x, &dims)
    };
    smallvec![
        operands[0].linear.then_some(inner),
        operands[1]
            .linear
            .then(|| lax::binary(Binary::Sub, all(ct), all(inner))),
    ]
}

fn concatenate(ct: Tensor, operands: &[Operand], dimension: usize) -> Tangents {
    let mut start = 0;
    operands
        .iter()
        .map(|operand| {
            let limit = start + operand.tensor.ty().shape[dimension];
            let part = operand
                .linear
                .then(|| lax::slice_dim(ct, dimension, start, limit));
            start = limit;
            part
        })
        .collect()
}

fn barrier(operands: &[Operand], cotangents: &[Option<Tensor>]) -> Tangents {
    let present: SmallVec<[Tensor; 4]> = cotangents.iter().flatten().copied().collect();
    let mut held = lax::barrier(&present).into_iter();
    operands
        .iter()
        .zip(cotangents)
        .map(|(operand, ct)| ct.and_then(|_| held.next()).filter(|_| operand.linear))
        .collect()
}

/// One side of a dot.
struct Side<'a> {
    ty: TensorType,
    batch: &'a Dims,
    contract: &'a Dims,
    free: Dims,
    /// Where the result has the free dimensions.
    free_in_result: Dims,
}

/// The result's dimensions are batch, free ones of the left, free ones of the right. The
/// cotangent of one side contracts the other side's free dimensions.
fn dot(ct: Tensor, operands: &[Operand], dims: &DotDims) -> Tangents {
    let (lhs, rhs) = (operands[0].tensor.ty(), operands[1].tensor.ty());
    let (lhs_free, rhs_free) = (dims.lhs_free(lhs.rank()), dims.rhs_free(rhs.rank()));
    let after_lhs = dims.lhs_batch.len() + lhs_free.len();
    let left = Side {
        ty: lhs,
        batch: &dims.lhs_batch,
        contract: &dims.lhs_contract,
        free_in_result: (dims.lhs_batch.len()..after_lhs).collect(),
        free: lhs_free,
    };
    let right = Side {
        ty: rhs,
        batch: &dims.rhs_batch,
        contract: &dims.rhs_contract,
        free_in_result: (after_lhs..after_lhs + rhs_free.len()).collect(),
        free: rhs_free,
    };
    if operands[0].linear {
        smallvec![Some(dot_side(ct, left, right, operands[1].tensor)), None]
    } else {
        smallvec![None, Some(dot_side(ct, right, left, operands[0].tensor))]
    }
}

/// The cotangent of `this` side, for the value `value` of the other.
fn dot_side(ct: Tensor, this: Side, other: Side, value: Tensor) -> Tensor {
    let batch: Dims = (0..this.batch.len()).collect();
    // In the product, the contracted dimensions are in the other side's order.
    let contracted = paired(other.contract, this.contract);
    let order = |middle: &Dims, last: &Dims| -> Dims {
        this.batch
            .iter()
            .chain(middle)
            .chain(last)
            .copied()
            .collect()
    };
    let (ct_first, ct_last) = (
        order(&this.free, &contracted),
        order(&contracted, &this.free),
    );
    // The order that needs no transposition, if there is one.
    let (product, order) = if ct_last.is_sorted() && !ct_first.is_sorted() {
        let product = lax::dot(
            value,
            ct,
            DotDims {
                lhs_batch: other.batch.clone(),
                rhs_batch: batch,
                lhs_contract: other.free,
                rhs_contract: other.free_in_result,
                result: this.ty.dtype,
            },
        );
        (product, ct_last)
    } else {
        let product = lax::dot(
            ct,
            value,
            DotDims {
                lhs_batch: batch,
                rhs_batch: other.batch.clone(),
                lhs_contract: other.free_in_result,
                rhs_contract: other.free,
                result: this.ty.dtype,
            },
        );
        (product, ct_first)
    };
    lax::transpose(product, &inverse(&order))
}

/// The dimensions paired with `one`'s when those are put in ascending order.
fn paired(one: &Dims, other: &Dims) -> Dims {
    let mut pairs: SmallVec<[(usize, usize); 4]> =
        one.iter().copied().zip(other.iter().copied()).collect();
    pairs.sort_unstable();
    pairs.into_iter().map(|(_, other)| other).collect()
}
