//! Normalization of each position by itself.

use shardax_core::{DType, Tensor, nn};
use shardax_macros::Module;

/// Scales the last dimension to mean 0 and variance 1, then by a gain, and adds an offset.
/// (Ba, Kiros, Hinton: "Layer normalization", 2016.)
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, trace};
/// use shardax_nn::{LayerNorm, RmsNorm};
///
/// let norms = |x: Tensor| {
///     let fine = LayerNorm { eps: 1e-6, ..LayerNorm::init(&[64]) };
///     RmsNorm::init(&[64]).forward(fine.forward(x))
/// };
/// let x = TensorType::new(DType::BF16, [4, 32, 64]);
/// assert_eq!(trace(norms, x.clone())?.output_types()[0], x);
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
pub struct LayerNorm<L = Tensor> {
    /// One factor a feature, shape `[embed]`.
    #[shard(embed)]
    pub gain: L,
    /// One summand a feature, shape `[embed]`.
    #[shard(embed)]
    pub offset: L,
    /// Added to the variance, so that a constant input is not divided by zero; at first 1e-5.
    pub eps: f64,
}

impl LayerNorm {
    /// Gains of 1 and offsets of 0 in f32; `shape` is `[features]`, with the number of layers before
    /// it in a stack.
    #[track_caller]
    pub fn init(shape: &[usize]) -> Self {
        LayerNorm {
            gain: Tensor::ones(DType::F32, shape),
            offset: Tensor::zeros(DType::F32, shape),
            eps: 1e-5,
        }
    }

    /// `(x - mean) / sqrt(variance + eps) * gain + offset` over the last dimension, in at least
    /// f32 and then in the type of `x`. The variance is divided by the number of features.
    #[track_caller]
    pub fn forward(&self, x: Tensor) -> Tensor {
        nn::layer_norm(x, Some(self.gain), Some(self.offset), -1, self.eps)
    }
}

/// Divides the last dimension by the root of its mean square, then scales it by a gain.
/// (Zhang, Sennrich: "Root mean square layer normalization", 2019.)
#[derive(Clone, Debug, Module)]
pub struct RmsNorm<L = Tensor> {
    /// One factor a feature, shape `[embed]`.
    #[shard(embed)]
    pub gain: L,
    /// Added to the mean square; at first 1e-5, as in Llama 3.
    pub eps: f64,
}

impl RmsNorm {
    /// Gains of 1 in f32; `shape` as in [`LayerNorm::init`].
    #[track_caller]
    pub fn init(shape: &[usize]) -> Self {
        RmsNorm {
            gain: Tensor::ones(DType::F32, shape),
            eps: 1e-5,
        }
    }

    /// `x / sqrt(mean(x^2) + eps) * gain` over the last dimension, in at least f32 and then in the type of `x`.
    #[track_caller]
    pub fn forward(&self, x: Tensor) -> Tensor {
        nn::rms_norm(x, Some(self.gain), -1, self.eps)
    }
}
