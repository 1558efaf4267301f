//! Windows of dimensions.

use std::ops::{Bound, RangeBounds};
use std::panic::Location;

use smallvec::smallvec;

use super::{argument, inside};
use crate::error::{ErrorKind, Source};
use crate::lax;
use crate::op::Dims;
use crate::tensor::Tensor;
use crate::tensor::arithmetic::{IntoOperand, Operand};
use crate::tensor::shape::axis_at;
use crate::trace::{fail_at, method};
use crate::types::TensorType;

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
            fail_at(argument("slice", problem), Some(help), source)
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
            fail_at(argument("step_by", problem), None, source)
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
            fail_at(argument("index", problem), None, source)
        }
        let mut shape = ty.shape;
        shape.remove(dim);
        lax::reshape(lax::slice_dim(self, dim, index, index + 1), &shape)
    }

    /// Adds `low` and `high` elements of value `value`, a number or a scalar tensor, at the ends of
    /// one dimension. Negative counts take elements away, after the others were added.
    #[track_caller]
    pub fn pad(self, axis: isize, low: isize, high: isize, value: impl IntoOperand) -> Tensor {
        let source = Location::caller();
        method("pad", source, || {
            let ty = self.ty();
            let dim = axis_at("pad", axis, &ty, source);
            let at = |count: isize| {
                let mut dims: Dims = smallvec![0; ty.rank()];
                dims[dim] = count.max(0) as usize;
                dims
            };
            let value = padding("pad", value.into(), &ty, source);
            let padded = lax::pad(self, value, at(low), at(high), at(0));
            let size = padded.ty().shape[dim];
            let [first, last] = [low, high].map(|count| count.min(0).unsigned_abs());
            if first.saturating_add(last) > size {
                let problem =
                    format!("{low} and {high} leave less than nothing of dimension {dim} of {ty}");
                fail_at(argument("pad", problem), None, source)
            }
            lax::slice_dim(padded, dim, first, size - last)
        })
    }

    /// Puts `gap` elements of value `value` between neighbors along one dimension.
    #[track_caller]
    pub fn dilate(self, axis: isize, gap: usize, value: impl IntoOperand) -> Tensor {
        let source = Location::caller();
        method("dilate", source, || {
            let ty = self.ty();
            let dim = axis_at("dilate", axis, &ty, source);
            let none: Dims = smallvec![0; ty.rank()];
            let mut interior = none.clone();
            interior[dim] = gap;
            let value = padding("dilate", value.into(), &ty, source);
            lax::pad(self, value, none.clone(), none, interior)
        })
    }

    /// Consecutive parts of one dimension, of these sizes.
    #[track_caller]
    pub fn split(self, sizes: impl AsRef<[usize]>, axis: isize) -> Vec<Tensor> {
        let source = Location::caller();
        method("split", source, || {
            let (ty, sizes) = (self.ty(), sizes.as_ref());
            let dim = axis_at("split", axis, &ty, source);
            let sum = sizes
                .iter()
                .fold(0usize, |sum, &size| sum.saturating_add(size));
            if sum != ty.shape[dim] {
                let problem = format!(
                    "parts of {sizes:?} are {sum} elements; dimension {dim} of {ty} has {}",
                    ty.shape[dim]
                );
                fail_at(argument("split", problem), None, source)
            }
            parts(self, dim, sizes)
        })
    }

    /// The parts of one dimension before, between and after these ascending positions.
    #[track_caller]
    pub fn split_at(self, positions: impl AsRef<[usize]>, axis: isize) -> Vec<Tensor> {
        let source = Location::caller();
        method("split_at", source, || {
            let (ty, positions) = (self.ty(), positions.as_ref());
            let dim = axis_at("split_at", axis, &ty, source);
            let size = ty.shape[dim];
            if !positions.is_sorted() || positions.last().is_some_and(|&last| last > size) {
                let problem = format!("positions {positions:?} in dimension {dim} of {ty}");
                let help = format!("they ascend, and are at most {size}");
                fail_at(argument("split_at", problem), Some(help), source)
            }
            let starts = [0].iter().chain(positions);
            let ends = positions.iter().chain([&size]);
            let sizes: Vec<usize> = ends.zip(starts).map(|(end, start)| end - start).collect();
            parts(self, dim, &sizes)
        })
    }

    /// `count` equal parts of one dimension.
    #[track_caller]
    pub fn chunks(self, count: usize, axis: isize) -> Vec<Tensor> {
        let source = Location::caller();
        method("chunks", source, || {
            let ty = self.ty();
            let dim = axis_at("chunks", axis, &ty, source);
            if count == 0 || !ty.shape[dim].is_multiple_of(count) {
                let problem = format!("dimension {dim} of {ty} does not divide into {count} parts");
                let help = "`.split(sizes, axis)` takes parts of different sizes";
                fail_at(argument("chunks", problem), Some(help.into()), source)
            }
            parts(self, dim, &vec![ty.shape[dim] / count; count])
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
}

/// Parts of dimension `dim` whose sizes add up to its own.
fn parts(x: Tensor, dim: usize, sizes: &[usize]) -> Vec<Tensor> {
    let mut start = 0;
    let part = |&size: &usize| {
        start += size;
        lax::slice_dim(x, dim, start - size, start)
    };
    sizes.iter().map(part).collect()
}

/// A value that stands around or between the elements of a tensor.
fn padding(op: &'static str, value: Operand, ty: &TensorType, source: Source) -> Tensor {
    match value {
        Operand::Number(number) => lax::full(number, &TensorType::scalar(ty.dtype)),
        Operand::Tensor(value) => {
            let value_ty = value.ty();
            if !value_ty.is_like(&TensorType::scalar(ty.dtype)) {
                let problem = format!("the value {value_ty} is not a scalar of {}", ty.dtype);
                fail_at(argument(op, problem), None, source)
            }
            value
        }
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
