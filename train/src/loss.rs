//! Losses.

use shardax_core::{DType, Tensor, mistake};

/// The mean over all positions of `logsumexp(logits) - logits[target]`, a scalar in f32.
///
/// `logits` are of any floating-point type and shape `[..., classes]`, `targets` integers of shape
/// `[...]`; anything else is a mistake that ends the trace. A target outside of the classes makes
/// the loss NaN.
///
/// The target's logit is found by comparison and sum rather than by a gather: when the classes are
/// split over devices each device sums its own part, and the logits stay where they are.
#[track_caller]
pub fn cross_entropy(logits: Tensor, targets: Tensor) -> Tensor {
    let (ty, indices) = (logits.ty(), targets.ty());
    let fits = ty.dtype.is_float()
        && indices.dtype.is_integer()
        && ty
            .shape
            .split_last()
            .is_some_and(|(_, outer)| *outer == indices.shape[..]);
    if !fits {
        let problem = format!("the logits are {ty} and the targets {indices}");
        let help = "give logits [..., classes] and one integer, the class, for each position [...]; \
                    `.squeeze(-1)` removes a last dimension of size 1";
        mistake("cross_entropy", problem, Some(help.to_owned()))
    }
    let logits = logits.cast(DType::F32);
    // A narrow type cannot hold the number of every class.
    let targets = match indices.dtype.host_bytes() {
        1 | 2 => targets.cast(DType::I32),
        _ => targets,
    };
    let classes = Tensor::iota(targets.dtype(), logits.shape(), -1);
    let is_target = classes.eq(targets.expand_dims(-1));
    let picked = is_target.select(logits, 0.0).sum(-1);
    let count = ty.shape[ty.rank() - 1] as i64;
    let is_class = targets.ge(0) & targets.lt(count);
    let loss = is_class.select(logits.logsumexp(-1) - picked, f64::NAN);
    loss.mean(..)
}
