//! Laws of a training step that no layout may break: rows that no token touched have a gradient of exactly 0,
//! a weight that is used in several places or by several devices has the sum of its gradients, once, a norm
//! counts every parameter once, and a loss over a split vocabulary is the loss.

use shardax::nn::{AttentionOptions, ChunkSizes, CrossEntropyOptions, attention};
use shardax::prelude::*;
use shardax::train::{accumulate, global_norm};
use shardax::xla::Result;

use super::{all_near, near, numbers};

const BATCH: usize = 16;
const SEQ: usize = 8;
const EMBED: usize = 16;
const HEADS: usize = 8;
const MLP: usize = 32;
const VOCAB: usize = 32;

/// A model in which much is used twice.
#[derive(Clone, Module)]
struct Model<L = Tensor> {
    /// Rows for tokens, and nothing else.
    #[shard(vocab, embed)]
    rows: L,
    /// Rows for tokens, and the output layer.
    #[shard(vocab, embed)]
    tied: L,
    /// The feed-forward block of every layer.
    shared: Shared<L>,
    layers: Stack<Attention<L>>,
    #[shard(embed)]
    gain: L,
}

#[derive(Clone, Module)]
struct Shared<L = Tensor> {
    #[shard(embed, mlp)]
    up: L,
    #[shard(mlp, embed)]
    down: L,
}

#[derive(Clone, Module)]
struct Attention<L = Tensor> {
    #[shard(embed, _, heads, head_dim)]
    qkv: L,
    #[shard(heads, head_dim, embed)]
    out: L,
}

#[shard]
impl Attention {
    #[shard(batch, seq, embed)]
    fn forward(&self, #[shard(batch, seq, embed)] h: Tensor) -> Tensor {
        #[shard(batch, seq, _, heads, head_dim)]
        let qkv = h.dot(self.qkv);
        let [q, k, v] = [0, 1, 2].map(|i| qkv.index(2, i));
        #[shard(batch, seq, heads, head_dim)]
        let mixed = attention(q, k, v, AttentionOptions::causal());
        einsum("bthk,hkd->btd", [mixed, self.out])
    }
}

#[shard]
impl Shared {
    #[shard(batch, seq, embed)]
    fn forward(&self, #[shard(batch, seq, embed)] h: Tensor) -> Tensor {
        #[shard(batch, seq, mlp)]
        let hidden = h.dot(self.up).gelu();
        hidden.dot(self.down)
    }
}

#[shard]
impl Model {
    fn init() -> Self {
        let numbers = |shape: &[usize], by: f64| {
            let count = shape.iter().product();
            (Tensor::arange(DType::F64, count) * by)
                .sin()
                .reshape(shape)
                * 0.4
        };
        Model {
            rows: numbers(&[VOCAB, EMBED], 0.31),
            tied: numbers(&[VOCAB, EMBED], 0.77),
            shared: Shared {
                up: numbers(&[EMBED, MLP], 1.3),
                down: numbers(&[MLP, EMBED], 0.91),
            },
            layers: Stack(Attention {
                qkv: numbers(&[2, EMBED, 3, HEADS, 2], 0.57),
                out: numbers(&[2, HEADS, 2, EMBED], 1.7),
            }),
            gain: numbers(&[EMBED], 0.2) + 1.0,
        }
    }

    #[shard(batch, seq, embed)]
    fn hidden(&self, #[shard(batch, seq)] tokens: Tensor) -> Tensor {
        let h = self.rows.take(tokens, 0) + self.tied.take(tokens, 0);
        let shared = self.shared.clone();
        let h = self.layers.clone().scan(h, |h: Tensor, layer: Attention| {
            let h = h + layer.forward(nn::rms_norm(h, None, -1, 1e-5));
            h + shared.forward(h)
        });
        nn::rms_norm(h, Some(self.gain), -1, 1e-5)
    }

    /// The mean over examples.
    fn loss(&self, #[shard(batch, _)] tokens: Tensor) -> Tensor {
        let (inputs, targets) = (tokens.slice(1, ..SEQ), tokens.slice(1, 1..));
        #[shard(batch, seq, vocab)]
        let logits = self.hidden(inputs).dot(self.tied.transpose([1, 0]));
        let options = CrossEntropyOptions {
            label_smoothing: 0.1,
            ..CrossEntropyOptions::default()
        };
        nn::cross_entropy(logits, targets, options)
    }
}

/// Tokens of the first half of the vocabulary, without 3 and 5.
fn tokens() -> Tensor {
    let count = BATCH * (SEQ + 1);
    let all = (Tensor::arange(DType::I32, count) * 7 % 31) % 16;
    let few = all.eq(3).select(4, all);
    few.eq(5).select(6, few).reshape([BATCH, SEQ + 1])
}

/// Whether a token of this number is among them.
fn is_touched(row: usize) -> bool {
    row < 16 && row != 3 && row != 5
}

/// Loss, gradients and their norm, of the whole batch and of two halves one after the other.
type Found = (Tensor, Model, Tensor);

fn step() -> [Found; 2] {
    let (model, tokens) = (Model::init(), tokens());
    let loss = |model: Model, tokens: Tensor| model.loss(tokens);
    let (whole, gradients) = value_and_grad(|model: Model| model.loss(tokens))(model.clone());
    let (halves, sums) = accumulate(2, loss)(model, tokens);
    [(whole, gradients), (halves, sums)].map(|(loss, gradients)| {
        let norm = global_norm(&gradients);
        (loss, gradients, norm)
    })
}

fn layouts() -> Result<Vec<(String, Layout)>> {
    let strategies = [
        ("ddp", "data=8"),
        ("zero1", "data=8"),
        ("zero2", "data=8"),
        ("zero3", "data=8"),
        ("hsdp", "replica=2,data=4"),
        ("megatron", "data=2,model=4"),
        ("megatron", "model=8"),
        ("megatron-sp", "data=2,model=4"),
        ("context", "context=8"),
        ("zero1+megatron-sp", "data=2,model=4"),
        ("zero2+megatron", "data=4,model=2"),
        ("zero3+context", "data=4,context=2"),
        ("hsdp+megatron-sp", "replica=2,data=2,model=2"),
        ("zero3+context+megatron-sp", "data=2,context=2,model=2"),
    ];
    let layouts = strategies.iter().enumerate().map(|(i, (strategy, mesh))| {
        let layout = strategy.parse::<Strategy>()?.layout(mesh.parse()?)?;
        // The partitioners take turns; that they agree on strategies is another test's.
        let partitioner = match i % 3 {
            1 => Partitioner::Gspmd,
            _ => Partitioner::Shardy,
        };
        let layout = layout.partitioner(partitioner);
        Ok((format!("{strategy} on {mesh} by {partitioner}"), layout))
    });
    layouts.collect()
}

fn leaves(model: &Model<Array>) -> Vec<(String, &Array)> {
    let mut leaves = Vec::new();
    model.visit_leaves(&mut Path::root(), &mut |path, leaf| {
        leaves.push((path.to_string(), leaf));
    });
    leaves
}

#[test]
fn a_step_is_that_of_one_device() -> Result<()> {
    let program = |layout: &Layout| {
        jit(step)
            .layout(layout)
            .xla_option("xla_backend_optimization_level", 0)
            .call(())
    };
    let [wanted, of_halves] = program(&Layout::single())?;
    assert!(near(of_halves.0.item()?, wanted.0.item()?, 1e-12));
    let squares = leaves(&wanted.1).into_iter().map(|(_, leaf)| {
        let values = numbers(leaf)?;
        Ok(values.iter().map(|v| v * v).sum::<f64>())
    });
    let norm = squares.sum::<Result<f64>>()?.sqrt();

    let mut wrong = Vec::new();
    for (name, layout) in layouts()? {
        for (part, found) in ["the batch", "two halves"].iter().zip(program(&layout)?) {
            let loss = found.0.item::<f64>()?;
            if !near(loss, wanted.0.item()?, 1e-12) {
                wrong.push(format!("{name}: loss of {part} {loss}"));
            }
            let found_norm = f64::from(found.2.item::<f32>()?);
            if !near(found_norm, norm, 1e-6) {
                wrong.push(format!("{name}: norm of {part} {found_norm}, not {norm}"));
            }
            for ((path, found), (_, wanted)) in leaves(&found.1).iter().zip(leaves(&wanted.1)) {
                let found = numbers(found)?;
                if !all_near(&found, &numbers(wanted)?, 1e-12) {
                    wrong.push(format!("{name}: gradient of `{path}` of {part}"));
                }
                let rows = found.chunks(EMBED).enumerate();
                let untouched = rows.filter(|(row, _)| path == "rows" && !is_touched(*row));
                for (row, values) in untouched.filter(|(_, v)| v.iter().any(|v| *v != 0.0)) {
                    wrong.push(format!("{name}: row {row} of {part} {values:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Losses of logits whose vocabulary is split, and the gradient of the weights that make them.
fn losses(hidden: Tensor, weight: Tensor, targets: Tensor) -> Vec<(Tensor, Tensor)> {
    let dims = ["batch", "embed", "vocab"].map(Dim::Logical);
    let hidden = hidden.shard(&dims[..2]);
    let options = [0.0, 0.1, 1.0].map(|label_smoothing| CrossEntropyOptions {
        label_smoothing,
        ignored: Some(-1),
        z_loss: 1e-2,
        weights: None,
    });
    let logits = |w: Tensor| hidden.dot(w.shard(&dims[1..])).shard(&[dims[0], dims[2]]);
    let mut losses = Vec::new();
    for options in options {
        let loss = |w: Tensor| nn::cross_entropy(logits(w), targets, options);
        losses.push(value_and_grad(loss)(weight));
        let chunks = ChunkSizes {
            positions: 4,
            classes: 8,
        };
        let loss = |w: Tensor| {
            nn::chunked_cross_entropy(hidden, w.shard(&dims[1..]), targets, options, chunks)
        };
        losses.push(value_and_grad(loss)(weight));
    }
    losses
}

#[test]
fn a_split_vocabulary_has_one_loss() -> Result<()> {
    let values = |count: usize, by: f32| (0..count).map(|i| (i as f32 * by).sin() * 3.0).collect();
    let args = || -> Result<(Array, Array, Array)> {
        let hidden: Vec<f32> = values(BATCH * EMBED, 0.7);
        let weight: Vec<f32> = values(EMBED * VOCAB, 0.3);
        let targets: Vec<i32> = (0..BATCH as i32).map(|i| i * 5 % 33 - 1).collect();
        Ok((
            Array::from_slice(&hidden, [BATCH, EMBED])?,
            Array::from_slice(&weight, [EMBED, VOCAB])?,
            Array::from_slice(&targets, [BATCH])?,
        ))
    };
    let wanted = jit(losses).call(args()?)?;
    for mesh in [
        "data=8,model=1",
        "data=4,model=2",
        "data=2,model=4",
        "data=1,model=8",
    ] {
        for partitioner in [Partitioner::Shardy, Partitioner::Gspmd] {
            let layout = Layout::megatron(mesh.parse()?)?.partitioner(partitioner);
            let found = jit(losses).layout(&layout).call(args()?)?;
            for (i, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
                let [f, w] = [&found.0, &wanted.0].map(|loss| loss.item::<f32>());
                let (f, w) = (f64::from(f?), f64::from(w?));
                assert!(
                    near(f, w, 1e-6),
                    "loss {i} on {mesh} {partitioner}: {f}, not {w}"
                );
                let (f, w) = (numbers(&found.1)?, numbers(&wanted.1)?);
                assert!(
                    all_near(&f, &w, 2e-6),
                    "gradient {i} on {mesh} {partitioner}"
                );
            }
        }
    }
    Ok(())
}
