//! ZeRO and hybrid sharding: what of the state lies where, and what is told because of it.

use shardax::prelude::*;
use shardax::train::Precision;

use super::CollectiveKind::{AllGather, AllReduce};
use super::{
    ALL_SCALARS, check_kinds, check_loops, compiled, data8, forward_and_backward, is_in_loop,
    layers, parameter_bytes, reports, reports_with, sizes,
};
use crate::CollectiveReport;
use crate::model::Gpt;
use crate::reference::{self, Size};
use crate::training::{Recipe, TrainState};

/// Bytes of all parameters.
fn all_parameters() -> u64 {
    parameter_bytes(false, |p| p.bytes) + layers() * parameter_bytes(true, |p| p.bytes)
}

/// Of every gradient one of `parts` is reduced over `axes` once, those of a layer in the backward loop and
/// in one.
#[track_caller]
fn check_reduced_once(report: &CollectiveReport, axes: &[&str], parts: u64) {
    let inside = sizes(report, AllReduce, axes, is_in_loop);
    assert_eq!(
        inside,
        [parameter_bytes(true, |p| p.bytes) / parts],
        "{report}"
    );
    let outside: u64 = sizes(report, AllReduce, axes, |c| !is_in_loop(c))
        .iter()
        .sum();
    let gradients = parameter_bytes(false, |p| p.bytes) / parts;
    assert!(
        (gradients..=gradients + ALL_SCALARS).contains(&outside),
        "{outside} {gradients}\n{report}"
    );
}

/// The parameters are gathered once, after the update.
#[track_caller]
fn check_gathered_once(report: &CollectiveReport) {
    assert_eq!(
        sizes(report, AllGather, &["data"], is_in_loop),
        [0; 0],
        "{report}"
    );
    let gathered: u64 = sizes(report, AllGather, &["data"], |_| true).iter().sum();
    assert_eq!(gathered, all_parameters(), "{report}");
}

#[test]
fn zero_1_and_2_reduce_each_gradient_and_gather_each_parameter_once() {
    for layout in [Layout::zero1(data8()), Layout::zero2(data8())] {
        for report in reports(layout.unwrap()) {
            check_loops(&report);
            check_kinds(&report, &[(AllGather, "data"), (AllReduce, "data")]);
            check_reduced_once(&report, &["data"], 1);
            check_gathered_once(&report);
        }
    }
}

/// The bytes that a device has of the state that a step takes, and those of what it makes on the way.
fn bytes(layout: Layout) -> (u64, u64) {
    let memory = compiled(layout).memory().unwrap();
    (memory.argument, memory.temp)
}

#[test]
fn each_stage_splits_more_of_the_state() {
    let all = all_parameters();
    let layouts = [Layout::ddp, Layout::zero1, Layout::zero2, Layout::fsdp];
    let [ddp, zero1, zero2, zero3] = layouts.map(|layout| bytes(layout(data8()).unwrap()));
    // Parameters and two moments; beside them the tokens and the step.
    let small = 8 * 1024;
    for ((arguments, _), expected) in [
        (ddp, 3 * all),
        (zero1, all + 2 * all / 8),
        (zero2, all + 2 * all / 8),
        (zero3, 3 * all / 8),
    ] {
        assert!(
            (expected..expected + small).contains(&arguments),
            "{arguments} {expected}"
        );
    }
    // The gradients of a step are shards from where they are summed.
    let stacked = layers() * parameter_bytes(true, |p| p.bytes);
    for (_, temporary) in [zero1, zero2] {
        let saved = ddp.1.saturating_sub(temporary);
        assert!(saved >= stacked * 3 / 4, "{saved} {stacked}");
    }
}

/// The bytes that a device has of parameters and optimizer state, and of gradients, by the compiler's word.
fn held(layout: &Layout) -> (u64, u64) {
    let (config, batch) = Size::Tiny.config();
    let recipe = Recipe::new(1e-3, Precision::F32);
    let init = jit(move || recipe.init(Gpt::init(config, reference::weight))).layout(layout);
    let step = jit(move |state: TrainState, tokens: Tensor| {
        let (state, _loss, gradients) = recipe.step(state, tokens);
        // As a list they lie as the step leaves them, and not as parameters do.
        (state, gradients.leaves())
    });
    let step = step
        .layout(layout)
        .xla_option("xla_backend_optimization_level", 0);
    let tokens = TensorType::new(DType::I32, [batch, config.context + 1]);
    let tokens_bytes = tokens.host_bytes() as u64;
    let types = (init.types(()).unwrap(), tokens);
    let memory = step.compile(types).unwrap().memory().unwrap();
    // Results are the state, which is as large as that of the arguments, and gradients.
    let (state, results) = (memory.argument, memory.output);
    (
        state - tokens_bytes / batch_parts(layout),
        results.saturating_sub(state),
    )
}

/// Into how many parts the layout splits the batch.
fn batch_parts(layout: &Layout) -> u64 {
    layout.mesh().axis_size("data").unwrap_or(1) as u64
}

#[test]
fn what_a_stage_splits_falls_with_the_number_of_devices() {
    let all = all_parameters();
    // The number of the step, pointers to results, and what alignment adds.
    let small = 8 * 1024;
    let is = |bytes: u64, expected: u64| {
        (expected.saturating_sub(small)..expected + small).contains(&bytes)
    };
    for devices in [2, 4, 8] {
        let n = devices as u64;
        for (name, state, gradients) in [
            ("ddp", 3 * all, all),
            ("zero1", all + 2 * all / n, all / n),
            ("zero2", all + 2 * all / n, all / n),
            ("zero3", 3 * all / n, all / n),
        ] {
            let strategy: Strategy = name.parse().unwrap();
            let mesh = Mesh::new([("data", devices)]).unwrap();
            let found = held(&strategy.layout(mesh).unwrap());
            assert!(
                is(found.0, state) && is(found.1, gradients),
                "{name} on {n} devices: {found:?} instead of {state} and {gradients}"
            );
        }
    }
}

/// Gradients are summed within the groups that a model is split over, into shards, and the shards over the
/// groups. The CPU compiler makes no reduce-scatter: it reduces all of a gradient, and cuts it.
#[track_caller]
fn check_hierarchical(report: &CollectiveReport, groups: &str) {
    check_loops(report);
    check_kinds(
        report,
        &[
            (AllGather, "data"),
            (AllReduce, "data"),
            (AllReduce, groups),
        ],
    );
    check_reduced_once(report, &["data"], 1);
    check_reduced_once(report, &[groups], 4);
}

#[test]
fn hybrid_sharding_gathers_and_reduces_within_a_group_and_then_shards_over_groups() {
    let mesh = Mesh::new([("replica", 2), ("data", 4)]).unwrap();
    for remat in [false, true] {
        let recipe = Recipe {
            remat,
            ..Recipe::new(1e-3, Precision::F32)
        };
        for report in reports_with(recipe, Layout::hsdp(mesh.clone()).unwrap()) {
            check_hierarchical(&report, "replica");
            let [forward, _] = forward_and_backward(&report);
            let gathered: u64 = sizes(&report, AllGather, &["data"], |c| {
                is_in_loop(c) && c.loops[0].body == forward
            })
            .iter()
            .sum();
            assert_eq!(gathered, parameter_bytes(true, |p| p.bytes), "{report}");
        }
    }
}

/// What a step sends for its gradients falls from a ring over all devices to one of each kind.
#[test]
fn parts_of_an_axis_are_groups_too() {
    let layout = Layout::ddp(data8()).unwrap();
    let whole = layout.clone().shard_every_parameter("data");
    let parts = layout.shard_every_parameter("data:(2)4");
    for (layout, sent) in [
        // All of each gradient over all devices: 2 (n - 1) / n of it.
        (whole, 2.0 * 7.0 / 8.0),
        // All over groups of 4, then a quarter over groups of 2.
        (parts, 2.0 * 3.0 / 4.0 + 2.0 * 1.0 / 2.0 / 4.0),
    ] {
        for report in reports(layout) {
            let reduced = report.collectives.iter().filter(|c| c.kind == AllReduce);
            let found: u64 = reduced.map(|c| c.times * c.bytes_sent).sum();
            let expected = (all_parameters() as f64 * sent) as u64;
            assert!(
                (expected..expected + 2 * ALL_SCALARS).contains(&found),
                "{found} {expected}\n{report}"
            );
        }
    }
}
