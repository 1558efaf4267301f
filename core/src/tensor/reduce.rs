//! Reductions.
//!
//! Sums of narrow floats are accumulated in `f32`, here and in derivatives.

use std::ops::RangeFull;
use std::panic::Location;

use super::arithmetic::{IntoOperand, Operand, promote};
use super::norm::root_mean_square;
use super::shape::{axis_at, broadcast_shapes};
use super::{Tensor, scaled};
use crate::dtype::DType;
use crate::error::{ErrorKind, Source};
use crate::lax;
use crate::op::{Comparison, Dims, Reducer};
use crate::trace::{fail_at, method, note_square};
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

/// The dimensions that are named, ascending.
pub(super) fn dims_at(op: &'static str, axes: &impl Axes, ty: &TensorType, source: Source) -> Dims {
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
            numeric("sum", &ty, source);
            lax::sum(self, &dims_at("sum", &axes, &ty, source))
        })
    }

    /// The product over dimensions, which disappear. Its derivative is exact where elements are 0.
    #[track_caller]
    pub fn prod(self, axes: impl Axes) -> Tensor {
        let source = Location::caller();
        method("prod", source, || {
            let ty = self.ty();
            numeric("prod", &ty, source);
            let dims = dims_at("prod", &axes, &ty, source);
            let wide = lax::convert(self, ty.dtype.accumulator());
            lax::convert(lax::reduce(Reducer::Prod, wide, &dims), ty.dtype)
        })
    }

    /// How many elements over dimensions, which disappear, are not 0, as `i32`.
    #[track_caller]
    pub fn count_nonzero(self, axes: impl Axes) -> Tensor {
        let source = Location::caller();
        method("count_nonzero", source, || {
            let ty = self.ty();
            let dims = dims_at("count_nonzero", &axes, &ty, source);
            let nonzero = lax::compare(Comparison::Ne, self, lax::zeros(&ty));
            lax::reduce(Reducer::Sum, lax::convert(nonzero, DType::I32), &dims)
        })
    }

    /// The mean over dimensions, which disappear.
    #[track_caller]
    pub fn mean(self, axes: impl Axes) -> Tensor {
        let source = Location::caller();
        method("mean", source, || {
            let ty = self.ty();
            let dims = dims_at("mean", &axes, &ty, source);
            floating("mean", &ty, source);
            let wide = lax::convert(self, ty.dtype.accumulator());
            lax::convert(mean(wide, &dims, 0), ty.dtype)
        })
    }

    /// The variance over dimensions, which disappear: the mean of squared differences from the
    /// mean, divided by the count.
    #[track_caller]
    pub fn var(self, axes: impl Axes) -> Tensor {
        method("var", Location::caller(), || self.var_ddof(axes, 0))
    }

    /// The variance over dimensions, divided by the count less `ddof`: by 1 for the unbiased
    /// estimate. NaN where nothing is left to divide by.
    #[track_caller]
    pub fn var_ddof(self, axes: impl Axes, ddof: usize) -> Tensor {
        let source = Location::caller();
        method("var_ddof", source, || {
            let ty = self.ty();
            let dims = dims_at("var", &axes, &ty, source);
            floating("var", &ty, source);
            variance(self, &dims, ddof)
        })
    }

    /// The standard deviation over dimensions, which disappear; with gradient 0 where it is 0.
    #[track_caller]
    pub fn std(self, axes: impl Axes) -> Tensor {
        method("std", Location::caller(), || self.std_ddof(axes, 0))
    }

    /// The root of [`Tensor::var_ddof`], without overflow; with gradient 0 where it is 0.
    #[track_caller]
    pub fn std_ddof(self, axes: impl Axes, ddof: usize) -> Tensor {
        let source = Location::caller();
        method("std_ddof", source, || {
            let ty = self.ty();
            let dims = dims_at("std", &axes, &ty, source);
            floating("std", &ty, source);
            let centred = centred(self, &dims);
            let parts = if ty.dtype.is_complex() {
                centred.abs()
            } else {
                centred
            };
            let dtype = if ty.dtype.is_complex() {
                parts.dtype()
            } else {
                ty.dtype
            };
            let count: usize = dims.iter().map(|&d| ty.shape[d]).product();
            let divisor = count.saturating_sub(ddof) as f64;
            let std = lax::convert(root_mean_square(parts, &dims, divisor), dtype);
            note_square(std, move || variance(self, &dims, ddof));
            std
        })
    }

    /// `log(sum(weights * exp(x)))` along one dimension, which disappears, without overflow. Where
    /// nothing has a weight, or all is -inf, it is -inf, and its gradient by `x` is 0; a negative sum
    /// gives NaN. A weight of 0 has a derivative as any other.
    #[track_caller]
    pub fn logsumexp_weighted(self, weights: impl IntoOperand, axis: isize) -> Tensor {
        let source = Location::caller();
        method("logsumexp_weighted", source, || {
            let (x, weights) = weighted("logsumexp_weighted", self, weights.into(), source);
            let ty = x.ty();
            floating("logsumexp_weighted", &ty, source);
            let dim = axis_at("logsumexp_weighted", axis, &ty, source);
            let wide = ty.dtype.accumulator();
            let (x, weights) = (x.cast(wide), weights.cast(wide));
            // What has no weight is not there, whatever it is. Its exponential is only left out of the sum,
            // of which it is the derivative by the weight.
            let counted = weights.ne(0.0).select(x, f64::NEG_INFINITY);
            let largest = counted.stop_gradient().max(dim as isize);
            let largest = largest.abs().lt(f64::INFINITY).select(largest, 0.0);
            let shifted = (x - with_dims(largest, &ty, &[dim])).exp();
            let sum = scaled(weights, shifted).sum(dim as isize);
            (sum.log() + largest).cast(ty.dtype)
        })
    }

    /// The largest element over dimensions, which disappear; equal ones share the derivative.
    ///
    /// A NaN is larger than every number, and -0 less than 0, on one device and across several.
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
            let dims = dims_at(name, &axes, &self.ty(), source);
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
        let source = Location::caller();
        method("keep_dims", source, || {
            let (reduced, ty) = (self.ty(), of.ty());
            let dims = dims_at("keep_dims", &axes, &ty, source);
            let kept = (0..ty.rank())
                .filter(|d| !dims.contains(d))
                .map(|d| ty.shape[d]);
            if !kept.eq(reduced.shape.iter().copied()) {
                let problem =
                    format!("{reduced} is not what is left of {ty} without these dimensions");
                let help = "call it on the reduced tensor, with what that was reduced from and along which dimensions: \
                            `x.mean(-1).keep_dims(x, -1)`";
                let op = "keep_dims";
                fail_at(
                    ErrorKind::Argument { op, problem },
                    Some(help.to_owned()),
                    source,
                )
            }
            with_dims(self, &ty, &dims)
        })
    }
}

/// `x`, reduced from a tensor of type `ty`, with the reduced dimensions back at size 1.
pub(super) fn with_dims(x: Tensor, ty: &TensorType, dims: &[usize]) -> Tensor {
    let kept = |(d, &size): (usize, &usize)| if dims.contains(&d) { 1 } else { size };
    let shape: Shape = ty.shape.iter().enumerate().map(kept).collect();
    lax::reshape(x, &shape)
}

/// Differences from the mean, in the type in which they are summed.
#[track_caller]
fn centred(x: Tensor, dims: &[usize]) -> Tensor {
    let ty = x.ty();
    let wide = lax::convert(x, ty.dtype.accumulator());
    wide - with_dims(mean(wide, dims, 0), &ty, dims)
}

#[track_caller]
fn variance(x: Tensor, dims: &[usize], ddof: usize) -> Tensor {
    let centred = centred(x, dims);
    // A complex number and its conjugate.
    let is_complex = x.dtype().is_complex();
    let square = if is_complex { centred.abs() } else { centred }.square();
    let dtype = if is_complex {
        square.dtype()
    } else {
        x.dtype()
    };
    lax::convert(mean(square, dims, ddof), dtype)
}

/// The sum divided by the count less `ddof`.
fn mean(x: Tensor, dims: &[usize], ddof: usize) -> Tensor {
    let shape = x.ty().shape;
    let count: usize = dims.iter().map(|&d| shape[d]).product();
    lax::reduce(Reducer::Sum, x, dims) / count.saturating_sub(ddof) as f64
}

/// A tensor and its weights in one shape and element type.
fn weighted(op: &'static str, x: Tensor, weights: Operand, source: Source) -> (Tensor, Tensor) {
    let ty = x.ty();
    let weights = match weights {
        Operand::Number(number) => return (x, lax::full(number, &ty)),
        Operand::Tensor(weights) => weights,
    };
    let weights_ty = weights.ty();
    let Some(dtype) = promote(ty.dtype, weights_ty.dtype) else {
        let problem = format!("no element type holds both {ty} and weights {weights_ty}");
        let help = "convert one of them with `.cast(...)`";
        fail_at(ErrorKind::DType { op, problem }, Some(help.into()), source)
    };
    let shape = broadcast_shapes(op, &[&ty, &weights_ty], source);
    let fit = |x: Tensor| lax::convert(x, dtype).broadcast_to(&shape);
    (fit(x), fit(weights))
}

fn numeric(op: &'static str, ty: &TensorType, source: Source) {
    if ty.dtype == DType::Bool {
        let problem = format!("takes a numeric tensor, not {ty}");
        let help = "count with `.cast(DType::I32).sum(..)`, or use `any`";
        fail_at(ErrorKind::DType { op, problem }, Some(help.into()), source)
    }
}

pub(super) fn floating(op: &'static str, ty: &TensorType, source: Source) {
    if !ty.dtype.is_differentiable() {
        let problem = format!("takes a floating-point tensor, not {ty}");
        let help = "convert it with `.cast(...)`";
        fail_at(ErrorKind::DType { op, problem }, Some(help.into()), source)
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
        found |= x.ne(x);
    }
    let positions = lax::iota(TensorType::new(DType::I32, &ty.shape), dim);
    found.select(positions, ty.shape[dim] as i64).min(axis)
}
