//! What each collective gives.

use shardax::prelude::*;
use shardax::{all_gather_invariant, broadcast_from, pmin, pvary};

use crate::{close, counted, layout, layouts};

fn rows() -> PartitionSpec {
    PartitionSpec::new([("data", "model")])
}

/// Runs a region over all axes of `data=2, model=4` on 16 rows, split over both.
fn on_rows(f: impl Fn(Tensor) -> Tensor + Copy, out: PartitionSpec) -> Vec<Vec<f32>> {
    let run = |layout: &Layout| {
        let out = out.clone();
        let program = jit(move |x: Tensor| manual((), rows(), out.clone(), f)(x)).layout(layout);
        program.call(counted(&[16, 3])).unwrap().to_vec().unwrap()
    };
    layouts("data=2,model=4").iter().map(run).collect()
}

fn x() -> Vec<f32> {
    counted(&[16, 3]).to_vec().unwrap()
}

/// The 8 blocks of two rows.
fn blocks() -> Vec<Vec<f32>> {
    x().chunks(6).map(<[f32]>::to_vec).collect()
}

fn combined(blocks: &[&Vec<f32>], f: impl Fn(f32, f32) -> f32) -> Vec<f32> {
    let first = blocks[0].clone();
    blocks[1..].iter().fold(first, |sum, block| {
        sum.iter().zip(*block).map(|(a, b)| f(*a, *b)).collect()
    })
}

#[test]
fn sums_and_extrema_over_one_axis_and_over_all() {
    let all: Vec<Vec<f32>> = blocks();
    let all: Vec<&Vec<f32>> = all.iter().collect();
    let whole = PartitionSpec::whole;
    for found in on_rows(|x| psum(x, ("data", "model")), whole()) {
        close(&found, &combined(&all, |a, b| a + b));
    }
    for found in on_rows(|x| pmax(x, ("data", "model")), whole()) {
        close(&found, &combined(&all, f32::max));
    }
    for found in on_rows(|x| pmin(x, ("data", "model")), whole()) {
        close(&found, &combined(&all, f32::min));
    }
    // Over `model` alone, each half of the devices has a sum of its own.
    let halves = [&all[..4], &all[4..]];
    let out = PartitionSpec::new([("data",)]);
    let wanted_sum: Vec<f32> = halves
        .iter()
        .flat_map(|h| combined(h, |a, b| a + b))
        .collect();
    for found in on_rows(|x| psum(x, "model"), out.clone()) {
        close(&found, &wanted_sum);
    }
    for found in on_rows(|x| pmean(x, "model"), out) {
        let scaled: Vec<f32> = wanted_sum.iter().map(|w| w / 4.0).collect();
        close(&found, &scaled);
    }
}

#[test]
fn gathers_scatters_and_exchanges() {
    for found in on_rows(
        |x| all_gather_invariant(x, ("data", "model"), 0),
        PartitionSpec::whole(),
    ) {
        close(&found, &x());
    }
    // In the order of the axes as they are named: model counts most.
    let all = blocks();
    let by_model: Vec<f32> = (0..4)
        .flat_map(|m| [m, m + 4])
        .flat_map(|i| all[i].clone())
        .collect();
    for found in on_rows(
        |x| all_gather_invariant(x, ("model", "data"), 0),
        PartitionSpec::whole(),
    ) {
        close(&found, &by_model);
    }
    // A gather and a scatter of the sum is as many times the value as there are devices.
    for found in on_rows(
        |x| reduce_scatter(all_gather(x, "model", 0), "model", 0),
        rows(),
    ) {
        let wanted: Vec<f32> = x().iter().map(|x| x * 4.0).collect();
        close(&found, &wanted);
    }
    // There and back.
    for found in on_rows(
        |x| {
            let x = x.reshape([1, 2, 3]).repeat(2, 0);
            let there = all_to_all(x, "data", 0, 2);
            all_to_all(there, "data", 2, 0).index(0, 0)
        },
        rows(),
    ) {
        close(&found, &x());
    }
    // A transposition of blocks between the two halves.
    for found in on_rows(|x| all_to_all(x, "data", 0, 0), rows()) {
        let row = |i: usize| x()[i * 3..][..3].to_vec();
        let wanted: Vec<f32> = (0..2)
            .flat_map(|d| (0..4).flat_map(move |m| [2 * m + d, 8 + 2 * m + d]))
            .flat_map(row)
            .collect();
        close(&found, &wanted);
    }
}

#[test]
fn permutations_positions_and_broadcasts() {
    let all = blocks();
    let rolled: Vec<f32> = (0..8).flat_map(|i| all[(i + 7) % 8].clone()).collect();
    let next = |x: Tensor| {
        let count = axis_size(("data", "model"));
        ppermute(
            x,
            ("data", "model"),
            (0..count).map(|i| (i, (i + 1) % count)),
        )
    };
    for found in on_rows(next, rows()) {
        close(&found, &rolled);
    }
    // Who is sent nothing has zeros.
    for found in on_rows(|x| ppermute(x, "data", [(0, 1)]), rows()) {
        let mut wanted = vec![0.0; 24];
        wanted.extend(&x()[..24]);
        close(&found, &wanted);
    }
    let position = |x: Tensor| x * 0.0 + axis_index(("data", "model")).cast(DType::F32);
    for found in on_rows(position, rows()) {
        let wanted: Vec<f32> = (0..48).map(|i| (i / 6) as f32).collect();
        close(&found, &wanted);
    }
    for found in on_rows(
        |x| broadcast_from(x, ("data", "model"), 5),
        PartitionSpec::whole(),
    ) {
        close(&found, &all[5]);
    }
}

#[test]
fn a_common_value_counts_once_for_each_device() {
    let layout = layout("data=8");
    let f = |x: Tensor| {
        let whole = PartitionSpec::whole;
        manual("data", whole(), whole(), |x: Tensor| psum(x, "data"))(x)
    };
    let found = jit(f).layout(&layout).call(counted(&[3])).unwrap();
    let x: Vec<f32> = counted(&[3]).to_vec().unwrap();
    close(&found.to_vec().unwrap(), &x.map_each(|x| x * 8.0));
    // Marked as each device's own, it is put together from all copies.
    let f = |x: Tensor| {
        let out = PartitionSpec::new(("data",));
        manual("data", PartitionSpec::whole(), out, |x: Tensor| {
            pvary(x, "data")
        })(x)
    };
    let found = jit(f).layout(&layout).call(counted(&[3])).unwrap();
    close(&found.to_vec().unwrap(), &x.repeat(8));
}

trait MapEach {
    fn map_each(&self, f: impl Fn(f32) -> f32) -> Vec<f32>;
}

impl MapEach for Vec<f32> {
    fn map_each(&self, f: impl Fn(f32) -> f32) -> Vec<f32> {
        self.iter().map(|x| f(*x)).collect()
    }
}

#[test]
fn the_same_program_runs_on_one_device() {
    let f = |x: Tensor| {
        manual(
            ("data", "model"),
            rows(),
            PartitionSpec::whole(),
            |x: Tensor| {
                let axes = ("data", "model");
                let sum = psum(x.sum(0), axes) + pmean(x.sum(0), axes) * 0.0;
                let same = ppermute(x, "data", (0..axis_size("data")).map(|i| (i, i)));
                let same = all_to_all(all_gather(same, "model", 0), "data", 0, 0);
                sum + pmax(same.max(0), axes) * 0.0
                    + psum(axis_index(axes), axes).cast(DType::F32) * 0.0
            },
        )(x)
    };
    let one = jit(f)
        .call(counted(&[16, 3]))
        .unwrap()
        .to_vec::<f32>()
        .unwrap();
    for layout in layouts("data=2,model=4") {
        let eight = jit(f).layout(&layout).call(counted(&[16, 3])).unwrap();
        close(&eight.to_vec().unwrap(), &one);
    }
}

/// Along `model` the compiler goes on splitting: a product whose weights are split there.
#[test]
fn a_region_over_some_axes_leaves_the_others_to_the_compiler() {
    let layout = layout("data=2,model=4").shard("mlp", "model");
    let f = |x: Tensor, w: Tensor, v: Tensor| {
        let rows = PartitionSpec::new(("data",));
        let whole = PartitionSpec::whole();
        manual(
            "data",
            (rows, whole.clone(), whole.clone()),
            whole,
            |(x, w, v): (Tensor, Tensor, Tensor)| {
                let w = w.shard(&[Dim::Unsharded, Dim::Logical("mlp")]);
                let h = x
                    .dot(w)
                    .shard(&[Dim::Unsharded, Dim::Logical("mlp")])
                    .tanh();
                psum(h.dot(v).sum(0), "data")
            },
        )((x, w, v))
    };
    let args = || (counted(&[8, 4]), counted(&[4, 8]), counted(&[8, 2]));
    let one = jit(f).call(args()).unwrap().to_vec::<f32>().unwrap();
    let program = jit(f).layout(&layout);
    close(&program.call(args()).unwrap().to_vec().unwrap(), &one);
    let error = jit(f)
        .layout(&layout.partitioner(Partitioner::Gspmd))
        .call(args())
        .unwrap_err()
        .to_string();
    assert!(error.contains("use the partitioner `shardy`"), "{error}");
}

#[test]
fn regions_nest() {
    let f = |x: Tensor| {
        let outer = PartitionSpec::new(("data",));
        manual("data", outer.clone(), outer, |x: Tensor| {
            let inner = PartitionSpec::new(((), "model"));
            let scaled = manual("model", inner.clone(), inner, |x: Tensor| {
                let at = axis_index(("data", "model")).cast(DType::F32);
                x * (at + 1.0) - psum(x, "model") * 0.5
            });
            scaled(x)
        })(x)
    };
    let layout = layout("data=2,model=4");
    let found = jit(f).layout(&layout).call(counted(&[4, 8])).unwrap();
    let x: Vec<f32> = counted(&[4, 8]).to_vec().unwrap();
    let wanted: Vec<f32> = (0..32)
        .map(|i| {
            let (row, column) = (i / 8, i % 8);
            let device = (row / 2) * 4 + column / 2;
            let sum: f32 = (0..4).map(|m| x[row * 8 + m * 2 + column % 2]).sum();
            x[i] * (device as f32 + 1.0) - sum * 0.5
        })
        .collect();
    close(&found.to_vec().unwrap(), &wanted);
}

/// A ring: after as many turns as there are devices, everybody has seen everything.
#[test]
fn collectives_in_loops() {
    let f = |x: Tensor| {
        manual(
            "data",
            PartitionSpec::new(("data",)),
            PartitionSpec::new(("data",)),
            |x: Tensor| {
                let count = axis_size("data");
                let (_, total) = fori_loop(
                    0,
                    count as i64,
                    (x, Tensor::zeros(DType::F32, x.shape())),
                    |_, (block, total)| {
                        let next =
                            ppermute(block, "data", (0..count).map(|i| (i, (i + 1) % count)));
                        (next, total + block)
                    },
                );
                total
            },
        )(x)
    };
    for layout in layouts("data=8") {
        let found = jit(f).layout(&layout).call(counted(&[16])).unwrap();
        let x: Vec<f32> = counted(&[16]).to_vec().unwrap();
        let sums: Vec<f32> = (0..2).map(|o| (0..8).map(|i| x[i * 2 + o]).sum()).collect();
        close(&found.to_vec().unwrap(), &sums.repeat(8));
    }
}

#[test]
fn element_types() {
    for dtype in [
        DType::I32,
        DType::U8,
        DType::I64,
        DType::F64,
        DType::BF16,
        DType::F16,
    ] {
        for layout in layouts("data=8") {
            let f = move |x: Tensor| {
                let split = PartitionSpec::new(("data",));
                let out = (PartitionSpec::whole(), PartitionSpec::whole());
                let x = x.cast(dtype);
                let (sum, largest) = manual("data", split, out, |x: Tensor| {
                    (psum(x, "data"), pmax(x, "data"))
                })(x);
                sum.cast(DType::F32) + largest.cast(DType::F32) * 100.0
            };
            let x = Array::from_slice(&[0f32, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], [8]).unwrap();
            let found = jit(f)
                .layout(&layout)
                .call(x)
                .unwrap()
                .to_vec::<f32>()
                .unwrap();
            close(&found, &[728.0]);
        }
    }
    let f = |x: Tensor| {
        let split = PartitionSpec::new(("data",));
        let any = manual("data", split, PartitionSpec::whole(), |x: Tensor| {
            pmax(x, "data")
        })(x.gt(6.5));
        any.cast(DType::F32)
    };
    let x = Array::from_slice(&[0f32, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], [8]).unwrap();
    let found = jit(f).layout(&layout("data=8")).call(x).unwrap();
    close(&found.to_vec().unwrap(), &[1.0]);
}

/// A batch whose name the layout splits is not gathered for a region that does not use its axes.
#[test]
fn a_named_batch_stays_split() {
    let layout = layout("data=2,model=4").shard("batch", "data");
    let f = |x: Tensor| {
        let split = PartitionSpec::new(("model",));
        let one = |x: Tensor| {
            let sum = |x: Tensor| x * 2.0 + psum(x.sum(..), "model");
            manual((), split.clone(), split.clone(), sum)(x)
        };
        shardax::vmap_named("batch", one)(x).shard(&[Dim::Logical("batch"), Dim::Mesh(&["model"])])
    };
    let program = jit(move |x: Tensor| f(x.shard(&[Dim::Logical("batch"), Dim::Mesh(&["model"])])));
    let program = program.layout(&layout);
    let x: Vec<f32> = counted(&[4, 8]).to_vec().unwrap();
    let wanted: Vec<f32> = x
        .chunks(8)
        .flat_map(|row| {
            row.iter()
                .map(|x| x * 2.0 + row.iter().sum::<f32>())
                .collect::<Vec<_>>()
        })
        .collect();
    close(
        &program.call(counted(&[4, 8])).unwrap().to_vec().unwrap(),
        &wanted,
    );
    let types = TensorType::new(DType::F32, [4, 8]);
    let report = program.compile(types).unwrap().collectives().unwrap();
    assert_eq!(report.collectives.len(), 1, "{report}");
    assert_eq!(report.collectives[0].payload_bytes, 8, "{report}");
}
