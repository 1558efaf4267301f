//! Activations at the infinities, in every type that has them, and at NaN.

use shardax::prelude::*;
use shardax::xla::Result;

const INF: f64 = f64::INFINITY;

/// An activation, its values at -inf and inf, and its derivatives there.
type Ends = (&'static str, fn(Tensor) -> Tensor, [f64; 2], [f64; 2]);

#[rustfmt::skip]
const ENDS: &[Ends] = &[
    ("celu", |x| x.celu(2.0), [-2.0, INF], [0.0, 1.0]),
    ("elu", |x| x.elu(2.0), [-2.0, INF], [0.0, 1.0]),
    ("erf", |x| x.erf(), [-1.0, 1.0], [0.0, 0.0]),
    ("gelu", |x| x.gelu(), [0.0, INF], [0.0, 1.0]),
    ("gelu_exact", |x| x.gelu_exact(), [0.0, INF], [0.0, 1.0]),
    ("glu", |x| concatenate([x.zeros_like() + 2.0, x], 0).glu(0), [0.0, 2.0], [0.0, 0.0]),
    ("glu of values", |x| concatenate([x, x.zeros_like()], 0).glu(0), [-INF, INF], [0.5, 0.5]),
    ("hard_sigmoid", |x| x.hard_sigmoid(), [0.0, 1.0], [0.0, 0.0]),
    ("hard_swish", |x| x.hard_swish(), [0.0, INF], [0.0, 1.0]),
    ("hard_tanh", |x| x.hard_tanh(), [-1.0, 1.0], [0.0, 0.0]),
    ("leaky_relu", |x| x.leaky_relu(0.5), [-INF, INF], [0.5, 1.0]),
    ("log_sigmoid", |x| x.log_sigmoid(), [-INF, 0.0], [1.0, 0.0]),
    ("mish", |x| x.mish(), [0.0, INF], [0.0, 1.0]),
    ("prelu", |x| x.prelu(x.zeros_like() + 0.5), [-INF, INF], [0.5, 1.0]),
    ("relu", |x| x.relu(), [0.0, INF], [0.0, 1.0]),
    ("relu6", |x| x.relu6(), [0.0, 6.0], [0.0, 0.0]),
    ("selu", |x| x.selu(), [-1.758_099_340_847_377, INF], [0.0, 1.050_700_987_355_480_5]),
    ("sigmoid", |x| x.sigmoid(), [0.0, 1.0], [0.0, 0.0]),
    ("silu", |x| x.silu(), [0.0, INF], [0.0, 1.0]),
    ("softplus", |x| x.softplus(), [0.0, INF], [0.0, 1.0]),
    ("softsign", |x| x.softsign(), [-1.0, 1.0], [0.0, 0.0]),
    ("squareplus", |x| x.squareplus(4.0), [0.0, INF], [0.0, 1.0]),
    ("squareplus of 0", |x| x.squareplus(0.0), [0.0, INF], [0.0, 1.0]),
    ("swiglu", |x| shardax::nn::swiglu(x, x.zeros_like() + 2.0), [0.0, INF], [0.0, 2.0]),
    ("tanh", |x| x.tanh(), [-1.0, 1.0], [0.0, 0.0]),
];

#[test]
fn at_the_infinities() -> Result<()> {
    let types = [
        (DType::F8E5M2, 0.125),
        (DType::F16, 1e-3),
        (DType::BF16, 8e-3),
        (DType::F32, 1e-6),
        (DType::F64, 1e-14),
    ];
    let program = jit(|x: Tensor| {
        let in_each = types.map(|(dtype, _)| {
            let x = x.cast(dtype);
            let results = ENDS.iter().map(|(_, f, ..)| {
                let slope = grad(|x: Tensor| f(x).cast(DType::F64).sum(..))(x);
                let forward = jvp(f, x, Tensor::ones(dtype, x.shape())).1;
                [f(x), slope, forward].map(|y| y.cast(DType::F64))
            });
            results.collect::<Vec<_>>()
        });
        in_each.to_vec()
    });
    let x = Array::from_slice(&[-INF, INF, f64::NAN], [3])?;
    let mut wrong = Vec::new();
    for ((dtype, tolerance), results) in types.iter().zip(program.call(x)?) {
        for ((name, _, value, slope), results) in ENDS.iter().zip(&results) {
            for (result, expected) in results.iter().zip([value, slope, slope]) {
                let found = result.to_vec::<f64>()?;
                let near = |(f, e): (&f64, &f64)| f == e || (f - e).abs() <= tolerance * e.abs();
                if !found.iter().zip(expected).all(near) {
                    wrong.push(format!("{dtype} {name}: {found:?}, not {expected:?}"));
                }
            }
            if !results[0].to_vec::<f64>()?[2].is_nan() {
                wrong.push(format!("{dtype} {name} of NaN is a number"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// What is finite has a finite value, as large as the type has.
#[test]
fn at_the_largest_numbers() -> Result<()> {
    let types = [
        DType::F8E5M2,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ];
    let program = jit(|x: Tensor| {
        let in_each = types.map(|dtype| {
            let largest = dtype.largest_finite().unwrap_or(1.0) * 0.375;
            let x = Tensor::full(largest, dtype, [2]) * x.cast(dtype);
            let finite = ENDS.iter().map(|(_, f, ..)| f(x).is_finite().all(..));
            finite.collect::<Vec<_>>()
        });
        in_each.to_vec()
    });
    let found = program.call(Array::from_slice(&[-1f32, 1.0], [2])?)?;
    let mut wrong = Vec::new();
    for (dtype, of_type) in types.iter().zip(found) {
        for ((name, ..), is_finite) in ENDS.iter().zip(of_type) {
            if !is_finite.item::<bool>()? {
                wrong.push(format!("{name} of {dtype}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Half of a sum that overflows is infinite, and a sum of halves is not: XLA makes the one of the other.
#[test]
fn large_numbers_stay_what_they_are() -> Result<()> {
    let values = [3e38f32, -3e38, 2e38, 4.0];
    let found = jit(|x: Tensor| x.squareplus(4.0)).call(Array::from_slice(&values, [4])?)?;
    let found = found.to_vec::<f32>()?;
    for (found, x) in found.iter().zip(values) {
        let wanted = (f64::from(x) + f64::from(x).hypot(2.0)) / 2.0;
        let off = (f64::from(*found) - wanted).abs();
        assert!(
            off <= 1e-6 * wanted.abs().max(1.0),
            "squareplus({x}) is {wanted}, not {found}"
        );
    }
    Ok(())
}
