//! Collectives that are written as messages, and training with few of them: values against exact ones,
//! and what is sent against a formula, by the word of the compiled program.

mod feedback;
mod local_sgd;
mod quantized;
mod sums;

use shardax::prelude::*;
use shardax::xla::report::{CollectiveKind, CollectiveReport};

pub(crate) fn layout(mesh: &str) -> Layout {
    Layout::new(mesh.parse().unwrap())
}

/// A layout for each partitioner. What has something for each device is named `replica`.
pub(crate) fn layouts(mesh: &str) -> [Layout; 2] {
    let layout = layout(mesh);
    let axes = layout.mesh().axes().iter().map(|axis| axis.name());
    let axes: Vec<String> = axes.map(str::to_owned).collect();
    [Partitioner::Shardy, Partitioner::Gspmd]
        .map(|p| layout.clone().shard("replica", axes.clone()).partitioner(p))
}

/// One addend for each device: `[devices, ...]`, split over all axes.
pub(crate) fn by_device(layout: &Layout) -> PartitionSpec {
    let axes = layout.mesh().axes().iter().map(|axis| axis.name());
    [axes.collect::<Vec<_>>()].into_iter().collect()
}

/// Numbers that look random, from -1 to 1.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> f32 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub(crate) fn many(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.next()).collect()
    }
}

/// Bytes that a device sends in one launch by collectives of one kind over exactly these axes.
pub(crate) fn sent(report: &CollectiveReport, kind: CollectiveKind, axes: &[&str]) -> u64 {
    let all = report.of(kind, axes);
    all.map(|c| {
        assert!(c.times_known && c.counted, "{report}");
        c.bytes_sent * c.times
    })
    .sum()
}

/// Bytes that a device sends in one launch in any way.
pub(crate) fn sent_at_all(report: &CollectiveReport) -> u64 {
    report.totals().iter().map(|total| total.bytes_sent).sum()
}
