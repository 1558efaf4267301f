//! What each layout's training step tells other devices, by the word of the compiled program: exactly
//! the communication that the strategy is known for, and nothing else.
//!
//! Bytes are computed here from the shapes of the parameters.

#[path = "../../examples/train_gpt/model.rs"]
mod model;
#[path = "../../examples/train_gpt/reference.rs"]
mod reference;
#[path = "../../examples/train_gpt/training.rs"]
mod training;

mod context;
mod list;
mod sequence;
mod zero;

use std::collections::BTreeMap;

use shardax::Program;
use shardax::prelude::*;
use shardax::train::Precision;
use shardax::xla::report::{Collective, CollectiveKind, CollectiveReport};

use CollectiveKind::{AllGather, AllReduce};
use model::{Config, Gpt};
use reference::Size;
use training::{Recipe, TrainState};

const F32: u64 = 4;
/// The largest message of losses, norms and the like: what communication costs nothing.
const SCALARS: u64 = 64;
/// All of these together: the norm of the gradients is three sums of squares of each.
const ALL_SCALARS: u64 = 256;

fn compiled(layout: Layout) -> Program {
    compiled_with(Recipe::new(1e-3, Precision::F32), layout)
}

fn compiled_with(recipe: Recipe, layout: Layout) -> Program {
    let (config, batch) = Size::Tiny.config();
    let init = jit(move || recipe.init(Gpt::init(config, reference::weight))).layout(&layout);
    let step = jit(move |state: TrainState, tokens: Tensor| {
        let (state, loss, _gradients) = recipe.step(state, tokens);
        (state, loss)
    });
    let step = step.name("train_step").layout(&layout).donate(&[0]);
    // What is read of the program is fixed before there is machine code.
    let step = step.xla_option("xla_backend_optimization_level", 0);
    let tokens = jit(move || reference::tokens(config, batch, 1).index(0, 0));
    let types = (init.types(()).unwrap(), tokens.types(()).unwrap());
    step.compile(types).unwrap()
}

/// The report of the step under both partitioners.
fn reports(layout: Layout) -> impl Iterator<Item = CollectiveReport> {
    reports_with(Recipe::new(1e-3, Precision::F32), layout)
}

fn reports_with(recipe: Recipe, layout: Layout) -> impl Iterator<Item = CollectiveReport> {
    [Partitioner::Shardy, Partitioner::Gspmd]
        .into_iter()
        .map(move |partitioner| {
            let program = compiled_with(recipe, layout.clone().partitioner(partitioner));
            // A strategy as it is meant gives no reason for warnings.
            let explained = program.report().unwrap();
            assert_eq!(explained.warnings, [], "{explained}");
            let report = program.collectives().unwrap();
            for collective in &report.collectives {
                assert!(collective.counted && collective.times_known, "{report}");
            }
            report
        })
}

/// A parameter of the reference model.
struct Parameter {
    /// In a loop over the layers.
    stacked: bool,
    /// Bytes of the whole, or of one layer.
    bytes: u64,
    /// Whether `model` splits it under Megatron.
    split: bool,
}

fn parameters() -> Vec<Parameter> {
    let (
        Config {
            width: d,
            heads,
            vocab,
            context,
            ..
        },
        _,
    ) = Size::Tiny.config();
    assert_eq!(d % heads, 0);
    let whole = [
        (vocab * d, true),
        (context * d, false),
        (d, false),
        (d, false),
    ];
    let stacked = [
        // Two layer norms of two parameters each.
        (d, false),
        (d, false),
        (d, false),
        (d, false),
        // Attention.
        (d * 3 * d, true),
        (3 * d, true),
        (d * d, true),
        (d, false),
        // The feed-forward block.
        (d * 4 * d, true),
        (4 * d, true),
        (4 * d * d, true),
        (d, false),
    ];
    let parameter = |stacked| {
        move |(size, split)| Parameter {
            stacked,
            bytes: size as u64 * F32,
            split,
        }
    };
    whole
        .map(parameter(false))
        .into_iter()
        .chain(stacked.map(parameter(true)))
        .collect()
}

/// Bytes of one layer's parameters, or of those that are not in layers.
fn parameter_bytes(stacked: bool, bytes: impl Fn(&Parameter) -> u64) -> u64 {
    parameters()
        .iter()
        .filter(|p| p.stacked == stacked)
        .map(bytes)
        .sum()
}

fn layers() -> u64 {
    Size::Tiny.config().0.layers as u64
}

/// Bytes of an activation `[batch, seq, embed]` on a device that has one of `parts` of the batch.
fn activation(parts: usize) -> u64 {
    let (config, batch) = Size::Tiny.config();
    (batch / parts * config.context * config.width) as u64 * F32
}

fn is_in_loop(collective: &Collective) -> bool {
    !collective.loops.is_empty()
}

/// In the one loop over the layers, or in none.
#[track_caller]
fn check_loops(report: &CollectiveReport) {
    for collective in &report.collectives {
        let trips: Vec<_> = collective.loops.iter().map(|l| l.trips).collect();
        assert!(
            trips.is_empty() || trips == [Some(layers())],
            "{collective:?}"
        );
        assert_eq!(
            collective.times,
            if is_in_loop(collective) { layers() } else { 1 }
        );
    }
}

/// The bodies of the two loops over layers.
#[track_caller]
fn forward_and_backward(report: &CollectiveReport) -> [&str; 2] {
    let inside = report.collectives.iter().filter(|c| is_in_loop(c));
    let mut bodies: Vec<_> = inside.map(|c| c.loops[0].body.as_str()).collect();
    bodies.dedup();
    bodies
        .try_into()
        .unwrap_or_else(|bodies| panic!("loops {bodies:?}\n{report}"))
}

/// The bytes of those over exactly these axes that are larger than scalars.
fn sizes(
    report: &CollectiveReport,
    kind: CollectiveKind,
    axes: &[&str],
    wanted: impl Fn(&Collective) -> bool,
) -> Vec<u64> {
    let over = report
        .of(kind, axes)
        .filter(|c| wanted(c) && c.payload_bytes > SCALARS);
    over.map(|c| c.payload_bytes).collect()
}

/// By kind and axes, how many are larger than scalars.
fn kinds(report: &CollectiveReport) -> BTreeMap<(&'static str, String), usize> {
    let mut kinds = BTreeMap::new();
    for collective in report
        .collectives
        .iter()
        .filter(|c| c.payload_bytes > SCALARS)
    {
        let axes = collective.axes.as_ref().unwrap().join(" ");
        *kinds.entry((collective.kind.name(), axes)).or_default() += 1;
    }
    kinds
}

/// Only these kinds over these axes.
#[track_caller]
fn check_kinds(report: &CollectiveReport, allowed: &[(CollectiveKind, &str)]) {
    let allowed: Vec<_> = allowed
        .iter()
        .map(|(kind, axes)| (kind.name(), (*axes).to_owned()))
        .collect();
    for found in kinds(report).keys() {
        assert!(allowed.contains(found), "{found:?}\n{report}");
    }
}

fn data8() -> Mesh {
    Mesh::new([("data", 8)]).unwrap()
}

fn data2_model4() -> Mesh {
    Mesh::new([("data", 2), ("model", 4)]).unwrap()
}

#[test]
fn one_device_tells_nobody() {
    assert_eq!(
        compiled(Layout::single())
            .collectives()
            .unwrap()
            .collectives,
        []
    );
}

#[test]
fn ddp_reduces_every_gradient_once() {
    for report in reports(Layout::ddp(data8()).unwrap()) {
        check_loops(&report);
        assert_eq!(
            kinds(&report),
            BTreeMap::from([(("all-reduce", "data".into()), 2)]),
            "{report}"
        );
        // One in the backward loop over layers, of a layer's gradients.
        let inside: Vec<_> = report
            .of(AllReduce, &["data"])
            .filter(|c| is_in_loop(c))
            .collect();
        assert_eq!(inside.len(), 1, "{report}");
        assert_eq!(inside[0].arrays.len(), 12);
        assert_eq!(
            inside[0].payload_bytes,
            parameter_bytes(true, |p| p.bytes),
            "{report}"
        );
        // One outside, of all others, which may take the loss along.
        let outside: u64 = sizes(&report, AllReduce, &["data"], |c| !is_in_loop(c))
            .iter()
            .sum();
        let gradients = parameter_bytes(false, |p| p.bytes);
        assert!(
            (gradients..=gradients + ALL_SCALARS).contains(&outside),
            "{outside} {gradients}\n{report}"
        );
        // In bytes: each gradient once a step.
        let total: u64 = report.totals().iter().map(|t| t.payload_bytes).sum();
        let gradients = gradients + layers() * parameter_bytes(true, |p| p.bytes);
        assert!(
            (gradients..=gradients + ALL_SCALARS).contains(&total),
            "{total} {gradients}\n{report}"
        );
    }
}

/// What Megatron reduces over `model`, the rest of the mesh being `parts` batches.
#[track_caller]
fn check_tensor_parallel(report: &CollectiveReport, parts: usize) {
    let (config, batch) = Size::Tiny.config();
    let (hidden, tokens) = (
        activation(parts),
        (batch / parts * config.context) as u64 * F32,
    );
    // After attention and after the feed-forward block, and before both on the way back.
    for body in forward_and_backward(report) {
        let inside = |c: &Collective| is_in_loop(c) && c.loops[0].body == body;
        assert_eq!(
            sizes(report, AllReduce, &["model"], inside),
            [hidden; 2],
            "{report}"
        );
    }
    // Outside: the embedding, the gradient of the last hidden state, and of the loss a number for
    // each token: largest logit, sum of exponentials, logit of the target.
    let mut outside = sizes(report, AllReduce, &["model"], |c| !is_in_loop(c));
    outside.sort_unstable();
    let split: Vec<_> = outside.iter().filter(|&&bytes| bytes >= hidden).collect();
    assert_eq!(split, [&hidden; 2], "{report}");
    // One of them may take a norm along.
    let of_tokens: Vec<_> = outside.iter().filter(|&&bytes| bytes < hidden).collect();
    assert_eq!(of_tokens.len(), 3, "{report}");
    for bytes in of_tokens {
        assert!(
            (tokens..=tokens + SCALARS).contains(bytes),
            "{bytes} {tokens}\n{report}"
        );
    }
}

#[test]
fn megatron_reduces_twice_a_layer_and_gathers_nothing() {
    for report in reports(Layout::megatron(data2_model4()).unwrap()) {
        check_loops(&report);
        check_kinds(&report, &[(AllReduce, "model"), (AllReduce, "data")]);
        check_tensor_parallel(&report, 2);
        assert_eq!(
            sizes(&report, AllReduce, &["model"], |c| !is_in_loop(c)).len(),
            5,
            "{report}"
        );
        // Gradients over `data`, of each device's part of the parameters.
        let part: fn(&Parameter) -> u64 = |p| if p.split { p.bytes / 4 } else { p.bytes };
        let inside = sizes(&report, AllReduce, &["data"], is_in_loop);
        assert_eq!(inside, [parameter_bytes(true, part)], "{report}");
        check_outside(&report, part);
    }
}

/// What FSDP gathers and reduces over `data`; `part` is what of a parameter a device has where it is
/// used.
#[track_caller]
fn check_fully_sharded(report: &CollectiveReport, part: fn(&Parameter) -> u64) {
    let sorted = |mut sizes: Vec<u64>| {
        sizes.sort_unstable();
        sizes
    };
    let of = |stacked: bool| {
        let parameters = parameters()
            .into_iter()
            .filter(move |p| p.stacked == stacked);
        sorted(parameters.map(|p| part(&p)).collect())
    };
    // Outside of the loops each parameter that is in no layer, once.
    assert_eq!(
        sorted(sizes(report, AllGather, &["data"], |c| !is_in_loop(c))),
        of(false),
        "{report}"
    );
    // In the forward loop each parameter of one layer, once.
    let [forward, backward] = forward_and_backward(report);
    let within = |body: &str| {
        let body = body.to_owned();
        sorted(sizes(report, AllGather, &["data"], move |c| {
            is_in_loop(c) && c.loops[0].body == body
        }))
    };
    assert_eq!(within(forward), of(true), "{report}");
    // In the backward loop those that gradients depend on, again, and none twice.
    let (again, mut left) = (within(backward), of(true));
    for bytes in &again {
        match left.iter().position(|one| one == bytes) {
            Some(found) => left.remove(found),
            None => panic!("{bytes} bytes are gathered that no parameter of a layer has\n{report}"),
        };
    }
    let weights = parameters()
        .into_iter()
        .filter(|p| p.stacked && p.bytes > 4 * 1024);
    for weight in weights {
        assert!(again.contains(&part(&weight)), "{report}");
    }
    // Gradients: a layer's in the backward loop, in one; the others outside, each once. The CPU
    // compiler makes no reduce-scatter.
    let inside = sizes(report, AllReduce, &["data"], is_in_loop);
    assert_eq!(inside, [parameter_bytes(true, part)], "{report}");
    let reduced = report.of(AllReduce, &["data"]).filter(|c| is_in_loop(c));
    assert!(
        reduced.into_iter().all(|c| c.loops[0].body == backward),
        "{report}"
    );
    check_outside(report, part);
}

/// Gradients of what is in no layer are reduced over `data` once, that of the embedding too, which is used
/// twice.
#[track_caller]
fn check_outside(report: &CollectiveReport, part: fn(&Parameter) -> u64) {
    let reduced: u64 = sizes(report, AllReduce, &["data"], |c| !is_in_loop(c))
        .iter()
        .sum();
    let once = parameter_bytes(false, part);
    assert!(
        (once..=once + ALL_SCALARS).contains(&reduced),
        "{reduced} {once}\n{report}"
    );
}

#[test]
fn fsdp_gathers_a_layer_at_a_time() {
    for report in reports(Layout::fsdp(data8()).unwrap()) {
        check_loops(&report);
        check_kinds(&report, &[(AllGather, "data"), (AllReduce, "data")]);
        check_fully_sharded(&report, |p| p.bytes);
    }
}

#[test]
fn megatron_fsdp_uses_each_axis_for_its_own() {
    for report in reports(Layout::megatron_fsdp(data2_model4()).unwrap()) {
        check_loops(&report);
        check_kinds(
            &report,
            &[
                (AllGather, "data"),
                (AllReduce, "data"),
                (AllReduce, "model"),
            ],
        );
        check_tensor_parallel(&report, 2);
        check_fully_sharded(&report, |p| if p.split { p.bytes / 4 } else { p.bytes });
    }
}
