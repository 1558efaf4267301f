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
use crate::literal::{Literal, Number};
use crate::op::Dims;
use crate::trace::{fail_at, method};
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
            Bound::Excluded(&start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let limit = match range.end_bound() {
            Bound::Included(&end) => end.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => size,
        };
        if start > limit || limit > size {
            let problem = format!("dimension {dim} of {ty} has no range {start}..{limit}");
            let help = format!("it has {size} elements, and a range does not end before it begins");
            fail_at(
                ErrorKind::Argument {
                    op: "slice",
                    problem,
                },
                Some(help),
                source,
            )
        }
        lax::slice_dim(self, dim, start, limit)
    }

    /// Every `step`-th element along one dimension, from the first on.
    #[track_caller]
    pub fn step_by(self, axis: isize, step: usize) -> Tensor {
        let source = Location::caller();
        let ty = self.ty();
        let dim = axis_at("step_by", axis, &ty, source);
        if step == 0 {
            let problem = format!("a step of 0 along dimension {dim} of {ty}");
            fail_at(
                ErrorKind::Argument {
                    op: "step_by",
                    problem,
                },
                None,
                source,
            )
        }
        let mut strides: Dims = smallvec![1; ty.rank()];
        strides[dim] = step;
        lax::slice(
            self,
            smallvec![0; ty.rank()],
            Dims::from_slice(&ty.shape),
            strides,
        )
    }

    /// Element `index` along one dimension, which disappears.
    #[track_caller]
    pub fn index(self, axis: isize, index: usize) -> Tensor {
        let ty = self.ty();
        let source = Location::caller();
        let dim = axis_at("index", axis, &ty, source);
        if index >= ty.shape[dim] {
            let problem = format!("dimension {dim} of {ty} has no element {index}");
            fail_at(
                ErrorKind::Argument {
                    op: "index",
                    problem,
                },
                None,
                source,
            )
        }
        let mut shape = ty.shape;
        shape.remove(dim);
        lax::reshape(lax::slice_dim(self, dim, index, index + 1), &shape)
    }

    /// Adds `low` and `high` elements of value `value` at the ends of one dimension.
    #[track_caller]
    pub fn pad(self, axis: isize, low: usize, high: usize, value: impl Into<Number>) -> Tensor {
        let source = Location::caller();
        method("pad", source, || {
            let ty = self.ty();
            let dim = axis_at("pad", axis, &ty, source);
            let at = |count: usize| {
                let mut dims: Dims = smallvec![0; ty.rank()];
                dims[dim] = count;
                dims
            };
            let value = lax::full(value.into(), &TensorType::scalar(ty.dtype));
            lax::pad(self, value, at(low), at(high), at(0))
        })
    }

    /// Puts `gap` elements of value `value` between neighbors along one dimension.
    #[track_caller]
    pub fn dilate(self, axis: isize, gap: usize, value: impl Into<Number>) -> Tensor {
        let source = Location::caller();
        method("dilate", source, || {
            let ty = self.ty();
            let dim = axis_at("dilate", axis, &ty, source);
            let none: Dims = smallvec![0; ty.rank()];
            let mut interior = none.clone();
            interior[dim] = gap;
            let value = lax::full(value.into(), &TensorType::scalar(ty.dtype));
            lax::pad(self, value, none.clone(), none, interior)
        })
    }

    /// A window of `size` elements of one dimension from `start`, an integer scalar. A start past
    /// the ends is moved so that the window fits.
    #[track_caller]
    pub fn dynamic_slice(self, axis: isize, start: Tensor, size: usize) -> Tensor {
        let source = Location::caller();
        method("dynamic_slice", source, || {
            let ty = self.ty();
            let dim = axis_at("dynamic_slice", axis, &ty, source);
            let starts = clamped("dynamic_slice", start, &ty, dim, size, source);
            let mut sizes: Dims = ty.shape.iter().copied().collect();
            sizes[dim] = size;
            lax::dynamic_slice(self, &starts, &sizes)
        })
    }

    /// This tensor with a window of one dimension from `start` replaced by `update`. A start past
    /// the ends is moved so that the window fits.
    #[track_caller]
    pub fn dynamic_update(self, axis: isize, start: Tensor, update: Tensor) -> Tensor {
        let source = Location::caller();
        method("dynamic_update", source, || {
            let (ty, update_ty) = (self.ty(), update.ty());
            let dim = axis_at("dynamic_update", axis, &ty, source);
            let size = update_ty.shape.get(dim).copied().unwrap_or(0);
            let starts = clamped("dynamic_update", start, &ty, dim, size, source);
            lax::dynamic_update_slice(self, update, &starts)
        })
    }

    /// Rows by index: along `axis` the elements that `indices` name, in the shape of `indices`.
    ///
    /// An index outside of the dimension gives NaN (the smallest value, for integers), never
    /// another row, and no gradient.
    #[track_caller]
    pub fn take(self, indices: Tensor, axis: isize) -> Tensor {
        let source = Location::caller();
        method("take", source, || {
            let ty = self.ty();
            let dim = axis_at("take", axis, &ty, source);
            let (index, valid) = checked("take", indices, &ty, dim, source);
            let dims: Dims = (dim..dim + indices.rank()).collect();
            fill(lax::take(self, index, dim), valid, &dims)
        })
    }

    /// This tensor with `updates` added to the rows along `axis` that `indices` name; `updates` has
    /// the shape of [`Tensor::take`] with these indices. Rows that are named twice get both.
    ///
    /// An index outside of the dimension adds nothing.
    #[track_caller]
    pub fn scatter_add(self, indices: Tensor, updates: Tensor, axis: isize) -> Tensor {
        let source = Location::caller();
        method("scatter_add", source, || {
            let ty = self.ty();
            let dim = axis_at("scatter_add", axis, &ty, source);
            let (index, valid) = checked("scatter_add", indices, &ty, dim, source);
            let updates_ty = updates.ty();
            let dims: Dims = (dim..dim + indices.rank()).collect();
            let valid = lax::broadcast(valid, &updates_ty.shape, &dims);
            let updates = lax::select(valid, updates, lax::zeros(&updates_ty));
            lax::scatter_add(self, index, updates, dim)
        })
    }

    /// One element along `axis` for each index; `indices` has this tensor's shape in all other
    /// dimensions. Indices outside give NaN as in [`Tensor::take`].
    #[track_caller]
    pub fn take_along(self, indices: Tensor, axis: isize) -> Tensor {
        let source = Location::caller();
        method("take_along", source, || {
            let ty = self.ty();
            let dim = axis_at("take_along", axis, &ty, source);
            let (index, valid) = checked("take_along", indices, &ty, dim, source);
            let dims: Dims = (0..indices.rank()).collect();
            fill(lax::take_along(self, index, dim), valid, &dims)
        })
    }

    /// 1 where an index equals the position along a new last dimension of size `classes`, else 0.
    #[track_caller]
    pub fn one_hot(self, classes: usize, dtype: DType) -> Tensor {
        method("one_hot", Location::caller(), || {
            let ty = self.ty();
            let shape: Shape = ty.shape.iter().copied().chain([classes]).collect();
            let dims: Dims = (0..ty.rank()).collect();
            let positions = lax::iota(TensorType::new(ty.dtype, &shape), ty.rank());
            let hot = positions.eq(lax::broadcast(self, &shape, &dims));
            lax::convert(hot, dtype)
        })
    }

    /// The lower triangle of the last two dimensions; above diagonal `diagonal` it is 0.
    #[track_caller]
    pub fn tril(self, diagonal: i64) -> Tensor {
        method("tril", Location::caller(), || {
            let ty = self.ty();
            let positions = TensorType::new(DType::I32, &ty.shape);
            let (row, column) = (axis("tril", -2, &ty), axis("tril", -1, &ty));
            let row = lax::iota(positions.clone(), row) + diagonal;
            row.ge(lax::iota(positions, column)).select(self, 0)
        })
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
        let problem = format!("a window of {size} does not fit into dimension {dim} of {ty}");
        fail_at(ErrorKind::Shape { op, problem }, None, source)
    }
    // Clamped here because the partitioner does it wrongly when the dimension is split.
    let start = inside(start, start_ty.dtype, ty.shape[dim] - size);
    let zero = lax::zeros(&start_ty);
    (0..ty.rank())
        .map(|d| if d == dim { start } else { zero })
        .collect()
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
    // Where the dimension is split, the partitioner computes with the first index of each shard in
    // the type of the indices, and a narrow one cannot hold it.
    if Literal::scalar(Number::Int(ty.shape[dim] as i64), index_ty.dtype).is_none() {
        let wide = if last > i32::MAX as usize {
            DType::I64
        } else {
            DType::I32
        };
        return checked(op, lax::convert(indices, wide), ty, dim, source);
    }
    let inside = inside(indices, index_ty.dtype, last);
    (inside, inside.eq(indices))
}

/// Integers moved into `0..=last`.
fn inside(indices: Tensor, dtype: DType, last: usize) -> Tensor {
    let last = Number::Int(i64::try_from(last).unwrap_or(i64::MAX));
    // A type too narrow to reach past the end needs no upper bound.
    let below = match Literal::scalar(last, dtype) {
        Some(_) => indices.minimum(Operand::Number(last)),
        None => indices,
    };
    if dtype.is_signed_integer() {
        below.maximum(0)
    } else {
        below
    }
}

/// `values` where valid, elsewhere NaN or the smallest integer.
fn fill(values: Tensor, valid: Tensor, dims: &[usize]) -> Tensor {
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
    lax::select(
        lax::broadcast(valid, &ty.shape, dims),
        values,
        lax::full(invalid, &ty),
    )
}
