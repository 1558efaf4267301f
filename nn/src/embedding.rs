//! Vectors for tokens.

use shardax_core::random::Key;
use shardax_core::{DType, Tensor, nn};
use shardax_macros::Module;

/// The standard deviation of initial rows, as in GPT-2.
const DEVIATION: f64 = 0.02;

/// A table with one row a token; also the output layer of a model that ties the two.
/// (Press, Wolf: "Using the output embedding to improve language models", 2017.)
///
/// ```
/// use shardax_core::random::Key;
/// use shardax_core::{DType, Tensor, TensorType, trace};
/// use shardax_nn::Embedding;
///
/// let logits = |tokens: Tensor| {
///     let embedding = Embedding::init(Key::from_seed(0), 1000, 64);
///     embedding.logits(embedding.forward(tokens))
/// };
/// let tokens = TensorType::new(DType::I32, [4, 32]);
/// assert_eq!(trace(logits, tokens)?.output_types()[0].to_string(), "f32[4,32,1000]");
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
pub struct Embedding<L = Tensor> {
    /// Shape `[vocab, embed]`.
    #[shard(vocab, embed)]
    pub table: L,
}

impl Embedding {
    /// A table for `vocab` tokens of `embed` features.
    #[track_caller]
    pub fn init(key: Key, vocab: usize, embed: usize) -> Self {
        Embedding {
            table: key.normal(DType::F32, [vocab, embed]) * DEVIATION,
        }
    }

    /// The rows of the tokens: integers of shape `[...]` to `[..., embed]`.
    ///
    /// A token outside of the vocabulary gives NaN, see [`nn::embedding`].
    #[track_caller]
    pub fn forward(&self, tokens: Tensor) -> Tensor {
        nn::embedding(tokens, self.table)
    }

    /// A logit for each token of the vocabulary: `[..., embed]` to `[..., vocab]`, in f32.
    #[track_caller]
    pub fn logits(&self, x: Tensor) -> Tensor {
        x.dot_as(self.table.transpose([1, 0]), DType::F32)
    }
}
