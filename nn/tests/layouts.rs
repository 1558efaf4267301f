//! Networks of modules compute under layouts what they compute on one device, and their parameters are split.

use shardax_core::random::Key;
use shardax_core::{DType, Dim, Tensor, value_and_grad};
use shardax_macros::{Module, shard};
use shardax_nn::{
    self as nn, Attention, AttentionOptions, BatchNorm, Conv, CrossEntropyOptions, Embedding,
    LayerNorm, Linear, Mlp, RmsNorm, Rope, RunningStatistics,
};
use shardax_sharding::{Layout, Mesh};
use shardax_xla::{Array, CheckOptions, check_function, jit};

/// A transformer of one block.
#[derive(Clone, Module)]
struct Transformer<L = Tensor> {
    tokens: Embedding<L>,
    before: RmsNorm<L>,
    attention: Attention<L>,
    between: LayerNorm<L>,
    mlp: Mlp<L>,
    last: Linear<L>,
}

const EMBED: Dim = Dim::Logical("embed");
const VOCAB: Dim = Dim::Logical("vocab");

#[shard]
impl Transformer {
    fn init() -> Self {
        let key = Key::from_seed(0);
        let attention = Attention::init(key.fold_in(1), 32, [8, 4], 4);
        Transformer {
            tokens: Embedding::init(key.fold_in(0), 64, 32),
            before: RmsNorm::init(&[32]),
            attention: Attention {
                rope: Some(Rope::default()),
                ..attention
            },
            between: LayerNorm::init(&[32]),
            mlp: Mlp::init(key.fold_in(2), 32, 64),
            last: Linear::init(key.fold_in(3), [32, 64], &[EMBED, VOCAB]).with_bias(),
        }
    }

    fn loss(&self, #[shard(batch, seq)] tokens: Tensor) -> Tensor {
        #[shard(batch, seq, embed)]
        let h = self.tokens.forward(tokens);
        let h = h + self
            .attention
            .forward(self.before.forward(h), AttentionOptions::causal());
        let h = h + self.mlp.forward(self.between.forward(h));
        #[shard(batch, seq, vocab)]
        let logits = self.last.forward(h);
        nn::cross_entropy(logits, tokens, CrossEntropyOptions::default())
    }
}

fn mesh() -> Mesh {
    Mesh::new([("data", 2), ("model", 4)]).unwrap()
}

fn layouts() -> Vec<(String, Layout)> {
    let named = |name: &str, layout| (name.to_owned(), layout);
    vec![
        named("megatron", Layout::megatron(mesh()).unwrap()),
        named("fsdp", Layout::fsdp(mesh()).unwrap()),
    ]
}

#[test]
fn a_transformer_of_modules_is_the_same_under_layouts() {
    let tokens: Vec<i32> = (0..8 * 16).map(|i| i * 37 % 64).collect();
    let tokens = Array::from_slice(&tokens, [8, 16]).unwrap();
    let step = |model: Transformer, tokens: Tensor| {
        value_and_grad(|model: Transformer| model.loss(tokens))(model)
    };
    let model = jit(Transformer::init).call(()).unwrap();
    let table = check_function(
        step,
        (model, tokens),
        &layouts(),
        CheckOptions::default().quick(),
    )
    .unwrap();
    assert!(table.is_equal(), "{table}");
}

#[test]
fn parameters_lie_where_their_names_say() {
    let placed = |layout: &Layout| jit(Transformer::init).layout(layout).call(()).unwrap();
    let shard = |array: &Array| array.shards().unwrap()[0].ty().shape.to_vec();
    let model = placed(&Layout::megatron(mesh()).unwrap());
    assert_eq!(shard(&model.attention.query), [32, 2, 4]);
    assert_eq!(shard(&model.attention.key), [32, 1, 4]);
    assert_eq!(shard(&model.attention.output), [2, 4, 32]);
    assert_eq!(shard(&model.mlp.up.weight), [32, 16]);
    assert_eq!(shard(&model.tokens.table), [16, 32]);
    assert_eq!(shard(&model.before.gain), [32]);
    let model = placed(&Layout::fsdp(mesh()).unwrap());
    assert_eq!(shard(&model.attention.value), [16, 4, 4]);
    assert_eq!(shard(&model.mlp.down.weight), [64, 16]);
}

/// A network for images.
#[derive(Clone, Module)]
struct Images<L = Tensor> {
    conv: Conv<L>,
    norm: BatchNorm<L>,
    depthwise: Conv<L>,
}

const CHANNELS: Dim = Dim::Logical("channels");
const KERNEL: [Dim; 4] = [CHANNELS, Dim::Unsharded, Dim::Unsharded, Dim::Unsharded];

#[shard]
impl Images {
    fn init() -> (Self, RunningStatistics) {
        let key = Key::from_seed(0);
        let images = Images {
            conv: Conv::init(key.fold_in(0), [3, 8], 1, &[3, 3], &KERNEL).with_bias(),
            norm: BatchNorm::init(&[8]),
            depthwise: Conv::init(key.fold_in(1), [8, 8], 8, &[3, 3], &KERNEL),
        };
        (images, RunningStatistics::init(&[8]))
    }

    fn forward(
        &self,
        #[shard(batch, _, _, _)] x: Tensor,
        running: RunningStatistics,
    ) -> (Tensor, RunningStatistics) {
        let (h, running) = self.norm.forward(self.conv.forward(x), running);
        (self.depthwise.forward(h.relu()), running)
    }
}

#[test]
fn batch_norm_counts_the_batch_of_all_devices() {
    let x = jit(|| Key::from_seed(1).normal(DType::F32, [8, 3, 4, 4]) + 1.0);
    let x = x.call(()).unwrap();
    let step = |images: Images, running: RunningStatistics, x: Tensor| {
        let (y, running) = images.forward(x, running);
        let loss = |images: Images| images.forward(x, running.clone()).0.sin().mean(..);
        (y, running.clone(), value_and_grad(loss)(images))
    };
    let (images, running) = jit(Images::init).call(()).unwrap();
    let mut layouts = layouts();
    let split = Layout::ddp(mesh()).unwrap().shard("channels", "model");
    layouts.push(("ddp with channels".to_owned(), split));
    let args = (images, running, x);
    let table = check_function(step, args, &layouts, CheckOptions::default().quick()).unwrap();
    assert!(table.is_equal(), "{table}");
}
