//! Values, first and second derivatives of element-wise functions in every floating-point type.
//!
//! `goldens/slopes.json` has them to the last digit of an f64 (`scripts/slopes_mpmath.py`). An error may be what a few
//! roundings of the result make it, or a few of the operands: of those the next derivatives say what they change.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use shardax::prelude::*;
use shardax::xla::Result;

type One = fn(Tensor) -> Tensor;
type Two = fn(Tensor, Tensor) -> Tensor;

const ONE: &[(&str, One)] = &[
    ("acos", |x| x.acos()),
    ("acosh", |x| x.acosh()),
    ("asin", |x| x.asin()),
    ("asinh", |x| x.asinh()),
    ("atan", |x| x.atan()),
    ("atanh", |x| x.atanh()),
    ("cbrt", |x| x.cbrt()),
    ("cos", |x| x.cos()),
    ("cosh", |x| x.cosh()),
    ("digamma", |x| x.digamma()),
    ("elu", |x| x.elu(1.0)),
    ("erf", |x| x.erf()),
    ("erf_inv", |x| x.erf_inv()),
    ("erfc", |x| x.erfc()),
    ("exp", |x| x.exp()),
    ("exp2", |x| x.exp2()),
    ("expm1", |x| x.expm1()),
    ("gelu", |x| x.gelu()),
    ("gelu_exact", |x| x.gelu_exact()),
    ("lgamma", |x| x.lgamma()),
    ("log", |x| x.log()),
    ("log10", |x| x.log10()),
    ("log1p", |x| x.log1p()),
    ("log2", |x| x.log2()),
    ("log_sigmoid", |x| x.log_sigmoid()),
    ("logit", |x| x.logit()),
    ("mish", |x| x.mish()),
    ("pow 0.3125", |x| x.pow(0.3125)),
    ("pow -2.5", |x| x.pow(-2.5)),
    ("pow 3", |x| x.pow(3)),
    ("recip", |x| x.recip()),
    ("rsqrt", |x| x.rsqrt()),
    ("sigmoid", |x| x.sigmoid()),
    ("silu", |x| x.silu()),
    ("sin", |x| x.sin()),
    ("sinc", |x| x.sinc()),
    ("sinh", |x| x.sinh()),
    ("softplus", |x| x.softplus()),
    ("softsign", |x| x.softsign()),
    ("sqrt", |x| x.sqrt()),
    ("square", |x| x.square()),
    ("squareplus", |x| x.squareplus(4.0)),
    ("tan", |x| x.tan()),
    ("tanh", |x| x.tanh()),
];

/// Second derivatives that are a difference, and 0 at 0, with an error beside the first.
const DIFFERENCES: &[&str] = &["acos", "asin", "atanh", "sigmoid"];

const TWO: &[(&str, Two)] = &[
    ("atan2", |x, y| x.atan2(y)),
    ("div", |x, y| x / y),
    ("hypot", |x, y| x.hypot(y)),
    ("logaddexp", |x, y| x.logaddexp(y)),
    ("mul", |x, y| x * y),
    ("pow", |x, y| x.pow(y)),
];

/// An element type and the errors that are allowed in it.
struct Kind {
    dtype: DType,
    /// Half the distance of neighbors at 1.
    rounding: f64,
    /// How many roundings an error may have, of which some are those of the compiler's own functions.
    roundings: f64,
    /// The least number with a full mantissa.
    smallest: f64,
    largest: f64,
    /// An error that is always allowed: what is smaller may be flushed to 0.
    floor: f64,
}

fn kinds() -> Vec<Kind> {
    let narrow = [DType::F8E4M3FN, DType::F8E5M2, DType::F16, DType::BF16];
    let kind = |dtype: DType| {
        let (mantissa, smallest) = dtype.precision().expect("a float");
        Kind {
            dtype,
            rounding: (-f64::from(mantissa) - 1.0).exp2(),
            roundings: match dtype {
                DType::F64 => 100.0,
                DType::F32 => 20.0,
                _ => 6.0,
            },
            smallest,
            // The goldens have nothing above.
            largest: dtype.largest_finite().expect("a float").min(1e308),
            floor: match dtype.bits() {
                8 => smallest * (-f64::from(mantissa)).exp2(),
                _ => 2.0 * smallest,
            },
        }
    };
    let all = narrow.into_iter().chain([DType::F32, DType::F64]);
    all.map(kind).collect()
}

impl Kind {
    /// Whether the type has this number, with a full mantissa.
    fn has(&self, x: f64) -> bool {
        let unit = x.abs().log2().floor().exp2() * 2.0 * self.rounding;
        let in_range = (self.smallest..=self.largest).contains(&x.abs());
        x == 0.0 || in_range && (x / unit).fract() == 0.0
    }

    /// What is wrong with a number, where an error of the operands changes it by `moved` times that error. What
    /// the type does not reach is infinite, or NaN where it has no infinity.
    fn fault(&self, found: f64, expected: f64, moved: f64, overflows: bool) -> Option<String> {
        let limit = self.largest * (1.0 - 2.0 * self.rounding);
        if (overflows || expected.abs() > limit) && (found.is_nan() || found.abs() >= limit) {
            return None;
        }
        let bound = self.roundings * self.rounding * (expected.abs() + moved);
        let error = (found - expected).abs();
        let is_near = error <= bound.max(self.floor);
        (!is_near).then(|| {
            let count = error / bound * self.roundings;
            format!("{found:e}, not {expected:e}: {count:.1} roundings")
        })
    }
}

/// The rows of each function.
static GOLDENS: LazyLock<BTreeMap<String, Vec<Vec<f64>>>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../goldens/slopes.json")).expect("goldens")
});

/// The rows of a function whose `operands` first numbers the type has.
fn rows(name: &str, operands: usize, kind: &Kind) -> Vec<&'static [f64]> {
    let rows = GOLDENS[name].iter().map(Vec::as_slice);
    rows.filter(|row| row[..operands].iter().all(|&x| kind.has(x)))
        .collect()
}

fn column(rows: &[&[f64]], operand: usize) -> Result<Array> {
    let x: Vec<f64> = rows.iter().map(|row| row[operand]).collect();
    Array::from_slice(&x, [x.len()])
}

#[test]
fn of_one_operand() -> Result<()> {
    let mut wrong = Vec::new();
    for kind in kinds() {
        let dtype = kind.dtype;
        let program = jit(|xs: Vec<Tensor>| {
            let results = ONE.iter().zip(xs).map(|((_, f), x)| {
                let x = x.cast(dtype);
                let ones = Tensor::ones(dtype, x.shape());
                let slope = |x: Tensor| grad(|x: Tensor| f(x).cast(DType::F64).sum(..))(x);
                let second = grad(|x: Tensor| slope(x).cast(DType::F64).sum(..));
                let results = [
                    f(x),
                    slope(x),
                    jvp(f, x, ones).1,
                    second(x),
                    jvp(slope, x, ones).1,
                ];
                results.map(|y| y.cast(DType::F64))
            });
            results.collect::<Vec<_>>()
        });
        let rows: Vec<_> = ONE.iter().map(|(name, _)| rows(name, 1, &kind)).collect();
        let xs = rows.iter().map(|rows| column(rows, 0));
        let results = program.call(xs.collect::<Result<_>>()?)?;
        for (((name, _), rows), results) in ONE.iter().zip(&rows).zip(&results) {
            for (result, order) in results.iter().zip([0, 1, 1, 2, 2]) {
                for (row, found) in rows.iter().zip(result.to_vec::<f64>()?) {
                    let (x, exact) = (row[0], &row[1..]);
                    let mut moved = (x * exact[order + 1]).abs();
                    if order == 2 && DIFFERENCES.contains(name) {
                        moved += exact[1].abs();
                    }
                    let overflows = exact[..order].iter().any(|y| y.abs() > kind.largest);
                    let fault = kind.fault(found, exact[order], moved, overflows);
                    wrong.extend(fault.map(|fault| {
                        format!("{dtype} {name}, derivative {order} at {x:e}: {fault}")
                    }));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[test]
fn of_two_operands() -> Result<()> {
    // What is computed of the goldens' f, fx, fy, fxx, fxy and fyy, and the places of the derivatives of each.
    let places = [0, 1, 2, 3, 4, 5, 4];
    let next = [[1, 2], [3, 4], [4, 5], [6, 7], [7, 8], [8, 9]];
    let mut wrong = Vec::new();
    for kind in kinds() {
        let dtype = kind.dtype;
        let program = jit(|xs: Vec<[Tensor; 2]>| {
            let results = TWO.iter().zip(xs).map(|((_, f), x)| {
                let x = x.map(|x| x.cast(dtype));
                let sum = |x: Tensor| x.cast(DType::F64).sum(..);
                let slopes = |x: [Tensor; 2]| grad(|[x, y]: [Tensor; 2]| sum(f(x, y)))(x);
                let second = |i: usize| grad(|x: [Tensor; 2]| sum(slopes(x)[i]))(x);
                let [a, b] = slopes(x);
                let [[aa, ab], [ba, bb]] = [second(0), second(1)];
                [f(x[0], x[1]), a, b, aa, ab, bb, ba].map(|y| y.cast(DType::F64))
            });
            results.collect::<Vec<_>>()
        });
        let rows: Vec<_> = TWO.iter().map(|(name, _)| rows(name, 2, &kind)).collect();
        let xs = rows
            .iter()
            .map(|rows| Ok([column(rows, 0)?, column(rows, 1)?]));
        let results = program.call(xs.collect::<Result<_>>()?)?;
        for (((name, _), rows), results) in TWO.iter().zip(&rows).zip(&results) {
            for (result, place) in results.iter().zip(places) {
                for (row, found) in rows.iter().zip(result.to_vec::<f64>()?) {
                    let (x, exact) = row.split_at(2);
                    let moved = (0..2).map(|i| (x[i] * exact[next[place][i]]).abs()).sum();
                    let lower = &exact[..[0, 1, 1, 3, 3, 3][place]];
                    let overflows = lower.iter().any(|y| y.abs() > kind.largest);
                    let fault = kind.fault(found, exact[place], moved, overflows);
                    wrong.extend(
                        fault.map(|fault| {
                            format!("{dtype} {name}, number {place} at {x:?}: {fault}")
                        }),
                    );
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}
