//! Reductions, running ones, and orders.

use std::f64::consts::LN_2;

use shardax::prelude::*;
use shardax::s;
use shardax::xla::Result;

use super::{Edge, Second, TYPES, check, check_second, edge};

const INF: f64 = f64::INFINITY;
const THIRD: f64 = 1.0 / 3.0;

#[rustfmt::skip]
const TIES: &[Edge] = &[
    edge("max", |x| x.max(0), &[1., 2., 2., 2.], &[2.], &[0., THIRD, THIRD, THIRD]),
    edge("min", |x| x.min(0), &[1., 1., 2., 3.], &[1.], &[0.5, 0.5, 0., 0.]),
    edge("cummax", |x| x.cummax(0), &[1., 2., 2.], &[1., 2., 2.], &[1., 1.5, 0.5]),
    edge("cummin", |x| x.cummin(0).get(s![-1]), &[2., 2., 3.], &[2.], &[0.5, 0.5, 0.]),
    edge("max of roots", |x| x.sqrt().max(0), &[0., 4.], &[2.], &[0., 0.25]),
    edge("maximum of roots", |x| x.sqrt().maximum(1), &[0., 4.], &[1., 2.], &[0., 0.25]),
    edge("top_k of roots", |x| x.sqrt().top_k(1).0, &[0., 4.], &[2.], &[0., 0.25]),
    edge("cummax of roots", |x| x.sqrt().cummax(0), &[4., 0.], &[2., 2.], &[0.5, 0.]),
    edge("max of infinities", |x| x.max(0), &[-INF, -INF], &[-INF], &[0.5, 0.5]),
    edge("sort", |x| x.sort(0) * Tensor::arange(x.dtype(), 3), &[2., 2., 1.], &[0., 2., 4.], &[1., 2., 0.]),
    edge("top_k", |x| x.top_k(2).0, &[2., 2., 2.], &[2., 2.], &[1., 1., 0.]),
];

#[rustfmt::skip]
const PRODUCTS: &[Edge] = &[
    edge("prod, a zero", |x| x.prod(0), &[2., 0., 3., 4.], &[0.], &[0., 24., 0., 0.]),
    edge("prod, two zeros", |x| x.prod(0), &[0., 0., 3.], &[0.], &[0., 0., 0.]),
    edge("prod", |x| x.prod(0), &[2., 3., 4.], &[24.], &[12., 8., 6.]),
    edge("prod of one", |x| x.prod(0), &[0.], &[0.], &[1.]),
    edge("cumprod, a zero", |x| x.cumprod(0), &[0., 2., 3.], &[0., 0., 0.], &[9., 0., 0.]),
    edge("cumprod, a zero within", |x| x.cumprod(0), &[2., 0., 3.], &[2., 0., 0.], &[1., 8., 0.]),
    edge("cumprod_reverse", |x| x.cumprod_reverse(0), &[3., 2., 0.], &[0., 0., 0.], &[0., 0., 9.]),
];

#[rustfmt::skip]
const SUMS: &[Edge] = &[
    edge("logsumexp of nothing", |x| x.logsumexp(0), &[-INF, -INF], &[-INF], &[0., 0.]),
    edge("logsumexp", |x| x.logsumexp(0), &[1e4, 1e4], &[1e4 + LN_2], &[0.5, 0.5]),
    edge("logsumexp, one hidden", |x| x.logsumexp(0), &[-INF, 2.], &[2.], &[0., 1.]),
    edge("cumlogsumexp", |x| x.cumlogsumexp(0), &[-INF, 2.], &[-INF, 2.], &[0., 1.]),
    edge("cumlogsumexp of nothing", |x| x.cumlogsumexp(0), &[-INF, -INF], &[-INF, -INF], &[0., 0.]),
    edge("logsumexp without weight", |x| x.logsumexp_weighted(0, 0), &[1., 2.], &[-INF], &[0., 0.]),
    edge("softmax of nothing", |x| x.softmax(0), &[-INF, -INF], &[0., 0.], &[0., 0.]),
    edge("softmax, far apart", |x| x.softmax(0).get(s![0]), &[1e4, -1e4], &[1.], &[0., 0.]),
    edge("softmax, one hidden", |x| x.softmax(0).get(s![1]), &[-INF, 2.], &[1.], &[0., 0.]),
    edge("log_softmax, far apart", |x| x.log_softmax(0), &[1e4, -1e4], &[0., -2e4], &[-1., 1.]),
    edge("norm", |x| x.norm(0), &[0., 0.], &[0.], &[0., 0.]),
    edge("square of the norm", |x| x.norm(0).square(), &[0., 0.], &[0.], &[0., 0.]),
    edge("square of the root", |x| x.square().sum(0).sqrt().square(), &[0., 0.], &[0.], &[0., 0.]),
    edge("std of equal ones", |x| x.std(0), &[3., 3.], &[0.], &[0., 0.]),
    edge("var of one", |x| x.var(0), &[3.], &[0.], &[0.]),
    edge("sum of nothing", |x| x.get(s![0..0]).sum(0), &[3.], &[0.], &[0.]),
    edge("prod of nothing", |x| x.get(s![0..0]).prod(0), &[3.], &[1.], &[0.]),
    edge("max of nothing", |x| x.get(s![0..0]).max(0), &[3.], &[-INF], &[0.]),
    edge("logsumexp of no elements", |x| x.get(s![0..0]).logsumexp(0), &[3.], &[-INF], &[0.]),
];

#[test]
fn reductions() -> Result<()> {
    check(TIES)?;
    check(PRODUCTS)?;
    check(SUMS)
}

#[rustfmt::skip]
const SECOND: &[Second] = &[
    ("prod, a zero", |x| x.prod(0), &[0., 2., 3.], &[0., 3., 2., 3., 0., 0., 2., 0., 0.]),
    ("prod, two zeros", |x| x.prod(0), &[0., 0., 3.], &[0., 3., 0., 3., 0., 0., 0., 0., 0.]),
    ("cumprod, a zero", |x| x.cumprod(0).sum(..), &[0., 2., 3.], &[0., 4., 2., 4., 0., 0., 2., 0., 0.]),
    ("sort", |x| (x.sort(0).pow(2) * Tensor::arange(x.dtype(), 3)).sum(..), &[3., 1., 2.], &[4., 0., 0., 0., 0., 0., 0., 0., 2.]),
    (
        "products of the sorted",
        |x| {
            let sorted = x.sort(0);
            sorted.index(0, 0) * sorted.index(0, 1)
        },
        &[3., 1., 2.],
        &[0., 0., 0., 0., 0., 1., 0., 1., 0.],
    ),
    ("square of the norm", |x| x.norm(0).square(), &[3., 4.], &[2., 0., 0., 2.]),
    ("where", |x| x.lt(1).select(x * x, x.sqrt()).sum(..), &[0.], &[2.]),
    ("pow", |x| x.pow(Tensor::arange(x.dtype(), 3)).sum(..), &[0.], &[2.]),
    ("logsumexp", |x| x.logsumexp(0), &[f64::NEG_INFINITY, 2.], &[0.; 4]),
    ("log of a sigmoid", |x| x.log_sigmoid().sum(..), &[0., 1e4], &[-0.25, 0., 0., 0.]),
];

#[test]
fn second_derivatives() -> Result<()> {
    check_second(SECOND, TYPES)
}

#[test]
fn orders_of_ties_and_of_nan() -> Result<()> {
    let program = jit(|x: Tensor| {
        let indices = [
            x.argmax(0),
            x.argmin(0),
            x.argsort(0),
            x.argsort_descending(0),
            x.top_k(2).1,
        ];
        (
            indices.map(|i| i.cast(DType::I32).flatten()),
            x.sort(0),
            x.max(0),
        )
    });
    let ([largest, smallest, order, descending, top], ..) =
        program.call(Array::from_slice(&[2f32, 1.0, 2.0, 1.0], [4])?)?;
    // The first of equal ones.
    assert_eq!(largest.to_vec::<i32>()?, [0]);
    assert_eq!(smallest.to_vec::<i32>()?, [1]);
    assert_eq!(order.to_vec::<i32>()?, [1, 3, 0, 2]);
    assert_eq!(descending.to_vec::<i32>()?, [0, 2, 1, 3]);
    assert_eq!(top.to_vec::<i32>()?, [0, 2]);
    // NaN counts as the largest, is last, and is found by a maximum.
    let ([largest, smallest, _, _, top], sorted, maximum) = program.call(Array::from_slice(
        &[2f32, f32::NAN, 3.0, -f32::INFINITY],
        [4],
    )?)?;
    assert_eq!(largest.to_vec::<i32>()?, [1]);
    assert_eq!(smallest.to_vec::<i32>()?, [1]);
    assert_eq!(top.to_vec::<i32>()?, [1, 2]);
    let sorted = sorted.to_vec::<f32>()?;
    assert_eq!(sorted[..3], [-f32::INFINITY, 2.0, 3.0]);
    assert!(sorted[3].is_nan() && maximum.item::<f32>()?.is_nan());
    Ok(())
}
