//! Random models, annotated with names alone, under random layouts.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use shardax::nn::{AttentionOptions, CrossEntropyOptions, attention};
use shardax::prelude::*;
use shardax::xla::{Error, Result};
use shardax::{layout, vmap_named};

use super::{Dice, rounds};

const BATCH: usize = 16;
const SEQ: usize = 8;
const EMBED: usize = 16;
const HEADS: usize = 8;
const MLP: usize = 32;
const VOCAB: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Mlp,
    Attention,
    /// Normalization over features, of positions with a product among them.
    Norms,
    /// Rows of the table for tokens.
    Lookup,
    /// A stack of feed-forward layers; recomputed or not.
    Stack {
        remat: bool,
    },
    /// A manual region over some axes, by a number.
    Region(usize),
    /// Each example by itself.
    Each,
}

/// A part of a model, with the weights of all kinds, of which it reads some.
#[derive(Clone, Module)]
struct Part<L = Tensor> {
    kind: Kind,
    #[shard(embed, mlp)]
    up: L,
    #[shard(mlp, embed)]
    down: L,
    #[shard(embed, _, heads, head_dim)]
    qkv: L,
    #[shard(heads, head_dim, embed)]
    out: L,
    #[shard(embed)]
    gain: L,
    #[shard(seq, _)]
    positions: L,
    stack: Stack<Layer<L>>,
}

#[derive(Clone, Module)]
struct Layer<L = Tensor> {
    #[shard(embed, mlp)]
    up: L,
    #[shard(mlp, embed)]
    down: L,
}

#[derive(Clone, Module)]
struct Model<L = Tensor> {
    parts: Vec<Part<L>>,
    #[shard(vocab, embed)]
    table: L,
}

fn numbers(shape: &[usize], seed: usize) -> Tensor {
    let count = shape.iter().product();
    let angles = Tensor::arange(DType::F64, count) * (0.37 + seed as f64 * 0.113);
    angles.sin().reshape(shape) * 0.4
}

impl Model {
    fn init(kinds: &[Kind]) -> Self {
        let part = |(i, kind): (usize, &Kind)| {
            let numbers = |shape: &[usize], of: usize| numbers(shape, i * 10 + of);
            Part {
                kind: *kind,
                up: numbers(&[EMBED, MLP], 0),
                down: numbers(&[MLP, EMBED], 1),
                qkv: numbers(&[EMBED, 3, HEADS, 2], 2),
                out: numbers(&[HEADS, 2, EMBED], 3),
                gain: numbers(&[EMBED], 4) + 1.0,
                positions: numbers(&[SEQ, SEQ], 5),
                stack: Stack(Layer {
                    up: numbers(&[2, EMBED, MLP], 6),
                    down: numbers(&[2, MLP, EMBED], 7),
                }),
            }
        };
        Model {
            parts: kinds.iter().enumerate().map(part).collect(),
            table: numbers(&[VOCAB, EMBED], 99),
        }
    }
}

#[shard]
fn feed_forward(#[shard(batch, seq, embed)] x: Tensor, up: Tensor, down: Tensor) -> Tensor {
    #[shard(batch, seq, mlp)]
    let hidden = x.dot(up).gelu();
    hidden.dot(down)
}

/// What devices along some axes compute for themselves: examples against the mean and the largest of all.
fn region(x: Tensor, gain: Tensor, number: usize) -> Tensor {
    let layout = layout();
    let names: Vec<&str> = layout
        .mesh()
        .axes()
        .iter()
        .map(|axis| axis.name())
        .collect();
    let axes: Vec<&str> = match layout.chosen_partitioner() {
        // A region over some axes is refused there.
        Partitioner::Gspmd => names,
        Partitioner::Shardy => {
            let some = names
                .iter()
                .enumerate()
                .filter(|(i, _)| number >> i & 1 == 1);
            some.map(|(_, name)| *name).collect()
        }
    };
    if axes.is_empty() {
        return (x - x.mean(0)).tanh() * gain + x.max(0) * 0.1;
    }
    let rows = PartitionSpec::new([axes.clone()]);
    let own = |(x, gain): (Tensor, Tensor)| {
        let mean = pmean(x.mean(0), axes.clone());
        (x - mean).tanh() * gain + pmax(x.max(0), axes.clone()) * 0.1
    };
    let specs = (rows.clone(), PartitionSpec::whole());
    manual(axes.clone(), specs, rows, own)((x, gain))
}

#[shard]
impl Part {
    #[shard(batch, seq, embed)]
    fn forward(
        &self,
        #[shard(batch, seq, embed)] x: Tensor,
        table: Tensor,
        tokens: Tensor,
    ) -> Tensor {
        let added = match self.kind {
            Kind::Mlp => feed_forward(x, self.up, self.down),
            Kind::Attention => {
                #[shard(batch, seq, _, heads, head_dim)]
                let qkv = x.dot(self.qkv);
                let [q, k, v] = [0, 1, 2].map(|i| qkv.index(2, i));
                #[shard(batch, seq, heads, head_dim)]
                let mixed = attention(q, k, v, AttentionOptions::causal());
                einsum("bthk,hkd->btd", [mixed, self.out])
            }
            Kind::Norms => {
                let x = nn::layer_norm(x, Some(self.gain), None, -1, 1e-5);
                einsum("bse,st->bte", [x, self.positions]).softmax(1)
            }
            Kind::Lookup => table.take((tokens + x.argmax(2).cast(DType::I32)) % VOCAB as i32, 0),
            Kind::Stack { remat: again } => {
                self.stack.clone().scan(x, |h: Tensor, layer: Layer| {
                    let forward = |(layer, h): (Layer, Tensor)| {
                        h + feed_forward(h, layer.up, layer.down) * 0.3
                    };
                    match again {
                        true => remat(forward)((layer, h)),
                        false => forward((layer, h)),
                    }
                })
            }
            Kind::Region(number) => region(x, self.gain, number),
            Kind::Each => vmap_named("batch", |x: Tensor| {
                x.sort(0).cumsum(0) * 0.1 - x.dot(x.transpose([1, 0])).softmax(1).dot(x)
            })(x),
        };
        nn::rms_norm(x + added, None, -1, 1e-5)
    }
}

#[shard]
fn loss(model: &Model, #[shard(batch, seq)] tokens: Tensor) -> Tensor {
    #[shard(batch, seq, embed)]
    let mut h = model.table.take(tokens, 0);
    for part in &model.parts {
        h = part.forward(h, model.table, tokens);
    }
    #[shard(batch, seq, vocab)]
    let logits = h.dot(model.table.transpose([1, 0]));
    let targets = (tokens * 3 + 1) % VOCAB as i32;
    nn::cross_entropy(logits, targets, CrossEntropyOptions::default())
}

fn kinds(dice: &mut Dice) -> Vec<Kind> {
    let kind = |dice: &mut Dice| match dice.roll(8) {
        0 => Kind::Mlp,
        1 | 2 => Kind::Attention,
        3 => Kind::Norms,
        4 => Kind::Lookup,
        5 => Kind::Stack {
            remat: dice.once_in(2),
        },
        6 => Kind::Region(1 + dice.roll(7)),
        _ => Kind::Each,
    };
    (0..2 + dice.roll(2)).map(|_| kind(dice)).collect()
}

/// The loss, and the gradients of all weights.
fn results(kinds: &[Kind], layout: &Layout) -> Result<Vec<f64>> {
    let step = |tokens: Tensor| {
        let (value, gradients) =
            value_and_grad(|model: Model| loss(&model, tokens))(Model::init(kinds));
        (value, gradients)
    };
    let tokens: Vec<i32> = (0..BATCH * SEQ).map(|i| (i * 7 % 13) as i32).collect();
    let program = jit(step)
        .layout(layout)
        .xla_option("xla_backend_optimization_level", 0);
    let (value, gradients) = program.call(Array::from_slice(&tokens, [BATCH, SEQ])?)?;
    let mut all = vec![value.item::<f64>()?];
    let mut read = Ok(());
    gradients.visit_leaves(
        &mut Path::root(),
        &mut |_, leaf| match leaf.to_vec::<f64>() {
            Ok(values) => all.extend(values),
            Err(error) => read = Err(error),
        },
    );
    read.map(|()| all)
}

/// Meshes of 8 devices, and what their axes and the parts of these are.
const MESHES: [(&str, &[&str]); 7] = [
    ("a=8", &["a"]),
    ("a=8", &["a:(1)2", "a:(2)4"]),
    ("a=8", &["a:(1)4", "a:(4)2"]),
    ("a=2,b=4", &["a", "b"]),
    ("a=2,b=4", &["b:(1)2", "b:(2)2", "a"]),
    ("a=2,b=2,c=2", &["a", "b", "c"]),
    ("a=1,b=8", &["a", "b:(1)2", "b:(2)2", "b:(4)2"]),
];

/// Names that are never together in one array share a group.
const GROUPS: [&[&str]; 5] = [
    &["batch"],
    &["seq"],
    &["heads", "mlp", "vocab"],
    &["embed"],
    &[],
];

/// A layout that any model here fits, but for what it adds at random.
fn random_layout(dice: &mut Dice) -> Layout {
    let (mesh, axes) = dice.one_of(&MESHES);
    let mut layout = Layout::new(mesh.parse().expect("a mesh"));
    let mut own: [Vec<&str>; 5] = Default::default();
    for axis in *axes {
        own[dice.roll(5)].push(axis);
    }
    for (names, axes) in GROUPS.iter().zip(&own) {
        for name in *names {
            let mut axes: Vec<&str> = axes.clone();
            if dice.once_in(6) {
                axes.push("?");
            }
            layout = layout.shard(*name, axes);
        }
    }
    let some = |dice: &mut Dice| -> Vec<&str> {
        let chosen = axes.iter().filter(|_| dice.once_in(2));
        chosen.copied().collect()
    };
    if dice.once_in(3) {
        layout = layout.shard_every_parameter(some(dice));
    }
    if dice.once_in(4) {
        layout = layout.shard_every_gradient(some(dice));
    }
    if dice.once_in(4) {
        layout = layout.shard_parameters(*dice.one_of(&["embed", "mlp", "vocab"]), some(dice));
    }
    if dice.once_in(3) {
        layout = layout.shard_where_free(*dice.one_of(&["seq", "embed", "batch"]), some(dice));
    }
    if dice.once_in(6) {
        let mut own: [Vec<&str>; 3] = Default::default();
        for axis in *axes {
            own[dice.roll(3)].push(axis);
        }
        let [rows, columns, _] = own;
        layout = layout.override_spec("parts.*.up", PartitionSpec::new([rows, columns]));
    }
    match dice.once_in(2) {
        true => layout.partitioner(Partitioner::Gspmd),
        false if dice.once_in(4) => layout.priority("batch", 1),
        false => layout,
    }
}

/// Layouts for each model.
const TOGETHER: usize = 12;

#[test]
fn random_models_under_random_layouts_equal_one_device() {
    let (refused, equal) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let wrong = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    let all = rounds(12);
    let work = || {
        loop {
            let round = next.fetch_add(1, Ordering::Relaxed);
            if !all.contains(&round) {
                return;
            }
            let mut dice = Dice(1000 + round as u64);
            let kinds = kinds(&mut dice);
            let wanted = results(&kinds, &Layout::single()).expect("a model");
            for _ in 0..TOGETHER {
                let layout = random_layout(&mut dice);
                match results(&kinds, &layout) {
                    Err(error @ (Error::Layout { .. } | Error::Sharding(_))) => {
                        let text = error.to_string();
                        assert!(text.contains("layout"), "{text}");
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => {
                        let mut wrong = wrong.lock().expect("no panic");
                        wrong.push(format!("{kinds:?} under\n{layout}\n{error}"));
                    }
                    Ok(found) => {
                        let close =
                            |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-10 * b.abs().max(1.0);
                        equal.fetch_add(1, Ordering::Relaxed);
                        if !found.iter().zip(&wanted).all(close) {
                            let mut wrong = wrong.lock().expect("no panic");
                            wrong.push(format!("{kinds:?} under\n{layout}\ndiffers"));
                        }
                    }
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let threads = [(); 2].map(|()| scope.spawn(work));
        for thread in threads {
            thread.join().expect("no panic");
        }
    });
    let wrong = wrong.into_inner().expect("no panic");
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
    let (refused, equal) = (refused.into_inner(), equal.into_inner());
    // Most of what is made up here fits.
    assert!(equal > 3 * refused, "{equal} equal, {refused} refused");
}
