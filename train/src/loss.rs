//! Losses.

use shardax_core::{DType, Tensor};

/// The mean over all positions of `logsumexp(logits) - logits[target]`, a scalar in f32.
///
/// `logits` are of any floating-point type and shape `[..., classes]`, `targets` integers of shape
/// `[...]`. A target outside of the classes counts as a logit of 0.
///
/// The target's logit is found by comparison and sum rather than by a gather: when the classes are
/// split over devices each device sums its own part, and the logits stay where they are.
#[track_caller]
pub fn cross_entropy(logits: Tensor, targets: Tensor) -> Tensor {
    let logits = logits.cast(DType::F32);
    let classes = Tensor::iota(targets.dtype(), logits.shape(), -1);
    let is_target = classes.eq(targets.expand_dims(-1));
    let picked = is_target.select(logits, 0.0).sum(-1);
    (logits.logsumexp(-1) - picked).mean(..)
}
