//! Initial values.

use shardax_core::random::Key;
use shardax_core::{DType, Tensor};

/// The standard deviation of initial weights.
const DEVIATION: f64 = 0.02;

/// Normal numbers of mean 0 and standard deviation 0.02 in f32.
#[track_caller]
pub(crate) fn weight(key: Key, shape: &[usize]) -> Tensor {
    key.normal(DType::F32, shape) * DEVIATION
}
