//! Functions of neural networks.

use std::f64::consts::{FRAC_1_SQRT_2, PI};
use std::panic::Location;

use super::Tensor;
use crate::lax;
use crate::op::Comparison;
use crate::trace::method;

impl Tensor {
    /// The Gaussian error linear unit in its tanh approximation, as GPT-2 has it.
    /// (Hendrycks, Gimpel: "Gaussian error linear units", 2016.)
    #[track_caller]
    pub fn gelu(self) -> Tensor {
        method("gelu", Location::caller(), || {
            let cubed = self * self * self;
            let inner = (self + cubed * 0.044715) * (2.0 / PI).sqrt();
            self * 0.5 * (inner.tanh() + 1.0)
        })
    }

    /// The Gaussian error linear unit `x * P(X <= x)`, by the error function.
    #[track_caller]
    pub fn gelu_exact(self) -> Tensor {
        method("gelu_exact", Location::caller(), || {
            self * 0.5 * ((self * FRAC_1_SQRT_2).erf() + 1.0)
        })
    }

    /// `max(x, 0)`, with derivative 0 at 0.
    #[track_caller]
    pub fn relu(self) -> Tensor {
        method("relu", Location::caller(), || {
            let zero = lax::zeros(&self.ty());
            lax::select(lax::compare(Comparison::Gt, self, zero), self, zero)
        })
    }

    /// The sigmoid linear unit `x * sigmoid(x)`, also called swish.
    #[track_caller]
    pub fn silu(self) -> Tensor {
        method("silu", Location::caller(), || self * self.sigmoid())
    }

    /// `log(1 + e^x)`, without overflow.
    #[track_caller]
    pub fn softplus(self) -> Tensor {
        self.maximum(0.0) + (-self.abs()).exp().log1p()
    }

    /// `exp(x) / sum(exp(x))` along one dimension, without overflow. A row of all -inf gives 0.
    #[track_caller]
    pub fn softmax(self, axis: isize) -> Tensor {
        method("softmax", Location::caller(), || {
            let exp = (self - self.largest(axis)).exp();
            let sum = exp.sum(axis).keep_dims(self, axis);
            let none = sum.eq(0.0);
            exp / none.select(1.0, sum)
        })
    }

    /// `x - logsumexp(x)` along one dimension.
    #[track_caller]
    pub fn log_softmax(self, axis: isize) -> Tensor {
        method("log_softmax", Location::caller(), || {
            let shifted = self - self.largest(axis);
            shifted - shifted.exp().sum(axis).log().keep_dims(self, axis)
        })
    }

    /// `log(sum(exp(x)))` along one dimension, which disappears, without overflow.
    #[track_caller]
    pub fn logsumexp(self, axis: isize) -> Tensor {
        method("logsumexp", Location::caller(), || {
            let largest = self.largest(axis);
            let sum = (self - largest).exp().sum(axis);
            let shape = sum.shape();
            sum.log() + largest.reshape(shape)
        })
    }

    /// The largest element, at size 1, or 0 where that is not finite; a constant, for the result
    /// of what it is subtracted from does not depend on it.
    fn largest(self, axis: isize) -> Tensor {
        let largest = self.stop_gradient().max(axis).keep_dims(self, axis);
        let finite = largest.abs().lt(f64::INFINITY);
        finite.select(largest, 0.0)
    }
}
