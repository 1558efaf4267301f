//! Scans along a dimension that a layout may split: in blocks they are what they are in one piece.

use shardax_core::{
    DType, Dim, Tensor, TensorType, associative_scan, concatenate, grad,
    ir::{Graph, Op, block_count, cumulative_in_blocks, shift_by_padding},
    jvp, remat, scan, trace, under, vmap_named,
};
use shardax_sharding::{Axes, Layout, Mesh};

use crate::interpreter::{Array, interpret};
use crate::support::{assert_close, between, check, check_vmap, eval, noise};

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

fn layout(axes: &[(&str, usize)]) -> Layout {
    let mesh = Mesh::new(axes.iter().copied()).expect("a mesh");
    Layout::new(mesh)
        .shard("seq", "data")
        .shard("batch", "model")
}

fn data(size: usize) -> Layout {
    layout(&[("data", size)])
}

fn affine((a, b): (Tensor, Tensor), (c, d): (Tensor, Tensor)) -> (Tensor, Tensor) {
    (a * c, b * c + d)
}

#[test]
fn as_many_blocks_as_devices_that_split_or_could() {
    let mesh = Mesh::new([("data", 4), ("model", 6)]).expect("a mesh");
    let count = |split: &[&[&str]], manual: &[&str], shape: &[usize], dim: usize| {
        let split: Vec<Axes> = split.iter().map(|&axes| axes.into()).collect();
        block_count(&mesh, manual, &split, shape, dim)
    };
    assert_eq!(count(&[&["data"]], &[], &[48], 0), 4);
    assert_eq!(count(&[&["data", "model"]], &[], &[48], 0), 24);
    assert_eq!(count(&[&["model:(1)2"]], &[], &[48], 0), 2);
    // Nothing is known: whatever could split it, and divides it.
    assert_eq!(count(&[&[]], &[], &[48], 0), 24);
    assert_eq!(count(&[&[]], &[], &[20], 0), 4);
    assert_eq!(count(&[&[]], &[], &[7], 0), 1);
    assert_eq!(count(&[&[]], &["data"], &[48], 0), 6);
    assert_eq!(count(&[&[]], &["data", "model"], &[48], 0), 1);
    // What splits another dimension does not split this one.
    assert_eq!(count(&[&["data"], &[]], &[], &[8, 48], 1), 6);
    assert_eq!(count(&[&["model:(2)3"], &[]], &[], &[6, 48], 1), 8);
    // Uneven, or nothing.
    assert_eq!(count(&[&["data"]], &[], &[6], 0), 1);
    assert_eq!(count(&[&[]], &[], &[0], 0), 1);
}

#[test]
fn scans_in_blocks() {
    let mut in_blocks = 0;
    for size in 0..20 {
        let x = [noise(1, &[2, size]), noise(2, &[2, size])];
        for reverse in [false, true] {
            let f = |[a, b]: [Tensor; 2]| associative_scan(affine, (a, b), 1, reverse);
            let wanted = eval(&x, f);
            for devices in [2, 3, 4, 8] {
                let found = under(&data(devices), || {
                    in_blocks += usize::from(is_stated(&x, f));
                    eval(&x, f)
                });
                assert_close(&format!("{size} over {devices}"), &found, &wanted, 1e-12);
            }
        }
    }
    assert!(in_blocks > 50, "{in_blocks}");
}

/// Whether a program states where values lie, as scans in blocks do.
fn is_stated(args: &[Array; 2], f: impl Fn([Tensor; 2]) -> (Tensor, Tensor)) -> bool {
    let types = args.each_ref().map(|array| array.ty.clone());
    let traced = trace(|x: [Tensor; 2]| f(x), types).expect("a program");
    let mut equations = traced.graph.equations().iter();
    equations.any(|equation| matches!(equation.op, Op::Shard(_)))
}

/// Leaves of different ranks, whose dimension is the last of each, and a function that does not commute.
#[test]
fn trees_in_blocks() {
    let x = [noise(1, &[12, 2, 2]), noise(2, &[12, 2])];
    let f = |reverse: bool| {
        move |[m, v]: [Tensor; 2]| {
            let then = |(m, v): (Tensor, Tensor), (n, w): (Tensor, Tensor)| {
                let moved = n.matmul(v.expand_dims(-1)).reshape([-1, 2]);
                (n.matmul(m), moved + w)
            };
            associative_scan(then, (m, v), 0, reverse)
        }
    };
    for reverse in [false, true] {
        let wanted = eval(&x, f(reverse));
        let found = under(&data(4), || eval(&x, f(reverse)));
        assert_close("trees", &found, &wanted, 1e-12);
        under(&data(4), || check(x.clone(), f(reverse)));
    }
}

#[test]
fn derivatives_in_blocks() {
    for layout in [data(2), data(4), layout(&[("data", 2), ("model", 2)])] {
        under(&layout, || {
            let x = || [noise(1, &[2, 8]), noise(2, &[2, 8])];
            check(x(), |[x, y]| {
                ((x * y).cumprod(1), (x * y).cumprod_reverse(1))
            });
            check(x(), |[x, y]| ((x * y).cummax(1), (x * y).cummin_reverse(1)));
            check(x(), |[x, y]| {
                ((x * y).cumlogsumexp(1), (x * y).cumlogsumexp_reverse(1))
            });
            check(x(), |[a, b]| associative_scan(affine, (a, b), -1, true));
            check_vmap(x(), |[x, y]| {
                let of = |x: Tensor| (x.cumprod(0), x.cumlogsumexp(0), x.cummax_reverse(0));
                (of(x), associative_scan(affine, (x, y), 0, true))
            });
        });
    }
    // Blocks as long as there are several of them, whose totals are brought together.
    under(&data(2), || {
        check([between(0.5, 2.0, 3, &[6])], |[x]| {
            (x.cumprod(0), x.cummax(0), x.cumlogsumexp(0))
        });
    });
}

/// Equal elements of several blocks share a derivative; zeros, infinities and NaN stay where they are.
#[test]
fn special_elements_in_blocks() {
    type Function = fn(Tensor) -> Tensor;
    let cases: [(Function, [f64; 8]); 8] = [
        (|x| x.cumprod(0), [2., 0., 3., 1., 0., 4., 1., 5.]),
        (|x| x.cumprod_reverse(0), [2., 0., 3., 1., 2., 4., 1., 5.]),
        (|x| x.cumprod(0), [2., 1., 3., INF, 1., 4., NAN, 5.]),
        (|x| x.cummax(0), [1., 2., 2., 1., 2., 3., 3., 3.]),
        (|x| x.cummin_reverse(0), [1., 2., 2., 1., 2., 3., 3., 3.]),
        (|x| x.cummax(0), [1., 0., 0., NAN, 2., 3., 1., 1.]),
        (
            |x| x.cumlogsumexp(0),
            [-INF, -INF, -INF, 1., 2., INF, 0., 1.],
        ),
        (|x| x.cumlogsumexp(0), [1., 2., 3., 4., NAN, 0., 0., 0.]),
    ];
    for (i, (f, values)) in cases.into_iter().enumerate() {
        // Of the first elements alone, nothing is known of what comes later.
        let results = |[x]: [Tensor; 1]| {
            let first = |x: Tensor| f(x).slice(0, ..3).sum(..);
            (f(x), grad(|x| f(x).sum(..))(x), grad(first)(x))
        };
        let x = [Array::f64(&[8], values)];
        let bits = |found: Vec<Array>| {
            let found = found.iter().flat_map(Array::floats);
            found
                .map(|v| if v.is_nan() { NAN } else { v }.to_bits())
                .collect::<Vec<_>>()
        };
        let wanted = bits(eval(&x, results));
        for devices in [2, 4, 8] {
            let found = under(&data(devices), || bits(eval(&x, results)));
            let floats = |bits: &[u64]| bits.iter().map(|&b| f64::from_bits(b)).collect::<Vec<_>>();
            let near = |(a, b): (f64, f64)| a.to_bits() == b.to_bits() || (a - b).abs() < 1e-12;
            let is_near = floats(&found).into_iter().zip(floats(&wanted)).all(near);
            assert!(
                is_near,
                "case {i} in {devices}:\n{:?}\n{:?}",
                floats(&found),
                floats(&wanted)
            );
        }
    }
}

/// The graph that takes the place of a running reduction computes it.
#[test]
fn running_reductions_in_blocks() {
    type Function = fn(Tensor) -> Tensor;
    let functions: [(DType, Function); 9] = [
        (DType::F64, |x| x.cumsum(1)),
        (DType::F64, |x| x.cumsum_reverse(1)),
        (DType::F64, |x| x.cumprod(1)),
        (DType::F64, |x| x.cummax_reverse(1)),
        (DType::F64, |x| x.cummin(1)),
        (DType::I32, |x| x.cumsum(1)),
        (DType::I32, |x| x.cummax(1)),
        (DType::I32, |x| x.cummin_reverse(1)),
        (DType::I32, |x| (x & 5).cumprod(1)),
    ];
    for (dtype, f) in functions {
        for (size, count) in [(4, 2), (16, 4), (12, 4), (24, 3), (8, 8)] {
            let x = noise(1, &[2, size, 2]);
            let x = match dtype {
                DType::F64 => x,
                _ => Array::i32(&[2, size, 2], x.floats().iter().map(|v| (v * 9.0) as i32)),
            };
            let traced = trace(f, x.ty.clone()).expect("a program");
            let wanted = interpret(&traced.graph, std::slice::from_ref(&x));
            let replaced = |graph: &Graph| {
                let equation = graph
                    .equations()
                    .iter()
                    .find(|e| matches!(e.op, Op::Cumulative(_)));
                let equation = equation.expect("a running reduction").clone();
                let Op::Cumulative(cumulative) = equation.op else {
                    unreachable!("it is one")
                };
                cumulative_in_blocks(&equation, cumulative, &x.ty, count)
            };
            let x = match dtype {
                DType::I32 if traced.graph.equations().len() > 1 => {
                    let values = x.ints().into_iter().map(|v| (v & 5) as i32);
                    Array::i32(&[2, size, 2], values)
                }
                _ => x.clone(),
            };
            let found = interpret(&replaced(&traced.graph), &[x]);
            assert_close(&format!("{size} in {count}"), &found, &wanted, 1e-12);
        }
    }
}

#[test]
fn a_shift_is_written_as_padding() {
    for (first, second) in [(6, 1), (1, 6), (3, 3), (0, 2), (2, 0)] {
        let x = [noise(1, &[2, first]), noise(2, &[2, second])];
        let types = x.each_ref().map(|x| x.ty.clone());
        let join = |[a, b]: [Tensor; 2]| concatenate([a, b], 1);
        let traced = trace(join, types.clone()).expect("a program");
        let equation = &traced.graph.equations()[0];
        let written = shift_by_padding(equation, 1, types.each_ref());
        assert_close(
            "shift",
            &interpret(&written, &x),
            &interpret(&traced.graph, &x),
            0.0,
        );
    }
}

#[test]
fn places_in_a_vector_that_is_split() {
    let sorted = [-INF, -1., 0., 0., 0., 0., 0.5, 2., 2., 3., INF, NAN];
    let x = [
        Array::f64(&[12], sorted),
        Array::f64(&[4], [0., 2., NAN, -INF]),
    ];
    let f = |[x, v]: [Tensor; 2]| {
        let x = x.shard(&[Dim::Logical("seq")]);
        let few = v.slice(0, ..2);
        (
            (x.searchsorted(v), x.searchsorted_right(v)),
            (
                x.searchsorted(few),
                x.searchsorted_right(few),
                x.searchsorted(0.5),
            ),
        )
    };
    let wanted = eval(&x, f);
    for devices in [2, 3, 4, 12] {
        let found = under(&data(devices), || eval(&x, f));
        assert_close("places", &found, &wanted, 0.0);
    }
}

/// The blocks that a scan is written in, by the shape that it is taken apart into.
fn blocks_of<R: shardax_core::Tree<Tensor>>(
    layout: &Layout,
    f: impl Fn(Tensor) -> R,
) -> Vec<String> {
    let ty = TensorType::new(DType::F32, [4, 64]);
    let traced = under(layout, || trace(f, ty)).expect("a program");
    let text = traced.graph.to_string();
    let stated = text
        .lines()
        .filter(|line| line.contains("shard ") && line.contains('?'));
    let mut stated: Vec<String> = stated
        .map(|line| {
            line.split_once("shard ")
                .map_or(line, |(_, rest)| &rest[rest.find('(').unwrap_or(0)..])
                .to_owned()
        })
        .collect();
    stated.dedup();
    stated
}

/// A layout is known while tracing; what an annotation says holds through whatever keeps a dimension.
#[test]
fn what_is_known_decides_the_blocks() {
    const SEQ: &[Dim] = &[Dim::Unsharded, Dim::Logical("seq")];
    let mesh = layout(&[("data", 4), ("model", 2)]);
    let four = ["(?, _) : f32[4,4]"];
    assert_eq!(blocks_of(&mesh, |x| x.shard(SEQ).cumlogsumexp(1)), four);
    assert_eq!(
        blocks_of(&mesh, |x| (x.shard(SEQ).sin() * 2.0).cumlogsumexp(1)),
        four
    );
    let within = |x: Tensor| {
        let x = x.shard(SEQ);
        grad(|scale: Tensor| (x * scale).cumlogsumexp(1).sum(..))(Tensor::scalar(2.0, DType::F32))
    };
    assert_eq!(blocks_of(&mesh, within), four);
    let argument = |x: Tensor| jvp(|x: Tensor| x.cumlogsumexp(1), x.shard(SEQ), x).0;
    assert_eq!(blocks_of(&mesh, argument), four);
    let carried = |x: Tensor| {
        let step = |x: Tensor, ()| (remat(|x: Tensor| x.cumlogsumexp(1))(x), ());
        scan(
            x.shard(SEQ),
            Tensor::zeros(DType::F32, [2]),
            |x: Tensor, _: Tensor| step(x, ()),
        )
        .0
    };
    assert_eq!(blocks_of(&mesh, carried), four);
    // A batch that has a name is not what the totals are stated to be.
    let named = |x: Tensor| {
        let row = |x: Tensor| x.shard(&SEQ[1..]).cumlogsumexp(0);
        vmap_named("batch", row)(x)
    };
    assert_eq!(blocks_of(&mesh, named), four);
    // Nothing is known of an argument; of one whose batch is split, that its axis is taken.
    assert_eq!(
        blocks_of(&mesh, |x| x.cumlogsumexp(1)),
        ["(?, _) : f32[4,8]"]
    );
    const BATCH: &[Dim] = &[Dim::Logical("batch"), Dim::Open];
    assert_eq!(
        blocks_of(&mesh, |x| x.shard(BATCH).cumlogsumexp(1)),
        ["(batch, ?) : f32[4,64]", "(?, _) : f32[4,4]"]
    );
    // On one device, and in a region that has all devices, nothing is taken apart.
    assert_eq!(
        blocks_of(&Layout::single(), |x| x.shard(SEQ).cumlogsumexp(1)),
        [""; 0]
    );
}
