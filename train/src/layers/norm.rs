//! Layer normalization.

use shardax_core::{DType, Tensor, nn};
use shardax_macros::Module;

/// Added to the variance, so that a constant input is not divided by zero.
const EPS: f64 = 1e-5;

/// Scales the last dimension to mean 0 and variance 1, then by a gain, and adds an offset.
/// (Ba, Kiros, Hinton: "Layer normalization", 2016.)
#[derive(Clone, Debug, Module)]
pub struct LayerNorm<L = Tensor> {
    /// One factor a feature, shape `[embed]`.
    #[shard(embed)]
    pub gain: L,
    /// One summand a feature, shape `[embed]`.
    #[shard(embed)]
    pub offset: L,
}

impl LayerNorm {
    /// Gains of 1 and offsets of 0 in f32; `shape` is `[features]`, with the number of layers before
    /// it in a stack.
    #[track_caller]
    pub fn init(shape: &[usize]) -> Self {
        LayerNorm {
            gain: Tensor::ones(DType::F32, shape),
            offset: Tensor::zeros(DType::F32, shape),
        }
    }

    /// `(x - mean) / sqrt(variance + 1e-5) * gain + offset` over the last dimension, in at least
    /// f32 and then in the type of `x`. The variance is divided by the number of features.
    #[track_caller]
    pub fn forward(&self, x: Tensor) -> Tensor {
        nn::layer_norm(x, -1, Some(self.gain), Some(self.offset), EPS)
    }
}
