//! Exact sums and exchanges.

use std::collections::BTreeMap;

use shardax::prelude::*;
use shardax::train::REPLICA;
use shardax::train::collectives::{
    hierarchical_all_reduce, hierarchical_all_to_all, ring_all_reduce, tree_all_reduce,
};
use shardax::xla::report::CollectiveKind::{
    AllGather, AllReduce, AllToAll, CollectivePermute, ReduceScatter,
};
use shardax::xla::report::CollectiveReport;

use crate::{by_device, layout, layouts, sent, sent_at_all};

const F32: u64 = 4;

/// Small whole numbers, whose sums are exact in any order.
fn whole_numbers(shape: &[usize]) -> Array {
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|i| (i * 7 % 23) as f32 - 11.0).collect();
    Array::from_slice(&values, shape).unwrap()
}

/// Checks `sum`, of `length` numbers on each device, and its gradient; the gradient sends nothing.
fn check(
    layout: &Layout,
    length: usize,
    sum: impl Fn(Tensor) -> Tensor + Copy,
) -> CollectiveReport {
    let devices = layout.mesh().device_count();
    let spec = by_device(layout);
    let step = move |x: Tensor| {
        let total = |x: Tensor| {
            let region = manual((), spec.clone(), PartitionSpec::whole(), |x: Tensor| {
                sum(x.index(0, 0))
            });
            region(x)
        };
        let weighted = |x: Tensor| {
            let sums = total(x);
            (sums * Tensor::arange(DType::F32, length)).sum(..) + sums.square().sum(..) * 0.5
        };
        let gradient = grad(weighted)(x).shard(&[REPLICA, Dim::Unsharded]);
        (total(x), gradient)
    };
    let x = whole_numbers(&[devices, length]);
    let step = jit(step).layout(layout);
    let (sums, gradient) = step.call(x.clone()).unwrap();
    let x: Vec<f32> = x.to_vec().unwrap();
    let wanted: Vec<f32> = (0..length)
        .map(|i| (0..devices).map(|d| x[d * length + i]).sum())
        .collect();
    assert_eq!(sums.to_vec::<f32>().unwrap(), wanted, "{layout:?}");
    let slopes: Vec<f32> = wanted
        .iter()
        .enumerate()
        .map(|(i, s)| i as f32 + s)
        .collect();
    assert_eq!(gradient.to_vec::<f32>().unwrap(), slopes.repeat(devices));
    let types = TensorType::new(DType::F32, [devices, length]);
    step.compile(types).unwrap().collectives().unwrap()
}

#[test]
fn a_ring() {
    // Chunks that divide, chunks that do not, fewer numbers than devices, and rings over two axes.
    for (mesh, length) in [
        ("data=8", 24),
        ("data=5", 13),
        ("data=8", 3),
        ("data=2,model=3", 7),
    ] {
        for layout in layouts(mesh) {
            let names: Vec<String> = layout
                .mesh()
                .axes()
                .iter()
                .map(|a| a.name().to_owned())
                .collect();
            let names: Vec<&'static str> = names.into_iter().map(|n| &*n.leak()).collect();
            let axes: &'static [&'static str] = names.leak();
            let report = check(&layout, length, |x| ring_all_reduce(x, axes.to_vec()));
            let n = layout.mesh().device_count();
            let chunk = length.div_ceil(n) as u64 * F32;
            let wanted = 2 * (n as u64 - 1) * chunk;
            assert_eq!(sent(&report, CollectivePermute, axes), wanted, "{report}");
            assert_eq!(sent_at_all(&report), wanted, "{report}");
        }
    }
}

#[test]
fn trees() {
    for (mesh, length) in [("data=8", 10), ("data=6", 5), ("data=5", 4), ("data=7", 1)] {
        for layout in layouts(mesh) {
            let report = check(&layout, length, |x| tree_all_reduce(x, "data"));
            let n = layout.mesh().device_count();
            // By device, of both trees and both ways.
            let mut by_device: BTreeMap<usize, u64> = BTreeMap::new();
            let mut rounds = 0;
            for permute in report.of(CollectivePermute, &["data"]) {
                rounds += permute.times;
                for (from, _) in &permute.pairs {
                    *by_device.entry(*from).or_default() += permute.payload_bytes * permute.times;
                }
            }
            // Everybody but the root sends a sum up, and is sent one down.
            let all: u64 = by_device.values().sum();
            assert_eq!(all, 2 * (n as u64 - 1) * length as u64 * F32, "{report}");
            let depth = u64::from(n.next_power_of_two().ilog2());
            let counted = sent(&report, CollectivePermute, &["data"]);
            assert_eq!(counted, 2 * depth * length as u64 * F32, "{report}");
            let halves = if length == 1 { 1 } else { 2 };
            assert_eq!(rounds, 2 * depth * halves, "{report}");
            let busiest = by_device.values().max().copied().unwrap();
            let half = length.div_ceil(2) as u64 * F32;
            // The root of one tree, which is a leaf of the other.
            assert!(busiest <= (depth + 1) * half, "{by_device:?}");
            assert_eq!(sent(&report, AllReduce, &["data"]), 0);
        }
    }
}

#[test]
fn nodes_first() {
    for layout in layouts("node=2,gpu=4") {
        let length = 21;
        let report = check(&layout, length, |x| {
            hierarchical_all_reduce(x, "gpu", "node")
        });
        // Padded to 24: a quarter of it on each device of a node.
        let (padded, quarter) = (24 * F32, 6 * F32);
        let scattered = sent(&report, ReduceScatter, &["gpu"]);
        assert_eq!(scattered, 3 * padded / 4, "{report}");
        assert_eq!(
            sent(&report, AllReduce, &["node"]),
            2 * quarter / 2,
            "{report}"
        );
        assert_eq!(
            sent(&report, AllGather, &["gpu"]),
            3 * padded / 4,
            "{report}"
        );
        assert_eq!(sent_at_all(&report), 3 * padded / 2 + quarter, "{report}");
    }
}

/// Leaves of several shapes and types: those of one type travel together.
#[test]
fn trees_of_tensors() {
    let f = |x: Tensor| {
        let layout_axes = PartitionSpec::new(("data",));
        let whole = PartitionSpec::whole;
        let sums = manual(
            "data",
            layout_axes,
            (whole(), (whole(), whole()), whole()),
            |x: Tensor| {
                let x = x.index(0, 0);
                let leaves = (
                    x.reshape([2, 5]),
                    (x.slice(0, ..3).cast(DType::I32), x.index(0, 1)),
                    x.slice(0, ..0),
                );
                ring_all_reduce(leaves, "data")
            },
        );
        sums(x)
    };
    for layout in layouts("data=4") {
        let x = whole_numbers(&[4, 10]);
        let step = jit(f).layout(&layout);
        let (a, (b, c), d) = step.call(x.clone()).unwrap();
        let x: Vec<f32> = x.to_vec().unwrap();
        let sum = |i: usize| (0..4).map(|d| x[d * 10 + i]).sum::<f32>();
        assert_eq!(
            a.to_vec::<f32>().unwrap(),
            (0..10).map(sum).collect::<Vec<_>>()
        );
        let whole: Vec<i32> = (0..3).map(|i| sum(i) as i32).collect();
        assert_eq!(b.to_vec::<i32>().unwrap(), whole);
        assert_eq!(c.item::<f32>().unwrap(), sum(1));
        assert_eq!(d.shape(), [0]);
        let types = TensorType::new(DType::F32, [4, 10]);
        let report = step.compile(types).unwrap().collectives().unwrap();
        // 11 numbers of f32 in chunks of 3, 3 of i32 in chunks of 1.
        assert_eq!(sent_at_all(&report), 2 * 3 * (3 + 1) * 4, "{report}");
        let messages: u64 = report
            .of(CollectivePermute, &["data"])
            .map(|c| c.times)
            .sum();
        assert_eq!(messages, 2 * 2 * 3, "{report}");
    }
}

#[test]
fn an_exchange_in_two_steps() {
    let rows = || PartitionSpec::new([("node", "gpu")]);
    let run = |layout: &Layout, hierarchical: bool, split: isize, join: isize| {
        let f = move |x: Tensor| {
            manual((), rows(), rows(), |x: Tensor| {
                let y = match hierarchical {
                    true => hierarchical_all_to_all(x, "gpu", "node", split, join),
                    false => all_to_all(x, ("node", "gpu"), split, join),
                };
                // A different weight for each place, so that the gradient sees the order.
                y * (axis_index(("node", "gpu")).cast(DType::F32) + 1.0)
            })(x)
        };
        let both = move |x: Tensor| {
            let loss = |x: Tensor| {
                let y = f(x);
                (y * Tensor::arange(DType::F32, y.ty().element_count()).reshape(y.shape())).sum(..)
            };
            (f(x), grad(loss)(x))
        };
        let step = jit(both).layout(layout);
        let x = whole_numbers(&[64, 16, 2]);
        let (y, g) = step.call(x).unwrap();
        let types = TensorType::new(DType::F32, [64, 16, 2]);
        let report = step.compile(types).unwrap().collectives().unwrap();
        (
            y.to_vec::<f32>().unwrap(),
            g.to_vec::<f32>().unwrap(),
            report,
        )
    };
    for layout in layouts("node=2,gpu=4") {
        for (split, join) in [(0, 0), (1, -1), (1, 0)] {
            let (y, g, report) = run(&layout, true, split, join);
            let (wanted_y, wanted_g, direct) = run(&layout, false, split, join);
            assert_eq!(y, wanted_y, "{split} {join}");
            assert_eq!(g, wanted_g, "{split} {join}");
            // Forward twice is written once: there and the gradient back.
            let block = 8 * 16 * 2 * F32;
            let across = sent(&report, AllToAll, &["node"]);
            let inside = sent(&report, AllToAll, &["gpu"]);
            assert_eq!(
                (across, inside),
                (2 * block / 2, 2 * block * 3 / 4),
                "{report}"
            );
            assert_eq!(sent(&direct, AllToAll, &["node", "gpu"]), 2 * block * 7 / 8);
        }
    }
}

#[test]
fn what_is_refused() {
    let message = |f: fn(Tensor) -> Tensor| {
        let layout = layout("node=2,gpu=4");
        let region = move |x: Tensor| {
            let rows = PartitionSpec::new([("node", "gpu")]);
            manual((), rows.clone(), rows, f)(x)
        };
        let types = TensorType::new(DType::F32, [8, 6]);
        let outcome = jit(region).layout(&layout).compile(types);
        outcome.map(|_| ()).unwrap_err().to_string()
    };
    let text = message(|x| hierarchical_all_to_all(x, "gpu", "node", 1, 4));
    assert!(
        text.contains("f32[1,6]{gpu,node} has no dimension 4, which is `join`"),
        "{text}"
    );
    let text = message(|x| hierarchical_all_to_all(x, "gpu", "node", 1, 0));
    assert!(
        text.contains("cannot be cut into 2 times 4 equal parts"),
        "{text}"
    );
    assert!(text.contains("sums.rs"), "{text}");
    let text = message(|x| ring_all_reduce(x, "gpus"));
    assert!(text.contains("did you mean `gpu`?"), "{text}");
    let text = message(|x| hierarchical_all_reduce(x, "gpu", "gpu"));
    assert!(text.contains("axis `gpu` is named twice"), "{text}");
    let text = message(|x| tree_all_reduce(x.gt(0), "gpu"));
    assert!(text.contains("booleans have no sum"), "{text}");
}

/// Other element types; batches; and a region that leaves an axis, along which leaves are split, to the
/// compiler.
#[test]
fn where_else_they_work() {
    let spec = || PartitionSpec::new(("data",));
    let sums: [fn(Tensor) -> Tensor; 2] = [
        |x| ring_all_reduce(x, "data"),
        |x| tree_all_reduce(x, "data"),
    ];
    for sum in sums {
        let f = move |x: Tensor| {
            let dtypes = [DType::BF16, DType::F16, DType::F64, DType::I64, DType::U8];
            let cast = dtypes.map(|dtype| x.abs().cast(dtype));
            let region = manual("data", spec(), PartitionSpec::whole(), |xs: [Tensor; 5]| {
                let xs = xs.map(|x| x.index(0, 0));
                let each = vmap(sum);
                (xs.map(sum), xs.map(|x| each(x.reshape([7, 3]))))
            });
            let (plain, batched) = region(cast);
            let f32 = |xs: [Tensor; 5]| shardax::stack(xs.map(|x| x.cast(DType::F32)), 0);
            (f32(plain), f32(batched.map(|x| x.flatten())))
        };
        let x = whole_numbers(&[4, 21]);
        let values: Vec<f32> = x.to_vec().unwrap();
        let sum_of = |i: usize| (0..4).map(|d| values[d * 21 + i].abs()).sum();
        let wanted: Vec<f32> = (0..21).map(sum_of).collect();
        for layout in layouts("data=4") {
            let (plain, batched) = jit(f).layout(&layout).call(x.clone()).unwrap();
            assert_eq!(plain.to_vec::<f32>().unwrap(), wanted.repeat(5));
            assert_eq!(batched.to_vec::<f32>().unwrap(), wanted.repeat(5));
        }
        let partly = |x: Tensor| {
            let x = x.shard(&[Dim::Unsharded, Dim::Logical("mlp")]);
            let region = manual("data", spec(), PartitionSpec::whole(), |x: Tensor| {
                sum(x.shard(&[Dim::Unsharded, Dim::Logical("mlp")]).index(0, 0))
            });
            region(x).shard(&[Dim::Logical("mlp")])
        };
        let layout = layout("data=4,model=3").shard("mlp", "model");
        let found = jit(partly).layout(&layout).call(x).unwrap();
        let values: Vec<f32> = whole_numbers(&[4, 21]).to_vec().unwrap();
        let wanted: Vec<f32> = (0..21)
            .map(|i| (0..4).map(|d| values[d * 21 + i]).sum())
            .collect();
        assert_eq!(found.to_vec::<f32>().unwrap(), wanted);
    }
}

/// Of a value that is common already a sum is as many times that; of one device, itself.
#[test]
fn common_values_and_one_device() {
    let sums: [fn(Tensor) -> Tensor; 3] = [
        |x| ring_all_reduce(x, "data"),
        |x| tree_all_reduce(x, "data"),
        |x| hierarchical_all_reduce(x, "data", "node"),
    ];
    for sum in sums {
        for (mesh, times) in [("node=1,data=3", 3.0), ("node=1,data=1", 1.0)] {
            let f = move |x: Tensor| {
                let whole = PartitionSpec::whole;
                manual((), whole(), whole(), move |x: Tensor| sum(x * 2.0))(x)
            };
            let slope = move |x: Tensor| (f(x), grad(|x: Tensor| f(x).square().sum(..))(x));
            for layout in layouts(mesh) {
                let x = Array::from_slice(&[1f32, 2.0, 3.0, 4.0], [4]).unwrap();
                let (y, g) = jit(slope).layout(&layout).call(x).unwrap();
                let wanted = [1f32, 2.0, 3.0, 4.0].map(|x| 2.0 * times * x);
                assert_eq!(y.to_vec::<f32>().unwrap(), wanted, "{mesh}");
                let wanted = wanted.map(|y| 2.0 * y * 2.0 * times);
                assert_eq!(g.to_vec::<f32>().unwrap(), wanted, "{mesh}");
            }
        }
    }
}
