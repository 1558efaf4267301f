//! Sequence parallelism: the reductions of tensor parallelism in two halves.

use shardax::prelude::*;

use super::CollectiveKind::{AllGather, AllReduce};
use super::{
    F32, Size, activation, check_loops, data2_model4, forward_and_backward, is_in_loop, kinds,
    reports, sizes,
};

#[test]
fn sequence_parallelism_gathers_before_and_reduces_after_each_block() {
    let (config, batch) = Size::Tiny.config();
    let (hidden, tokens) = (activation(2), (batch / 2 * config.context) as u64 * F32);
    for report in reports(Layout::megatron_sp(data2_model4()).unwrap()) {
        check_loops(&report);
        for (kind, axes) in kinds(&report).keys() {
            let is_expected = matches!(
                (*kind, axes.as_str()),
                ("all-gather" | "all-reduce", "model") | ("all-reduce", "data")
            );
            assert!(is_expected, "{kind} {axes}\n{report}");
        }
        let [forward, backward] = forward_and_backward(&report);
        let within = |kind, body: &str| {
            let body = body.to_owned();
            let mut sizes = sizes(&report, kind, &["model"], move |c| {
                is_in_loop(c) && c.loops[0].body == body && c.payload_bytes >= hidden
            });
            sizes.sort_unstable();
            sizes
        };
        // Before attention and before the feed-forward block the sequence is gathered, after them the
        // sums are reduced, and cut: the CPU compiler makes no reduce-scatter.
        assert_eq!(within(AllGather, forward), [hidden; 2], "{report}");
        assert_eq!(within(AllReduce, forward), [hidden; 2], "{report}");
        // On the way back cotangents are gathered and reduced where sums and copies were, and what
        // weights were multiplied by is gathered again and not kept whole.
        assert_eq!(within(AllGather, backward), [hidden; 4], "{report}");
        assert_eq!(within(AllReduce, backward), [hidden; 2], "{report}");

        // Outside: the embedding's rows are summed, not its table gathered; the last hidden state is
        // gathered for the logits; and both again on the way back.
        let outside = |kind| {
            let of = sizes(&report, kind, &["model"], |c| !is_in_loop(c));
            let (large, small): (Vec<u64>, Vec<u64>) =
                of.into_iter().partition(|bytes| *bytes >= hidden);
            (large, small)
        };
        let (gathered, small) = outside(AllGather);
        assert_eq!(gathered, [hidden; 2], "{report}");
        let positions = (config.context * config.width) as u64 * F32;
        let is_small = |bytes: &u64| *bytes <= tokens || *bytes == positions;
        assert!(small.iter().all(is_small), "{report}");
        let (reduced, small) = outside(AllReduce);
        assert_eq!(reduced, [hidden; 2], "{report}");
        assert!(small.iter().all(|bytes| *bytes <= 2 * tokens), "{report}");
    }
}
