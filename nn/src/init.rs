//! Initial values.

use shardax_core::random::Key;
use shardax_core::{DType, Tensor};

/// Normal numbers in f32 of mean 0 and variance `1 / inputs`, where each output sums so many inputs.
#[track_caller]
pub(crate) fn weight(key: Key, shape: &[usize], inputs: usize) -> Tensor {
    // Nothing is summed where there is no input, and no number drawn.
    key.normal(DType::F32, shape) * (1.0 / (inputs.max(1) as f64).sqrt())
}
