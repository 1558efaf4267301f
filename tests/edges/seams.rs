//! Second derivatives of smooth functions at the points where their formulas have kinks or change over.

use shardax::nn::{self, CrossEntropyOptions};
use shardax::prelude::*;
use shardax::xla::Result;

use super::{Second, TYPES, check_second};

const THIRD: f64 = 1.0 / 3.0;
const PI2: f64 = std::f64::consts::PI * std::f64::consts::PI;

fn pair(x: Tensor) -> [Tensor; 2] {
    [x.index(0, 0), x.index(0, 1)]
}

fn of_pair(f: fn(Tensor, Tensor) -> Tensor) -> impl Fn(Tensor) -> Tensor {
    move |x| {
        let [x, y] = pair(x);
        f(x, y)
    }
}

fn cross_entropy(x: Tensor) -> Tensor {
    let target = Tensor::scalar(1, DType::I32);
    nn::cross_entropy(x, target, CrossEntropyOptions::default())
}

fn binary(x: Tensor) -> Tensor {
    nn::binary_cross_entropy(x, x.zeros_like() + 0.25, None) * 2.0
}

fn huber(x: Tensor) -> Tensor {
    nn::huber(x, x.zeros_like(), None, 2.0) * 4.0
}

/// The entropy of a row of logits, which is `-kl` from 1 each.
fn divergence(x: Tensor) -> Tensor {
    let log_p = x.log_softmax(0);
    nn::kl_div(log_p.zeros_like(), log_p, None)
}

#[rustfmt::skip]
const SEAMS: &[Second] = &[
    ("logaddexp", |x| of_pair(|x, y| x.logaddexp(y))(x), &[1.0, 1.0], &[0.25, -0.25, -0.25, 0.25]),
    ("logaddexp of itself", |x| x.logaddexp(x), &[1.0], &[0.0]),
    ("logaddexp of -inf", |x| of_pair(|x, y| x.logaddexp(y))(x), &[f64::NEG_INFINITY; 2], &[0.0; 4]),
    ("hypot", |x| of_pair(|x, y| x.hypot(y))(x), &[3.0, 4.0], &[0.128, -0.096, -0.096, 0.072]),
    ("hypot of equal ones", |x| of_pair(|x, y| x.hypot(y))(x) * 2f64.sqrt(), &[2.0, -2.0], &[0.25, 0.25, 0.25, 0.25]),
    ("logsumexp", |x| x.logsumexp(0), &[2.0, 2.0], &[0.25, -0.25, -0.25, 0.25]),
    ("logsumexp of nothing", |x| x.logsumexp(0), &[f64::NEG_INFINITY; 2], &[0.0; 4]),
    ("logsumexp_weighted of nothing", |x| x.logsumexp_weighted(0, 0), &[1.0, 2.0], &[0.0; 4]),
    ("cumlogsumexp", |x| x.cumlogsumexp(0).index(0, 1), &[2.0, 2.0], &[0.25, -0.25, -0.25, 0.25]),
    ("softmax", |x| x.softmax(0).index(0, 0) * 27.0, &[1.0; 3], &[2.0, -1.0, -1.0, -1.0, -1.0, 2.0, -1.0, 2.0, -1.0]),
    ("softplus", |x| x.softplus(), &[0.0], &[0.25]),
    ("log_sigmoid", |x| x.log_sigmoid(), &[0.0], &[-0.25]),
    ("sigmoid", |x| x.sigmoid(), &[0.0], &[0.0]),
    ("tanh", |x| x.tanh(), &[0.0], &[0.0]),
    ("silu", |x| x.silu(), &[0.0], &[0.5]),
    ("gelu", |x| x.gelu(), &[0.0], &[0.797_884_560_802_865_4]),
    ("gelu_exact", |x| x.gelu_exact(), &[0.0], &[0.797_884_560_802_865_4]),
    ("squareplus", |x| x.squareplus(4.0), &[0.0], &[0.25]),
    ("sinc", |x| x.sinc(), &[0.0], &[-PI2 / 3.0]),
    // One side's: beyond the seam it is another number.
    ("elu", |x| x.elu(1.5), &[0.0], &[1.5]),
    ("celu", |x| x.celu(2.0), &[0.0], &[0.5]),
    ("huber", huber, &[2.0, -2.0, 3.0, 0.0], &[1., 0., 0., 0., 0., 1., 0., 0., 0., 0., 0., 0., 0., 0., 0., 1.]),
    ("cross_entropy", cross_entropy, &[1.0; 2], &[0.25, -0.25, -0.25, 0.25]),
    ("binary_cross_entropy", binary, &[0.0, 0.0], &[0.25, 0.0, 0.0, 0.25]),
    ("entropy", divergence, &[0.0, 0.0, f64::NEG_INFINITY], &[0.25, -0.25, 0.0, -0.25, 0.25, 0.0, 0.0, 0.0, 0.0]),
    ("square of the larger", |x| x.max(0).square(), &[1.0, 1.0], &[0.5; 4]),
    ("mse", |x| nn::mse(x, x.zeros_like(), None), &[0.0; 3], &[2.0 * THIRD, 0., 0., 0., 2.0 * THIRD, 0., 0., 0., 2.0 * THIRD]),
    ("a power of 0", |x| of_pair(|x, y| x.pow(y))(x), &[2.0, 0.0], &[0.0, 0.5, 0.5, 0.480_453_013_918_201_4]),
];

#[test]
fn second_derivatives() -> Result<()> {
    check_second(SEAMS, TYPES)
}
