//! The conventions hold when the special elements lie on different devices.

use shardax::prelude::*;
use shardax::s;
use shardax::xla::Result;

use super::{all_near, array, eight_devices, numbers};

const INF: f64 = f64::INFINITY;

/// A function of eight elements, and the gradient of the sum of its results.
type Case = (&'static str, fn(Tensor) -> Tensor, [f64; 8], [f64; 8]);

#[rustfmt::skip]
const CASES: &[Case] = &[
    ("max", |x| x.max(0), [1., 2., 0., 2., 2., 1., 0., 2.], [0., 0.25, 0., 0.25, 0.25, 0., 0., 0.25]),
    ("prod", |x| x.prod(0), [1., 2., 0., 1., 3., 1., 1., 1.], [0., 0., 6., 0., 0., 0., 0., 0.]),
    ("cumprod", |x| x.cumprod(0), [0., 2., 3., 1., 1., 1., 1., 1.], [39., 0., 0., 0., 0., 0., 0., 0.]),
    ("cummax", |x| x.cummax(0), [1., 0., 0., 0., 0., 0., 0., 2.], [7., 0., 0., 0., 0., 0., 0., 1.]),
    ("logsumexp of nothing", |x| x.logsumexp(0), [-INF; 8], [0.; 8]),
    ("logsumexp", |x| x.logsumexp(0), [-INF, -INF, -INF, -INF, -INF, 3., -INF, 3.], [0., 0., 0., 0., 0., 0.5, 0., 0.5]),
    ("softmax of nothing", |x| x.softmax(0), [-INF; 8], [0.; 8]),
    ("norm", |x| x.norm(0), [0.; 8], [0.; 8]),
    ("square of the norm", |x| x.norm(0).square(), [0.; 8], [0.; 8]),
    ("std", |x| x.std(0), [3.; 8], [0.; 8]),
    ("sort", |x| x.sort(0) * Tensor::arange(x.dtype(), 8), [8., 7., 6., 5., 4., 3., 2., 1.], [7., 6., 5., 4., 3., 2., 1., 0.]),
    (
        "a product at one place",
        |x| Tensor::ones(x.dtype(), [8]).at(s![Tensor::zeros(DType::I32, [8])]).mul(x),
        [1., 2., 0., 1., 3., 1., 1., 1.],
        [0., 0., 6., 0., 0., 0., 0., 0.],
    ),
    ("where", |x| x.gt(0).select(x.sqrt().log(), 0), [0., 1., 0., 1., 0., 1., 0., 0.5], [0., 0.5, 0., 0.5, 0., 0.5, 0., 1.]),
    ("a loop over nothing", |x| scan(x, x.get(s![0..0]), |carry: Tensor, y: Tensor| (carry * y, ())).0, [1.; 8], [1.; 8]),
];

#[test]
fn on_eight_devices() -> Result<()> {
    let mut wrong = Vec::new();
    for layout in eight_devices() {
        let program = jit(|xs: Vec<Tensor>| {
            let split = |x: Tensor| x.shard(&[Dim::Logical("batch")]);
            let results = CASES
                .iter()
                .zip(xs)
                .map(|((_, f, ..), x)| grad(|x: Tensor| f(split(x)).sum(..))(split(x)));
            results.collect::<Vec<_>>()
        })
        .layout(&layout);
        let xs = CASES.iter().map(|(_, _, x, _)| array(x, DType::F64));
        let gradients = program.call(xs.collect::<Result<_>>()?)?;
        for ((name, .., expected), gradient) in CASES.iter().zip(&gradients) {
            let found = numbers(gradient)?;
            if !all_near(&found, expected, 1e-11) {
                wrong.push(format!("{name}: {found:?}, not {expected:?}\n{layout}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// A branch says how its own result lies, whatever the other branches say.
#[test]
fn branches_that_are_annotated_differently() -> Result<()> {
    const ROWS: &[Dim] = &[Dim::Logical("batch"), Dim::Unsharded];
    const COLUMNS: &[Dim] = &[Dim::Unsharded, Dim::Logical("batch")];
    let one = |x: Tensor| {
        let split = |x: Tensor| (x * 2.0).shard(ROWS);
        let other = |x: Tensor| x.shard(COLUMNS);
        cond(x.sum(..).gt(0.0), x, split, other)
    };
    let several = |x: Tensor| {
        let branches: [fn(Tensor) -> (Tensor, Tensor); 3] = [
            |x| (x.shard(ROWS), x),
            |x| (x, (x * 3.0).shard(COLUMNS)),
            |x| (x.shard(COLUMNS), x.shard(ROWS)),
        ];
        switch(x.argmax(0).index(0, 0) % 3, x, branches)
    };
    let step = |x: Tensor| {
        let loss = |x: Tensor| {
            let (a, b) = several(x);
            let c = one(x);
            ((a * b + c).square().sum(..), (a, b, c))
        };
        value_and_grad(loss)(x)
    };
    let x = array(
        &(0..64).map(|i| (i as f64 * 0.7).sin()).collect::<Vec<_>>(),
        DType::F64,
    )?;
    let square = |x: Tensor| step(x.reshape([8, 8]).shard(ROWS));
    let ((_, (a, b, c)), gradient) = jit(square).call(x.clone())?;
    let wanted = [a, b, c, gradient];
    for layout in eight_devices() {
        let ((_, (a, b, c)), gradient) = jit(square).layout(&layout).call(x.clone())?;
        for (found, wanted) in [a, b, c, gradient].iter().zip(&wanted) {
            assert!(
                all_near(&numbers(found)?, &numbers(wanted)?, 1e-12),
                "{layout}"
            );
        }
    }
    Ok(())
}
