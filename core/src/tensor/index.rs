//! Slices, and reading by index.

use std::ops::{Bound, RangeBounds};
use std::panic::Location;

use smallvec::smallvec;

use super::Tensor;
use super::arithmetic::Operand;
use super::shape::{axis, axis_at};
use crate::dtype::DType;
use crate::error::{ErrorKind, Source};
use crate::lax;
use crate::literal::Number;
use crate::op::{Dims, Op};
use crate::trace::{emit1, fail_at};
use crate::types::{Shape, TensorType};

impl Tensor {
    /// A range of one dimension: `x.slice(1, 2..5)`, `x.slice(-1, ..10)`.
    #[track_caller]
    pub fn slice(self, axis: isize, range: impl RangeBounds<usize>) -> Tensor {
        let source = Location::caller();
        let ty = self.ty();
        let dim = axis_at("slice", axis, &ty, source);
        let size = ty.shape[dim];
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&start) => start + 1,
            Bound::Unbounded => 0,
        };
        let limit = match range.end_bound() {
            Bound::Included(&end) => end + 1,
            Bound::Excluded(&end) => end,
            Bound::Unbounded => size,
        };
        if start > limit || limit > size {
            let problem = format!("range {start}..{limit} of dimension {dim} of {ty}");
            let help = format!("the dimension has {size} elements");
            fail_at(ErrorKind::Argument { op: "slice", problem }, Some(help), source)
        }
        lax::slice_dim(self, dim, start, limit)
    }

    /// Element `index` along one dimension, which disappears.
    #[track_caller]
    pub fn index(self, axis: isize, index: usize) -> Tensor {
        let ty = self.ty();
        let source = Location::caller();
        let dim = axis_at("index", axis, &ty, source);
        if index >= ty.shape[dim] {
            let problem = format!("index {index} of dimension {dim} of {ty}");
            fail_at(ErrorKind::Argument { op: "index", problem }, None, source)
        }
        let mut shape = ty.shape;
        shape.remove(dim);
        lax::reshape(lax::slice_dim(self, dim, index, index + 1), &shape)
    }

    /// Adds `low` and `high` elements of value `value` at the ends of one dimension.
    #[track_caller]
    pub fn pad(self, axis: isize, low: usize, high: usize, value: impl Into<Number>) -> Tensor {
        let ty = self.ty();
        let dim = axis_at("pad", axis, &ty, Location::caller());
        let at = |count: usize| {
            let mut dims: Dims = smallvec![0; ty.rank()];
            dims[dim] = count;
            dims
        };
        let value = lax::full(value.into(), &TensorType::scalar(ty.dtype));
        lax::pad(self, value, at(low), at(high), at(0))
    }

    /// A window of `size` elements of one dimension from `start`, an integer scalar. A start past
    /// the ends is moved so that the window fits.
    #[track_caller]
    pub fn dynamic_slice(self, axis: isize, start: Tensor, size: usize) -> Tensor {
        let source = Location::caller();
        let ty = self.ty();
        let dim = axis_at("dynamic_slice", axis, &ty, source);
        let starts = clamped("dynamic_slice", start, &ty, dim, size, source);
        let mut sizes: Dims = ty.shape.iter().copied().collect();
        sizes[dim] = size;
        lax::dynamic_slice(self, &starts, &sizes)
    }

    /// This tensor with a window of one dimension from `start` replaced by `update`. A start past
    /// the ends is moved so that the window fits.
    #[track_caller]
    pub fn dynamic_update(self, axis: isize, start: Tensor, update: Tensor) -> Tensor {
        let source = Location::caller();
        let (ty, update_ty) = (self.ty(), update.ty());
        let dim = axis_at("dynamic_update", axis, &ty, source);
        let size = update_ty.shape.get(dim).copied().unwrap_or(0);
        let starts = clamped("dynamic_update", start, &ty, dim, size, source);
        lax::dynamic_update_slice(self, update, &starts)
    }

    /// Rows by index: along `axis` the elements that `indices` name, in the shape of `indices`.
    ///
    /// An index outside of the dimension gives NaN (the smallest value, for integers), never
    /// another row, and no gradient.
    #[track_caller]
    pub fn take(self, indices: Tensor, axis: isize) -> Tensor {
        let source = Location::caller();
        let ty = self.ty();
        let dim = axis_at("take", axis, &ty, source);
        let (index, valid) = checked("take", indices, &ty, dim, source);
        let rows = emit1(Op::Take { axis: dim }, &[self, index], source);
        let rank = indices.rank();
        let dims: Dims = (dim..dim + rank).collect();
        fill(rows, valid, &dims, source)
    }

    /// One element along `axis` for each index; `indices` has this tensor's shape in all other
    /// dimensions. Indices outside give NaN as in [`Tensor::take`].
    #[track_caller]
    pub fn take_along(self, indices: Tensor, axis: isize) -> Tensor {
        let source = Location::caller();
        let ty = self.ty();
        let dim = axis_at("take_along", axis, &ty, source);
        let (index, valid) = checked("take_along", indices, &ty, dim, source);
        let elements = emit1(Op::TakeAlong { axis: dim }, &[self, index], source);
        let dims: Dims = (0..indices.rank()).collect();
        fill(elements, valid, &dims, source)
    }

    /// 1 where an index equals the position along a new last dimension of size `classes`, else 0.
    #[track_caller]
    pub fn one_hot(self, classes: usize, dtype: DType) -> Tensor {
        let ty = self.ty();
        let shape: Shape = ty.shape.iter().copied().chain([classes]).collect();
        let dims: Dims = (0..ty.rank()).collect();
        let positions = lax::iota(TensorType::new(ty.dtype, &shape), ty.rank());
        let hot = positions.eq(lax::broadcast(self, &shape, &dims));
        lax::convert(hot, dtype)
    }

    /// The lower triangle of the last two dimensions; above diagonal `diagonal` it is 0.
    #[track_caller]
    pub fn tril(self, diagonal: i64) -> Tensor {
        let ty = self.ty();
        let positions = TensorType::new(DType::I32, &ty.shape);
        let (row, column) = (axis("tril", -2, &ty), axis("tril", -1, &ty));
        let kept = (lax::iota(positions.clone(), row) + diagonal).ge(lax::iota(positions, column));
        kept.select(self, Operand::Number(Number::Int(0)))
    }
}

/// Starts for every dimension, that of `dim` moved so that `size` elements fit.
fn clamped(
    op: &'static str,
    start: Tensor,
    ty: &TensorType,
    dim: usize,
    size: usize,
    source: Source,
) -> Vec<Tensor> {
    let start_ty = start.ty();
    if start_ty.rank() != 0 || !start_ty.dtype.is_integer() {
        let problem = format!("the start is {start_ty}, not an integer scalar");
        fail_at(ErrorKind::Argument { op, problem }, None, source)
    }
    if size > ty.shape[dim] {
        let problem = format!("a window of {size} in dimension {dim} of {ty}");
        fail_at(ErrorKind::Shape { op, problem }, None, source)
    }
    // Clamped here because the partitioner does it wrongly when the dimension is split.
    let last = (ty.shape[dim] - size) as i64;
    let start = start.minimum(last).maximum(0);
    let zero = lax::zeros(&start_ty);
    (0..ty.rank()).map(|d| if d == dim { start } else { zero }).collect()
}

/// Indices that are all inside, and where they were so.
fn checked(
    op: &'static str,
    indices: Tensor,
    ty: &TensorType,
    dim: usize,
    source: Source,
) -> (Tensor, Tensor) {
    let index_ty = indices.ty();
    if !index_ty.dtype.is_integer() {
        let problem = format!("the indices are {index_ty}, not integers");
        let help = "convert them with `.cast(DType::I32)`";
        fail_at(ErrorKind::DType { op, problem }, Some(help.into()), source)
    }
    let last = ty.shape[dim].saturating_sub(1);
    if ty.shape[dim] == 0 && index_ty.element_count() > 0 {
        let problem = format!("dimension {dim} of {ty} has nothing to read");
        fail_at(ErrorKind::Shape { op, problem }, None, source)
    }
    let last = Number::Int(last as i64);
    // An index type too narrow to reach past the end needs no upper bound.
    let inside = match crate::literal::Literal::scalar(last, index_ty.dtype) {
        Some(_) => indices.minimum(Operand::Number(last)),
        None => indices,
    };
    let inside = if index_ty.dtype.is_signed_integer() { inside.maximum(0) } else { inside };
    (inside, inside.eq(indices))
}

/// `values` where valid, elsewhere NaN or the smallest integer.
fn fill(values: Tensor, valid: Tensor, dims: &[usize], source: Source) -> Tensor {
    let ty = values.ty();
    let invalid = match ty.dtype {
        DType::Bool => Number::Bool(false),
        dtype if dtype.is_differentiable() => Number::Float(f64::NAN),
        DType::I4 => Number::Int(-8),
        DType::I8 => Number::Int(i8::MIN.into()),
        DType::I16 => Number::Int(i16::MIN.into()),
        DType::I32 => Number::Int(i32::MIN.into()),
        DType::I64 => Number::Int(i64::MIN),
        _ => Number::Int(0),
    };
    let shape = ty.shape.clone();
    let valid = emit1(Op::Broadcast { shape, dims: Dims::from_slice(dims) }, &[valid], source);
    emit1(Op::Select, &[valid, values, lax::full(invalid, &ty)], source)
}
