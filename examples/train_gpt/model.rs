//! The model: a GPT, written as for one device.
//!
//! `#[shard]` names dimensions and says nothing of devices. What the names mean, and with it whether
//! this trains data parallel, tensor parallel or otherwise, is the layout's business.

use shardax::nn::{AttentionOptions, CrossEntropyOptions, LayerNorm};
use shardax::prelude::*;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    pub(crate) layers: usize,
    pub(crate) width: usize,
    pub(crate) heads: usize,
    pub(crate) vocab: usize,
    pub(crate) context: usize,
}

/// The leaves are tensors while the model is traced (`Gpt`), arrays on devices while it runs
/// (`Gpt<Array>`).
#[derive(Clone, Debug, Module)]
pub(crate) struct Gpt<L = Tensor> {
    #[shard(vocab, embed)]
    pub(crate) wte: L,
    #[shard(_, embed)]
    pub(crate) wpe: L,
    pub(crate) blocks: Stack<Block<L>>,
    pub(crate) lnf: LayerNorm<L>,
    /// Whether a layer's values are computed again in the backward pass rather than kept.
    pub(crate) remat: bool,
}

#[derive(Clone, Debug, Module)]
pub(crate) struct Block<L = Tensor> {
    ln1: LayerNorm<L>,
    #[shard(embed, _, heads, head_dim)]
    wqkv: L,
    #[shard(_, heads, head_dim)]
    bqkv: L,
    #[shard(heads, head_dim, embed)]
    wo: L,
    #[shard(embed)]
    bo: L,
    ln2: LayerNorm<L>,
    #[shard(embed, mlp)]
    w1: L,
    #[shard(mlp)]
    b1: L,
    #[shard(mlp, embed)]
    w2: L,
    #[shard(embed)]
    b2: L,
}

#[shard]
impl Block {
    #[shard(batch, seq, embed)]
    pub(crate) fn forward(self, #[shard(batch, seq, embed)] h: Tensor) -> Tensor {
        let h = h + self.attention(self.ln1.forward(h));
        h + self.mlp(self.ln2.forward(h))
    }

    #[shard(batch, seq, embed)]
    fn attention(&self, x: Tensor) -> Tensor {
        #[shard(batch, seq, _, heads, head_dim)]
        let qkv = x.dot(self.wqkv) + self.bqkv;
        let [q, k, v] = [0, 1, 2].map(|i| qkv.index(2, i));
        #[shard(batch, seq, heads, head_dim)]
        let mixed = nn::attention(q, k, v, AttentionOptions::causal());
        einsum("bthk,hkd->btd", [mixed, self.wo]) + self.bo
    }

    #[shard(batch, seq, embed)]
    fn mlp(&self, x: Tensor) -> Tensor {
        #[shard(batch, seq, mlp)]
        let hidden = (x.dot(self.w1) + self.b1).gelu();
        hidden.dot(self.w2) + self.b2
    }
}

#[shard]
impl Gpt {
    /// What the model makes of each position of `tokens`, `[batch, seq]`.
    #[shard(batch, seq, embed)]
    pub(crate) fn hidden(&self, #[shard(batch, seq)] tokens: Tensor) -> Tensor {
        let positions = self.wpe.slice(0, ..tokens.size(1));
        let h = self.wte.take(tokens, 0) + positions;
        let blocks = self.blocks.clone();
        let forward = |(block, h): (Block, Tensor)| block.forward(h);
        let h = blocks.scan(h, |h: Tensor, block: Block| match self.remat {
            true => remat(forward)((block, h)),
            false => forward((block, h)),
        });
        self.lnf.forward(h)
    }

    /// A logit for each token of the vocabulary: the embedding is used a second time.
    pub(crate) fn logits(&self, hidden: Tensor) -> Tensor {
        hidden.dot_as(self.wte.transpose([1, 0]), DType::F32)
    }

    /// The mean loss of predicting each of `tokens`, `[batch, seq + 1]`, from those before it.
    pub(crate) fn loss(&self, #[shard(batch, _)] tokens: Tensor) -> Tensor {
        let seq = tokens.size(1) - 1;
        let (inputs, targets) = (tokens.slice(1, ..seq), tokens.slice(1, 1..));
        #[shard(batch, seq, vocab)]
        let logits = self.logits(self.hidden(inputs));
        nn::cross_entropy(logits, targets, CrossEntropyOptions::default())
    }

    /// Initial parameters: weights as `weight(name, shape)` makes them, gains 1, the rest 0.
    pub(crate) fn init(config: Config, weight: impl Fn(&'static str, &[usize]) -> Tensor) -> Self {
        let Config {
            layers: l,
            width: d,
            heads: h,
            vocab,
            context,
        } = config;
        let k = d / h;
        let zeros = |shape: &[usize]| Tensor::zeros(DType::F32, shape);
        Gpt {
            wte: weight("wte", &[vocab, d]),
            wpe: weight("wpe", &[context, d]),
            blocks: Stack(Block {
                ln1: LayerNorm::init(&[l, d]),
                wqkv: weight("wqkv", &[l, d, 3, h, k]),
                bqkv: zeros(&[l, 3, h, k]),
                wo: weight("wo", &[l, h, k, d]),
                bo: zeros(&[l, d]),
                ln2: LayerNorm::init(&[l, d]),
                w1: weight("w1", &[l, d, 4 * d]),
                b1: zeros(&[l, 4 * d]),
                w2: weight("w2", &[l, 4 * d, d]),
                b2: zeros(&[l, d]),
            }),
            lnf: LayerNorm::init(&[d]),
            remat: false,
        }
    }
}
