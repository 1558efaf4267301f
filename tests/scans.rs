//! Scans along a dimension that devices split: what one device computes, for one element a block.

use shardax::prelude::*;
use shardax::xla::Result;
use shardax::xla::report::CollectiveKind;
use shardax::{associative_scan, concatenate, layout, vmap};

/// Eight blocks of eight rows: as many elements of a block as there are blocks.
const ROWS: usize = 64;
const COLUMNS: usize = 16;
const DIMS: &[Dim] = &[Dim::Logical("rows"), Dim::Logical("columns")];

type Function = fn(Tensor) -> Tensor;

/// The states of `h[i] = a[i] h[i - 1] + b[i]`, or from the last to the first.
fn states(a: Tensor, b: Tensor, reverse: bool) -> Tensor {
    let then = |(a, b): (Tensor, Tensor), (c, d): (Tensor, Tensor)| (a * c, b * c + d);
    associative_scan(then, (a, b), 0, reverse).1
}

/// Rotations and shifts of a plane, one after the other: leaves of different ranks, and an order that matters.
fn motions(x: Tensor) -> Tensor {
    let (turn, shift) = (x.slice(1, ..4).reshape([-1, 2, 2]) * 0.4, x.slice(1, 4..6));
    let then = |(m, v): (Tensor, Tensor), (n, w): (Tensor, Tensor)| {
        (
            n.matmul(m),
            n.matmul(v.expand_dims(-1)).reshape([-1, 2]) + w,
        )
    };
    let (turn, shift) = associative_scan(then, (turn, shift), 0, false);
    concatenate([turn.reshape([-1, 4]), shift], 1)
}

/// In a region a dimension that is not split is local, and one that is split is a block.
fn region(x: Tensor) -> Tensor {
    let layout = layout();
    let axes = layout.mesh().axes().iter();
    let columns = PartitionSpec::new([vec![], axes.map(|axis| axis.name()).collect()]);
    let own = |x: Tensor| x.cumsum(0) * x.cumlogsumexp(0);
    manual((), columns.clone(), columns, own)(x)
}

#[rustfmt::skip]
const CASES: &[(&str, Function)] = &[
    ("sums", |x| x.cumsum(0) + x.cumsum_reverse(0) * x.cumsum(1)),
    ("products", |x| (x * 0.2 + 1.0).cumprod(0) - (x * 0.2 - 1.0).cumprod_reverse(0)),
    ("extrema", |x| (x * 3.0).round().cummax(0) + x * (x * 3.0 + x).cummin_reverse(0)),
    ("sums of exponentials", |x| x.cumlogsumexp(0) * x.cumlogsumexp_reverse(0)),
    ("states", |x| states(x.sin(), x, false) * states(x.cos(), x, true)),
    ("motions", motions),
    ("columns by themselves", |x| vmap(|x: Tensor| x.cumprod(0) + x.cummax(0) * states(x, x, true))(x.transpose([1, 0]))),
    ("a loop that recomputes", |x| {
        let again = remat(|x: Tensor| (x.cumlogsumexp(0) - x.cumprod(0)).tanh());
        scan(x, Tensor::arange(DType::I32, 2), |x: Tensor, _: Tensor| { let x = again(x); (x, x.sum(0)) }).0
    }),
    ("a region", region),
    ("shifts", |x| concatenate([x.slice(0, 1..), x.slice(0, 3..4)], 0) * concatenate([x.slice(0, ..2).sin(), x.slice(0, ..62)], 0)),
    ("places", |x| x.index(1, 2).sort(0).searchsorted(x.slice(0, ..2)).cast(DType::F64) * x.slice(0, ..2)),
];

fn program(layout: &Layout) -> impl Fn(Array) -> Result<Vec<(Array, Array)>> {
    let all = |x: Tensor| {
        let results = CASES.iter().map(|(_, f)| {
            let loss = |x: Tensor| {
                let value = f(x.shard(DIMS));
                let places = Tensor::arange(DType::F64, value.shape().iter().product());
                ((value.flatten() * (places * 0.9).sin()).mean(..), value)
            };
            let ((_, value), gradient) = value_and_grad(loss)(x);
            (value, gradient)
        });
        results.collect::<Vec<_>>()
    };
    let program = jit(all)
        .layout(layout)
        .xla_option("xla_backend_optimization_level", 0);
    move |x| program.call(x)
}

fn layouts() -> Vec<Layout> {
    let layout = |mesh: &str, rows: &[&str], columns: &[&str], partitioner| {
        let mesh: Mesh = mesh.parse().expect("a mesh");
        let layout = Layout::new(mesh).shard("rows", rows.to_vec());
        layout
            .shard("columns", columns.to_vec())
            .partitioner(partitioner)
    };
    use Partitioner::{Gspmd, Shardy};
    vec![
        layout("data=8", &["data"], &[], Shardy),
        layout("data=8", &["data"], &[], Gspmd),
        layout("data=2,model=4", &["data", "model"], &[], Shardy),
        layout("data=2,model=4", &["model"], &["data"], Gspmd),
        layout("data=8", &["data:(1)4"], &["data:(4)2"], Shardy),
        // Nothing is known of the rows.
        layout("data=2,model=4", &["?"], &["model"], Gspmd),
    ]
}

#[test]
fn values_and_gradients_are_those_of_one_device() -> Result<()> {
    let x: Vec<f64> = (0..ROWS * COLUMNS)
        .map(|i| (i as f64 * 0.77).sin() + 0.1)
        .collect();
    let x = Array::from_slice(&x, [ROWS, COLUMNS])?;
    let read = |found: Vec<(Array, Array)>| {
        let both =
            |(value, gradient): (Array, Array)| Ok([value.to_vec::<f64>()?, gradient.to_vec()?]);
        found
            .into_iter()
            .map(both)
            .collect::<Result<Vec<[Vec<f64>; 2]>>>()
    };
    let wanted = read(program(&Layout::single())(x.clone())?)?;
    let mut wrong = Vec::new();
    for layout in layouts() {
        let found = read(program(&layout)(x.clone())?)?;
        for ((name, _), (found, wanted)) in CASES.iter().zip(found.iter().zip(&wanted)) {
            for (what, i) in [("value", 0), ("gradient", 1)] {
                let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-11 * b.abs().max(1.0);
                if !found[i].iter().zip(&wanted[i]).all(near) {
                    wrong.push(format!("{name}: {what} under\n{layout}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// The sums, products and largest elements so far, one after the other.
fn so_far(x: &[f64], then: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    let mut so_far = x[..1].to_vec();
    for &x in &x[1..] {
        so_far.push(then(so_far[so_far.len() - 1], x));
    }
    so_far
}

#[test]
fn special_elements_act_on_what_comes_after_them() -> Result<()> {
    const INF: f64 = f64::INFINITY;
    const NAN: f64 = f64::NAN;
    let larger = |a: f64, b: f64| if a.is_nan() || a > b { a } else { b };
    // In the third block and in the sixth, in the middle and at the end of one.
    let with = |first: f64, second: f64| {
        let mut x: Vec<f64> = (0..ROWS).map(|i| 1.0 + (i % 3) as f64 * 0.5).collect();
        (x[19], x[47]) = (first, second);
        x
    };
    let pairs = [
        (INF, -INF),
        (-INF, 1.0),
        (NAN, 1.0),
        (1.0, NAN),
        (0.0, -0.0),
        (-0.0, INF),
    ];
    let rows: Vec<Vec<f64>> = pairs.iter().map(|&(a, b)| with(a, b)).collect();
    let wanted = rows.iter().map(|x| {
        [
            so_far(x, |a, b| a + b),
            so_far(x, |a, b| a * b),
            so_far(x, larger),
        ]
    });
    let wanted: Vec<_> = wanted.collect();
    let x = Array::from_slice(&rows.concat(), [rows.len(), ROWS])?;
    let mut wrong = Vec::new();
    for layout in &layouts()[..2] {
        let all = |x: Tensor| {
            let x = x.shard(&[Dim::Unsharded, Dim::Logical("rows")]);
            let whole = (x.index(0, 0).abs().minimum(100.0) * 1e8).cast(DType::I32);
            let signs = x.index(0, 5).eq(0.0);
            let empty = x.slice(0, ..0);
            (
                (x.cumsum(1), x.cumprod(1), x.cummax(1)),
                (
                    whole.cumsum(0),
                    whole.cast(DType::U8).cumprod_reverse(0),
                    whole.cummin_reverse(0),
                ),
                (signs.cummax(0), signs.cummin(0), x.slice(1, ..1).cumsum(1)),
                (empty.cumsum(0), empty.cumlogsumexp(0), empty.cumprod(1)),
            )
        };
        let run = |layout: &Layout| jit(all).layout(layout).call(x.clone());
        let ((sums, products, largest), whole, bools, empty) = run(layout)?;
        for (name, i, found) in [
            ("sum", 0, sums),
            ("product", 1, products),
            ("largest", 2, largest),
        ] {
            let found = found.to_vec::<f64>()?;
            for (row, found) in found.chunks(ROWS).enumerate() {
                let is_same = |(a, b): (&f64, &f64)| {
                    a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-12 * b.abs()
                };
                let wanted = &wanted[row][i];
                if !found.iter().zip(wanted).all(is_same) {
                    wrong.push(format!(
                        "{name} of {:?}: {found:?}, not {wanted:?}\n{layout}",
                        pairs[row]
                    ));
                }
            }
        }
        // Of whole numbers nothing is rounded, and an overflow goes around.
        let (_, of_one, bools_of_one, _) = run(&Layout::single())?;
        assert_eq!(
            whole.0.to_vec::<i32>()?,
            of_one.0.to_vec::<i32>()?,
            "{layout}"
        );
        assert_eq!(
            whole.1.to_vec::<u8>()?,
            of_one.1.to_vec::<u8>()?,
            "{layout}"
        );
        assert_eq!(
            whole.2.to_vec::<i32>()?,
            of_one.2.to_vec::<i32>()?,
            "{layout}"
        );
        assert_eq!(
            bools.0.to_vec::<bool>()?,
            bools_of_one.0.to_vec::<bool>()?,
            "{layout}"
        );
        assert_eq!(
            bools.1.to_vec::<bool>()?,
            bools_of_one.1.to_vec::<bool>()?,
            "{layout}"
        );
        assert_eq!(bools.2.to_vec::<f64>()?, [1.0; 6], "{layout}");
        for array in [empty.0, empty.1, empty.2] {
            assert_eq!(array.to_vec::<f64>()?, [0.0; 0]);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// By kind of collective, how many arrays of which bytes a program moves.
fn moved(layout: &Layout, shape: [usize; 2], f: Function) -> Vec<(CollectiveKind, u64, usize)> {
    let step = move |x: Tensor| {
        let dims = &[Dim::Logical("columns"), Dim::Logical("rows")];
        let loss = |x: Tensor| (f(x.shard(dims)) * 0.5).sin().sum(1);
        let (value, pullback) = shardax::vjp(loss, x.shard(dims));
        (value.shard(&dims[..1]), pullback(value.cos()).shard(dims))
    };
    let program = jit(step)
        .layout(layout)
        .xla_option("xla_backend_optimization_level", 0)
        .compile(TensorType::new(DType::F32, shape))
        .expect("a program");
    let report = program.collectives().expect("a report");
    assert_eq!(program.report().expect("a report").warnings, []);
    let mut arrays = std::collections::BTreeMap::new();
    for collective in &report.collectives {
        for array in &collective.arrays {
            let bytes = array.bytes().expect("a known type");
            arrays
                .entry((collective.kind.name(), bytes))
                .or_insert((collective.kind, bytes, 0))
                .2 += 1;
        }
    }
    arrays.into_values().collect()
}

#[test]
fn devices_exchange_one_element_a_block() {
    use CollectiveKind::{AllGather, AllReduce, CollectivePermute};
    // One exchange for a scan, one for each derivative that is a scan; two arrays for a scan of pairs.
    let scans: &[(&str, Function, usize)] = &[
        ("cumsum", |x| x.cumsum(1), 2),
        ("cumsum_reverse", |x| x.cumsum_reverse(1), 2),
        ("cumprod", |x| x.cumprod(1), 3),
        ("cummax", |x| x.cummax(1), 4),
        ("cumlogsumexp", |x| x.cumlogsumexp(1), 4),
        (
            "states",
            |x| states((x * 2.0).transpose([1, 0]), x.transpose([1, 0]), true).transpose([1, 0]),
            3,
        ),
    ];
    let (rows, size) = (2, 256);
    // How many blocks of a row there are, and how many rows a device has.
    let parts = [(8, 2), (8, 2), (8, 2), (4, 1)];
    for (layout, (blocks, own)) in layouts().iter().zip(parts) {
        let sums = (AllReduce, 4 * own, 1);
        for (name, f, arrays) in scans {
            let exchange = (AllGather, 4 * blocks * own, *arrays);
            assert_eq!(
                moved(layout, [rows, size], *f),
                [exchange, sums],
                "{name} under\n{layout}"
            );
        }
        // A shift by one place takes one element of the neighbor, and its gradient too.
        let shift = |x: Tensor| concatenate([x.slice(1, 1..), Tensor::zeros(x.dtype(), [2, 1])], 1);
        let neighbor = (CollectivePermute, 4 * own, 2);
        assert_eq!(
            moved(layout, [rows, size], shift),
            [sums, neighbor],
            "a shift under\n{layout}"
        );
    }
}
