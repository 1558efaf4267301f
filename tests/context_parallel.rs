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
