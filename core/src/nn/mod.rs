//! Functions of neural networks: what model code is written with beside plain arithmetic.
//!
//! Activations and the softmax family are methods of [`Tensor`]; what takes several tensors or
//! options is a function here. What it computes on comes first, then parameters, then options.
//!
//! All of it is written in primitives, so that derivatives, batching and sharding follow, except for
//! a few functions whose derivative by the chain rule would be wrong at a point, overflow, or keep
//! too much memory: those have a rule of their own.
//!
//! Where the formula has no value its limit is taken, or the convention is stated: a row of scores
//! that is masked out gives 0, a mean over nothing counted is 0, an index outside of its range is
//! NaN and never another row.

mod activation;
mod attention;
mod blockwise;
mod chunked;
mod dropout;
mod embedding;
mod loss;
mod norm;
mod pairs;
mod ring;
mod rope;
mod softmax;
mod window;

use crate::dtype::DType;
use crate::error::ErrorKind;
use crate::tensor::Tensor;
use crate::trace::fail;

pub use crate::tensor::joint_norm;
pub use activation::{geglu, swiglu};
pub use attention::{AttentionOptions, attention};
pub use blockwise::{BlockSizes, blockwise_attention};
pub use chunked::{ChunkSizes, chunked_cross_entropy};
pub use dropout::dropout;
pub use embedding::{embedding, embedding_one_hot};
pub use loss::{
    CrossEntropyOptions, binary_cross_entropy, cross_entropy, huber, kl_div, mse, weighted_mean,
};
pub use norm::{
    batch_norm, batch_norm_inference, group_norm, instance_norm, layer_norm, rms_norm,
    running_statistics,
};
pub use rope::{Rope, RopeScaling};

/// The dimension that an axis of `x` means; a negative one counts from the last.
#[track_caller]
fn dimension(x: Tensor, axis: isize) -> usize {
    // Refuses an axis that is not there.
    x.size(axis);
    axis.rem_euclid(x.rank() as isize) as usize
}

/// Ends the trace: arguments do not fit the function `op`.
#[track_caller]
fn refuse(op: &'static str, problem: String, help: &str) -> ! {
    fail(ErrorKind::Argument { op, problem }, Some(help.to_owned()))
}

/// Ends the trace unless `x`, the argument `name` of `op`, is real and floating-point.
#[track_caller]
fn check_float(op: &'static str, name: &str, x: Tensor) {
    let ty = x.ty();
    if !ty.dtype.is_float() {
        let problem = format!("`{name}` is {ty}, not a floating-point tensor");
        refuse(op, problem, "convert it with `.cast(...)`")
    }
}

/// Ends the trace unless the number `name` of `op` lies in the open range `above..below`.
#[track_caller]
fn check_number(op: &'static str, name: &str, value: f64, (above, below): (f64, f64)) {
    if !(value > above && value < below) {
        let problem = format!("`{name}` is {value}");
        let help = match below == f64::INFINITY {
            true => format!("give a finite number above {above}"),
            false => format!("give a number above {above} and below {below}"),
        };
        refuse(op, problem, &help)
    }
}

/// Integers that can be compared with every number below `count`.
#[track_caller]
fn wide_enough(indices: Tensor, count: usize) -> Tensor {
    let narrow = indices.dtype().bits() < 32;
    match (narrow, count > i32::MAX as usize) {
        (_, true) => indices.cast(DType::I64),
        (true, false) => indices.cast(DType::I32),
        (false, false) => indices,
    }
}
