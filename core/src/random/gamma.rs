//! Draws from the gamma distribution and what is made of it.
//!
//! By rejection (Marsaglia, Tsang: "A simple method for generating gamma variables", 2000), every
//! element from a key of its own, until it is accepted. For the same key the numbers equal JAX's, but
//! for the rounding of logarithms.

use std::panic::Location;

use super::{Key, constant, drawn_in, refuse};
use crate::dtype::DType;
use crate::literal::Number;
use crate::tensor::{IntoOperand, Operand, Tensor};
use crate::trace::method;
use crate::transform::{vmap, while_loop};

impl Key {
    /// Floats of the gamma distribution with shape parameter `alpha` and scale 1; `alpha` is a number or
    /// a tensor that broadcasts to `shape`. Narrower types than `f32` are drawn in `f32` and rounded.
    ///
    /// There is no derivative by `alpha`; to ask for one is an error.
    #[track_caller]
    pub fn gamma(
        self,
        alpha: impl IntoOperand,
        dtype: DType,
        shape: impl AsRef<[usize]>,
    ) -> Tensor {
        let alpha = alpha.into();
        method("gamma", Location::caller(), || {
            let alpha = parameter("gamma", "alpha", alpha, dtype, shape.as_ref());
            drawn(self, alpha, false).cast(dtype)
        })
    }

    /// The logarithm of [`Key::gamma`], which does not vanish for a small `alpha`.
    #[track_caller]
    pub fn loggamma(
        self,
        alpha: impl IntoOperand,
        dtype: DType,
        shape: impl AsRef<[usize]>,
    ) -> Tensor {
        let alpha = alpha.into();
        method("loggamma", Location::caller(), || {
            let alpha = parameter("loggamma", "alpha", alpha, dtype, shape.as_ref());
            drawn(self, alpha, true).cast(dtype)
        })
    }

    /// Floats in `0..=1` of the beta distribution. Parameters, element types and derivatives as in
    /// [`Key::gamma`].
    #[track_caller]
    pub fn beta(
        self,
        alpha: impl IntoOperand,
        beta: impl IntoOperand,
        dtype: DType,
        shape: impl AsRef<[usize]>,
    ) -> Tensor {
        let (alpha, beta) = (alpha.into(), beta.into());
        method("beta", Location::caller(), || {
            let shape = shape.as_ref();
            let alpha = parameter("beta", "alpha", alpha, dtype, shape);
            let beta = parameter("beta", "beta", beta, dtype, shape);
            let keys = self.split(2);
            let (a, b) = (drawn(keys[0], alpha, true), drawn(keys[1], beta, true));
            let largest = a.maximum(b);
            let (a, b) = ((a - largest).exp(), (b - largest).exp());
            (a / (a + b)).cast(dtype)
        })
    }

    /// Points of the Dirichlet distribution: `shape` of them, along a new last dimension, each of as
    /// many non-negative floats as the vector `alpha` has, with sum 1. Element types and derivatives as in
    /// [`Key::gamma`].
    #[track_caller]
    pub fn dirichlet(self, alpha: Tensor, dtype: DType, shape: impl AsRef<[usize]>) -> Tensor {
        method("dirichlet", Location::caller(), || {
            let ty = alpha.ty();
            if ty.rank() == 0 {
                refuse(format!("`alpha` is {ty}, not a vector"), None)
            }
            let count = ty.shape[ty.rank() - 1];
            let shape = [shape.as_ref(), &[count]].concat();
            let alpha = parameter("dirichlet", "alpha", alpha.into(), dtype, &shape);
            drawn(self, alpha, true).softmax(-1).cast(dtype)
        })
    }
}

/// A parameter of every element, in the type in which it is drawn.
fn parameter(
    draw: &'static str,
    name: &str,
    value: Operand,
    dtype: DType,
    shape: &[usize],
) -> Tensor {
    let drawn = drawn_in(dtype);
    let value = match value {
        Operand::Number(number) => {
            let size = number.as_f64();
            let is_positive = size > 0.0 && size.is_finite() && !matches!(number, Number::Bool(_));
            if !is_positive {
                refuse(format!("`{name}` is {number}, not a positive number"), None)
            }
            Tensor::scalar(number, drawn)
        }
        Operand::Tensor(tensor) => constant(draw, tensor.cast(drawn)),
    };
    value.broadcast_to(shape)
}

/// A draw for each element of `alpha`, or its logarithm.
fn drawn(key: Key, alpha: Tensor, log: bool) -> Tensor {
    let shape = alpha.shape();
    let count: usize = shape.iter().product();
    let elements = (key.split_array(count), alpha.reshape([count]));
    let drawn = vmap(|(key, alpha): (Key, Tensor)| one(key, alpha, log))(elements);
    drawn.reshape(shape)
}

/// One draw, of a scalar `alpha`.
fn one(key: Key, alpha: Tensor, log: bool) -> Tensor {
    let dtype = alpha.dtype();
    let number = |value: f64| Tensor::scalar(value, dtype);
    // Below 1 that of alpha + 1, times a power of a uniform number.
    let is_large = alpha.ge(1.0);
    let d = is_large.select(alpha, alpha + 1.0) - 1.0 / 3.0;
    let c = 1.0 / 3.0 / d.sqrt();
    let [key, last] = pair(key);
    // The start is refused.
    let start = (key, (number(0.0), (number(1.0), number(2.0))));
    let refused = move |(_, (x, (v, u))): (Key, (Tensor, (Tensor, Tensor)))| {
        let outside = u.ge(1.0 - 0.0331 * (x * x));
        outside & u.log().ge(x * 0.5 + d * (1.0 - v + v.log()))
    };
    let (_, (_, (v, _))) = while_loop(
        start,
        refused,
        |(key, _): (Key, (Tensor, (Tensor, Tensor)))| {
            let keys = key.split(3);
            let candidate = (keys[1], (number(0.0), number(-1.0)));
            let (_, (x, v)) = while_loop(
                candidate,
                |(_, (_, v)): (Key, (Tensor, Tensor))| v.le(0.0),
                |(key, _): (Key, (Tensor, Tensor))| {
                    let [key, next] = pair(key);
                    let x = next.normal(dtype, []);
                    (key, (x, 1.0 + x * c))
                },
            );
            let u = keys[2].uniform(dtype, []);
            (keys[0], (x * x, (v * v * v, u)))
        },
    );
    if log {
        let boost = -last.exponential(dtype, []);
        let none = is_large | boost.eq(0.0);
        return d.log() + v.log() + none.select(0.0, boost * (1.0 / alpha));
    }
    let uniform: Tensor = 1.0 - last.uniform(dtype, []);
    let boost = uniform.pow(1.0 / alpha);
    d * v * is_large.select(1.0, boost)
}

fn pair(key: Key) -> [Key; 2] {
    let keys = key.split(2);
    [keys[0], keys[1]]
}
