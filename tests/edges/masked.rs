//! Reductions of what a mask shows: values and derivatives, with NaN and infinities behind the mask, and of nothing.

use shardax::prelude::*;
use shardax::xla::Result;

use super::eight_devices;

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;

type Reduction = fn(Tensor, Tensor) -> Tensor;

/// A reduction of rows, what it gives for [1, 5, 3] shown of a row and for nothing, and its derivatives by the three.
const REDUCTIONS: &[(&str, Reduction, [f32; 2], [f32; 3])] = &[
    (
        "sum",
        |x, m| x.sum_where(m, -1),
        [9.0, 0.0],
        [1.0, 1.0, 1.0],
    ),
    (
        "prod",
        |x, m| x.prod_where(m, -1),
        [15.0, 1.0],
        [15.0, 3.0, 5.0],
    ),
    (
        "max",
        |x, m| x.max_where(m, -1),
        [5.0, -INF],
        [0.0, 1.0, 0.0],
    ),
    (
        "min",
        |x, m| x.min_where(m, -1),
        [1.0, INF],
        [1.0, 0.0, 0.0],
    ),
    (
        "mean",
        |x, m| x.mean_where(m, -1),
        [3.0, 0.0],
        [1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0],
    ),
    (
        "var",
        |x, m| x.var_where(m, -1),
        [8.0 / 3.0, 0.0],
        [-4.0 / 3.0, 4.0 / 3.0, 0.0],
    ),
];

#[test]
fn what_is_hidden_has_no_influence() -> Result<()> {
    let values = [
        1.0, NAN, 5.0, INF, 3.0, -INF, NAN, 1e30, 7.0, NAN, 2.0, INF, 1.0, 1.0, 1.0, 1.0,
    ];
    let shown = [true, false, true, false, true, false, false, false];
    let x = Array::from_slice(&values, [2, 8])?;
    let mask = Array::from_slice(&[&shown[..], &[false; 8]].concat(), [2, 8])?;
    let all = |x: Tensor, mask: Tensor| {
        let split = |x: Tensor| x.shard(&[Dim::Unsharded, Dim::Logical("batch")]);
        let (x, mask) = (split(x), split(mask));
        let each = REDUCTIONS.iter().map(|(_, f, ..)| {
            (
                f(x, mask),
                grad(|x: Tensor| f(x, mask).index(0, 0))(x),
                grad(|x: Tensor| f(x, mask).index(0, 1))(x),
            )
        });
        each.collect::<Vec<_>>()
    };
    for layout in [Layout::single()].into_iter().chain(eight_devices()) {
        let found = jit(all).layout(&layout).call((x.clone(), mask.clone()))?;
        for ((name, _, values, slopes), (value, slope, none)) in REDUCTIONS.iter().zip(found) {
            let near = |found: Vec<f32>, wanted: &[f32]| {
                found
                    .iter()
                    .zip(wanted)
                    .all(|(f, w)| f == w || (f - w).abs() < 1e-5)
            };
            let value = value.to_vec::<f32>()?;
            assert!(near(value.clone(), values), "{name}: {value:?}");
            let slope = slope.to_vec::<f32>()?;
            let wanted = [slopes[0], 0.0, slopes[1], 0.0, slopes[2], 0.0, 0.0, 0.0];
            assert!(near(slope[..8].to_vec(), &wanted), "{name}: {slope:?}");
            let none = none.to_vec::<f32>()?;
            assert!(
                none.iter().all(|v| *v == 0.0),
                "{name} of nothing: {none:?}"
            );
        }
    }
    Ok(())
}

#[test]
fn of_integers_and_narrow_floats() -> Result<()> {
    let f = |mask: Tensor| {
        let x = Tensor::arange(DType::I8, 4) - 2;
        let long = Tensor::ones(DType::BF16, [1000]);
        let sums = (
            x.sum_where(mask, 0),
            x.max_where(mask, 0),
            x.min_where(!mask, 0),
            x.max_where(mask & !mask, 0),
        );
        (
            sums,
            long.mean_where(long.gt(0), 0).cast(DType::F32),
            long.sum_where(long.gt(0), ..).cast(DType::F32),
        )
    };
    let (sums, mean, sum) = jit(f).call(Array::from_slice(&[true, false, true, false], [4])?)?;
    let of = |x: Array| x.item::<i8>();
    assert_eq!(
        [of(sums.0)?, of(sums.1)?, of(sums.2)?, of(sums.3)?],
        [-2, 0, -1, i8::MIN]
    );
    assert_eq!((mean.item::<f32>()?, sum.item::<f32>()?), (1.0, 1000.0));
    Ok(())
}

#[test]
fn rolled_by_a_number_of_the_program() -> Result<()> {
    let x = Array::from_slice(&(0..15).map(|i| i as f32).collect::<Vec<_>>(), [3, 5])?;
    let f = |x: Tensor, shift: Tensor| {
        let rows = vmap(|(x, shift): (Tensor, Tensor)| x.roll_by(shift, 0));
        let shifts = stack([shift, shift + 1, -shift], 0);
        let weights = Tensor::arange(DType::F32, 5);
        let slope = grad(|x: Tensor| (x.roll_by(shift, 1) * weights).sum(..))(x);
        (x.roll_by(shift, -1), rows((x, shifts)), slope)
    };
    let plain = |by: isize| {
        let f = move |x: Tensor| {
            let row = |i: usize, by: isize| x.index(0, i).roll(by, 0);
            let weights = Tensor::arange(DType::F32, 5).roll(-by, 0);
            let slope = weights.broadcast_to([3, 5]);
            (
                x.roll(by, -1),
                stack([row(0, by), row(1, by + 1), row(2, -by)], 0),
                slope,
            )
        };
        jit(f)
    };
    let program = jit(f);
    for by in [-7i32, -1, 0, 3, 5, 12] {
        let found = program.call((x.clone(), Array::scalar(by)))?;
        let wanted = plain(by as isize).call(x.clone())?;
        for (found, wanted) in [
            (found.0, wanted.0),
            (found.1, wanted.1),
            (found.2, wanted.2),
        ] {
            assert_eq!(found.to_vec::<f32>()?, wanted.to_vec::<f32>()?, "by {by}");
        }
    }
    let by_a_float = |x: Tensor| x.roll_by(x.sum(..), 0);
    let error = jit(by_a_float).call(x).unwrap_err().to_string();
    assert!(
        error.contains("`shift` is f32[], not an integer scalar"),
        "{error}"
    );
    Ok(())
}
