//! One function a primitive, without broadcasting or promotion: what rules and tensor methods
//! are written with.

use std::panic::Location;

use smallvec::{SmallVec, smallvec};

use crate::dtype::DType;
use crate::error::ErrorKind;
use crate::literal::{Literal, Number};
use crate::op::{Binary, Comparison, Constraint, Dims, DotDims, Op, Reducer, Unary};
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

/// `number` repeated; a mistake of the caller if the element type cannot hold it.
#[track_caller]
pub(crate) fn full(number: Number, ty: &TensorType) -> Tensor {
    let Some(literal) = Literal::scalar(number, ty.dtype) else {
        let problem = format!("the number {number} is not a value of {}", ty.dtype);
        let help = format!("take an element type that holds {number}");
        fail(
            ErrorKind::DType {
                op: "full",
                problem,
            },
            Some(help),
        )
    };
    broadcast(constant(literal), &ty.shape, &[])
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

/// The element type in which values of type `dtype` are summed: a long sum in eight bits of
/// mantissa stops growing once it is 256 times its next element.
pub(crate) fn accumulator(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 | DType::F8E4M3FN | DType::F8E5M2 => DType::F32,
        _ => dtype,
    }
}

/// The sum over dimensions, which disappear.
#[track_caller]
pub(crate) fn sum(x: Tensor, dims: &[usize]) -> Tensor {
    if dims.is_empty() {
        return x;
    }
    let dtype = x.dtype();
    let wide = convert(x, accumulator(dtype));
    convert(reduce(Reducer::Sum, wide, dims), dtype)
}

#[track_caller]
pub(crate) fn dot(lhs: Tensor, rhs: Tensor, dims: DotDims) -> Tensor {
    emit1(Op::DotGeneral(dims), &[lhs, rhs], Location::caller())
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
pub(crate) fn take(x: Tensor, indices: Tensor, axis: usize) -> Tensor {
    emit1(Op::Take { axis }, &[x, indices], Location::caller())
}

#[track_caller]
pub(crate) fn scatter_add(x: Tensor, indices: Tensor, updates: Tensor, axis: usize) -> Tensor {
    emit1(
        Op::ScatterAdd { axis },
        &[x, indices, updates],
        Location::caller(),
    )
}

#[track_caller]
pub(crate) fn take_along(x: Tensor, indices: Tensor, axis: usize) -> Tensor {
    emit1(Op::TakeAlong { axis }, &[x, indices], Location::caller())
}

#[track_caller]
pub(crate) fn scatter_add_along(
    x: Tensor,
    indices: Tensor,
    updates: Tensor,
    axis: usize,
) -> Tensor {
    emit1(
        Op::ScatterAddAlong { axis },
        &[x, indices, updates],
        Location::caller(),
    )
}

#[track_caller]
pub(crate) fn shard(x: Tensor, constraint: Constraint) -> Tensor {
    emit1(Op::Shard(constraint), &[x], Location::caller())
}

#[track_caller]
pub(crate) fn barrier(xs: &[Tensor]) -> SmallVec<[Tensor; 1]> {
    if xs.is_empty() {
        return SmallVec::new();
    }
    emit(Op::OptimizationBarrier, xs, Location::caller())
}
