//! Context parallelism: batch and sequence are split over two axes, and gradients are reduced over both at
//! once, or over one into shards and then over the other.

use shardax::prelude::*;

use super::CollectiveKind::AllReduce;
use super::{ALL_SCALARS, compiled, is_in_loop, parameter_bytes, parameters, sizes};
use crate::CollectiveReport;

/// The report of the step under both partitioners. It has warnings: the positions' embedding is gathered
/// for use, and each device takes the rows of its part of the sequence.
fn counted(layout: Layout) -> impl Iterator<Item = CollectiveReport> {
    let partitioners = [Partitioner::Shardy, Partitioner::Gspmd];
    partitioners.into_iter().map(move |partitioner| {
        let program = compiled(layout.clone().partitioner(partitioner));
        program.collectives().unwrap()
    })
}

/// Bytes of the gradients of what is in no layer, apart from the positions', whose rows `context` splits.
fn outside() -> u64 {
    parameter_bytes(false, |p| p.bytes) - positions()
}

fn positions() -> u64 {
    parameters()[1].bytes
}

/// What is reduced over exactly these axes, inside of the loops and outside.
fn reduced(report: &CollectiveReport, axes: &[&str]) -> [u64; 2] {
    [true, false].map(|is_inside| {
        let over = sizes(report, AllReduce, axes, |c| is_in_loop(c) == is_inside);
        over.iter().sum()
    })
}

#[track_caller]
fn check(found: [u64; 2], expected: [u64; 2], report: &CollectiveReport) {
    assert_eq!(found[0], expected[0], "{report}");
    let range = expected[1]..=expected[1] + ALL_SCALARS;
    assert!(
        range.contains(&found[1]),
        "{found:?} {expected:?}\n{report}"
    );
}

#[test]
fn every_gradient_is_reduced_over_both_axes_at_once() {
    let mesh = Mesh::new([("data", 2), ("context", 4)]).unwrap();
    for report in counted(Layout::context(mesh).unwrap()) {
        let layer = parameter_bytes(true, |p| p.bytes);
        let both = reduced(&report, &["data", "context"]);
        check(both, [layer, outside()], &report);
        // A device has the rows of its positions, and their gradient of its part of the batch.
        check(reduced(&report, &["data"]), [0, positions() / 4], &report);
        check(reduced(&report, &["context"]), [0, 0], &report);
    }
}

#[test]
fn shards_of_gradients_are_reduced_over_the_other_axis() {
    let mesh = Mesh::new([("data", 4), ("context", 2)]).unwrap();
    let strategy: Strategy = "fsdp+context".parse().unwrap();
    for report in counted(strategy.layout(mesh).unwrap()) {
        let layer = parameter_bytes(true, |p| p.bytes);
        check(
            reduced(&report, &["data"]),
            [layer, outside() + positions() / 2],
            &report,
        );
        check(
            reduced(&report, &["context"]),
            [layer / 4, outside() / 4],
            &report,
        );
        check(reduced(&report, &["data", "context"]), [0, 0], &report);
    }
}
