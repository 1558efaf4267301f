//! Reductions.
//!
//! Sums of `f16` and `bf16` are accumulated in `f32`: a long sum in eight bits of mantissa stops
//! growing once it is 256 times its next element.

use std::ops::RangeFull;
use std::panic::Location;

use super::Tensor;
use super::shape::axis_at;
use crate::dtype::DType;
use crate::error::{ErrorKind, Source};
use crate::lax;
use crate::op::{Dims, Reducer};
use crate::trace::fail_at;
use crate::types::{Shape, TensorType};

/// Which dimensions are reduced: `..` (all), `-1`, `[0, 2]`.
pub trait Axes {
    /// The dimensions of a tensor of rank `rank`, possibly negative.
    fn list(&self, rank: usize) -> Vec<isize>;
}

impl Axes for RangeFull {
    fn list(&self, rank: usize) -> Vec<isize> {
        (0..rank as isize).collect()
    }
}

impl Axes for isize {
    fn list(&self, _: usize) -> Vec<isize> {
        vec![*self]
    }
}

impl<const N: usize> Axes for [isize; N] {
    fn list(&self, _: usize) -> Vec<isize> {
        self.to_vec()
    }
}

impl Axes for &[isize] {
    fn list(&self, _: usize) -> Vec<isize> {
        self.to_vec()
    }
}

fn dims(op: &'static str, axes: &impl Axes, ty: &TensorType, source: Source) -> Dims {
    let mut dims = Dims::new();
    for axis in axes.list(ty.rank()) {
        let dim = axis_at(op, axis, ty, source);
        if dims.contains(&dim) {
            let problem = format!("axis {axis} of {ty} is named twice");
            fail_at(ErrorKind::Argument { op, problem }, None, source)
        }
        dims.push(dim);
    }
    dims.sort_unstable();
    dims
}

impl Tensor {
    /// The sum over dimensions, which disappear.
    #[track_caller]
    pub fn sum(self, axes: impl Axes) -> Tensor {
        let ty = self.ty();
        let dims = dims("sum", &axes, &ty, Location::caller());
        lax::convert(lax::reduce(Reducer::Sum, accumulator(self, ty.dtype), &dims), ty.dtype)
    }

    /// The mean over dimensions, which disappear.
    #[track_caller]
    pub fn mean(self, axes: impl Axes) -> Tensor {
        let ty = self.ty();
        let source = Location::caller();
        let dims = dims("mean", &axes, &ty, source);
        if !ty.dtype.is_differentiable() {
            let problem = format!("takes a floating-point tensor, not {ty}");
            let help = "convert it with `.cast(...)`";
            fail_at(ErrorKind::DType { op: "mean", problem }, Some(help.into()), source)
        }
        let count: usize = dims.iter().map(|&d| ty.shape[d]).product();
        let total = lax::reduce(Reducer::Sum, accumulator(self, ty.dtype), &dims);
        lax::convert(total / count as f64, ty.dtype)
    }

    /// The variance over dimensions, which disappear: the mean of squared differences from the
    /// mean, divided by the count.
    #[track_caller]
    pub fn var(self, axes: impl Axes) -> Tensor {
        let listed = axes.list(self.rank());
        let centred = self - self.mean(listed.as_slice()).keep_dims(self, listed.as_slice());
        centred.square().mean(listed.as_slice())
    }

    /// The largest element over dimensions, which disappear; equal ones share the derivative.
    #[track_caller]
    pub fn max(self, axes: impl Axes) -> Tensor {
        let dims = dims("max", &axes, &self.ty(), Location::caller());
        lax::reduce(Reducer::Max, self, &dims)
    }

    /// The smallest element over dimensions, which disappear; equal ones share the derivative.
    #[track_caller]
    pub fn min(self, axes: impl Axes) -> Tensor {
        let dims = dims("min", &axes, &self.ty(), Location::caller());
        lax::reduce(Reducer::Min, self, &dims)
    }

    /// Whether all elements over dimensions are true.
    #[track_caller]
    pub fn all(self, axes: impl Axes) -> Tensor {
        let dims = dims("all", &axes, &self.ty(), Location::caller());
        lax::reduce(Reducer::And, self, &dims)
    }

    /// Whether any element over dimensions is true.
    #[track_caller]
    pub fn any(self, axes: impl Axes) -> Tensor {
        let dims = dims("any", &axes, &self.ty(), Location::caller());
        lax::reduce(Reducer::Or, self, &dims)
    }

    /// The index of the first largest element along one dimension, which disappears, as `i32`.
    #[track_caller]
    pub fn argmax(self, axis: isize) -> Tensor {
        let ty = self.ty();
        let dim = axis_at("argmax", axis, &ty, Location::caller());
        let largest = self.max(axis).keep_dims(self, axis);
        let positions = lax::iota(TensorType::new(DType::I32, &ty.shape), dim);
        let beyond = ty.shape[dim] as i64;
        self.eq(largest).select(positions, beyond).min(axis)
    }

    /// This tensor, reduced from `of` over `axes`, with the reduced dimensions back at size 1.
    #[track_caller]
    pub fn keep_dims(self, of: Tensor, axes: impl Axes) -> Tensor {
        let ty = of.ty();
        let dims = dims("keep_dims", &axes, &ty, Location::caller());
        let kept = |(d, &size): (usize, &usize)| if dims.contains(&d) { 1 } else { size };
        let shape: Shape = ty.shape.iter().enumerate().map(kept).collect();
        lax::reshape(self, &shape)
    }
}

#[track_caller]
fn accumulator(x: Tensor, dtype: DType) -> Tensor {
    match dtype {
        DType::F16 | DType::BF16 | DType::F8E4M3FN | DType::F8E5M2 => lax::convert(x, DType::F32),
        _ => x,
    }
}
