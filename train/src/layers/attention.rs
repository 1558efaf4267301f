//! Attention.

use shardax_core::Tensor;
use shardax_core::nn::{self, AttentionOptions};

/// `softmax(q k^T / sqrt(head_dim)) v`, each position seeing itself and those before it.
/// (Vaswani et al.: "Attention is all you need", 2017.)
///
/// Queries, keys, values and the result are `[batch, seq, heads, head_dim]`. The softmax is computed
/// in f32 where the operands are narrower. [`nn::attention`] has options.
#[track_caller]
pub fn causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor {
    nn::attention(q, k, v, AttentionOptions::causal())
}
