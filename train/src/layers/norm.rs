//! Layer normalization.

use shardax_core::{DType, Tensor};
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

    /// `(x - mean) / sqrt(variance + 1e-5) * gain + offset` over the last dimension, in f32 and then
    /// in the type of `x`. The variance is divided by the number of features.
    #[track_caller]
    pub fn forward(&self, x: Tensor) -> Tensor {
        let wide = x.cast(DType::F32);
        let centred = wide - wide.mean(-1).expand_dims(-1);
        let variance = centred.square().mean(-1).expand_dims(-1);
        let normal = centred * (variance + EPS).rsqrt();
        (normal * self.gain + self.offset).cast(x.dtype())
    }
}
