//! Losses.

use shardax_core::Tensor;
use shardax_core::nn::{self, CrossEntropyOptions};

/// The mean over all positions of `logsumexp(logits) - logits[target]`, a scalar in f32 (of logits in
/// f64, in f64).
///
/// `logits` are of any floating-point type and shape `[..., classes]`, `targets` integers of shape
/// `[...]`; anything else is a mistake that ends the trace. A target outside of the classes makes
/// the loss NaN. [`nn::cross_entropy`] has options.
#[track_caller]
pub fn cross_entropy(logits: Tensor, targets: Tensor) -> Tensor {
    nn::cross_entropy(logits, targets, CrossEntropyOptions::default())
}
