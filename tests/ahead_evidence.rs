//! What each strategy tells other devices on H100, by the word of the compiler for CUDA: what the CPU's compiler does
//! not make, reduce-scatters and collectives of bf16.
//!
//! The model is a stack of feed-forward layers, with an optimizer of one moment. Bytes are computed here from the shapes.

use shardax::nn::{AttentionOptions, Rope, attention};
use shardax::prelude::*;
use shardax::train::{AdamW, Moments, accumulate};
use shardax::xla::report::{Collective, CollectiveKind, CollectiveReport, Pass};
use shardax::{Chip, Cluster, ConvOptions, ReductionType};

use CollectiveKind::{AllGather, AllReduce, CollectivePermute, ReduceScatter};

const LAYERS: usize = 4;
const EMBED: usize = 256;
const MLP: usize = 1024;
const BATCH: usize = 16;
const SEQ: usize = 64;
const BF16: u64 = 2;

/// A layer of two products.
#[derive(Clone, Module)]
struct Layer<L = Tensor> {
    #[shard(embed, mlp)]
    up: L,
    #[shard(mlp, embed)]
    down: L,
}

#[derive(Clone, Module)]
struct State<L = Tensor> {
    layers: Stack<Layer<L>>,
    moments: Moments<Stack<Layer<L>>>,
    step: L,
}

#[shard]
fn loss(layers: Stack<Layer>, #[shard(batch, seq, embed)] x: Tensor) -> Tensor {
    let h = layers.scan(x, |h: Tensor, layer: Layer| {
        #[shard(batch, seq, mlp)]
        let hidden = h.dot(layer.up).relu();
        #[shard(batch, seq, embed)]
        let h = h + hidden.dot(layer.down);
        h
    });
    h.square().mean(..)
}

fn step(state: State, x: Tensor) -> (State, Tensor) {
    let of = |layers: Stack<Layer>| loss(layers, x);
    let (loss, gradients) = value_and_grad(of)(state.layers.clone());
    updated(state, loss, gradients)
}

/// How many parts the batch is taken in by `step_in_parts`.
const PARTS: usize = 2;

fn step_in_parts(state: State, x: Tensor) -> (State, Tensor) {
    let (loss, gradients) = accumulate(PARTS, loss)(state.layers.clone(), x);
    updated(state, loss, gradients)
}

fn updated(state: State, loss: Tensor, gradients: Stack<Layer>) -> (State, Tensor) {
    let adam = AdamW::default();
    let (layers, moments) = adam.update(state.layers, gradients, state.moments, state.step);
    let step = state.step + 1;
    let state = State {
        layers,
        moments,
        step,
    };
    (state, loss)
}

fn types() -> (State<TensorType>, TensorType) {
    let layers = |dtype| {
        Stack(Layer {
            up: TensorType::new(dtype, [LAYERS, EMBED, MLP]),
            down: TensorType::new(dtype, [LAYERS, MLP, EMBED]),
        })
    };
    let state = State {
        layers: layers(DType::BF16),
        moments: Moments {
            first: layers(DType::F32),
            second: layers(DType::F32),
        },
        step: TensorType::scalar(DType::I32),
    };
    (state, TensorType::new(DType::BF16, [BATCH, SEQ, EMBED]))
}

fn compiled(strategy: &str, mesh: &str, nodes: usize) -> CollectiveReport {
    compiled_step(step, strategy, mesh, nodes)
}

fn compiled_step(
    step: fn(State, Tensor) -> (State, Tensor),
    strategy: &str,
    mesh: &str,
    nodes: usize,
) -> CollectiveReport {
    let strategy: Strategy = strategy.parse().unwrap();
    let layout = strategy.layout(mesh.parse().unwrap()).unwrap();
    let cluster = Cluster::new(Chip::H100, nodes, 8).unwrap();
    let program = jit(step).layout(&layout).donate(&[0]);
    let program = program.compile_for(&cluster, types()).unwrap();
    program.collectives().unwrap()
}

/// The report of a function compiled for one node, of arguments annotated as it says.
fn of_function<S, F: shardax::Function<S>>(
    f: F,
    types: shardax::On<F::Args, TensorType>,
    layout: &Layout,
) -> CollectiveReport {
    let cluster = Cluster::new(Chip::H100, 1, 8).unwrap();
    let program = jit(f).layout(layout).compile_for(&cluster, types).unwrap();
    program.collectives().unwrap()
}

/// Bytes of everything of one kind over these axes in a step. All of it, but for scalars, is bf16, other than gradients
/// on their way, which are f32.
fn moved(report: &CollectiveReport, kind: CollectiveKind, axes: &[&str]) -> u64 {
    let is_reduced = matches!(kind, ReduceScatter | AllReduce) && axes != ["model"];
    let element = if is_reduced { "f32" } else { "bf16" };
    let found = report.of(kind, axes).filter(|c| c.payload_bytes > 64);
    let bytes = found.map(|c: &Collective| {
        assert!(c.counted && c.times_known, "{report}");
        for array in &c.arrays {
            assert_eq!(array.element.to_string(), element, "{report}");
        }
        c.times * c.payload_bytes
    });
    bytes.sum()
}

/// Bytes of everything, but for scalars.
fn moved_in_all(report: &CollectiveReport) -> u64 {
    let found = report.collectives.iter().filter(|c| c.payload_bytes > 64);
    found.map(|c| c.times * c.payload_bytes).sum()
}

/// Bytes of all parameters.
const MODEL: u64 = (LAYERS * 2 * EMBED * MLP) as u64 * BF16;

/// Bytes of all their gradients while they are reduced.
const GRADIENTS: u64 = 2 * MODEL;

/// A gradient is reduced into shards, and parameters are gathered once after the update (ZeRO-1 and 2), or
/// in each pass (ZeRO-3).
#[test]
fn zero_reduces_gradients_into_shards_and_gathers_parameters() {
    for (strategy, scattered, gathered) in [
        ("zero1", GRADIENTS, MODEL),
        ("zero2", GRADIENTS, MODEL),
        ("zero3", GRADIENTS, 2 * MODEL),
    ] {
        let report = compiled(strategy, "data=8", 1);
        for (kind, bytes) in [(ReduceScatter, scattered), (AllGather, gathered)] {
            assert_eq!(
                moved(&report, kind, &["data"]),
                bytes,
                "{strategy} {report}"
            );
        }
        assert_eq!(moved_in_all(&report), scattered + gathered);
    }
}

/// Under ZeRO-1 a device has whole sums, in f32, which are reduced into shards after the last part. Under
/// ZeRO-2 it has shards, so every part is reduced.
#[test]
fn accumulation_scatters_once_where_state_alone_is_split() {
    for (strategy, in_loop, after, gathered) in [
        ("zero1", 0, GRADIENTS, MODEL),
        ("zero2", PARTS as u64 * GRADIENTS, 0, MODEL),
    ] {
        let report = compiled_step(step_in_parts, strategy, "data=8", 1);
        let scattered = |is_in_loop: bool| -> u64 {
            let found = report.of(ReduceScatter, &["data"]);
            let found = found.filter(|c| c.loops.is_empty() != is_in_loop);
            found.map(|c| c.times * c.payload_bytes).sum()
        };
        assert_eq!(scattered(true), in_loop, "{strategy} {report}");
        assert_eq!(scattered(false), after, "{strategy} {report}");
        assert_eq!(moved(&report, AllGather, &["data"]), gathered);
        assert_eq!(moved_in_all(&report), in_loop + after + gathered);
    }
}

/// Within a node of 8 as ZeRO-3, and over nodes an eighth of the gradients.
#[test]
fn hybrid_sharding_sends_shards_over_the_network() {
    let report = compiled("hsdp", "replica=2,data=8", 2);
    assert_eq!(
        moved(&report, ReduceScatter, &["data"]),
        GRADIENTS,
        "{report}"
    );
    assert_eq!(
        moved(&report, AllReduce, &["replica"]),
        GRADIENTS / 8,
        "{report}"
    );
    assert_eq!(moved(&report, AllGather, &["data"]), 2 * MODEL, "{report}");
    assert_eq!(
        moved_in_all(&report),
        2 * MODEL + GRADIENTS + GRADIENTS / 8,
        "{report}"
    );
}

/// Bytes of the residual stream of a device that has half of the batch.
const STREAM: u64 = (BATCH / 2 * SEQ * EMBED) as u64 * BF16;

#[test]
fn tensor_parallelism_reduces_twice_a_layer() {
    let report = compiled("megatron", "data=2,model=4", 1);
    let (layers, gradients) = (LAYERS as u64, GRADIENTS / 4);
    assert_eq!(
        moved(&report, AllReduce, &["model"]),
        2 * layers * STREAM,
        "{report}"
    );
    assert_eq!(moved(&report, AllReduce, &["data"]), gradients, "{report}");
    assert_eq!(
        moved_in_all(&report),
        2 * layers * STREAM + gradients,
        "{report}"
    );
}

/// The reductions of tensor parallelism become reduce-scatters, and what they would have left whole is
/// gathered where it is multiplied: the stream forward, backward its cotangent, and the stream again.
#[test]
fn sequence_parallelism_scatters_and_gathers_instead() {
    let report = compiled("megatron-sp", "data=2,model=4", 1);
    let (layers, gradients) = (LAYERS as u64, GRADIENTS / 4);
    assert_eq!(
        moved(&report, ReduceScatter, &["model"]),
        2 * layers * STREAM,
        "{report}"
    );
    assert_eq!(
        moved(&report, AllGather, &["model"]),
        3 * layers * STREAM,
        "{report}"
    );
    assert_eq!(moved(&report, AllReduce, &["data"]), gradients, "{report}");
    assert_eq!(
        moved_in_all(&report),
        5 * layers * STREAM + gradients,
        "{report}"
    );
}

/// Every collective of a region by itself, in its own element type: eight bits stay eight bits.
#[test]
fn manual_collectives_keep_their_element_types() {
    const BLOCK: u64 = 64 * 64;
    let f = |x: Tensor| {
        let rows = PartitionSpec::new(("data",));
        let whole = PartitionSpec::whole();
        let region = |x: Tensor| {
            let ring = (0..8).map(|i| (i, (i + 1) % 8));
            let sent = ppermute(x.cast(DType::F8E4M3FN), "data", ring);
            let exchanged = all_to_all(x.cast(DType::I8), "data", 0, 0);
            let scattered = reduce_scatter(x * 2.0, "data", 0);
            let own = [sent, exchanged].map(|y| y.cast(DType::BF16) + scattered.repeat(8, 0));
            (psum(x, "data"), own[0] * own[1])
        };
        let split = |x: Tensor| x.shard(&[Dim::Mesh(&["data"]), Dim::Unsharded]);
        let (sum, own) = manual("data", rows.clone(), (whole, rows), region)(split(x));
        (sum, split(own))
    };
    let layout = Layout::new("data=8".parse().unwrap());
    let report = of_function(f, TensorType::new(DType::BF16, [512, 64]), &layout);
    let mut found: Vec<(&str, String, u64)> = report
        .collectives
        .iter()
        .map(|c| {
            let elements: Vec<String> = c.arrays.iter().map(|a| a.element.to_string()).collect();
            (c.kind.name(), elements.join(" "), c.payload_bytes)
        })
        .collect();
    found.sort();
    let wanted = [
        ("all-reduce", "bf16", 2 * BLOCK),
        ("all-to-all", "s8", BLOCK),
        ("collective-permute", "f8e4m3fn", BLOCK),
        ("reduce-scatter", "bf16", 2 * BLOCK),
    ];
    let wanted = wanted.map(|(kind, element, bytes)| (kind, element.to_owned(), bytes));
    assert_eq!(found, wanted, "{report}");
}

/// Keys and values go round in bf16 while they are attended to, and so do their cotangents, which are
/// added up in f32.
#[test]
fn context_parallelism_sends_blocks_beside_the_computation() {
    const DEVICES: u64 = 8;
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
    let shape = [2, 1024, 4, 64];
    let ty = TensorType::new(DType::BF16, shape);
    let report = of_function(step, (ty.clone(), ty.clone(), ty), &layout);
    let block = shape.iter().product::<usize>() as u64 * BF16 / DEVICES;
    let permutes = || report.of(CollectivePermute, &["context"]);
    let sent: u64 = permutes().map(|c| c.times * c.payload_bytes).sum();
    // As on the CPU: changing places there and back for q, k, v and the result, in both passes; k and v
    // round, and the cotangents of k and v, twice as wide.
    let turns = DEVICES - 1;
    let places = 2 * (3 + 1);
    let round = 2 * (turns + turns - 1);
    let cotangents = 2 * 2 * DEVICES;
    let wanted = (places + round + cotangents) * block;
    assert_eq!((sent, moved_in_all(&report)), (wanted, wanted), "{report}");
    // All turns but the first or the last are in loops: the next blocks are on their way meanwhile.
    let in_loops = permutes().filter(|c| !c.loops.is_empty());
    let in_loops = in_loops.map(|c| {
        assert!(c.is_async, "{report}");
        c.times * c.payload_bytes
    });
    let turning = (2 + 2 + 4) * (turns - 1);
    assert_eq!(in_loops.sum::<u64>(), turning * block, "{report}");
}

/// The layers as a list, each computed again in the backward pass.
fn step_over_a_list(layers: Vec<Layer>, x: Tensor) -> (Vec<Layer>, Tensor) {
    let loss = |layers: Vec<Layer>| {
        let split = |h: Tensor| h.shard(&["batch", "embed"].map(Dim::Logical));
        let block =
            |(h, layer): (Tensor, Layer)| split(h + split(h).dot(layer.up).relu().dot(layer.down));
        let forward = |h: Tensor, layer: &Layer| remat(block)((h, layer.clone()));
        layers.iter().fold(x, forward).square().mean(..)
    };
    let (loss, gradients) = value_and_grad(loss)(layers.clone());
    let pairs = layers.into_iter().zip(gradients);
    let updated = pairs.map(|(layer, g)| Layer {
        up: layer.up - g.up * 0.1,
        down: layer.down - g.down * 0.1,
    });
    (updated.collect(), loss)
}

#[test]
fn fsdp_of_a_list_of_layers_gathers_each_where_it_is_used_and_reduces_it_into_shards() {
    let layout = Layout::fsdp(Mesh::new([("data", 8)]).unwrap()).unwrap();
    let cluster = Cluster::new(Chip::H100, 1, 8).unwrap();
    let layer = || Layer {
        up: TensorType::new(DType::BF16, [EMBED, MLP]),
        down: TensorType::new(DType::BF16, [MLP, EMBED]),
    };
    let types = (
        (0..LAYERS).map(|_| layer()).collect(),
        TensorType::new(DType::BF16, [BATCH, EMBED]),
    );
    let program = jit(step_over_a_list).layout(&layout).donate(&[0]);
    // Layers as small as these would be gathered together.
    let program = program.xla_option("xla_gpu_all_gather_combine_threshold_bytes", 1);
    let program = program.compile_for(&cluster, types).unwrap();
    let report = program.collectives().unwrap();
    let moved = |kind| -> u64 {
        report
            .of(kind, &["data"])
            .map(|c| c.times * c.payload_bytes)
            .sum()
    };
    let whole = (LAYERS * 2 * EMBED * MLP) as u64 * BF16;
    let backward = report
        .of(AllGather, &["data"])
        .filter(|c| c.pass == Some(Pass::Backward));
    let again: u64 = backward.map(|c| c.times * c.payload_bytes).sum();
    assert_eq!((moved(AllGather), again), (2 * whole, whole), "{report}");
    assert_eq!(moved(ReduceScatter), 2 * whole, "{report}");
}

/// The element types of what is reduced over an axis, without scalars.
fn reduced(report: &CollectiveReport, axis: &str) -> Vec<String> {
    let is_reduction = |c: &&Collective| matches!(c.kind, ReduceScatter | AllReduce);
    let over =
        |c: &&Collective| c.axes.iter().flatten().any(|of| of == axis) && c.payload_bytes > 64;
    let found = report.collectives.iter().filter(is_reduction).filter(over);
    let arrays = found.flat_map(|c| &c.arrays);
    let mut types: Vec<String> = arrays.map(|array| array.element.to_string()).collect();
    types.sort();
    types.dedup();
    types
}

/// A layout under each partitioner.
fn by_partitioner(layout: Layout) -> [Layout; 2] {
    [Partitioner::Shardy, Partitioner::Gspmd].map(|p| layout.clone().partitioner(p))
}

#[test]
fn the_layout_says_in_which_type_products_are_reduced() {
    let layers = || {
        Stack(Layer {
            up: TensorType::new(DType::BF16, [LAYERS, EMBED, MLP]),
            down: TensorType::new(DType::BF16, [LAYERS, MLP, EMBED]),
        })
    };
    let x = || TensorType::new(DType::BF16, [BATCH, SEQ, EMBED]);
    let layout = Layout::megatron("data=2,model=4".parse().unwrap()).unwrap();
    let own = layout.clone().reduce_gradients_in(ReductionType::Own);
    let wide = layout.clone().reduce_activations_in(ReductionType::F32);
    for (layout, over_data, over_model) in [
        (layout, "f32", "bf16"),
        (own, "bf16", "bf16"),
        (wide, "f32", "f32"),
    ] {
        for layout in by_partitioner(layout) {
            let gradient = |layers: Stack<Layer>, x: Tensor| {
                let of = |layers: Stack<Layer>| loss(layers, x);
                grad(of)(layers)
            };
            let report = of_function(gradient, (layers(), x()), &layout);
            let found = [reduced(&report, "data"), reduced(&report, "model")];
            assert_eq!(found, [[over_data], [over_model]], "{report}");
        }
    }
}

/// An f32 parameter that is used in bf16, and is annotated nowhere.
#[test]
fn what_is_widened_at_once_is_reduced_wide() {
    let gradient = |w: Tensor, x: Tensor| {
        let x = x.shard(&[Dim::Logical("batch"), Dim::Unsharded]);
        grad(|w: Tensor| x.dot(w.cast(DType::BF16)).cast(DType::F32).sin().sum(..))(w)
    };
    let types = || {
        let w = TensorType::new(DType::F32, [EMBED, MLP]);
        (w, TensorType::new(DType::BF16, [BATCH, EMBED]))
    };
    for layout in by_partitioner(Layout::ddp("data=8".parse().unwrap()).unwrap()) {
        let report = of_function(gradient, types(), &layout);
        assert_eq!(reduced(&report, "data"), ["f32"], "{report}");
    }
}

#[derive(Clone, Module)]
struct Kernel<L = Tensor> {
    #[shard(features, _, _, _)]
    weight: L,
}

#[test]
fn gradients_of_narrow_kernels_are_reduced_wide() {
    let gradient = |kernel: Kernel, x: Tensor| {
        let x = x.shard(&[
            Dim::Logical("batch"),
            Dim::Unsharded,
            Dim::Unsharded,
            Dim::Unsharded,
        ]);
        let loss = |kernel: Kernel| {
            x.conv(kernel.weight, &ConvOptions::default())
                .square()
                .mean(..)
        };
        grad(loss)(kernel)
    };
    let types = || {
        let weight = TensorType::new(DType::BF16, [16, 8, 3, 3]);
        let x = TensorType::new(DType::BF16, [BATCH, 8, 8, 8]);
        (Kernel { weight }, x)
    };
    for layout in by_partitioner(Layout::ddp("data=8".parse().unwrap()).unwrap()) {
        let report = of_function(gradient, types(), &layout);
        assert_eq!(reduced(&report, "data"), ["f32"], "{report}");
    }
}

/// Heads that are annotated after they are turned, or before too, of weights with a dimension of heads or without.
#[derive(Clone, Module)]
struct Heads<L = Tensor> {
    #[shard(embed, heads, head_dim)]
    weight: L,
    #[shard(embed, heads)]
    flat: L,
    #[shard(heads, head_dim, embed)]
    out: L,
}

#[test]
fn annotations_reach_products_through_rotations() {
    const HEADS: usize = 4;
    let turned = |is_annotated_before: bool, interleaved: bool| {
        let rope = Rope {
            interleaved,
            ..Rope::default()
        };
        let turn = move |x: Tensor| {
            let heads =
                |x: Tensor| x.shard(&["batch", "seq", "heads", "head_dim"].map(Dim::Logical));
            let positions = Tensor::arange(DType::I32, x.size(1));
            match is_annotated_before {
                true => heads(rope.apply(heads(x), positions)),
                false => heads(rope.apply(x, positions)),
            }
        };
        move |heads: Heads, x: Tensor| {
            let stream = |x: Tensor| x.shard(&["batch", "seq", "embed"].map(Dim::Logical));
            let loss = |heads: Heads| {
                let x = stream(x);
                let q = turn(einsum("bse,ehd->bshd", [x, heads.weight]));
                let k = turn(
                    x.dot(heads.flat)
                        .reshape([BATCH, SEQ, HEADS, EMBED / HEADS]),
                );
                stream(einsum("bshd,hde->bse", [(q * k).tanh(), heads.out]))
                    .square()
                    .mean(..)
            };
            grad(loss)(heads)
        }
    };
    let types = || {
        let ty = |shape: &[usize]| TensorType::new(DType::BF16, shape);
        let heads = Heads {
            weight: ty(&[EMBED, HEADS, EMBED / HEADS]),
            flat: ty(&[EMBED, EMBED]),
            out: ty(&[HEADS, EMBED / HEADS, EMBED]),
        };
        (heads, ty(&[BATCH, SEQ, EMBED]))
    };
    let layout = Layout::megatron_sp("data=2,model=4".parse().unwrap()).unwrap();
    for layout in by_partitioner(layout) {
        for interleaved in [false, true] {
            let totals = [true, false].map(|before| {
                let report = of_function(turned(before, interleaved), types(), &layout);
                let totals = report.totals().into_iter();
                totals
                    .map(|t| (t.kind.name(), t.axes, t.payload_bytes))
                    .collect::<Vec<_>>()
            });
            assert_eq!(totals[0], totals[1], "{layout}");
            let is_exchanged = totals[1].iter().any(|(kind, ..)| *kind == "all-to-all");
            assert!(!is_exchanged, "{totals:?}");
        }
    }
}
