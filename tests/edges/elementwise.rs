//! Functions of each element.

use std::f64::consts::LN_2;

use shardax::prelude::*;
use shardax::xla::Result;

use super::{Edge, check, edge};

const INF: f64 = f64::INFINITY;

/// What a `select` does not choose has no part in the derivative, whatever it is.
#[rustfmt::skip]
const NOT_CHOSEN: &[Edge] = &[
    edge("sqrt", |x| x.lt(1).select(x, x.sqrt()), &[0., 4.], &[0., 2.], &[1., 0.25]),
    edge("log", |x| x.gt(0).select(x.log(), 0), &[0., 2.], &[0., LN_2], &[0., 0.5]),
    edge("quotient", |x| x.ne(0).select(1.0 / x, 0), &[0., 2.], &[0., 0.5], &[0., -0.25]),
    edge("pow", |x| x.gt(0).select(x.pow(0.5), 0), &[0., 4.], &[0., 2.], &[0., 0.25]),
    edge("pow of a negative", |x| x.gt(0).select(x.pow(1.5), x), &[-2., 4.], &[-2., 8.], &[1., 3.]),
    edge("exp", |x| x.lt(9).select(x.exp(), x), &[1e4, 0.], &[1e4, 1.], &[1., 1.]),
    edge("x log x", |x| x.gt(0).select(x * x.log(), 0), &[0., 1.], &[0., 0.], &[0., 1.]),
    edge("rsqrt", |x| x.gt(0).select(x.rsqrt(), x), &[0., 4.], &[0., 0.5], &[1., -0.0625]),
    edge("log1p", |x| x.gt(-1).select(x.log1p(), 0), &[-1., 0.], &[0., 0.], &[0., 1.]),
    edge("asin", |x| x.lt(1).select(x.asin(), 0), &[1., 0.], &[0., 0.], &[0., 1.]),
    edge("acosh", |x| x.gt(1).select(x.acosh(), 0), &[1., 0.], &[0., 0.], &[0., 0.]),
    edge("atanh", |x| x.abs().lt(1).select(x.atanh(), 0), &[1., 0.], &[0., 0.], &[0., 1.]),
    edge("cbrt", |x| x.gt(0).select(x.cbrt(), x), &[0., 8.], &[0., 2.], &[1., 1. / 12.]),
    edge("tan", |x| x.lt(9).select(x.tan(), x), &[INF, 0.], &[INF, 0.], &[1., 1.]),
    edge("a chain", |x| x.gt(0).select(x.sqrt().log().exp(), x), &[0., 4.], &[0., 2.], &[1., 0.25]),
    edge("lgamma", |x| x.gt(0).select(x.lgamma(), x), &[0., 1.], &[0., 0.], &[1., -0.577_215_664_901_532_9]),
    edge("logit", |x| x.gt(0).select(x.logit(), x), &[0., 0.5], &[0., 0.], &[1., 4.]),
    edge(
        "a norm",
        |x| {
            let square = x.square().sum(..);
            square.gt(0).select(square.sqrt(), 0)
        },
        &[0., 0.],
        &[0.],
        &[0., 0.],
    ),
];

/// A slope that is infinite stays so where something depends on it; a cotangent of 0 stays 0.
#[rustfmt::skip]
const SLOPES: &[Edge] = &[
    edge("sqrt", |x| x.sqrt(), &[0.], &[0.], &[INF]),
    edge("sqrt, times 0", |x| x.sqrt() * x.zeros_like(), &[0.], &[0.], &[0.]),
    edge("square of sqrt", |x| x.square().sqrt().square(), &[0., 3.], &[0., 9.], &[0., 6.]),
    edge("cbrt", |x| x.cbrt(), &[0., 8.], &[0., 2.], &[INF, 1. / 12.]),
    edge("log", |x| x.log(), &[0.], &[-INF], &[INF]),
    edge("log1p", |x| x.log1p(), &[-1.], &[-INF], &[INF]),
    edge("asin", |x| x.asin(), &[0., 1.], &[0., std::f64::consts::FRAC_PI_2], &[1., INF]),
    edge("abs", |x| x.abs(), &[-2., 0., 3.], &[2., 0., 3.], &[-1., 0., 1.]),
    edge("sign", |x| x.sign(), &[-2., 0., 3.], &[-1., 0., 1.], &[0., 0., 0.]),
    edge("pow 0", |x| x.pow(0), &[0., 2.], &[1., 1.], &[0., 0.]),
    edge("pow 1", |x| x.pow(1), &[0., -2.], &[0., -2.], &[1., 1.]),
    edge("pow 2", |x| x.pow(2), &[0., -2.], &[0., 4.], &[0., -4.]),
    edge("pow 3.0", |x| x.pow(3.0), &[0., -2.], &[0., -8.], &[0., 12.]),
    edge("pow -1", |x| x.pow(-1), &[-2.], &[-0.5], &[-0.25]),
    edge("pow [0, 1, 2]", |x| x.pow(Tensor::arange(x.dtype(), 3)), &[0.], &[1., 0., 0.], &[1.]),
    edge("0 pow", |x| x.zeros_like().pow(x), &[1., 2.], &[0., 0.], &[0., 0.]),
    edge("atan2", |x| x.atan2(x.zeros_like()), &[0.], &[0.], &[0.]),
    edge("hypot", |x| x.hypot(x), &[0.], &[0.], &[0.]),
    edge("sinc", |x| x.sinc(), &[0.], &[1.], &[0.]),
    edge("remainder", |x| x % 3, &[-7., 7.], &[-1., 1.], &[1., 1.]),
];

/// Operands that are equal share the derivative.
#[rustfmt::skip]
const TIES: &[Edge] = &[
    edge("maximum", |x| x.maximum(2), &[1., 2., 3.], &[2., 2., 3.], &[0., 0.5, 1.]),
    edge("minimum", |x| x.minimum(2), &[1., 2., 3.], &[1., 2., 2.], &[1., 0.5, 0.]),
    edge("maximum of itself", |x| x.maximum(x), &[2.], &[2.], &[1.]),
    edge("relu", |x| x.relu(), &[-1., 0., 1.], &[0., 0., 1.], &[0., 0., 1.]),
];

/// Halves are rounded away from 0, or to even; the derivative is 0.
#[rustfmt::skip]
const ROUNDING: &[Edge] = &[
    edge("round", |x| x.round(), &[-2.5, -0.5, 0.5, 1.5, 2.5], &[-3., -1., 1., 2., 3.], &[0.; 5]),
    edge("round_even", |x| x.round_even(), &[-2.5, -0.5, 0.5, 1.5, 2.5], &[-2., 0., 0., 2., 2.], &[0.; 5]),
    edge("floor", |x| x.floor(), &[-0.5, 0.5], &[-1., 0.], &[0.; 2]),
    edge("ceil", |x| x.ceil(), &[-0.5, 0.5], &[0., 1.], &[0.; 2]),
    edge("trunc", |x| x.trunc(), &[-1.5, 1.5], &[-1., 1.], &[0.; 2]),
    edge("fract", |x| x.fract(), &[-1.5, 1.25], &[-0.5, 0.25], &[1.; 2]),
];

/// Arguments whose exponential is beyond the type.
#[rustfmt::skip]
const OVERFLOW: &[Edge] = &[
    edge("sigmoid", |x| x.sigmoid(), &[-1e4, 0., 1e4], &[0., 0.5, 1.], &[0., 0.25, 0.]),
    edge("log_sigmoid", |x| x.log_sigmoid(), &[-1e4, 1e4], &[-1e4, 0.], &[1., 0.]),
    edge("softplus", |x| x.softplus(), &[-1e4, 1e4], &[0., 1e4], &[0., 1.]),
    edge("tanh", |x| x.tanh(), &[-1e4, 1e4], &[-1., 1.], &[0., 0.]),
    edge("silu", |x| x.silu(), &[-1e4, 1e4], &[0., 1e4], &[0., 1.]),
    edge("gelu", |x| x.gelu(), &[-1e4, 1e4], &[0., 1e4], &[0., 1.]),
    edge("gelu_exact", |x| x.gelu_exact(), &[-1e4, 1e4], &[0., 1e4], &[0., 1.]),
    edge("elu", |x| x.elu(1.0), &[-1e4, 1e4], &[-1., 1e4], &[0., 1.]),
    edge("celu", |x| x.celu(1.0), &[-1e4, 1e4], &[-1., 1e4], &[0., 1.]),
    edge("mish", |x| x.mish(), &[-1e4, 1e4], &[0., 1e4], &[0., 1.]),
    edge("logaddexp", |x| x.logaddexp(0), &[-1e4, 1e4], &[0., 1e4], &[0., 1.]),
    edge("logaddexp of nothing", |x| x.logaddexp(x), &[-INF], &[-INF], &[0.]),
    edge("expm1", |x| x.expm1(), &[-1e4], &[-1.], &[0.]),
];

#[test]
fn of_each_element() -> Result<()> {
    for edges in [NOT_CHOSEN, SLOPES, TIES, ROUNDING, OVERFLOW] {
        check(edges)?;
    }
    Ok(())
}

#[test]
fn integers_and_conversions() -> Result<()> {
    let program = jit(|x: Tensor, zero: Tensor, f: Tensor| {
        let integers = [x / zero, x % zero, x / (zero - 1), x.abs(), x + x];
        let shifts = [
            x << (zero + 40),
            x >> (zero + 40),
            x.shift_right_logical(zero + 40),
        ];
        let divisor = zero - 3;
        let remainders = [x % divisor, x.modulo(divisor), x.rem_euclid(divisor)];
        let converted = [f.cast(DType::I32), f.cast(DType::U8).cast(DType::I32)];
        (integers, shifts, remainders, converted)
    });
    let x = Array::from_slice(&[7i32, -7, i32::MIN], [3])?;
    let f = Array::from_slice(&[f32::NAN, 1e20, -1e20, -1.7, 2.7], [5])?;
    let (integers, shifts, remainders, converted) = program.call((x, Array::scalar(0i32), f))?;
    let [quotient, remainder, negated, absolute, doubled] = integers;
    assert_eq!(quotient.to_vec::<i32>()?, [-1; 3]);
    assert_eq!(remainder.to_vec::<i32>()?, [7, -7, i32::MIN]);
    assert_eq!(negated.to_vec::<i32>()?, [-7, 7, i32::MIN]);
    assert_eq!(absolute.to_vec::<i32>()?, [7, 7, i32::MIN]);
    assert_eq!(doubled.to_vec::<i32>()?, [14, -14, 0]);
    let [left, right, logical] = shifts;
    assert_eq!(left.to_vec::<i32>()?, [0; 3]);
    assert_eq!(right.to_vec::<i32>()?, [0, -1, -1]);
    assert_eq!(logical.to_vec::<i32>()?, [0; 3]);
    let [truncated, floored, positive] = remainders;
    assert_eq!(truncated.to_vec::<i32>()?, [1, -1, -2]);
    assert_eq!(floored.to_vec::<i32>()?, [-2, -1, -2]);
    assert_eq!(positive.to_vec::<i32>()?, [1, 2, 1]);
    let [signed, unsigned] = converted;
    assert_eq!(signed.to_vec::<i32>()?, [0, i32::MAX, i32::MIN, -1, 2]);
    assert_eq!(unsigned.to_vec::<i32>()?, [0, 255, 0, 0, 2]);
    Ok(())
}

/// XLA's CPU compiler has wrong numbers for these, by type, size and level of optimization.
#[test]
fn inverse_tangents_of_many() -> Result<()> {
    let functions: [fn(Tensor) -> Tensor; 2] =
        [|x| x.atan(), |x| x.atan2(Tensor::ones(x.dtype(), [32]))];
    let values: Vec<f32> = (0..32).map(|i| (i - 32) as f32 / 8.0).collect();
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        for (level, f) in [1, 3]
            .into_iter()
            .flat_map(|level| functions.map(|f| (level, f)))
        {
            let program = jit(move |x: Tensor| f(x.cast(dtype)).cast(DType::F32))
                .xla_option("xla_backend_optimization_level", level);
            let found = program.call(Array::from_slice(&values, [32])?)?;
            for (found, x) in found.to_vec::<f32>()?.iter().zip(&values) {
                let off = (found - x.atan()).abs();
                assert!(
                    off < 0.02,
                    "{dtype}, level {level}: atan({x}) is not {found}"
                );
            }
        }
    }
    Ok(())
}
