//! Activations: element-wise functions between linear maps.
//!
//! Where a function has a kink its derivative is that of one of the two sides, and each method says
//! of which. A gate that is 0 gives 0 even where it gates an infinity, as the limit does; NaN stays
//! NaN.

use std::f64::consts::{FRAC_1_SQRT_2, PI};
use std::panic::Location;

use super::{check_float, dimension, refuse};
use crate::lax;
use crate::tensor::{Tensor, scaled, with_slope, with_slopes};
use crate::trace::method;

/// `log(1 + e^x)`; by its own slope, since the formula has kinks at 0 that cancel.
#[track_caller]
fn softplus(x: Tensor) -> Tensor {
    with_slope(x, |x| {
        let value = x.maximum(0.0) + (-x.abs()).exp().log1p();
        (value, x.sigmoid())
    })
}

/// `above * x` above 0, and `below * (e^(x / width) - 1)` below, with the slope of below at 0.
#[track_caller]
fn exponential_below(x: Tensor, above: f64, below: f64, width: f64) -> Tensor {
    with_slope(x, move |x| {
        let is_above = x.gt(0);
        // Never the exponential of a large number, which would be infinite.
        let lower = is_above.select(0, x) / width;
        let value = is_above.select(x * above, lower.expm1() * below);
        (value, is_above.select(above, lower.exp() * (below / width)))
    })
}

/// `min(max(x + 3, 0), 6) / 6`, and its slope, 0 at -3 and 3.
#[track_caller]
fn hard_sigmoid(x: Tensor) -> (Tensor, Tensor) {
    let is_inside = x.abs().lt(3);
    ((x + 3).relu6() / 6, is_inside.cast(x.dtype()) / 6)
}

/// Activations.
impl Tensor {
    /// The Gaussian error linear unit in its tanh approximation, as GPT-2 has it; 0 at -inf.
    /// (Hendrycks, Gimpel: "Gaussian error linear units", 2016.)
    #[track_caller]
    pub fn gelu(self) -> Tensor {
        method("gelu", Location::caller(), || {
            // (1 + tanh(u)) / 2 is sigmoid(2u), which keeps its digits where tanh is near -1.
            let (factor, cubic) = (2.0 * (2.0 / PI).sqrt(), 0.044715);
            with_slope(self, move |x| {
                let square = x * x;
                let double = x * (square * (cubic * factor) + factor);
                let gate = double.sigmoid();
                let change = x * (square * (3.0 * cubic * factor) + factor);
                let slope = gate + scaled(change, gate * (-double).sigmoid());
                (scaled(x, gate), slope)
            })
        })
    }

    /// The Gaussian error linear unit `x * P(X <= x)`, by the error function; 0 at -inf.
    #[track_caller]
    pub fn gelu_exact(self) -> Tensor {
        method("gelu_exact", Location::caller(), || {
            with_slope(self, |x| {
                let below = (x * -FRAC_1_SQRT_2).erfc() * 0.5;
                let density = (x * x * -0.5).exp() * (1.0 / (2.0 * PI).sqrt());
                (scaled(x, below), below + scaled(x, density))
            })
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
            exponential_below(self, 1.0, alpha, 1.0)
        })
    }

    /// [`Tensor::elu`] with the two constants for which activations keep mean 0 and variance 1.
    /// (Klambauer et al.: "Self-normalizing neural networks", 2017.)
    #[track_caller]
    pub fn selu(self) -> Tensor {
        method("selu", Location::caller(), || {
            let (alpha, scale) = (1.673_263_242_354_377_2, 1.050_700_987_355_480_5);
            exponential_below(self, scale, alpha * scale, 1.0)
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
            exponential_below(self, 1.0, alpha, alpha)
        })
    }

    /// The sigmoid linear unit `x * sigmoid(x)`, also called swish; 0 at -inf.
    #[track_caller]
    pub fn silu(self) -> Tensor {
        method("silu", Location::caller(), || {
            with_slope(self, |x| {
                let gate = x.sigmoid();
                (scaled(x, gate), gate + scaled(x, gate * (-x).sigmoid()))
            })
        })
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
            with_slope(self, |x| {
                let size = x.abs();
                let value = size.eq(f64::INFINITY).select(x.sign(), x / (size + 1));
                (value, (size + 1).recip().square())
            })
        })
    }

    /// `x * tanh(softplus(x))`; 0 at -inf.
    /// (Misra: "Mish: a self regularized non-monotonic activation function", 2019.)
    #[track_caller]
    pub fn mish(self) -> Tensor {
        method("mish", Location::caller(), || {
            with_slope(self, |x| {
                let inner = softplus(x);
                let (gate, slope) = (inner.tanh(), inner.cosh().recip().square());
                (scaled(x, gate), gate + scaled(x, slope * x.sigmoid()))
            })
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
            with_slope(self, hard_sigmoid)
        })
    }

    /// `x * hard_sigmoid(x)`; 0 at -inf. (Howard et al.: "Searching for MobileNetV3", 2019.)
    #[track_caller]
    pub fn hard_swish(self) -> Tensor {
        method("hard_swish", Location::caller(), || {
            with_slope(self, |x| {
                let (gate, slope) = hard_sigmoid(x);
                (scaled(x, gate), gate + scaled(x, slope))
            })
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
            if b == 0.0 {
                return self.maximum(0);
            }
            with_slope(self, move |x| {
                let is_negative = x.lt(0);
                let size = is_negative.select(-x, x);
                let root = size.hypot(b.sqrt());
                // The results for |x| and -|x|: one is a difference that cancels, and b / 4 their product.
                // Not the sum of two halves, which XLA makes half of a sum that overflows; this one may.
                let large = size + b * 0.5 / (root + size);
                let small = b * 0.25 / large;
                let part = small / root;
                let value = is_negative.select(small, large);
                (value, is_negative.select(part, 1 - part))
            })
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
            let [a, b] = [[0, half], [half, size]]
                .map(|[start, limit]| lax::slice_dim(self, dim, start, limit));
            with_slopes(a, b, |a, b| {
                let gate = b.sigmoid();
                let slope = scaled(a, gate * (-b).sigmoid());
                (scaled(a, gate), [gate, slope])
            })
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
