//! Attention along a split sequence: ring attention equals attention, whatever is asked of it, and
//! the compiled program sends blocks of keys and values round and nothing else.

use shardax::nn::{AttentionOptions, BlockSizes, attention, blockwise_attention};
use shardax::prelude::*;

const BATCH: usize = 2;
const HEADS: usize = 4;
const FEATURES: usize = 8;

fn random(seed: u64, shape: &[usize]) -> Tensor {
    Key::from_seed(seed).normal(DType::F32, shape)
}

/// What an attention gives, and the gradients of its operands.
fn run(
    layout: Option<&Layout>,
    [queries, keys, kv_heads]: [usize; 3],
    options: impl Fn() -> AttentionOptions + Copy,
    blocks: Option<usize>,
) -> Vec<Vec<f32>> {
    let f = move || {
        let q = random(1, &[BATCH, queries, HEADS, FEATURES]);
        let k = random(2, &[BATCH, keys, kv_heads, FEATURES]);
        let v = random(3, &[BATCH, keys, kv_heads, FEATURES]);
        let weights = random(4, &[BATCH, queries, HEADS, FEATURES]);
        let mixed = |q: Tensor, k: Tensor, v: Tensor| match blocks {
            Some(size) => {
                let blocks = BlockSizes {
                    queries: size,
                    keys: size,
                };
                blockwise_attention(q, k, v, options(), blocks)
            }
            None => attention(q, k, v, options()),
        };
        let loss = |(q, k, v): (Tensor, Tensor, Tensor)| (mixed(q, k, v) * weights).sum(..);
        let (q_ct, k_ct, v_ct) = grad(loss)((q, k, v));
        (mixed(q, k, v), q_ct, k_ct, v_ct)
    };
    let program = jit(f).xla_option("xla_backend_optimization_level", 0);
    let program = match layout {
        Some(layout) => program.layout(layout),
        None => program,
    };
    let (y, q, k, v) = program.call(()).unwrap();
    [y, q, k, v].map(|x| x.to_vec().unwrap()).to_vec()
}

const RING: (&str, Partitioner) = ("context=8", Partitioner::Shardy);
const MIXED: (&str, Partitioner) = ("data=2,context=2,model=2", Partitioner::Shardy);
const GSPMD: (&str, Partitioner) = ("data=2,context=2,model=2", Partitioner::Gspmd);

fn check(
    name: &str,
    sizes: [usize; 3],
    options: impl Fn() -> AttentionOptions + Copy,
    blocks: Option<usize>,
    layouts: &[(&str, Partitioner)],
) {
    let wanted = run(None, sizes, options, blocks);
    for &(mesh, partitioner) in layouts {
        let layout = Layout::new(mesh.parse().unwrap())
            .shard("seq", "context")
            .partitioner(partitioner);
        let layout = match mesh {
            "context=8" => layout,
            _ => layout
                .shard("batch", "data")
                .shard("heads", "model")
                .shard("kv_heads", "model"),
        };
        let found = run(Some(&layout), sizes, options, blocks);
        for (what, (found, wanted)) in ["result", "q", "k", "v"]
            .iter()
            .zip(found.iter().zip(&wanted))
        {
            for (f, w) in found.iter().zip(wanted) {
                let good = (f - w).abs() <= 2e-5 * w.abs().max(1.0);
                assert!(
                    good,
                    "{name}, {mesh} {partitioner}, {what}: {f} instead of {w}"
                );
            }
        }
    }
}

#[test]
fn causal_and_balanced() {
    check(
        "causal",
        [32, 32, HEADS],
        AttentionOptions::causal,
        None,
        &[RING, MIXED, GSPMD],
    );
    check(
        "small blocks",
        [64, 64, HEADS],
        AttentionOptions::causal,
        Some(2),
        &[MIXED],
    );
}

#[test]
fn everything_sees_everything() {
    check(
        "full",
        [32, 32, HEADS],
        AttentionOptions::default,
        None,
        &[RING],
    );
    check(
        "more keys",
        [16, 48, HEADS],
        AttentionOptions::default,
        None,
        &[RING],
    );
}

#[test]
fn heads_share_keys() {
    check(
        "grouped",
        [32, 32, 2],
        AttentionOptions::causal,
        None,
        &[MIXED],
    );
}

#[test]
fn odd_parts_are_not_balanced_and_right() {
    check(
        "odd",
        [24, 24, HEADS],
        AttentionOptions::causal,
        None,
        &[RING],
    );
}

#[test]
fn options() {
    let window = || AttentionOptions {
        window: (Some(5), None),
        ..AttentionOptions::causal()
    };
    check("window", [32, 32, HEADS], window, None, &[RING]);
    let softcap = || AttentionOptions {
        softcap: Some(2.0),
        scale: Some(0.7),
        query_offset: 16.into(),
        ..AttentionOptions::causal()
    };
    check(
        "softcap and offset",
        [16, 32, HEADS],
        softcap,
        None,
        &[MIXED],
    );
    let segments = || {
        let numbers = |count: i64| Tensor::arange(DType::I32, 32) / count;
        let both = shardax::stack([numbers(7), numbers(11)], 0);
        AttentionOptions {
            segments: Some((both, both)),
            ..AttentionOptions::causal()
        }
    };
    check("segments", [32, 32, HEADS], segments, None, &[MIXED]);
    let mask = || {
        let seen = random(9, &[BATCH, 1, 32, 32]).gt(-0.5);
        AttentionOptions {
            mask: Some(seen),
            query_offset: Tensor::constant(&[0i32, 3], [2]).into(),
            ..AttentionOptions::causal()
        }
    };
    check(
        "mask and offsets of each sequence",
        [32, 32, HEADS],
        mask,
        None,
        &[MIXED],
    );
}

/// What no ring can be: a sequence that is split by a part of an axis, or has nothing.
#[test]
fn attention_without_a_ring() {
    let mesh = || "data=4,model=2".parse::<Mesh>().unwrap();
    let by_parts = Layout::new(mesh()).shard("seq", ("data:(1)2", "model"));
    let batch_by_parts = Layout::new(mesh())
        .shard("seq", "model")
        .shard("batch", "data:(1)2");
    let whole = Layout::new(mesh()).shard("seq", "model");
    for (layout, keys) in [(by_parts, 8), (batch_by_parts, 8), (whole, 0)] {
        let sizes = [8, keys, HEADS];
        let options = AttentionOptions::default;
        let wanted = run(None, sizes, options, None);
        let found = run(Some(&layout), sizes, options, None);
        for (f, w) in found.iter().flatten().zip(wanted.iter().flatten()) {
            assert!(
                (f - w).abs() <= 2e-5 * w.abs().max(1.0),
                "{layout}: {f} instead of {w}"
            );
        }
    }
}

/// `n - 1` turns of keys and values forward; backward as many again, and `n` of their cotangents.
#[test]
fn what_is_sent() {
    let layout = Layout::new("context=8".parse().unwrap()).shard("seq", "context");
    let step = |q: Tensor, k: Tensor, v: Tensor| {
        let split = |x: Tensor| x.shard(&["batch", "seq", "heads", "head_dim"].map(Dim::Logical));
        let (q, k, v) = (split(q), split(k), split(v));
        let loss = |(q, k, v): (Tensor, Tensor, Tensor)| {
            attention(q, k, v, AttentionOptions::causal())
                .square()
                .sum(..)
        };
        let (q, k, v) = grad(loss)((q, k, v));
        (split(q), split(k), split(v))
    };
    let ty = TensorType::new(DType::F32, [BATCH, 128, HEADS, FEATURES]);
    let program = jit(step)
        .layout(&layout)
        .compile((ty.clone(), ty.clone(), ty))
        .unwrap();
    let report = program.collectives().unwrap();
    let block = (BATCH * 16 * HEADS * FEATURES * 4) as u64;
    let mut sent = 0;
    for collective in &report.collectives {
        let kind = collective.kind.to_string();
        // Nothing but the loss's one number is summed.
        assert!(
            kind == "collective-permute" || collective.payload_bytes <= 4,
            "{report}"
        );
        if kind == "collective-permute" {
            sent += collective.payload_bytes * collective.times;
        }
    }
    // Changing places: q, k, v there and the result back, and the same for their cotangents. Round: k
    // and v 7 times in each pass, of which the first is one and the same; their cotangents 8 times.
    let blocks = 2 * (3 + 1) + 2 * (7 + 6) + 2 * 8;
    assert_eq!(sent, blocks * block, "{report}");
}

/// Derivatives of derivatives go round too: in reverse over reverse, in loops, recomputed, and of a batch.
#[test]
fn second_derivatives() {
    let f = || {
        let [q, k, v] = [1, 2, 3].map(|seed| random(seed, &[BATCH, 16, HEADS, FEATURES]));
        let mixed =
            |q: Tensor, k: Tensor, v: Tensor| attention(q, k, v, AttentionOptions::causal());
        let loss = |(q, k, v): (Tensor, Tensor, Tensor)| mixed(q, k, v).sin().sum(..);
        // The square of the gradient, and its gradient.
        let slope = |qkv: (Tensor, Tensor, Tensor)| {
            let (q, k, v) = grad(loss)(qkv);
            (q.square() + (k * v).cos()).sum(..)
        };
        let second = grad(slope)((q, k, v));
        let again = remat(|(q, k, v): (Tensor, Tensor, Tensor)| mixed(q, k, v));
        let looped = |q: Tensor| fori_loop(0, 2, q, |_, q: Tensor| again((q, k, q)) + v).sum(..);
        let batched = |x: Tensor| {
            vmap(|by: Tensor| mixed(q * by, k, v * by))(x)
                .square()
                .sum(..)
        };
        let by = Tensor::constant(&[0.5f32, 2.0], [2]);
        (second, grad(looped)(q), grad(batched)(by))
    };
    let run = |layout: &Layout| {
        let program = jit(f)
            .layout(layout)
            .xla_option("xla_backend_optimization_level", 0);
        let ((q, k, v), looped, batched) = program.call(()).unwrap();
        [q, k, v, looped, batched].map(|x| x.to_vec::<f32>().unwrap())
    };
    let wanted = run(&Layout::single());
    let layout = Layout::new("data=2,context=4".parse().unwrap())
        .shard("batch", "data")
        .shard("seq", "context");
    for (i, (found, wanted)) in run(&layout).iter().zip(&wanted).enumerate() {
        let largest = wanted.iter().fold(1f32, |m, w| m.max(w.abs()));
        for (f, w) in found.iter().zip(wanted) {
            assert!((f - w).abs() <= 1e-5 * largest, "{i}: {f}, not {w}");
        }
    }
}

/// What has no forward derivative says so; it is the same of blockwise attention on one device.
#[test]
fn forward_derivatives_are_refused() {
    let f = || {
        let [q, k, v] = [1, 2, 3].map(|seed| random(seed, &[BATCH, 16, HEADS, FEATURES]));
        let mixed = |q: Tensor| attention(q, k, v, AttentionOptions::causal());
        jvp(mixed, q, q.sin()).1
    };
    let layout = Layout::new("context=8".parse().unwrap()).shard("seq", "context");
    let error = jit(f).layout(&layout).call(()).unwrap_err().to_string();
    assert!(error.contains("has no forward derivative"), "{error}");
    assert!(error.contains("tests/context_parallel.rs"), "{error}");
}

/// Inside of a region along other axes, the compiler splits the sequence.
#[test]
fn inside_of_a_region() {
    let mixed = |regional: bool| {
        move || {
            let qkv = [1, 2, 3].map(|seed| random(seed, &[BATCH, 16, HEADS, FEATURES]));
            let rows = PartitionSpec::new(("data",));
            let mix = |(q, k, v): (Tensor, Tensor, Tensor)| {
                let split =
                    |x: Tensor| x.shard(&[Dim::Open, Dim::Logical("seq"), Dim::Open, Dim::Open]);
                attention(split(q), split(k), split(v), AttentionOptions::causal())
            };
            let loss = |qkv: (Tensor, Tensor, Tensor)| match regional {
                true => manual("data", rows.clone(), rows.clone(), mix)(qkv)
                    .sin()
                    .sum(..),
                false => mix(qkv).sin().sum(..),
            };
            grad(loss)((qkv[0], qkv[1], qkv[2]))
        }
    };
    let layout = Layout::new("data=2,context=4".parse().unwrap()).shard("seq", "context");
    let (q, k, v) = jit(mixed(true)).layout(&layout).call(()).unwrap();
    let wanted = jit(mixed(false)).call(()).unwrap();
    for (found, wanted) in [(q, wanted.0), (k, wanted.1), (v, wanted.2)] {
        let [found, wanted] = [found, wanted].map(|x| x.to_vec::<f32>().unwrap());
        for (f, w) in found.iter().zip(&wanted) {
            assert!((f - w).abs() <= 1e-5, "{f} instead of {w}");
        }
    }
}
