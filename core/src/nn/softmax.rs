//! Softmax and its logarithm, and the logarithm of a sum of exponentials.
//!
//! All subtract the largest element first, so that nothing overflows, and sum narrow floats in `f32`. Of a row of nothing but
//! -inf, or of no elements, the softmax is 0 and its logarithm -inf, and no derivative passes. Of `f8e4m3fn`, which has no
//! infinities, they are computed in `f32` as a whole.

use std::panic::Location;

use crate::error::ErrorKind;
use crate::tensor::{Axes, Tensor};
use crate::trace::{fail, method};

impl Tensor {
    /// `exp(x) / sum(exp(x))` over dimensions (`-1`, or several), without overflow. A row of all
    /// -inf gives 0.
    #[track_caller]
    pub fn softmax(self, axes: impl Axes) -> Tensor {
        method("softmax", Location::caller(), || {
            self.check_float("softmax");
            let axes = axes.list(self.rank());
            let (dtype, wide) = (self.dtype(), self.dtype().accumulator());
            let x = self.with_infinities();
            let exp = (x - x.largest(&axes)).exp().cast(wide);
            let sum = exp.sum(&axes[..]).keep_dims(self, &axes[..]);
            let none = sum.eq(0.0);
            (exp / none.select(1.0, sum)).cast(dtype)
        })
    }

    /// [`Tensor::softmax`] over the elements where `mask` is true; the others, whatever they are,
    /// give 0, and so does a row in which there is none. The mask is boolean and broadcasts to this
    /// tensor.
    #[track_caller]
    pub fn softmax_where(self, mask: Tensor, axes: impl Axes) -> Tensor {
        method("softmax_where", Location::caller(), || {
            let shown = mask.select(self.with_infinities(), f64::NEG_INFINITY);
            shown.softmax(axes).cast(self.dtype())
        })
    }

    /// `x - logsumexp(x)` over dimensions. A row of all -inf gives -inf.
    #[track_caller]
    pub fn log_softmax(self, axes: impl Axes) -> Tensor {
        method("log_softmax", Location::caller(), || {
            self.check_float("log_softmax");
            let axes = axes.list(self.rank());
            let (dtype, wide) = (self.dtype(), self.dtype().accumulator());
            let x = self.with_infinities();
            let shifted = (x - x.largest(&axes)).cast(wide);
            let sum = shifted.exp().sum(&axes[..]).keep_dims(self, &axes[..]);
            (shifted - sum.eq(0.0).select(1.0, sum).log()).cast(dtype)
        })
    }

    /// `log(sum(exp(x)))` over dimensions, which disappear, without overflow. Of a row of all -inf
    /// it is -inf, with derivative 0.
    #[track_caller]
    pub fn logsumexp(self, axes: impl Axes) -> Tensor {
        method("logsumexp", Location::caller(), || {
            self.check_float("logsumexp");
            let axes = axes.list(self.rank());
            let (dtype, wide) = (self.dtype(), self.dtype().accumulator());
            let x = self.with_infinities();
            let largest = x.largest(&axes).cast(wide);
            let sum = (x.cast(wide) - largest).exp().sum(&axes[..]);
            // The logarithm never sees a sum of 0, so that its second derivative is finite too.
            let none = sum.eq(0.0);
            let log = none.select(1.0, sum).log() + largest.reshape(sum.shape());
            none.select(f64::NEG_INFINITY, log).cast(dtype)
        })
    }

    /// Refuses a tensor that is not of real floats.
    #[track_caller]
    fn check_float(self, op: &'static str) {
        let ty = self.ty();
        if !ty.dtype.is_float() {
            let problem = format!("takes a tensor of real floats, not {ty}");
            let help = "convert it with `.cast(DType::F32)`";
            fail(ErrorKind::DType { op, problem }, Some(help.into()))
        }
    }

    /// The same numbers in a type that has infinities.
    #[track_caller]
    fn with_infinities(self) -> Tensor {
        let dtype = self.dtype();
        if dtype.has_infinities() {
            return self;
        }
        self.cast(dtype.accumulator())
    }

    /// The largest element, at size 1, or 0 where that is not finite; a constant, for the result
    /// of what it is subtracted from does not depend on it.
    #[track_caller]
    fn largest(self, axes: &[isize]) -> Tensor {
        let largest = self.stop_gradient().max(axes).keep_dims(self, axes);
        let finite = largest.abs().lt(f64::INFINITY);
        finite.select(largest, 0.0)
    }
}
