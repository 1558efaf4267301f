//! Vectors for tokens.

use shardax_core::random::Key;
use shardax_core::{DType, Tensor};
use shardax_macros::Module;

use super::init::weight;

/// A table with one row a token; also the output layer of a model that ties the two.
/// (Press, Wolf: "Using the output embedding to improve language models", 2017.)
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
            table: weight(key, &[vocab, embed]),
        }
    }

    /// The rows of the tokens: integers of shape `[...]` to `[..., embed]`.
    ///
    /// A token outside of the vocabulary gives NaN, see [`Tensor::take`].
    #[track_caller]
    pub fn forward(&self, tokens: Tensor) -> Tensor {
        self.table.take(tokens, 0)
    }

    /// A logit for each token of the vocabulary: `[..., embed]` to `[..., vocab]`, in f32.
    #[track_caller]
    pub fn logits(&self, x: Tensor) -> Tensor {
        x.dot_as(self.table.transpose([1, 0]), DType::F32)
    }
}
