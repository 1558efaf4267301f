//! Losses: each a mean over what counts, in f32 or, of f64, in f64.
//!
//! Where weights are taken, one that is 0 leaves its element out, whatever the loss is there; a mean
//! over nothing is 0, with derivative 0.

use std::panic::Location;

use super::{check_float, check_number, refuse, wide_enough};
use crate::dtype::DType;
use crate::tensor::{Tensor, scaled};
use crate::trace::method;
use crate::types::TensorType;

/// What [`cross_entropy`] is the mean of. The default is the plain loss of every position.
#[derive(Clone, Copy, Debug, Default)]
pub struct CrossEntropyOptions {
    /// The part of a target's probability that all classes share evenly, from 0 to 1.
    /// (Szegedy et al.: "Rethinking the Inception architecture", 2015.)
    pub label_smoothing: f64,
    /// The target of positions that do not count, which need not be a class: -100, say.
    pub ignored: Option<i64>,
    /// The factor of `logsumexp(logits)^2`, which is added and keeps logits from drifting.
    /// (Chowdhery et al.: "PaLM", 2022, has 1e-4.)
    pub z_loss: f64,
    /// A weight for each position, of the targets' shape: the loss is the weighted mean.
    pub weights: Option<Tensor>,
}

impl CrossEntropyOptions {
    #[track_caller]
    pub(super) fn check(&self, op: &'static str, targets: &TensorType) {
        if !(0.0..=1.0).contains(&self.label_smoothing) {
            let problem = format!("`label_smoothing` is {}", self.label_smoothing);
            refuse(op, problem, "give a part of the whole, from 0 to 1")
        }
        if !self.z_loss.is_finite() {
            let problem = format!("`z_loss` is {}", self.z_loss);
            refuse(
                op,
                problem,
                "give a small factor such as 1e-4, or 0 for none",
            )
        }
        if let Some(weights) = self.weights.map(Tensor::ty)
            && weights.shape != targets.shape
        {
            let problem = format!("`weights` is {weights} and the targets are {targets}");
            refuse(op, problem, "give a weight for each target")
        }
    }
}

/// What a loss needs to know of logits, one of each for a position.
pub(super) struct Summary {
    /// `logsumexp(logits)`.
    pub(super) log_sum: Tensor,
    /// The logit of the target; 0 where that is no class.
    pub(super) picked: Tensor,
    /// The mean of the logits, where there is label smoothing.
    pub(super) mean: Option<Tensor>,
}

impl Summary {
    /// The mean loss. `targets` are of a type that holds every class.
    #[track_caller]
    pub(super) fn loss(
        &self,
        targets: Tensor,
        classes: usize,
        options: &CrossEntropyOptions,
    ) -> Tensor {
        let log_sum = self.log_sum;
        let smoothing = options.label_smoothing;
        let mut loss = match self.mean {
            Some(mean) => log_sum - self.picked * (1.0 - smoothing) - mean * smoothing,
            None => log_sum - self.picked,
        };
        if options.z_loss != 0.0 {
            loss += log_sum.square() * options.z_loss;
        }
        let is_class = targets.ge(0) & targets.lt(classes as i64);
        let loss = is_class.select(loss, f64::NAN);
        let weights = match (options.ignored, options.weights) {
            (None, weights) => weights,
            (Some(ignored), None) => Some(targets.ne(ignored)),
            (Some(ignored), Some(weights)) => Some(targets.ne(ignored).select(weights, 0)),
        };
        weighted_mean(loss, weights)
    }
}

/// The mean over positions of `logsumexp(logits) - logits[target]`, a scalar.
///
/// `logits` are floats `[..., classes]`, widened to f32 where they are narrower, and `targets` integers
/// `[...]`. A target that is neither a class nor the ignored one makes the loss NaN, never that of
/// another class. Without any position that counts the loss is 0, with derivative 0.
///
/// The target's logit is found by comparison and sum rather than by a gather: when the classes are
/// split over devices each device sums its own part, and the logits stay where they are.
///
/// ```
/// use shardax_core::nn::{self, CrossEntropyOptions};
/// use shardax_core::Tensor;
///
/// fn loss(logits: Tensor, targets: Tensor) -> Tensor {
///     let options = CrossEntropyOptions {
///         label_smoothing: 0.1,
///         ignored: Some(-100),
///         ..CrossEntropyOptions::default()
///     };
///     nn::cross_entropy(logits, targets, options)
/// }
/// ```
#[track_caller]
pub fn cross_entropy(logits: Tensor, targets: Tensor, options: CrossEntropyOptions) -> Tensor {
    let op = "cross_entropy";
    method(op, Location::caller(), || {
        let (ty, target_ty) = (logits.ty(), targets.ty());
        let fits = ty.dtype.is_float()
            && target_ty.dtype.is_integer()
            && ty
                .shape
                .split_last()
                .is_some_and(|(_, outer)| *outer == target_ty.shape[..]);
        if !fits {
            let integer = match target_ty.dtype.is_integer() {
                true => "",
                false => ", which are not integers",
            };
            let problem = format!("the logits are {ty} and the targets {target_ty}{integer}");
            let help = "give logits [..., classes] and one integer, the class, for each position \
                        [...]; `.squeeze(-1)` removes a last dimension of size 1";
            refuse(op, problem, help)
        }
        options.check(op, &target_ty);
        let classes = ty.shape[ty.rank() - 1];
        let logits = logits.cast(ty.dtype.accumulator());
        let targets = wide_enough(targets, classes);
        let positions = Tensor::iota(targets.dtype(), logits.shape(), -1);
        let is_target = positions.eq(targets.expand_dims(-1));
        let summary = Summary {
            log_sum: logits.logsumexp(-1),
            picked: is_target.select(logits, 0.0).sum(-1),
            mean: (options.label_smoothing != 0.0).then(|| logits.mean(-1)),
        };
        summary.loss(targets, classes, &options)
    })
}

/// The mean of `values`, a scalar: weighted, where weights (floats, integers or booleans of the same
/// shape) are given. A value whose weight is 0 does not count, whatever it is, but the derivative by
/// the weight says what it would do; where none counts the mean is 0, with derivative 0.
#[track_caller]
pub fn weighted_mean(values: Tensor, weights: Option<Tensor>) -> Tensor {
    let op = "weighted_mean";
    method(op, Location::caller(), || {
        check_float(op, "values", values);
        let ty = values.ty();
        let values = values.cast(ty.dtype.accumulator());
        let Some(weights) = weights else {
            return match ty.element_count() {
                0 => Tensor::zeros(values.dtype(), []),
                _ => values.mean(..),
            };
        };
        let weight_ty = weights.ty();
        if weight_ty.shape != ty.shape || weight_ty.dtype.is_complex() {
            let problem = format!("the values are {ty} and the weights {weight_ty}");
            refuse(op, problem, "give a real weight for each value")
        }
        let weights = weights.cast(values.dtype());
        let total = scaled(weights, values).sum(..);
        let count = weights.sum(..);
        let is_empty = count.eq(0);
        is_empty.select(0, total / is_empty.select(1, count))
    })
}

/// Both in the type that the loss is computed in, if they are floats of one shape.
#[track_caller]
fn paired(op: &'static str, names: [&str; 2], a: Tensor, b: Tensor) -> [Tensor; 2] {
    check_float(op, names[0], a);
    let (a_ty, b_ty) = (a.ty(), b.ty());
    if a_ty.shape != b_ty.shape || b_ty.dtype.is_complex() {
        let problem = format!("`{}` is {a_ty} and `{}` {b_ty}", names[0], names[1]);
        refuse(
            op,
            problem,
            "give them the same shape; a loss does not broadcast",
        )
    }
    let wide = match b_ty.dtype {
        DType::F64 => DType::F64,
        _ => a_ty.dtype.accumulator(),
    };
    [a.cast(wide), b.cast(wide)]
}

/// The weighted mean of `-y log(sigmoid(x)) - (1 - y) log(1 - sigmoid(x))` for logits `x` and labels `y`
/// from 0 to 1 (floats, integers or booleans) of the same shape. Finite for every finite logit, and 0
/// for an infinite one that is right.
#[track_caller]
pub fn binary_cross_entropy(logits: Tensor, labels: Tensor, weights: Option<Tensor>) -> Tensor {
    let op = "binary_cross_entropy";
    method(op, Location::caller(), || {
        let [x, y] = paired(op, ["logits", "labels"], logits, labels);
        // A part that does not count is 0 even where its logarithm is infinite.
        let loss = scaled(y, (-x).softplus()) + scaled(1.0 - y, x.softplus());
        weighted_mean(loss, weights)
    })
}

/// The weighted mean of `(prediction - target)^2`, of the same shape.
#[track_caller]
pub fn mse(predictions: Tensor, targets: Tensor, weights: Option<Tensor>) -> Tensor {
    let op = "mse";
    method(op, Location::caller(), || {
        let [a, b] = paired(op, ["predictions", "targets"], predictions, targets);
        weighted_mean((a - b).square(), weights)
    })
}

/// The weighted mean of the Huber loss of the differences `d`: `d^2 / 2` up to `delta`, and
/// `delta * (|d| - delta / 2)` beyond. (Huber: "Robust estimation of a location parameter", 1964.)
#[track_caller]
pub fn huber(predictions: Tensor, targets: Tensor, weights: Option<Tensor>, delta: f64) -> Tensor {
    let op = "huber";
    method(op, Location::caller(), || {
        check_number(op, "delta", delta, (0.0, f64::INFINITY));
        let [a, b] = paired(op, ["predictions", "targets"], predictions, targets);
        let difference = a - b;
        let size = difference.abs();
        let is_near = size.le(delta);
        // The square of a large difference may be infinite.
        let near = is_near.select(difference, 0).square() * 0.5;
        let loss = is_near.select(near, (size - 0.5 * delta) * delta);
        weighted_mean(loss, weights)
    })
}

/// The weighted mean over positions of the Kullback-Leibler divergence `sum(p (log p - log q))` of
/// targets `p` from predictions `q`: logarithms of probabilities, both `[..., classes]`; weights are
/// `[...]`. A class of which `p` is 0 adds 0.
#[track_caller]
pub fn kl_div(log_predictions: Tensor, log_targets: Tensor, weights: Option<Tensor>) -> Tensor {
    let op = "kl_div";
    method(op, Location::caller(), || {
        let names = ["log_predictions", "log_targets"];
        let [log_q, log_p] = paired(op, names, log_predictions, log_targets);
        if log_q.rank() == 0 {
            let problem = format!("`log_predictions` is the scalar {}", log_q.ty());
            refuse(
                op,
                problem,
                "give the logarithms of all classes, [..., classes]",
            )
        }
        let is_there = log_p.gt(f64::NEG_INFINITY);
        let difference = is_there.select(log_p - log_q, 0);
        weighted_mean((log_p.exp() * difference).sum(-1), weights)
    })
}
