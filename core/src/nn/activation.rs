//! Activations: element-wise functions between linear maps.
//!
//! Where a function has a kink its derivative is that of one of the two sides, and each method says
//! of which. A gate that is 0 gives 0 even where it gates an infinity, as the limit does (except in
//! `gelu`); NaN stays NaN.

use std::f64::consts::{FRAC_1_SQRT_2, PI};
use std::panic::Location;

use super::{check_float, dimension, refuse};
use crate::lax;
use crate::op::Binary;
use crate::tensor::Tensor;
use crate::trace::method;
use crate::transform::custom_jvp;

/// `x * gate`, and 0 where the gate is 0.
#[track_caller]
fn gated(x: Tensor, gate: Tensor) -> Tensor {
    lax::binary(Binary::MulOrZero, gate, x)
}

/// `log(1 + e^x)`; by its own rule, since the formula has kinks at 0 that cancel.
#[track_caller]
fn softplus(x: Tensor) -> Tensor {
    let value = |x: Tensor| x.maximum(0.0) + (-x.abs()).exp().log1p();
    custom_jvp(value, move |x: Tensor, t: Tensor| {
        (value(x), lax::binary(Binary::MulOrZero, t, x.sigmoid()))
    })(x)
}

/// Activations.
impl Tensor {
    /// The Gaussian error linear unit in its tanh approximation, as GPT-2 has it.
    /// (Hendrycks, Gimpel: "Gaussian error linear units", 2016.)
    ///
    /// It is written as compilers know it, and so NaN at -inf, as is [`Tensor::gelu_exact`].
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
        method("relu", Location::caller(), || self.le(0).select(0, self))
    }

    /// `min(max(x, 0), 6)`, with derivative 0 at 0 and at 6.
    /// (Krizhevsky: "Convolutional deep belief networks on CIFAR-10", 2010.)
    #[track_caller]
    pub fn relu6(self) -> Tensor {
        method("relu6", Location::caller(), || {
            self.le(0).select(0, self.ge(6).select(6, self))
        })
    }

    /// `x` from 0 on, and `slope * x` below; derivative 1 at 0.
    #[track_caller]
    pub fn leaky_relu(self, slope: f64) -> Tensor {
        method("leaky_relu", Location::caller(), || {
            self.ge(0).select(self, self * slope)
        })
    }

    /// `x` from 0 on, and `slope * x` below, with slopes that are learned and broadcast to this
    /// tensor; derivative 1 at 0. (He et al.: "Delving deep into rectifiers", 2015.)
    #[track_caller]
    pub fn prelu(self, slope: Tensor) -> Tensor {
        method("prelu", Location::caller(), || {
            self.ge(0).select(self, self * slope)
        })
    }

    /// `x` above 0, and `alpha * (e^x - 1)` below; derivative `alpha` at 0.
    /// (Clevert, Unterthiner, Hochreiter: "Fast and accurate deep network learning by exponential
    /// linear units", 2015.)
    #[track_caller]
    pub fn elu(self, alpha: f64) -> Tensor {
        method("elu", Location::caller(), || {
            let is_positive = self.gt(0);
            // Never the exponential of a large number, which would be infinite.
            let below = is_positive.select(0, self).expm1();
            is_positive.select(self, below * alpha)
        })
    }

    /// [`Tensor::elu`] with the two constants for which activations keep mean 0 and variance 1.
    /// (Klambauer et al.: "Self-normalizing neural networks", 2017.)
    #[track_caller]
    pub fn selu(self) -> Tensor {
        method("selu", Location::caller(), || {
            self.elu(1.673_263_242_354_377_2) * 1.050_700_987_355_480_5
        })
    }

    /// `x` above 0, and `alpha * (e^(x / alpha) - 1)` below, which has derivative 1 at 0 for every
    /// `alpha`. (Barron: "Continuously differentiable exponential linear units", 2017.)
    #[track_caller]
    pub fn celu(self, alpha: f64) -> Tensor {
        method("celu", Location::caller(), || {
            if alpha == 0.0 || alpha.is_nan() {
                let problem = format!("`alpha` is {alpha}");
                refuse(
                    "celu",
                    problem,
                    "give another number; at 0 it would be `relu`",
                )
            }
            let is_positive = self.gt(0);
            let below = (is_positive.select(0, self) / alpha).expm1();
            is_positive.select(self, below * alpha)
        })
    }

    /// The sigmoid linear unit `x * sigmoid(x)`, also called swish; 0 at -inf.
    #[track_caller]
    pub fn silu(self) -> Tensor {
        method("silu", Location::caller(), || gated(self, self.sigmoid()))
    }

    /// `log(1 + e^x)`, without overflow.
    #[track_caller]
    pub fn softplus(self) -> Tensor {
        method("softplus", Location::caller(), || softplus(self))
    }

    /// `log(sigmoid(x))`, which is `-softplus(-x)`.
    #[track_caller]
    pub fn log_sigmoid(self) -> Tensor {
        method("log_sigmoid", Location::caller(), || -softplus(-self))
    }

    /// `x / (1 + |x|)`: -1 and 1 at the infinities.
    #[track_caller]
    pub fn softsign(self) -> Tensor {
        method("softsign", Location::caller(), || {
            let at_end = self.abs().eq(f64::INFINITY);
            let inside = at_end.select(0, self);
            at_end.select(self.sign(), inside / (inside.abs() + 1))
        })
    }

    /// `x * tanh(softplus(x))`; 0 at -inf.
    /// (Misra: "Mish: a self regularized non-monotonic activation function", 2019.)
    #[track_caller]
    pub fn mish(self) -> Tensor {
        method("mish", Location::caller(), || {
            gated(self, softplus(self).tanh())
        })
    }

    /// The nearest number in `-1..=1`, with derivative 1 at the ends.
    #[track_caller]
    pub fn hard_tanh(self) -> Tensor {
        method("hard_tanh", Location::caller(), || {
            self.gt(1).select(1, self.lt(-1).select(-1, self))
        })
    }

    /// `relu6(x + 3) / 6`, with derivative 0 at -3 and at 3.
    #[track_caller]
    pub fn hard_sigmoid(self) -> Tensor {
        method("hard_sigmoid", Location::caller(), || {
            (self + 3).relu6() / 6
        })
    }

    /// `x * hard_sigmoid(x)`; 0 at -inf. (Howard et al.: "Searching for MobileNetV3", 2019.)
    #[track_caller]
    pub fn hard_swish(self) -> Tensor {
        method("hard_swish", Location::caller(), || {
            gated(self, self.hard_sigmoid())
        })
    }

    /// `(x + sqrt(x^2 + b)) / 2`, a softplus of algebraic operations; `b` is not negative, and 4 makes
    /// it touch the softplus at 0. (Barron: "Squareplus", 2021.)
    #[track_caller]
    pub fn squareplus(self, b: f64) -> Tensor {
        method("squareplus", Location::caller(), || {
            if !(b >= 0.0 && b.is_finite()) {
                let problem = format!("`b` is {b}");
                refuse(
                    "squareplus",
                    problem,
                    "give a finite number that is not negative",
                )
            }
            // The square of a number of `f16` soon is infinite.
            let x = self.cast(lax::accumulator(self.dtype()));
            let root = (x.square() + b).sqrt();
            // Below 0 the sum cancels; its product with the difference is `b`.
            let is_negative = x.lt(0);
            let difference = root - is_negative.select(x, 0);
            let below = match b == 0.0 {
                true => x.zeros_like(),
                false => b * 0.5 / difference,
            };
            is_negative
                .select(below, (x + root) * 0.5)
                .cast(self.dtype())
        })
    }

    /// `a * sigmoid(b)`, where `a` and `b` are the two halves of one dimension.
    /// (Dauphin et al.: "Language modeling with gated convolutional networks", 2016.)
    #[track_caller]
    pub fn glu(self, axis: isize) -> Tensor {
        method("glu", Location::caller(), || {
            let (dim, size) = (dimension(self, axis), self.size(axis));
            if !size.is_multiple_of(2) {
                let problem = format!("dimension {dim} of {} is odd", self.ty());
                let help = "it holds values in its first half and gates in its second";
                refuse("glu", problem, help)
            }
            let half = size / 2;
            gated(
                lax::slice_dim(self, dim, 0, half),
                lax::slice_dim(self, dim, half, size).sigmoid(),
            )
        })
    }
}

/// `silu(gate) * x`: the gated linear unit of Llama's feed-forward layer. The two broadcast.
/// (Shazeer: "GLU variants improve transformer", 2020.)
///
/// ```
/// use shardax_core::{Tensor, nn};
///
/// fn feed_forward(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor {
///     nn::swiglu(x.dot(gate), x.dot(up)).dot(down)
/// }
/// ```
#[track_caller]
pub fn swiglu(gate: Tensor, x: Tensor) -> Tensor {
    method("swiglu", Location::caller(), || {
        check_float("swiglu", "gate", gate);
        gate.silu() * x
    })
}

/// `gelu(gate) * x`, with the tanh form of [`Tensor::gelu`]. The two broadcast.
/// (Shazeer: "GLU variants improve transformer", 2020.)
#[track_caller]
pub fn geglu(gate: Tensor, x: Tensor) -> Tensor {
    method("geglu", Location::caller(), || {
        check_float("geglu", "gate", gate);
        gate.gelu() * x
    })
}
