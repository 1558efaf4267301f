//! Attention.

use shardax_core::{DType, Tensor, einsum};

/// The score of a position that is hidden; finite, so that no row of scores is without a maximum.
const HIDDEN: f64 = -1e30;

/// `softmax(q k^T / sqrt(head_dim)) v`, each position seeing itself and those before it.
/// (Vaswani et al.: "Attention is all you need", 2017.)
///
/// Queries, keys, values and the result are `[batch, seq, heads, head_dim]`. The softmax is computed
/// in f32 whatever the operands' type.
#[track_caller]
pub fn causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor {
    let scale = 1.0 / (q.size(-1) as f64).sqrt();
    let scores = einsum("bthk,bshk->bhts", [q, k]).cast(DType::F32) * scale;
    let positions = [q.size(1), k.size(1)];
    let (at, of) = (
        Tensor::iota(DType::I32, positions, 0),
        Tensor::iota(DType::I32, positions, 1),
    );
    let weights = at.ge(of).select(scores, HIDDEN).softmax(-1);
    einsum("bhts,bshk->bthk", [weights.cast(v.dtype()), v])
}
