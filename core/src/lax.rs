//! One function a primitive, without broadcasting or promotion: what rules and tensor methods
//! are written with.

use std::panic::Location;

use smallvec::{SmallVec, smallvec};

use crate::dtype::DType;
use crate::error::ErrorKind;
use crate::literal::{Literal, Number};
use crate::op::{
    Binary, Collective, CollectiveOp, Combine, Comparison, Constraint, Conv, Cumulative, Dims,
    DotDims, Fft, FftKind, GatherDims, ManualAxis, Memory, Op, Reducer, Sort, TriangularSolve,
    Unary, Window,
};
use crate::tensor::Tensor;
use crate::trace::{before_gathering, emit, emit1, fail};
use crate::types::{Shape, TensorType};

#[track_caller]
pub(crate) fn unary(op: Unary, x: Tensor) -> Tensor {
    emit1(Op::Unary(op), &[x], Location::caller())
}

#[track_caller]
pub(crate) fn binary(op: Binary, lhs: Tensor, rhs: Tensor) -> Tensor {
    emit1(Op::Binary(op), &[lhs, rhs], Location::caller())
}

#[track_caller]
pub(crate) fn add(lhs: Tensor, rhs: Tensor) -> Tensor {
    binary(Binary::Add, lhs, rhs)
}

#[track_caller]
pub(crate) fn mul(lhs: Tensor, rhs: Tensor) -> Tensor {
    binary(Binary::Mul, lhs, rhs)
}

#[track_caller]
pub(crate) fn neg(x: Tensor) -> Tensor {
    unary(Unary::Neg, x)
}

#[track_caller]
pub(crate) fn compare(op: Comparison, lhs: Tensor, rhs: Tensor) -> Tensor {
    emit1(Op::Compare(op), &[lhs, rhs], Location::caller())
}

#[track_caller]
pub(crate) fn select(predicate: Tensor, on_true: Tensor, on_false: Tensor) -> Tensor {
    emit1(
        Op::Select,
        &[predicate, on_true, on_false],
        Location::caller(),
    )
}

#[track_caller]
pub(crate) fn convert(x: Tensor, dtype: DType) -> Tensor {
    let narrower = dtype.is_float() && dtype.bits() < x.dtype().bits();
    match before_gathering(x).filter(|_| narrower) {
        // Gathered after it is narrowed, a parameter takes fewer bytes on the way.
        Some((constraint, parameter)) => shard(convert(parameter, dtype), constraint),
        None => emit1(Op::Convert(dtype), &[x], Location::caller()),
    }
}

#[track_caller]
pub(crate) fn constant(literal: Literal) -> Tensor {
    emit1(Op::Constant(literal), &[], Location::caller())
}

/// `number` repeated; a mistake of the caller if the element type does not hold it.
#[track_caller]
pub(crate) fn full(number: Number, ty: &TensorType) -> Tensor {
    broadcast(constant(literal(number, ty.dtype)), &ty.shape, &[])
}

/// `number` as a scalar; a mistake of the caller if the element type does not hold it.
#[track_caller]
pub(crate) fn literal(number: Number, dtype: DType) -> Literal {
    let Some(literal) = Literal::scalar(number, dtype) else {
        let problem = format!("the number {number} is not a value of {dtype}");
        let help = format!("take an element type that holds {number}");
        let op = "full";
        fail(ErrorKind::DType { op, problem }, Some(help))
    };
    literal
}

#[track_caller]
pub(crate) fn zeros(ty: &TensorType) -> Tensor {
    full(Number::Int(0), ty)
}

#[track_caller]
pub(crate) fn iota(ty: TensorType, dimension: usize) -> Tensor {
    emit1(Op::Iota { ty, dimension }, &[], Location::caller())
}

#[track_caller]
pub(crate) fn broadcast(x: Tensor, shape: &[usize], dims: &[usize]) -> Tensor {
    let op = Op::Broadcast {
        shape: Shape::from_slice(shape),
        dims: Dims::from_slice(dims),
    };
    emit1(op, &[x], Location::caller())
}

#[track_caller]
pub(crate) fn reshape(x: Tensor, shape: &[usize]) -> Tensor {
    emit1(
        Op::Reshape(Shape::from_slice(shape)),
        &[x],
        Location::caller(),
    )
}

#[track_caller]
pub(crate) fn transpose(x: Tensor, permutation: &[usize]) -> Tensor {
    emit1(
        Op::Transpose(Dims::from_slice(permutation)),
        &[x],
        Location::caller(),
    )
}

/// One dimension's range; the other dimensions whole.
#[track_caller]
pub(crate) fn slice_dim(x: Tensor, dim: usize, start: usize, limit: usize) -> Tensor {
    let shape = x.ty().shape;
    let mut starts: Dims = smallvec![0; shape.len()];
    let mut limits: Dims = shape.iter().copied().collect();
    starts[dim] = start;
    limits[dim] = limit;
    let strides = smallvec![1; shape.len()];
    slice(x, starts, limits, strides)
}

#[track_caller]
pub(crate) fn slice(x: Tensor, starts: Dims, limits: Dims, strides: Dims) -> Tensor {
    let op = Op::Slice {
        starts,
        limits,
        strides,
    };
    emit1(op, &[x], Location::caller())
}

/// Padding between elements is written as padding of a dimension of its own: the partitioner gets
/// an interior padding wrong when it splits a result whose operand is whole.
#[track_caller]
pub(crate) fn pad(x: Tensor, value: Tensor, low: Dims, high: Dims, interior: Dims) -> Tensor {
    let mut x = x;
    for (dim, &gap) in interior.iter().enumerate() {
        let mut shape = x.ty().shape;
        let size = shape[dim];
        if gap == 0 || size < 2 {
            continue;
        }
        shape.insert(dim + 1, 1);
        let apart = reshape(x, &shape);
        let none: Dims = smallvec![0; shape.len()];
        let mut gaps = none.clone();
        gaps[dim + 1] = gap;
        let op = Op::Pad {
            low: none.clone(),
            high: gaps,
            interior: none,
        };
        let padded = emit1(op, &[apart, value], Location::caller());
        let mut shape = padded.ty().shape;
        shape[dim] *= shape.remove(dim + 1);
        let limit = shape[dim] - gap;
        x = slice_dim(reshape(padded, &shape), dim, 0, limit);
    }
    if low.iter().chain(&high).all(|&count| count == 0) {
        return x;
    }
    let op = Op::Pad {
        interior: smallvec![0; low.len()],
        low,
        high,
    };
    emit1(op, &[x, value], Location::caller())
}

/// Padding of one dimension, before and after it.
#[track_caller]
pub(crate) fn pad_dim(x: Tensor, dim: usize, [low, high]: [usize; 2], value: Tensor) -> Tensor {
    let at = |count: usize| {
        let mut dims: Dims = smallvec![0; x.ty().rank()];
        dims[dim] = count;
        dims
    };
    pad(x, value, at(low), at(high), at(0))
}

#[track_caller]
pub(crate) fn concatenate(parts: &[Tensor], dimension: usize) -> Tensor {
    emit1(Op::Concatenate(dimension), parts, Location::caller())
}

#[track_caller]
pub(crate) fn reverse(x: Tensor, dims: &[usize]) -> Tensor {
    emit1(
        Op::Reverse(Dims::from_slice(dims)),
        &[x],
        Location::caller(),
    )
}

#[track_caller]
pub(crate) fn reduce(reducer: Reducer, x: Tensor, dims: &[usize]) -> Tensor {
    if dims.is_empty() {
        return x;
    }
    emit1(
        Op::Reduce(reducer, Dims::from_slice(dims)),
        &[x],
        Location::caller(),
    )
}

/// The sum over dimensions, which disappear.
#[track_caller]
pub(crate) fn sum(x: Tensor, dims: &[usize]) -> Tensor {
    if dims.is_empty() {
        return x;
    }
    let dtype = x.dtype();
    let wide = convert(x, dtype.accumulator());
    convert(reduce(Reducer::Sum, wide, dims), dtype)
}

#[track_caller]
pub(crate) fn dot(lhs: Tensor, rhs: Tensor, dims: DotDims) -> Tensor {
    emit1(
        Op::DotGeneral(Box::new(dims)),
        &[lhs, rhs],
        Location::caller(),
    )
}

fn with_starts(operands: &[Tensor], starts: &[Tensor]) -> SmallVec<[Tensor; 6]> {
    operands.iter().chain(starts).copied().collect()
}

#[track_caller]
pub(crate) fn dynamic_slice(x: Tensor, starts: &[Tensor], sizes: &[usize]) -> Tensor {
    let op = Op::DynamicSlice(Dims::from_slice(sizes));
    emit1(op, &with_starts(&[x], starts), Location::caller())
}

#[track_caller]
pub(crate) fn dynamic_update_slice(x: Tensor, update: Tensor, starts: &[Tensor]) -> Tensor {
    emit1(
        Op::DynamicUpdateSlice,
        &with_starts(&[x, update], starts),
        Location::caller(),
    )
}

#[track_caller]
pub(crate) fn gather(x: Tensor, indices: Tensor, dims: GatherDims, sizes: &[usize]) -> Tensor {
    let sizes = Dims::from_slice(sizes);
    let dims = Box::new(dims);
    emit1(
        Op::Gather { dims, sizes },
        &[x, indices],
        Location::caller(),
    )
}

/// Sums and products of narrow floats are accumulated in `f32`.
#[track_caller]
pub(crate) fn scatter(
    x: Tensor,
    indices: Tensor,
    updates: Tensor,
    dims: GatherDims,
    combine: Combine,
) -> Tensor {
    let dtype = x.dtype();
    let wide = match combine {
        Combine::Add | Combine::Mul => dtype.accumulator(),
        Combine::Max | Combine::Min | Combine::Set => dtype,
    };
    let operands = [convert(x, wide), indices, convert(updates, wide)];
    let dims = Box::new(dims);
    let result = emit1(Op::Scatter { dims, combine }, &operands, Location::caller());
    convert(result, dtype)
}

/// Rows along `axis`, by index.
#[track_caller]
pub(crate) fn take(x: Tensor, indices: Tensor, axis: usize) -> Tensor {
    let mut sizes = x.ty().shape;
    sizes[axis] = 1;
    let dims = GatherDims::rows(axis, sizes.len(), indices.ty().rank());
    gather(x, indices, dims, &sizes)
}

/// One element along `axis` for each index.
#[track_caller]
pub(crate) fn take_along(x: Tensor, indices: Tensor, axis: usize) -> Tensor {
    let rank = x.ty().rank();
    let sizes: Dims = smallvec![1; rank];
    gather(x, indices, GatherDims::along(axis, rank), &sizes)
}

#[track_caller]
pub(crate) fn cumulative(x: Tensor, cumulative: Cumulative) -> Tensor {
    emit1(Op::Cumulative(cumulative), &[x], Location::caller())
}

#[track_caller]
pub(crate) fn sort(operands: &[Tensor], sort: Sort) -> SmallVec<[Tensor; 1]> {
    emit(Op::Sort(sort), operands, Location::caller())
}

/// Negative padding is cut off before: XLA's CPU kernels read what is beside the operand for it.
#[track_caller]
pub(crate) fn conv(lhs: Tensor, rhs: Tensor, conv: Conv) -> Tensor {
    let (mut x, mut conv) = (lhs, conv);
    for (i, &dim) in conv.lhs.spatial.clone().iter().enumerate() {
        let (low, high) = conv.padding[i];
        if low >= 0 && high >= 0 {
            continue;
        }
        let rank = x.ty().rank();
        if conv.lhs_dilation[i] > 1 {
            let mut gaps: Dims = smallvec![0; rank];
            gaps[dim] = conv.lhs_dilation[i] - 1;
            let none: Dims = smallvec![0; rank];
            let zero = zeros(&TensorType::scalar(x.dtype()));
            x = pad(x, zero, none.clone(), none, gaps);
            conv.lhs_dilation[i] = 1;
        }
        let size = x.ty().shape[dim];
        let cut = |edge: i64| usize::try_from(edge.min(0).unsigned_abs()).unwrap_or(usize::MAX);
        let (before, after) = (cut(low), cut(high));
        let limit = size.saturating_sub(after);
        if before > limit {
            // More is cut off than there is: no window is left, which XLA finds by itself.
            continue;
        }
        x = slice_dim(x, dim, before, limit);
        conv.padding[i] = (low.max(0), high.max(0));
    }
    emit1(Op::Conv(Box::new(conv)), &[x, rhs], Location::caller())
}

#[track_caller]
pub(crate) fn reduce_window(reducer: Reducer, x: Tensor, window: Window) -> Tensor {
    let op = Op::ReduceWindow(reducer, Box::new(window));
    emit1(op, &[x], Location::caller())
}

#[track_caller]
pub(crate) fn triangular_solve(a: Tensor, b: Tensor, solve: TriangularSolve) -> Tensor {
    emit1(Op::TriangularSolve(solve), &[a, b], Location::caller())
}

#[track_caller]
pub(crate) fn fft(x: Tensor, kind: FftKind, lengths: &[usize]) -> Tensor {
    let lengths = Dims::from_slice(lengths);
    emit1(Op::Fft(Fft { kind, lengths }), &[x], Location::caller())
}

#[track_caller]
pub(crate) fn reduce_precision(x: Tensor, exponent: u32, mantissa: u32) -> Tensor {
    let op = Op::ReducePrecision { exponent, mantissa };
    emit1(op, &[x], Location::caller())
}

#[track_caller]
pub(crate) fn place(x: Tensor, memory: Memory) -> Tensor {
    emit1(Op::Place(memory), &[x], Location::caller())
}

#[track_caller]
pub(crate) fn shard(x: Tensor, constraint: Constraint) -> Tensor {
    emit1(Op::Shard(Box::new(constraint)), &[x], Location::caller())
}

#[track_caller]
pub(crate) fn barrier(xs: &[Tensor]) -> SmallVec<[Tensor; 1]> {
    if xs.is_empty() {
        return SmallVec::new();
    }
    emit(Op::OptimizationBarrier, xs, Location::caller())
}

#[track_caller]
pub(crate) fn collective(x: Tensor, collective: Collective) -> Tensor {
    emit1(Op::Collective(collective), &[x], Location::caller())
}

/// The position of the device along manual axes.
#[track_caller]
pub(crate) fn axis_index(axes: Vec<ManualAxis>) -> Tensor {
    let kind = CollectiveOp::AxisIndex;
    let op = Op::Collective(Collective { kind, axes });
    emit1(op, &[], Location::caller())
}
