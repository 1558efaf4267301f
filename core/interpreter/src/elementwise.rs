//! Functions of single elements.

use std::cmp::Ordering;

use half::{bf16, f16};
use shardax_core::{
    DType, Element, Literal, Number,
    ir::{Binary, Comparison, Unary},
};

use super::{float, int};

pub(super) fn unary(op: Unary, v: Number, dtype: DType) -> Number {
    match (op, v) {
        (Unary::Abs, Number::Int(v)) => return Number::Int(v.wrapping_abs()),
        (Unary::Neg, Number::Int(v)) => return Number::Int(v.wrapping_neg()),
        (Unary::Sign, Number::Int(v)) => return Number::Int(v.signum()),
        (Unary::Not, Number::Int(v)) => return Number::Int(!v),
        (Unary::Not, Number::Bool(v)) => return Number::Bool(!v),
        (Unary::CountLeadingZeros | Unary::PopulationCount, v) => {
            return Number::Int(count_bits(op, int(v), dtype));
        }
        (Unary::IsFinite, v) => return Number::Bool(float(v).is_finite()),
        _ => {}
    }
    let v = float(v);
    Number::Float(match op {
        Unary::Abs => v.abs(),
        Unary::Acos => v.acos(),
        Unary::Acosh => v.acosh(),
        Unary::Asin => v.asin(),
        Unary::Asinh => v.asinh(),
        Unary::Atan => v.atan(),
        Unary::Atanh => v.atanh(),
        Unary::Cbrt => v.cbrt(),
        Unary::Ceil => v.ceil(),
        Unary::Cos => v.cos(),
        Unary::Cosh => v.cosh(),
        Unary::Digamma => digamma(v),
        Unary::Erf => libm::erf(v),
        Unary::Erfc => libm::erfc(v),
        Unary::Exp => v.exp(),
        Unary::Expm1 => v.exp_m1(),
        Unary::Floor => v.floor(),
        Unary::Lgamma => libm::lgamma(v),
        Unary::Log => v.ln(),
        Unary::Log1p => v.ln_1p(),
        Unary::Logistic => 1.0 / (1.0 + (-v).exp()),
        Unary::Neg => -v,
        Unary::Not => panic!("the complement of a float"),
        Unary::Round => v.round(),
        Unary::RoundEven => v.round_ties_even(),
        Unary::Rsqrt => 1.0 / v.sqrt(),
        Unary::Sign if v == 0.0 || v.is_nan() => v,
        Unary::Sign => v.signum(),
        Unary::Sin => v.sin(),
        Unary::Sinh => v.sinh(),
        Unary::Sqrt => v.sqrt(),
        Unary::Tan => v.tan(),
        Unary::Tanh => v.tanh(),
        Unary::Imag | Unary::Real => panic!("the interpreter has no complex numbers"),
        Unary::CountLeadingZeros | Unary::IsFinite | Unary::PopulationCount => {
            unreachable!("handled above")
        }
    })
}

/// The bits of an integer type that are set, or the zeros before the first of them.
fn count_bits(op: Unary, v: i64, dtype: DType) -> i64 {
    let bits = dtype.bits() as u32;
    let v = v as u64 & (u64::MAX >> (64 - bits));
    i64::from(match op {
        Unary::PopulationCount => v.count_ones(),
        _ => v.leading_zeros() - (64 - bits),
    })
}

/// The Bernoulli numbers B2, B4, ... over which asymptotic series of gamma functions run.
const BERNOULLI: [f64; 8] = [
    1.0 / 6.0,
    -1.0 / 30.0,
    1.0 / 42.0,
    -1.0 / 30.0,
    5.0 / 66.0,
    -691.0 / 2730.0,
    7.0 / 6.0,
    -3617.0 / 510.0,
];

/// By the asymptotic series, reached by recurrence and, below 1/2, by reflection. At 0 it is the limit from the side that the
/// sign of 0 says.
fn digamma(x: f64) -> f64 {
    use std::f64::consts::PI;
    if x == 0.0 {
        return f64::INFINITY.copysign(-x);
    }
    if x <= 0.0 && x == x.floor() {
        return f64::NAN;
    }
    if x < 0.5 {
        return digamma(1.0 - x) - PI / (PI * x).tan();
    }
    if x < 15.0 {
        return digamma(x + 1.0) - 1.0 / x;
    }
    let series = BERNOULLI.iter().zip(1..).map(|(b, n)| {
        let k = 2 * n;
        b / (f64::from(k) * x.powi(k))
    });
    x.ln() - 0.5 / x - series.sum::<f64>()
}

/// `(-1)^(n+1) n! zeta(n + 1, x)`, of which the first terms are summed, and the rest estimated by the
/// formula of Euler and Maclaurin.
fn polygamma(n: f64, x: f64) -> f64 {
    if n == 0.0 {
        return digamma(x);
    }
    if x == f64::INFINITY {
        return 0.0;
    }
    if x <= 0.0 && x == x.floor() {
        // Both sides of a pole agree where the derivative is of odd order.
        return if n % 2.0 == 1.0 {
            f64::INFINITY
        } else {
            f64::NAN
        };
    }
    let s = n + 1.0;
    let first = (0..20).map(|k| (x + f64::from(k)).powf(-s)).sum::<f64>();
    let a = x + 20.0;
    let mut zeta = first + a.powf(1.0 - s) / (s - 1.0) + 0.5 * a.powf(-s);
    let mut term = s * a.powf(-s - 1.0) / 2.0;
    for (b, j) in BERNOULLI.iter().zip(1..) {
        zeta += b * term;
        let k = f64::from(2 * j);
        term *= (s + k - 1.0) * (s + k) / ((k + 1.0) * (k + 2.0) * a * a);
    }
    let sign = if n % 2.0 == 0.0 { -1.0 } else { 1.0 };
    sign * libm::tgamma(n + 1.0) * zeta
}

/// The neighbor of `a` in its type, in the direction of `b`.
fn next_after(a: f64, b: f64, dtype: DType) -> f64 {
    let (up, down) = match dtype {
        DType::F32 => (
            f64::from((a as f32).next_up()),
            f64::from((a as f32).next_down()),
        ),
        _ => (a.next_up(), a.next_down()),
    };
    match a.partial_cmp(&b) {
        Some(Ordering::Less) => up,
        Some(Ordering::Greater) => down,
        Some(Ordering::Equal) => b,
        None => f64::NAN,
    }
}

pub(super) fn binary(op: Binary, a: Number, b: Number, dtype: DType) -> Number {
    match (a, b) {
        (Number::Float(a), Number::Float(b)) => Number::Float(match op {
            Binary::Add => a + b,
            Binary::Atan2 => a.atan2(b),
            Binary::Div => a / b,
            Binary::DivOrZero if a == 0.0 => 0.0,
            Binary::DivOrZero => a / b,
            Binary::Max => larger(a, b),
            Binary::Min => -larger(-a, -b),
            Binary::Mul => a * b,
            Binary::MulOrZero if a == 0.0 || b == 0.0 => 0.0,
            Binary::MulOrZero => a * b,
            Binary::NextAfter => next_after(a, b, dtype),
            Binary::Polygamma => polygamma(a, b),
            Binary::Pow => a.powf(b),
            Binary::Rem => a % b,
            Binary::Sub => a - b,
            other => panic!("`{}` of floats", other.name()),
        }),
        (Number::Bool(a), Number::Bool(b)) => Number::Bool(match op {
            Binary::Add | Binary::Max | Binary::Or => a | b,
            Binary::Mul | Binary::Min | Binary::And => a & b,
            Binary::Xor => a ^ b,
            other => panic!("`{}` of booleans", other.name()),
        }),
        _ => Number::Int(binary_int(op, int(a), int(b), dtype)),
    }
}

/// The larger; NaN if one is.
fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

/// Integers are kept as the i64 of the same value, and wrapped to their type by the caller.
fn binary_int(op: Binary, a: i64, b: i64, dtype: DType) -> i64 {
    let bits = dtype.bits() as i64;
    let within = (0..bits).contains(&b);
    if dtype == DType::U64 {
        // Others hold all their numbers.
        let (a, b) = (a as u64, b as u64);
        match op {
            Binary::Div => return (a / b) as i64,
            Binary::Max => return a.max(b) as i64,
            Binary::Min => return a.min(b) as i64,
            Binary::Rem => return (a % b) as i64,
            _ => {}
        }
    }
    match op {
        Binary::Add => a.wrapping_add(b),
        Binary::And => a & b,
        Binary::Div => a.wrapping_div(b),
        Binary::Max => a.max(b),
        Binary::Min => a.min(b),
        Binary::Mul => a.wrapping_mul(b),
        Binary::Or => a | b,
        Binary::Pow => (0..b).fold(1, |power: i64, _| power.wrapping_mul(a)),
        Binary::Rem => a.wrapping_rem(b),
        Binary::ShiftLeft => {
            if within {
                a.wrapping_shl(b as u32)
            } else {
                0
            }
        }
        Binary::ShiftRight if dtype == DType::U64 => {
            (a as u64).checked_shr(b as u32).unwrap_or(0) as i64
        }
        Binary::ShiftRightLogical if within => ((a as u64 & (u64::MAX >> (64 - bits))) >> b) as i64,
        Binary::ShiftRightLogical => 0,
        // Other unsigned numbers are not negative here.
        Binary::ShiftRight => a >> if within { b } else { 63 },
        Binary::Sub => a.wrapping_sub(b),
        Binary::Xor => a ^ b,
        other => panic!("`{}` of integers", other.name()),
    }
}

pub(super) fn compare(op: Comparison, a: Number, b: Number) -> bool {
    let order = match (a, b) {
        (Number::Float(a), Number::Float(b)) => a.partial_cmp(&b),
        _ => Some(int(a).cmp(&int(b))),
    };
    match op {
        Comparison::Eq => order.is_some_and(|o| o.is_eq()),
        Comparison::Ne => order.is_none_or(|o| o.is_ne()),
        Comparison::Lt => order.is_some_and(|o| o.is_lt()),
        Comparison::Le => order.is_some_and(|o| o.is_le()),
        Comparison::Gt => order.is_some_and(|o| o.is_gt()),
        Comparison::Ge => order.is_some_and(|o| o.is_ge()),
    }
}

pub(super) fn bitcast(v: Number, from: DType, to: DType) -> Number {
    let literal = Literal::scalar(v, from).expect("a value of its own type");
    let bytes = literal.bytes();
    match to {
        DType::F16 => f16::from_bytes(bytes)[0].to_f64().into(),
        DType::BF16 => bf16::from_bytes(bytes)[0].to_f64().into(),
        DType::F32 => f32::from_bytes(bytes)[0].into(),
        DType::F64 => f64::from_bytes(bytes)[0].into(),
        DType::I32 => i32::from_bytes(bytes)[0].into(),
        DType::U32 => u32::from_bytes(bytes)[0].into(),
        DType::I64 | DType::U64 => Number::Int(i64::from_bytes(bytes)[0]),
        other => panic!("the interpreter has no bitcast to {other}"),
    }
}

/// Rounds to `mantissa` bits after the leading one, halves to even, and what `exponent` bits cannot
/// reach to infinity or 0.
pub(super) fn reduce_precision(v: Number, exponent: u32, mantissa: u32) -> Number {
    let v = float(v);
    if v == 0.0 || !v.is_finite() {
        return v.into();
    }
    let largest = (1 << (exponent - 1)) - 1;
    let unit = 2f64.powi(v.abs().log2().floor() as i32 - mantissa as i32);
    let rounded = (v / unit).round_ties_even() * unit;
    let size = rounded.abs().log2().floor() as i32;
    let zero = 0f64.copysign(v);
    Number::Float(match size {
        _ if size > largest => f64::INFINITY.copysign(v),
        _ if size < 1 - largest => zero,
        _ => rounded,
    })
}
