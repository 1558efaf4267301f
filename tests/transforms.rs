//! Transforms on the compiler: control flow, batches, custom rules and recomputation compute what
//! plain Rust does, on one device and split over eight, with either partitioner.

use shardax::prelude::*;
use shardax::xla::Result;
use shardax::{
    Policy, cond, custom_jvp, custom_vjp, fori_loop, hessian, jacfwd, jacrev, linearize,
    remat_with, scan_reverse, scan_unrolled, switch, vmap, vmap_axes, vmap_named, while_loop,
};

/// One value of everything, of a matrix whose rows are the batch.
#[shard]
fn everything(#[shard(batch, _)] x: Tensor) -> Vec<Tensor> {
    let row = x.index(0, 0);
    let positive = x.sum(..).gt(0.0);
    let chosen = |x: Tensor| {
        cond(
            x.sum(..).gt(0.0),
            x,
            |x: Tensor| x.sin(),
            |x: Tensor| x * 3.0,
        )
    };
    let branches: [fn(Tensor) -> Tensor; 3] = [|x| x, |x| x.exp(), |x| -x];
    let newton = |a: Tensor| {
        let far = move |(x, n): (Tensor, Tensor)| (x * x - a).abs().gt(1e-9) & n.lt(50);
        let start = (a, Tensor::scalar(0, DType::I32));
        while_loop(start, far, |(x, n): (Tensor, Tensor)| {
            ((x + a / x) * 0.5, n + 1)
        })
        .0
    };
    let roots = vmap(newton)(row.abs() + 0.5);
    let doubled = custom_jvp(
        |x: Tensor| x * x,
        |x: Tensor, t: Tensor| (x * x, x * t * 3.0),
    );
    let clipped = custom_vjp(
        |x: Tensor| x,
        |x: Tensor| (x, ()),
        |(), ct: Tensor| ct.clamp(-0.1, 0.1),
    );
    let block = |x: Tensor| x.sin().named("sine").exp().tanh().sum(..);
    let count = positive.cast(DType::I32) + 2;
    vec![
        chosen(x),
        vmap_named("batch", chosen)(x),
        grad(|x: Tensor| vmap_named("batch", chosen)(x).square().sum(..))(x),
        switch(count, x, branches),
        roots * roots,
        grad(|x: Tensor| doubled(x).sum(..))(x),
        grad(|x: Tensor| (clipped(x) * x).sum(..))(x),
        grad(remat_with(Policy::Nothing, block))(x),
        grad(remat_with(Policy::names(["sine"]), block))(x),
        grad(remat_with(Policy::offload(["sine"]), block))(x),
        grad(block)(x),
        fori_loop(0, count, x, |i: Tensor, y: Tensor| {
            y * x + i.cast(DType::F64)
        }),
        fori_loop(0, 3, x, |_, y: Tensor| y * x * 0.5),
        scan(row, x, |h: Tensor, x: Tensor| ((h * x).sin(), h + x)).1,
        scan_reverse(row, x, |h: Tensor, x: Tensor| ((h * x).sin(), h + x)).1,
        scan_unrolled(row, x, 3, |h: Tensor, x: Tensor| ((h * x).sin(), h + x)).1,
        hessian(|x: Tensor| (x.sin() * x.sum(..)).sum(..))(row),
        jacfwd(|x: Tensor| x.sin() * x.sum(..))(row),
        jacrev(|x: Tensor| x.sin() * x.sum(..))(row),
        linearize(|x: Tensor| x.sin() * x, row).1(row),
        vmap_axes(|x: Tensor| x.softmax(-1), [Some(-1)], 0)(x),
    ]
}

const ROWS: usize = 8;
const COLUMNS: usize = 4;

fn element(i: usize, j: usize) -> f64 {
    ((i * 7 + j * 3) % 11) as f64 / 10.0 - 0.4
}

/// What everything is, by rows.
fn wanted() -> Vec<Vec<f64>> {
    let x: Vec<Vec<f64>> = (0..ROWS)
        .map(|i| (0..COLUMNS).map(|j| element(i, j)).collect())
        .collect();
    let flat = |f: &dyn Fn(f64) -> f64| -> Vec<f64> { x.iter().flatten().map(|&v| f(v)).collect() };
    let by_row = |f: &dyn Fn(&[f64], f64) -> f64| -> Vec<f64> {
        x.iter()
            .flat_map(|row| row.iter().map(|&v| f(row, v)).collect::<Vec<_>>())
            .collect()
    };
    let total: f64 = x.iter().flatten().sum();
    assert!(
        total > 0.0,
        "the first branch is the one that is wanted below"
    );
    let positive = |row: &[f64]| row.iter().sum::<f64>() > 0.0;
    let row = &x[0];
    let sum: f64 = row.iter().sum();
    let block = |v: f64| {
        let e = v.sin().exp();
        (1.0 - e.tanh().powi(2)) * e * v.cos()
    };
    let steps = |order: &[usize]| -> Vec<f64> {
        let mut h = row.clone();
        let mut ys = vec![Vec::new(); ROWS];
        for &i in order {
            ys[i] = h.iter().zip(&x[i]).map(|(h, x)| h + x).collect();
            h = h.iter().zip(&x[i]).map(|(h, x)| (h * x).sin()).collect();
        }
        ys.concat()
    };
    let forward: Vec<usize> = (0..ROWS).collect();
    let backward: Vec<usize> = (0..ROWS).rev().collect();
    let square = |f: &dyn Fn(usize, usize) -> f64| -> Vec<f64> {
        (0..COLUMNS)
            .flat_map(|i| (0..COLUMNS).map(move |j| (i, j)))
            .map(|(i, j)| f(i, j))
            .collect()
    };
    let delta = |i: usize, j: usize| if i == j { 1.0 } else { 0.0 };
    let hessian = square(&|i, j| row[i].cos() + row[j].cos() - delta(i, j) * row[i].sin() * sum);
    let jacobian = square(&|i, j| delta(i, j) * row[i].cos() * sum + row[i].sin());
    let columns: Vec<f64> = (0..COLUMNS)
        .flat_map(|j| {
            let exps: Vec<f64> = (0..ROWS).map(|i| x[i][j].exp()).collect();
            let all: f64 = exps.iter().sum();
            exps.into_iter().map(move |e| e / all)
        })
        .collect();
    vec![
        flat(&f64::sin),
        by_row(&|row, v| if positive(row) { v.sin() } else { v * 3.0 }),
        by_row(&|row, v| {
            if positive(row) {
                2.0 * v.sin() * v.cos()
            } else {
                18.0 * v
            }
        }),
        flat(&|v| -v),
        row.iter().map(|v| v.abs() + 0.5).collect(),
        flat(&|v| 3.0 * v),
        flat(&|v| v.clamp(-0.1, 0.1) + v),
        flat(&block),
        flat(&block),
        flat(&block),
        flat(&block),
        flat(&|v| (v * v * v + 1.0) * v + 2.0),
        flat(&|v| v.powi(4) * 0.125),
        steps(&forward),
        steps(&backward),
        steps(&forward),
        hessian,
        jacobian.clone(),
        jacobian,
        row.iter().map(|v| (v.cos() * v + v.sin()) * v).collect(),
        columns,
    ]
}

#[test]
fn everything_is_right_on_one_device_and_on_eight() -> Result<()> {
    let values: Vec<f64> = (0..ROWS)
        .flat_map(|i| (0..COLUMNS).map(move |j| element(i, j)))
        .collect();
    let x = Array::from_slice(&values, [ROWS, COLUMNS])?;
    let eight = || Mesh::new([("data", 8)]);
    let layouts = [
        Layout::new(Mesh::new([("data", 1)])?),
        Layout::new(eight()?).shard("batch", "data"),
        Layout::new(eight()?)
            .shard("batch", "data")
            .partitioner(Partitioner::Gspmd),
    ];
    for layout in layouts {
        let found = jit(everything).layout(&layout).call(x.clone())?;
        for (i, (found, wanted)) in found.iter().zip(wanted()).enumerate() {
            let found = found.to_vec::<f64>()?;
            assert_eq!(found.len(), wanted.len(), "result {i}");
            let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-8;
            assert!(
                found.iter().zip(&wanted).all(close),
                "result {i} under {layout:?}\n{found:?}\n{wanted:?}"
            );
        }
    }
    Ok(())
}

/// A scan has its body once in the compiled program, whatever the number of iterations.
#[test]
fn programs_do_not_grow_with_the_number_of_layers() -> Result<()> {
    let lines = |layers: usize| -> Result<usize> {
        let step = |x: Tensor, w: Tensor| {
            grad(|w: Tensor| {
                scan(x, w, |h: Tensor, w: Tensor| (h.dot(w).tanh(), ()))
                    .0
                    .sum(..)
            })(w)
        };
        let types = (
            TensorType::new(DType::F32, [2, 4]),
            TensorType::new(DType::F32, [layers, 4, 4]),
        );
        let program = jit(step).compile(types)?;
        Ok(program.stablehlo().lines().count())
    };
    assert_eq!(lines(3)?, lines(300)?);
    Ok(())
}
