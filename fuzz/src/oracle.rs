//! What a program should compute, and how well anybody can know it.
//!
//! The interpreter computes in f64 and rounds to the element type after each operation, as a device
//! that does everything in order would. Devices add in another order, fuse, and have functions of
//! their own that are good to a few units in the last place. How much that may change a result is
//! found by Monte Carlo arithmetic (Parker: "Monte Carlo arithmetic", 1997): the interpreter runs
//! several times with random errors of that size in every operation that rounds. Where the runs
//! agree, devices must too; where they disagree about what is finite, or about a whole number, the
//! program does not determine the result and nothing is asked.

use std::panic::{AssertUnwindSafe, catch_unwind};

use shardax::{
    Combine, DType, Number, Reducer,
    ir::{Binary, CollectiveOp, Graph, Op, Unary},
};
use shardax_interpreter::{Array, Observer, interpret_with};

use crate::dice::Dice;

/// The results of several runs, the first of them without errors; of none, if the program does not determine them.
pub struct Oracle {
    runs: Vec<Vec<Array>>,
}

/// How a result compares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// As it should be.
    Right,
    /// The program does not determine it.
    Open,
    /// Element, found and wanted.
    Wrong(usize, f64, f64),
}

impl Oracle {
    /// Runs a graph so many times; `None` if the interpreter cannot. Of a program that does what no rule
    /// defines nothing is known.
    pub fn new(graph: &Graph, inputs: &[Array], times: u64) -> Option<Self> {
        let run = |seed: u64| {
            let mut noise = Noise {
                dice: Dice::new(seed),
                silent: seed == 0,
                flushes: seed % 2 == 1,
                undefined: false,
                exact: None,
            };
            let found = catch_unwind(AssertUnwindSafe(|| {
                interpret_with(graph, inputs, &mut noise)
            }));
            Some((found.ok()?, noise.undefined))
        };
        let runs: Vec<(Vec<Array>, bool)> = (0..times).map(run).collect::<Option<_>>()?;
        let is_undefined = runs.iter().any(|(_, undefined)| *undefined);
        let runs = runs.into_iter().map(|(run, _)| run);
        Some(Oracle {
            runs: runs.filter(|_| !is_undefined).collect(),
        })
    }

    /// The results without errors.
    pub fn exact(&self) -> &[Array] {
        self.runs.first().map_or(&[], Vec::as_slice)
    }

    /// Compares one result.
    pub fn judge(&self, result: usize, found: &[f64]) -> Verdict {
        let Some(wanted) = self.exact().get(result) else {
            return Verdict::Open;
        };
        let columns = self.runs.iter().map(|run| run[result].floats());
        let columns: Vec<Vec<f64>> = columns.collect();
        let dtype = wanted.ty.dtype;
        let mut verdict = Verdict::Right;
        if found.len() != wanted.data.len() {
            return Verdict::Wrong(0, f64::NAN, f64::NAN);
        }
        for (i, &value) in found.iter().enumerate() {
            let samples = columns.iter().map(|column| column[i]);
            match element(value, samples.collect(), dtype) {
                Verdict::Right => {}
                Verdict::Open => verdict = Verdict::Open,
                Verdict::Wrong(_, found, wanted) => return Verdict::Wrong(i, found, wanted),
            }
        }
        verdict
    }
}

/// Compares one element with what the runs gave.
fn element(found: f64, samples: Vec<f64>, dtype: DType) -> Verdict {
    let wanted = samples[0];
    let wrong = Verdict::Wrong(0, found, wanted);
    let alike = |a: f64, b: f64| a == b || a.is_nan() && b.is_nan();
    let Some((bits, smallest)) = dtype.precision() else {
        return match samples.iter().all(|s| *s == wanted) {
            _ if found == wanted => Verdict::Right,
            true => wrong,
            false => Verdict::Open,
        };
    };
    if samples.iter().any(|s| s.is_finite() != wanted.is_finite()) {
        return Verdict::Open;
    }
    if !wanted.is_finite() {
        return match samples.iter().all(|s| alike(*s, wanted)) {
            _ if alike(found, wanted) => Verdict::Right,
            true => wrong,
            false => Verdict::Open,
        };
    }
    let largest = dtype.largest_finite().unwrap_or(f64::MAX);
    if wanted.abs() > largest * 0.9 {
        return Verdict::Open;
    }
    let spread = samples
        .iter()
        .map(|s| (s - wanted).abs())
        .fold(0.0, f64::max);
    let unit = 0.5f64.powi(bits as i32);
    let bound = 16.0 * spread + 4.0 * unit * wanted.abs() + 64.0 * smallest;
    match (found - wanted).abs() <= bound {
        true => Verdict::Right,
        false => wrong,
    }
}

/// Random errors in what rounds.
struct Noise {
    dice: Dice,
    /// Makes none.
    silent: bool,
    /// Makes numbers 0 that are too small for the type's full precision, as devices may.
    flushes: bool,
    /// Whether the program did what no rule defines.
    undefined: bool,
    /// By element, whether a conversion keeps the number, or a division is exact.
    exact: Option<Vec<bool>>,
}

impl Observer for Noise {
    fn operands(&mut self, op: &Op, x: &mut [Array]) {
        if let Op::Convert(to) = op
            && to.is_integer()
            && x[0].is_float()
        {
            self.undefined |= x[0].floats().into_iter().any(|v| !holds(*to, v.trunc()));
        }
        // The series of the oracle begins at the argument, and ends 20 terms on.
        if let Op::Binary(Binary::Polygamma) = op {
            self.undefined |= x[1].floats().into_iter().any(|v| v < -15.0);
        }
        // Which side of the pole a zero is on is up to whoever made it, as is the sign of a NaN.
        if let Op::Unary(Unary::Digamma) = op {
            self.undefined |= x[0].floats().into_iter().any(|v| v == 0.0);
        }
        if let Op::BitcastConvert(_) = op {
            self.undefined |= x[0].is_float() && x[0].floats().iter().any(|v| v.is_nan());
        }
        // Devices may multiply by the reciprocal, and take that for 0 where it is denormal.
        if let Op::Binary(Binary::Div | Binary::DivOrZero) = op
            && let Some((_, smallest)) = x[1].ty.dtype.precision()
        {
            let limit = 0.5 / smallest;
            self.undefined |= x[1]
                .floats()
                .into_iter()
                .any(|v| v.is_finite() && v.abs() > limit);
        }
        // Whether a sum of such numbers overflows on the way depends on the order in which it is added.
        if let Op::DotGeneral(_) | Op::Conv(_) | Op::Reduce(Reducer::Sum, _) = op {
            let is_product = !matches!(op, Op::Reduce(..));
            self.undefined |= x.iter().any(|x| may_overflow(x, is_product));
        }
        self.exact = match op {
            Op::Convert(to) if to.is_float() && x[0].is_float() => {
                let rounded = Array::new(*to, &x[0].ty.shape, x[0].data.iter().copied());
                let pairs = rounded.floats().into_iter().zip(x[0].floats());
                Some(pairs.map(|(to, from)| to == from).collect())
            }
            // By a power of two; else a reciprocal may stand for it, and 3 / 3 is not 1.
            Op::Binary(Binary::Div | Binary::DivOrZero) if x[1].is_float() => {
                let divisors = x[1].floats().into_iter();
                Some(divisors.map(|v| is_short(v, 0)).collect())
            }
            _ => None,
        };
        // Padding is nothing to some algorithms and zeros, which an infinite number makes NaN, to others.
        if let Op::Conv(_) = op {
            let mut numbers = x.iter().flat_map(Array::floats);
            self.undefined |= numbers.any(|v| !v.is_finite());
        }
        if self.silent {
            return;
        }
        if let Some(units) = backward_error(op) {
            for array in x {
                self.disturb(array, units, 0.0);
            }
        }
    }

    fn results(&mut self, op: &Op, results: &mut [Array]) {
        for array in &mut *results {
            let narrow = matches!(array.ty.dtype, DType::F16 | DType::F8E4M3FN | DType::F8E5M2);
            // Whether a narrow number overflows depends on where a device rounds.
            if narrow && array.floats().iter().any(|v| !v.is_finite()) {
                self.undefined = true;
            }
            // What becomes of the other elements is up to the algorithm.
            let solves = matches!(op, Op::Cholesky | Op::TriangularSolve(_));
            if solves && array.floats().iter().any(|v| !v.is_finite()) {
                self.undefined = true;
            }
        }
        if self.silent {
            return;
        }
        if let Some((units, absolute)) = error(op) {
            for array in results {
                self.disturb(array, units, absolute);
            }
        } else if let Op::Shard(_) = op {
            // What moves between devices is rounded; other uses of a narrow number may have more digits.
            let narrow = results.iter_mut().filter(|x| x.ty.dtype.is_narrow_float());
            narrow.for_each(|array| self.disturb(array, 1.0, 0.0));
        }
    }
}

/// Whether finite numbers are so large that sums of them, or of their products, may overflow.
fn may_overflow(x: &Array, is_product: bool) -> bool {
    let largest = match x.ty.dtype {
        DType::F64 => f64::MAX,
        _ => f64::from(f32::MAX),
    };
    let most = match is_product {
        true => largest.sqrt() / 16.0,
        false => largest / 256.0,
    };
    let mut numbers = x.floats().into_iter();
    x.is_float() && numbers.any(|v| v.is_finite() && v.abs() > most)
}

/// Whether an integer type has a value.
fn holds(dtype: DType, v: f64) -> bool {
    let bits = dtype.bits() as i32;
    match dtype.is_signed_integer() {
        true => v >= -(2f64.powi(bits - 1)) && v < 2f64.powi(bits - 1),
        false => v >= 0.0 && v < 2f64.powi(bits),
    }
}

impl Noise {
    /// Changes each element that rounding may have changed by up to so many units in the last place, and
    /// by up to so many of those of 1.
    fn disturb(&mut self, array: &mut Array, units: f64, absolute: f64) {
        let Some((bits, smallest)) = array.ty.dtype.precision() else {
            return;
        };
        let unit = 0.5f64.powi(bits as i32 + 1);
        let dtype = array.ty.dtype;
        // A function of a number with few digits has many, but for a power of two now and then.
        let kept = if units > 2.0 { 0 } else { (bits / 2).min(12) };
        let exact = self.exact.take();
        let mut change = |(i, v): (usize, f64)| {
            let is_exact = match &exact {
                Some(exact) => exact[i],
                None => is_short(v, kept),
            };
            if !v.is_finite() || absolute == 0.0 && (v == 0.0 || is_exact) {
                return v;
            }
            if self.flushes && v.abs() < smallest {
                return 0.0;
            }
            let error = (self.dice.unit() * 2.0 - 1.0) * 2.0;
            v + error * unit * (units * v.abs() + absolute)
        };
        let numbers = array.floats().into_iter().enumerate();
        let changed: Vec<f64> = numbers.map(&mut change).collect();
        if array.is_float() {
            // f64 has no room between its numbers for less than one unit.
            let data = changed.into_iter().map(Number::Float);
            array.data = match dtype {
                DType::F64 => data.collect(),
                _ => Array::new(dtype, &array.ty.shape, data).data,
            };
        }
    }
}

/// Whether a number has so few digits that it is likely to be exact.
fn is_short(v: f64, kept: u32) -> bool {
    let mantissa = v.to_bits() << 12;
    mantissa << kept == 0
}

/// How large errors of an operation are: units in the last place of the result, and absolute ones.
fn error(op: &Op) -> Option<(f64, f64)> {
    Some(match op {
        Op::Unary(unary) => match unary {
            Unary::Lgamma | Unary::Digamma => (64.0, 64.0),
            Unary::Acos
            | Unary::Acosh
            | Unary::Asin
            | Unary::Asinh
            | Unary::Atan
            | Unary::Atanh
            | Unary::Cbrt
            | Unary::Cos
            | Unary::Cosh
            | Unary::Erf
            | Unary::Erfc
            | Unary::Exp
            | Unary::Expm1
            | Unary::Log
            | Unary::Log1p
            | Unary::Logistic
            | Unary::Rsqrt
            | Unary::Sin
            | Unary::Sinh
            | Unary::Sqrt
            | Unary::Tan
            | Unary::Tanh => (8.0, 0.0),
            Unary::Abs
            | Unary::Ceil
            | Unary::CountLeadingZeros
            | Unary::Floor
            | Unary::Imag
            | Unary::IsFinite
            | Unary::Neg
            | Unary::Not
            | Unary::PopulationCount
            | Unary::Real
            | Unary::Round
            | Unary::RoundEven
            | Unary::Sign => return None,
        },
        Op::Binary(binary) => match binary {
            Binary::Polygamma => (1024.0, 1.0),
            Binary::Pow | Binary::Atan2 => (16.0, 0.0),
            Binary::Add
            | Binary::Complex
            | Binary::Div
            | Binary::DivOrZero
            | Binary::Mul
            | Binary::MulOrZero
            | Binary::Rem
            | Binary::Sub => (1.0, 0.0),
            _ => return None,
        },
        Op::Convert(to) if to.is_float() => (1.0, 0.0),
        _ => return Some((backward_error(op)?, 0.0)),
    })
}

/// How far operands may be from those of which an operation gives the exact result, in units of their
/// last place.
fn backward_error(op: &Op) -> Option<f64> {
    Some(match op {
        Op::Reduce(Reducer::Sum | Reducer::Prod, _)
        | Op::ReduceWindow(Reducer::Sum | Reducer::Prod, _) => 2.0,
        Op::Cumulative(cumulative) => match cumulative.reducer {
            Reducer::Sum | Reducer::Prod => 2.0,
            _ => return None,
        },
        Op::Scatter {
            combine: Combine::Add | Combine::Mul,
            ..
        } => 2.0,
        Op::DotGeneral(_) | Op::Conv(_) => 2.0,
        // A product may be added before it is rounded.
        Op::Binary(Binary::Add | Binary::Sub) => 1.0,
        Op::Cholesky | Op::TriangularSolve(_) => 8.0,
        Op::Collective(collective) => match collective.kind {
            CollectiveOp::Psum | CollectiveOp::ReduceScatter(_) => 2.0,
            _ => return None,
        },
        Op::Unary(Unary::Sin | Unary::Cos | Unary::Tan) => 1.0,
        _ => return None,
    })
}
