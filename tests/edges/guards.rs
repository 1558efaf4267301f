//! What a function guards against in its value has no part in its derivative: an element that is replaced, or left out,
//! before it is differentiated would lose it.

use std::f64::consts::LN_2;

use shardax::nn::{self, CrossEntropyOptions};
use shardax::prelude::*;
use shardax::xla::Result;

use super::{Edge, TYPES, check_split, edge};

const INF: f64 = f64::INFINITY;
const WEIGHTS: &[f64] = &[2., 0., 5., 0., 0., 0., 0., 0.];

/// Losses 1, 2, ..., 8.
fn losses(of: Tensor) -> Tensor {
    Tensor::arange(of.dtype(), 8) + 1.0
}

fn cross_entropy(weights: Tensor) -> Tensor {
    // Logits of two classes, of which the right one has more and more.
    let right = losses(weights).expand_dims(1);
    let logits = concatenate([right, right.zeros_like()], 1);
    let options = CrossEntropyOptions {
        weights: Some(weights),
        ..CrossEntropyOptions::default()
    };
    nn::cross_entropy(logits, Tensor::zeros(DType::I32, [8]), options)
}

fn softplus(x: f64) -> f64 {
    (-x).exp().ln_1p()
}

#[rustfmt::skip]
const LEFT_OUT: &[Edge] = &[
    edge("weights of logsumexp", |w| w.zeros_like().logsumexp_weighted(w, 0), WEIGHTS, &[1.945_910_149_055_313_2], &[1.0 / 7.0; 8]),
    edge("numbers of logsumexp", |x| x.logsumexp_weighted(Tensor::arange(x.dtype(), 8), 0), &[0., 0., -INF, -INF, -INF, -INF, -INF, -INF], &[0.], &[0., 1., 0., 0., 0., 0., 0., 0.]),
    edge("numbers that are not counted", |x| x.logsumexp_weighted(Tensor::arange(x.dtype(), 8).eq(1.0).cast(x.dtype()), 0), &[f64::NAN, 3., INF, INF, -INF, 1e30, 0., 0.], &[3.], &[0., 1., 0., 0., 0., 0., 0., 0.]),
    edge("weights of a mean", |w| nn::weighted_mean(losses(w), Some(w)), WEIGHTS, &[17.0 / 7.0],
        &[-10.0 / 49.0, -3.0 / 49.0, 4.0 / 49.0, 11.0 / 49.0, 18.0 / 49.0, 25.0 / 49.0, 32.0 / 49.0, 39.0 / 49.0]),
    edge("weights of no mean", |w| nn::weighted_mean(losses(w), Some(w)), &[0.; 8], &[0.], &[0.; 8]),
    edge("weights of mse", |w| nn::mse(losses(w) - 4.0, w.zeros_like(), Some(w)), WEIGHTS, &[23.0 / 7.0],
        &[40.0 / 49.0, 5.0 / 49.0, -16.0 / 49.0, -23.0 / 49.0, -16.0 / 49.0, 5.0 / 49.0, 40.0 / 49.0, 89.0 / 49.0]),
    edge("labels of binary_cross_entropy", |y| nn::binary_cross_entropy(losses(y) - 4.0, y, None) * 8.0, &[0., 0., 0., 0., 1., 1., 1., 1.], &[1.688_851_208_747_629_7],
        &[3., 2., 1., 0., -1., -2., -3., -4.]),
    edge("exponents", |y| (y.zeros_like() + 2.0).pow(y), &[0., 1., -1., 2., 0., 0., 0., 0.], &[1., 2., 0.5, 4., 1., 1., 1., 1.],
        &[LN_2, 2.0 * LN_2, LN_2 / 2.0, 4.0 * LN_2, LN_2, LN_2, LN_2, LN_2]),
    edge("remainder of a rounded quotient", |y| (y.zeros_like() + 1.0) % y, &[0.1, 0.3, 0.75, 2., 1., 1., 1., 1.], &[0.1, 0.1, 0.25, 1., 0., 0., 0., 0.], &[-9., -3., -1., 0., -1., -1., -1., -1.]),
];

#[test]
fn what_is_left_out_has_its_derivative() -> Result<()> {
    check_split(LEFT_OUT, TYPES)
}

#[test]
fn weights_of_cross_entropy() -> Result<()> {
    let program = jit(|w: Tensor| grad(cross_entropy)(w));
    let found = program.call(Array::from_slice(WEIGHTS, [8])?)?;
    let mean = (2.0 * softplus(1.0) + 5.0 * softplus(3.0)) / 7.0;
    for (i, slope) in found.to_vec::<f64>()?.into_iter().enumerate() {
        let expected = (softplus(i as f64 + 1.0) - mean) / 7.0;
        assert!(
            (slope - expected).abs() < 1e-14,
            "{i}: {slope}, not {expected}"
        );
    }
    Ok(())
}
