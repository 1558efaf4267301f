//! Lengths of vectors of large, small and no elements, what is divided by them, and their squares.

use std::f64::consts::SQRT_2;

use shardax::nn;
use shardax::prelude::*;
use shardax::xla::Result;

use super::{Edge, Second, TYPES, check_second, check_split, edge};

const ZERO: &[f64] = &[0.; 8];
const LARGE: &[f64] = &[3e25, 4e25, 0., 0., 0., 0., 0., 0.];
const SMALL: &[f64] = &[3e-25, 4e-25, 0., 0., 0., 0., 0., 0.];
const UNIT: &[f64] = &[0.6, 0.8, 0., 0., 0., 0., 0., 0.];
/// Differences from the mean 0, of length 10.
const APART: &[f64] = &[3e25, 4e25, 0., -5e25, -3e25, -4e25, 0., 5e25];

/// The number in units of 1e25, as it is compared.
fn large(x: Tensor) -> Tensor {
    x * 1e-25
}

fn small(x: Tensor) -> Tensor {
    x * 1e25
}

/// The numbers times 1e25, which the compiler does not know: it would square that by itself.
fn enlarged(x: Tensor) -> Tensor {
    let factor = x.stop_gradient().max(..) * 0.0 + 1e25;
    x * factor
}

/// The first two elements.
fn pair(x: Tensor) -> [Tensor; 2] {
    [0, 1].map(|i| x.slice(0, i..i + 1))
}

fn complex(x: Tensor) -> Tensor {
    let [re, im] = pair(x.cast(DType::F32));
    re.complex(im)
}

// Gradients of what is scaled are scaled too: both are numbers near 1.
#[rustfmt::skip]
const LENGTHS: &[Edge] = &[
    edge("norm", |x| large(x.norm(0)), LARGE, &[5.], &[6e-26, 8e-26, 0., 0., 0., 0., 0., 0.]),
    edge("direction", |x| x.norm(0) - x.norm(0).stop_gradient(), LARGE, &[0.], UNIT),
    edge("direction of a small norm", |x| x.norm(0) - x.norm(0).stop_gradient(), SMALL, &[0.], UNIT),
    edge("value of a small norm", |x| small(x.norm(0).stop_gradient()), SMALL, &[5.], ZERO),
    edge("norm of nothing", |x| x.norm(0), ZERO, &[0.], ZERO),
    edge("square of no norm", |x| x.norm(0).square(), ZERO, &[0.], ZERO),
    edge("norm of elements", |x| large(x.expand_dims(1).norm(1).stop_gradient()), LARGE, &[3., 4., 0., 0., 0., 0., 0., 0.], ZERO),
    edge("joint_norm", |x| large(nn::joint_norm(&[x, x.slice(0, 0..1).zeros_like()], x.dtype()).stop_gradient()), LARGE, &[5.], ZERO),
    edge("direction of a joint norm", |x| { let n = nn::joint_norm(&[x], x.dtype()); n - n.stop_gradient() }, LARGE, &[0.], UNIT),
    edge("hypot", |x| { let [a, b] = pair(x); let n = a.hypot(b); n - n.stop_gradient() }, LARGE, &[0.], UNIT),
    edge("small hypot", |x| { let [a, b] = pair(x); small(a.hypot(b).stop_gradient()) }, SMALL, &[5.], ZERO),
    edge("std", |x| large(x.std(0).stop_gradient()), APART, &[3.535_533_905_932_737_8], ZERO),
    edge("slope of std", |x| { let n = x.std(0); n - n.stop_gradient() }, APART, &[0.],
        &[0.106_066_017_177_982_1, 0.141_421_356_237_309_5, 0., -0.176_776_695_296_636_9, -0.106_066_017_177_982_1, -0.141_421_356_237_309_5, 0., 0.176_776_695_296_636_9]),
    edge("std of equal ones", |x| x.std(0), &[3.; 8], &[0.], ZERO),
    edge("over the norm", |x| (x / x.norm(0)).stop_gradient(), LARGE, UNIT, ZERO),
    edge("rms_norm", |x| nn::rms_norm(x, None, 0, 0.0).stop_gradient(), LARGE, &[1.697_056_274_847_714, 2.262_741_699_796_952, 0., 0., 0., 0., 0., 0.], ZERO),
    edge("small rms_norm", |x| nn::rms_norm(x, None, 0, 0.0).stop_gradient(), SMALL, &[1.697_056_274_847_714, 2.262_741_699_796_952, 0., 0., 0., 0., 0., 0.], ZERO),
    edge("layer_norm", |x| nn::layer_norm(x, None, None, 0, 0.0).stop_gradient(), APART,
        &[0.848_528_137_423_857, 1.131_370_849_898_476, 0., -SQRT_2, -0.848_528_137_423_857, -1.131_370_849_898_476, 0., SQRT_2], ZERO),
    edge("batch_norm", |x| nn::batch_norm(x.expand_dims(1), None, None, 1, 0.0).0.stop_gradient(), APART,
        &[0.848_528_137_423_857, 1.131_370_849_898_476, 0., -SQRT_2, -0.848_528_137_423_857, -1.131_370_849_898_476, 0., SQRT_2], ZERO),
    edge("group_norm", |x| nn::group_norm(x.expand_dims(0), None, None, 1, 1, 0.0).stop_gradient(), APART,
        &[0.848_528_137_423_857, 1.131_370_849_898_476, 0., -SQRT_2, -0.848_528_137_423_857, -1.131_370_849_898_476, 0., SQRT_2], ZERO),
    // Of numbers that are enlarged first, so that the gradients are near 1.
    edge("slope of rms_norm", |x| nn::rms_norm(enlarged(x), None, 0, 0.0) * Tensor::arange(x.dtype(), 8), &[3., 4., 0., 0., 0., 0., 0., 0.],
        &[0., 2.262_741_699_796_952, 0., 0., 0., 0., 0., 0.],
        &[-0.271_529_003_975_634_2, 0.203_646_752_981_725_7, 1.131_370_849_898_476, 1.697_056_274_847_714, 2.262_741_699_796_952, 2.828_427_124_746_19, 3.394_112_549_695_428, 3.959_797_974_644_666]),
    edge("orthogonalize", |x| x.reshape([1, 8]).orthogonalize(0).stop_gradient(), LARGE, UNIT, ZERO),
];

/// What is computed in f32.
#[rustfmt::skip]
const SINGLE: &[Edge] = &[
    edge("clipping", |x| shardax::train::clip_by_global_norm(x, 1.0).0.stop_gradient(), LARGE, UNIT, ZERO),
    edge("complex abs", |x| { let n = complex(x).abs(); n - n.stop_gradient() }, LARGE, &[0.], UNIT),
    edge("large complex abs", |x| large(complex(x).abs().stop_gradient()), LARGE, &[5.], ZERO),
    edge("small complex abs", |x| small(complex(x).abs().stop_gradient()), SMALL, &[5.], ZERO),
    edge("complex norm", |x| { let n = complex(x).norm(0); n - n.stop_gradient() }, LARGE, &[0.], UNIT),
];

#[test]
fn of_large_and_small_numbers() -> Result<()> {
    check_split(LENGTHS, TYPES)
}

#[test]
fn of_clipped_and_of_complex_numbers() -> Result<()> {
    check_split(SINGLE, &TYPES[1..2])
}

fn by_two(x: Tensor) -> Tensor {
    x.reshape([2, 1])
}

#[rustfmt::skip]
const SQUARES: &[Second] = &[
    ("norm", |x| x.norm(..).square(), &[0.; 2], &[2., 0., 0., 2.]),
    ("norm elsewhere", |x| x.norm(..).square(), &[3., 4.], &[2., 0., 0., 2.]),
    ("product of norms", |x| { let n = x.norm(..); n * n }, &[0.; 2], &[2., 0., 0., 2.]),
    ("power of a norm", |x| x.norm(..).pow(2), &[0.; 2], &[2., 0., 0., 2.]),
    ("fourth power of a norm", |x| x.norm(..).square().square(), &[0.; 2], &[0.; 4]),
    ("moved norm", |x| (-by_two(x).norm(1).expand_dims(0).broadcast_to([3, 2])).square(), &[0.; 2], &[6., 0., 0., 6.]),
    ("root", |x| x.square().sum(..).sqrt().square(), &[0.; 2], &[2., 0., 0., 2.]),
    ("root of a mean", |x| x.square().mean(..).sqrt().square(), &[0.; 2], &[1., 0., 0., 1.]),
    ("in a loop", |x| scan(x.zeros_like().sum(..), Tensor::arange(x.dtype(), 3), |sum, k: Tensor| (sum + k * x.norm(..).square(), ())).0, &[0.; 2], &[6., 0., 0., 6.]),
    ("from outside of a loop", |x| { let n = x.norm(..); scan(n * 0.0, Tensor::arange(x.dtype(), 3), |sum, k: Tensor| (sum + k * n.square(), ())).0 }, &[0.; 2], &[6., 0., 0., 6.]),
    ("in a map", |x| vmap(|row: Tensor| row.norm(..).square())(x.reshape([1, 2])), &[0.; 2], &[2., 0., 0., 2.]),
    ("in a recomputed part", |x| remat(|x: Tensor| x.norm(..).square())(x), &[0.; 2], &[2., 0., 0., 2.]),
    ("from outside of a recomputed part", |x| { let n = x.norm(..); remat(|y: Tensor| n.square() + y)(x.sum(..) * 0.0) }, &[0.; 2], &[2., 0., 0., 2.]),
    ("in a derivative", |x| grad(|x: Tensor| x.norm(..).square())(x).square(), &[0.; 2], &[8., 0., 0., 8.]),
    ("abs", |x| x.abs().square(), &[0., 2.], &[2., 0., 0., 2.]),
    ("hypot", |x| { let [a, b] = pair(x); a.hypot(b).square() }, &[0.; 2], &[2., 0., 0., 2.]),
    ("std", |x| x.std(0).square(), &[3.; 2], &[0.5, -0.5, -0.5, 0.5]),
    ("complex abs", |x| complex(x).abs().square(), &[0.; 2], &[2., 0., 0., 2.]),
    ("complex norm", |x| complex(x).norm(..).square(), &[0.; 2], &[2., 0., 0., 2.]),
    ("smooth in the square", |x| (-x.norm(..).square()).exp(), &[0.; 2], &[-2., 0., 0., -2.]),
    // By the convention for kinks: a rule does not see how the cotangent of the norm vanishes.
    ("cosine", |x| x.norm(..).cos(), &[0.; 2], &[0.; 4]),
];

#[test]
fn squares_are_smooth_at_0() -> Result<()> {
    check_second(SQUARES, TYPES)
}

#[test]
fn the_square_of_a_root_of_a_negative_number_is_nan() -> Result<()> {
    let program = jit(|x: Tensor| x.sqrt().square());
    let found = program.call(Array::from_slice(&[-1f32, 0.0, 4.0], [3])?)?;
    let found = found.to_vec::<f32>()?;
    assert!(found[0].is_nan() && found[1..] == [0.0, 4.0], "{found:?}");
    Ok(())
}
