//! Reductions.
//!
//! Sums of narrow floats are accumulated in `f32`, here and in derivatives.

use std::ops::RangeFull;
use std::panic::Location;

use super::Tensor;
use super::shape::axis_at;
use crate::dtype::DType;
use crate::error::{ErrorKind, Source};
use crate::lax;
use crate::op::{Dims, Reducer};
use crate::trace::{fail_at, method};
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
        let source = Location::caller();
        method("sum", source, || {
            let ty = self.ty();
            if ty.dtype == DType::Bool {
                let problem = format!("takes a numeric tensor, not {ty}");
                let help = "count with `.cast(DType::I32).sum(..)`, or use `any`";
                fail_at(
                    ErrorKind::DType { op: "sum", problem },
                    Some(help.into()),
                    source,
                )
            }
            lax::sum(self, &dims("sum", &axes, &ty, source))
        })
    }

    /// The mean over dimensions, which disappear.
    #[track_caller]
    pub fn mean(self, axes: impl Axes) -> Tensor {
        let source = Location::caller();
        method("mean", source, || {
            let ty = self.ty();
            let dims = dims("mean", &axes, &ty, source);
            if !ty.dtype.is_differentiable() {
                let problem = format!("takes a floating-point tensor, not {ty}");
                let help = "convert it with `.cast(...)`";
                fail_at(
                    ErrorKind::DType {
                        op: "mean",
                        problem,
                    },
                    Some(help.into()),
                    source,
                )
            }
            let count: usize = dims.iter().map(|&d| ty.shape[d]).product();
            let wide = lax::convert(self, lax::accumulator(ty.dtype));
            lax::convert(lax::sum(wide, &dims) / count as f64, ty.dtype)
        })
    }

    /// The variance over dimensions, which disappear: the mean of squared differences from the
    /// mean, divided by the count.
    #[track_caller]
    pub fn var(self, axes: impl Axes) -> Tensor {
        method("var", Location::caller(), || {
            let listed = axes.list(self.rank());
            let centred = self
                - self
                    .mean(listed.as_slice())
                    .keep_dims(self, listed.as_slice());
            centred.square().mean(listed.as_slice())
        })
    }

    /// The largest element over dimensions, which disappear; equal ones share the derivative.
    ///
    /// A NaN is larger than every number, except that the CPU runtime loses it where the maxima of
    /// several devices are compared.
    #[track_caller]
    pub fn max(self, axes: impl Axes) -> Tensor {
        self.reduce("max", Reducer::Max, axes, Location::caller())
    }

    /// The smallest element over dimensions, which disappear; equal ones share the derivative.
    #[track_caller]
    pub fn min(self, axes: impl Axes) -> Tensor {
        self.reduce("min", Reducer::Min, axes, Location::caller())
    }

    /// Whether all elements over dimensions are true.
    #[track_caller]
    pub fn all(self, axes: impl Axes) -> Tensor {
        self.reduce("all", Reducer::And, axes, Location::caller())
    }

    /// Whether any element over dimensions is true.
    #[track_caller]
    pub fn any(self, axes: impl Axes) -> Tensor {
        self.reduce("any", Reducer::Or, axes, Location::caller())
    }

    fn reduce(
        self,
        name: &'static str,
        reducer: Reducer,
        axes: impl Axes,
        source: Source,
    ) -> Tensor {
        method(name, source, || {
            let dims = dims(name, &axes, &self.ty(), source);
            lax::reduce(reducer, self, &dims)
        })
    }

    /// The index of the first largest element along one dimension, which disappears, as `i32`.
    /// NaN counts as larger than any number.
    #[track_caller]
    pub fn argmax(self, axis: isize) -> Tensor {
        let source = Location::caller();
        method("argmax", source, || {
            let dim = non_empty("argmax", axis, &self.ty(), source);
            position(self, self.max(axis), dim)
        })
    }

    /// The index of the first smallest element along one dimension, which disappears, as `i32`.
    /// NaN counts as smaller than any number.
    #[track_caller]
    pub fn argmin(self, axis: isize) -> Tensor {
        let source = Location::caller();
        method("argmin", source, || {
            let dim = non_empty("argmin", axis, &self.ty(), source);
            position(self, self.min(axis), dim)
        })
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

fn non_empty(op: &'static str, axis: isize, ty: &TensorType, source: Source) -> usize {
    let dim = axis_at(op, axis, ty, source);
    if ty.shape[dim] == 0 {
        let problem = format!("dimension {dim} of {ty} has no elements");
        fail_at(ErrorKind::Shape { op, problem }, None, source)
    }
    dim
}

/// The first position along a dimension at which `x` has the value to which it was reduced.
#[track_caller]
fn position(x: Tensor, value: Tensor, dim: usize) -> Tensor {
    let ty = x.ty();
    let axis = dim as isize;
    let mut found = x.eq(value.keep_dims(x, axis));
    if ty.dtype.is_float() {
        // A NaN is what a reduction over it gives, and does not equal itself.
        found = found | x.ne(x);
    }
    let positions = lax::iota(TensorType::new(DType::I32, &ty.shape), dim);
    found.select(positions, ty.shape[dim] as i64).min(axis)
}
