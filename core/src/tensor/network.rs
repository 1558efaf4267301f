//! Functions of neural networks.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use super::Tensor;
use crate::lax;
use crate::op::{Comparison, Unary};

impl Tensor {
    /// The Gaussian error linear unit in its tanh approximation, as GPT-2 has it.
    /// (Hendrycks, Gimpel: "Gaussian error linear units", 2016.)
    #[track_caller]
    pub fn gelu(self) -> Tensor {
        let cubed = self * self * self;
        let inner = (self + cubed * 0.044715) * (2.0 / PI).sqrt();
        self * 0.5 * (inner.tanh() + 1.0)
    }

    /// The Gaussian error linear unit `x * P(X <= x)`, by the error function.
    #[track_caller]
    pub fn gelu_exact(self) -> Tensor {
        self * 0.5 * ((self * FRAC_1_SQRT_2).erf() + 1.0)
    }

    /// `max(x, 0)`, with derivative 0 at 0.
    #[track_caller]
    pub fn relu(self) -> Tensor {
        let zero = lax::zeros(&self.ty());
        lax::select(lax::compare(Comparison::Gt, self, zero), self, zero)
    }

    /// The sigmoid linear unit `x * sigmoid(x)`, also called swish.
    #[track_caller]
    pub fn silu(self) -> Tensor {
        self * self.sigmoid()
    }

    /// `exp(x) / sum(exp(x))` along one dimension, without overflow. A row of all -inf gives 0.
    #[track_caller]
    pub fn softmax(self, axis: isize) -> Tensor {
        let exp = self.exp_from_largest(axis);
        let sum = exp.sum(axis).keep_dims(self, axis);
        let none = sum.eq(0.0);
        exp / none.select(1.0, sum)
    }

    /// `x - logsumexp(x)` along one dimension.
    #[track_caller]
    pub fn log_softmax(self, axis: isize) -> Tensor {
        let shifted = self - self.largest(axis);
        shifted - shifted.exp().sum(axis).log().keep_dims(self, axis)
    }

    /// `log(sum(exp(x)))` along one dimension, which disappears, without overflow.
    #[track_caller]
    pub fn logsumexp(self, axis: isize) -> Tensor {
        let largest = self.largest(axis);
        let sum = (self - largest).exp().sum(axis);
        let shape = sum.shape();
        sum.log() + largest.reshape(shape)
    }

    /// The largest element, at size 1, or 0 where that is not finite; a constant, for the result
    /// of what it is subtracted from does not depend on it.
    #[track_caller]
    fn largest(self, axis: isize) -> Tensor {
        let largest = self.stop_gradient().max(axis).keep_dims(self, axis);
        let finite = largest.abs().lt(f64::INFINITY);
        finite.select(largest, 0.0)
    }

    #[track_caller]
    fn exp_from_largest(self, axis: isize) -> Tensor {
        lax::unary(Unary::Exp, self - self.largest(axis))
    }
}
