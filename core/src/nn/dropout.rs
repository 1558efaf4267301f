//! Dropout.

use std::panic::Location;

use super::{check_float, refuse};
use crate::random::Key;
use crate::tensor::Tensor;
use crate::trace::method;

/// Each element is 0 with probability `rate`, and divided by `1 - rate` otherwise, so that means stay.
/// (Srivastava et al.: "Dropout", 2014.)
///
/// Rate 0 is the identity and rate 1 gives zeros. An element that is dropped is 0 even if it is not
/// finite. The mask is a function of the key: the same under rematerialization, and on every layout.
/// Use a key once, see [`Key::fold_in`].
///
/// ```
/// use shardax_core::random::Key;
/// use shardax_core::{Tensor, nn};
///
/// fn block(x: Tensor, key: Key, layer: Tensor) -> Tensor {
///     x + nn::dropout(x.tanh(), key.fold_in(layer), 0.1)
/// }
/// ```
#[track_caller]
pub fn dropout(x: Tensor, key: Key, rate: f64) -> Tensor {
    let op = "dropout";
    method(op, Location::caller(), || {
        check_float(op, "x", x);
        if !(0.0..=1.0).contains(&rate) {
            let problem = format!("`rate` is {rate}");
            refuse(op, problem, "give a probability, from 0 to 1")
        }
        if rate == 0.0 {
            return x;
        }
        if rate == 1.0 {
            return x.zeros_like();
        }
        let kept = key.bernoulli(1.0 - rate, x.shape());
        kept.select(x / (1.0 - rate), 0)
    })
}
