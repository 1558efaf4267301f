//! Determinants of matrices of every rank. Their derivatives are the cofactors, and exist everywhere.

use std::f64::consts::LN_2;

use shardax::prelude::*;
use shardax::xla::Result;

use super::{Edge, Second, TYPES, check_second, check_split, edge};

const INF: f64 = f64::INFINITY;
const ZERO: &[f64] = &[0.; 8];

/// The first four elements.
fn two(x: Tensor) -> Tensor {
    x.slice(0, 0..4).reshape([2, 2])
}

/// Eight elements and another one.
fn three(x: Tensor, last: f64) -> Tensor {
    let last = x.slice(0, 0..1).zeros_like() + last;
    concatenate([x, last], 0).reshape([3, 3])
}

fn one(x: Tensor) -> Tensor {
    x.slice(0, 0..1).reshape([1, 1])
}

/// Two matrices.
fn pair(x: Tensor) -> Tensor {
    x.reshape([2, 2, 2])
}

#[rustfmt::skip]
const DETERMINANTS: &[Edge] = &[
    edge("singular and regular", |x| pair(x).det(), &[1., 2., 2., 4., 1., 2., 3., 4.], &[0., -2.], &[4., -2., -2., 1., 4., -3., -2., 1.]),
    edge("in a map", |x| vmap(|x: Tensor| x.det())(pair(x)), &[1., 2., 2., 4., 1., 2., 3., 4.], &[0., -2.], &[4., -2., -2., 1., 4., -3., -2., 1.]),
    edge("a column and a row of zeros", |x| pair(x).det(), &[0., 1., 0., 2., 0., 0., 3., 5.], &[0., 0.], &[2., 0., -1., 0., 5., -3., 0., 0.]),
    edge("zeros, and large and small", |x| pair(x).det(), &[0., 0., 0., 0., 1e30, 0., 0., 1e-30], &[0., 1.], &[0., 0., 0., 0., 1e-30, 0., 0., 1e30]),
    edge("one zero", |x| one(x).det(), ZERO, &[0.], &[1., 0., 0., 0., 0., 0., 0., 0.]),
    edge("rank 2 of 3", |x| three(x, 9.0).det(), &[1., 2., 3., 4., 5., 6., 7., 8.], &[0.], &[-3., 6., -3., 6., -12., 6., -3., 6.]),
    edge("rank 1 of 3", |x| three(x, 9.0).det(), &[1., 2., 3., 2., 4., 6., 3., 6.], &[0.], ZERO),
    edge("nilpotent", |x| three(x, 0.0).det(), &[0., 1., 0., 0., 0., 1., 0., 0.], &[0.], &[0., 0., 0., 0., 0., 0., 1., 0.]),
    edge("regular", |x| three(x, 10.0).det(), &[1., 2., 3., 4., 5., 6., 7., 8.], &[-3.], &[2., 2., -3., 4., -11., 6., -3., 6.]),
    edge("slogdet", |x| pair(x).slogdet().1, &[1., 2., 3., 4., 1., 0., 0., 0.], &[LN_2, -INF], &[-2., 1.5, 1., -0.5, 0., 0., 0., INF]),
    edge("slogdet of one zero", |x| one(x).slogdet().1, ZERO, &[-INF], &[INF, 0., 0., 0., 0., 0., 0., 0.]),
    edge("slogdet that is not taken", |x| { let log = pair(x).slogdet().1; log.is_inf().select(0, log) }, ZERO, &[0.; 2], ZERO),
    edge("sign", |x| pair(x).slogdet().0, &[1., 2., 3., 4., 0., 0., 0., 0.], &[-1., 0.], ZERO),
];

#[test]
fn derivatives_are_cofactors() -> Result<()> {
    check_split(DETERMINANTS, &TYPES[..2])
}

/// `5 0 0`, `0 a b`, `0 c d`, of two numbers each in two places or in none.
fn block(x: Tensor, places: [usize; 2]) -> Tensor {
    let of = |i: usize| x.slice(0, i..i + 1);
    let zero = of(0).zeros_like();
    let mut elements = [zero; 9];
    elements[0] = zero + 5.0;
    elements[places[0]] = of(0);
    elements[places[1]] = of(1);
    concatenate(elements, 0).reshape([3, 3])
}

const TURNED: &[f64] = &[
    0., 0., 0., 1., 0., 0., -1., 0., 0., -1., 0., 0., 1., 0., 0., 0.,
];

#[rustfmt::skip]
const SECOND: &[Second] = &[
    ("regular", |x| two(x).det(), &[1., 2., 3., 4.], TURNED),
    ("rank 1", |x| two(x).det(), &[1., 2., 2., 4.], TURNED),
    ("a column of zeros", |x| two(x).det(), &[0., 1., 0., 2.], TURNED),
    ("rank 0", |x| two(x).det(), &[0.; 4], TURNED),
    ("one", |x| one(x).det(), &[0.], &[0.]),
    ("rank 1 of 3", |x| block(x, [4, 8]).det(), &[0.; 2], &[0., 5., 5., 0.]),
    ("rank 1 of 3, across", |x| block(x, [5, 7]).det(), &[0.; 2], &[0., -5., -5., 0.]),
    ("rank 2 of 3", |x| block(x, [4, 8]).det(), &[3., 0.], &[0., 5., 5., 0.]),
    ("slogdet", |x| block(x, [4, 8]).slogdet().1, &[2., -4.], &[-0.25, 0., 0., -0.0625]),
];

#[test]
fn second_derivatives_are_minors() -> Result<()> {
    check_second(SECOND, &TYPES[..2])
}
