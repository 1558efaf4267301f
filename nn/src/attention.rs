//! Attention of a sequence to itself.

use shardax_core::nn::{self, AttentionOptions, Rope};
use shardax_core::random::Key;
use shardax_core::{DType, Number, Operand, Tensor, einsum, mistake};
use shardax_macros::{Module, shard};

use super::init::weight;

/// Multi-head self-attention: queries, keys and values are linear maps of the same sequence, and a last map joins
/// what the heads found. (Vaswani et al.: "Attention is all you need", 2017.) No map has a bias.
///
/// With fewer heads of keys and values than of queries, neighbors share one. (Ainslie et al.: "GQA", 2023.)
///
/// ```
/// use shardax_core::random::Key;
/// use shardax_core::{DType, Tensor, TensorType, trace};
/// use shardax_nn::{Attention, AttentionOptions, Rope};
///
/// let layer = |x: Tensor| {
///     let attention = Attention::init(Key::from_seed(0), 64, [8, 2], 16);
///     let attention = Attention { rope: Some(Rope::default()), ..attention };
///     attention.forward(x, AttentionOptions::causal())
/// };
/// let x = TensorType::new(DType::F32, [4, 32, 64]);
/// assert_eq!(trace(layer, x.clone())?.output_types()[0], x);
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
pub struct Attention<L = Tensor> {
    /// Makes queries: `[embed, heads, head_dim]`.
    #[shard(embed, heads, head_dim)]
    pub query: L,
    /// Makes keys: `[embed, kv_heads, head_dim]`.
    #[shard(embed, kv_heads, head_dim)]
    pub key: L,
    /// Makes values: `[embed, kv_heads, head_dim]`.
    #[shard(embed, kv_heads, head_dim)]
    pub value: L,
    /// Joins the heads: `[heads, head_dim, embed]`.
    #[shard(heads, head_dim, embed)]
    pub output: L,
    /// Turns queries and keys by their positions, which count from 0; at first `None`.
    pub rope: Option<Rope>,
}

#[shard]
impl Attention {
    /// Maps of `embed` features, for so many heads of queries and of keys and values, with `head_dim` features each.
    ///
    /// A number of heads that is no multiple of the number of those of keys and values is a mistake of the traced
    /// function.
    #[track_caller]
    pub fn init(key: Key, embed: usize, heads: [usize; 2], head_dim: usize) -> Self {
        let [heads, kv_heads] = heads;
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            let problem = format!("`heads` is [{heads}, {kv_heads}]");
            let help = "give a number of heads that is a multiple of that of keys and values";
            mistake("Attention::init", problem, Some(help.to_owned()))
        }
        let map = |i: i32, heads| weight(key.fold_in(i), &[embed, heads, head_dim], embed);
        Attention {
            query: map(0, heads),
            key: map(1, kv_heads),
            value: map(2, kv_heads),
            output: weight(key.fold_in(3), &[heads, head_dim, embed], heads * head_dim),
            rope: None,
        }
    }

    /// [`nn::attention`] of `x`, `[batch, seq, embed]`, to itself: of the same shape.
    ///
    /// All keys are those of `x`, so an `options.query_offset` other than 0 is a mistake of the traced function; to
    /// decode with keys kept from before, call [`nn::attention`].
    #[track_caller]
    pub fn forward(&self, x: Tensor, options: AttentionOptions) -> Tensor {
        if !matches!(options.query_offset, Operand::Number(Number::Int(0))) {
            let problem =
                "`options.query_offset` is not 0, and every query has a key at its own position";
            let help = "leave it out, or call `nn::attention` with keys kept from before";
            mistake(
                "Attention::forward",
                problem.to_owned(),
                Some(help.to_owned()),
            )
        }
        if x.rank() != 3 {
            let problem = format!("`x` is {}", x.ty());
            let help = "give [batch, seq, embed]; `.expand_dims(0)` adds a batch of one sequence";
            mistake("Attention::forward", problem, Some(help.to_owned()))
        }
        let turned = |x: Tensor| match self.rope {
            Some(rope) => rope.apply(x, Tensor::arange(DType::I32, x.size(1))),
            None => x,
        };
        #[shard(batch, seq, heads, head_dim)]
        let q = turned(x.dot(self.query));
        #[shard(batch, seq, kv_heads, head_dim)]
        let k = turned(x.dot(self.key));
        #[shard(batch, seq, kv_heads, head_dim)]
        let v = x.dot(self.value);
        #[shard(batch, seq, heads, head_dim)]
        let mixed = nn::attention(q, k, v, options);
        einsum("bshd,hde->bse", [mixed, self.output])
    }
}
