//! Derivatives of element-wise functions.
//!
//! Conventions where a function has a kink or a jump: `abs` and `sign` have derivative 0 at 0, and
//! rounding has derivative 0 everywhere; `max` and `min` of equal operands share the derivative
//! equally; `atan2` has derivative 0 at the origin, and a complex absolute value at 0; `x^y` has
//! derivative 0 by `x` where `y` is 0, and 0 by `y` where `x` is 0.
//!
//! A slope may be infinite or NaN where nothing depends on it: in the branch of a `select` that was
//! not taken, or in `norm(x)^2` at 0. There the tangent or cotangent is 0, and it stays 0: slopes are
//! multiplied by [`Binary::MulOrZero`] and [`Binary::DivOrZero`], which are plain products and
//! quotients wherever the other factor is a known number. A tangent that is not 0 gets the infinite
//! slope: `sqrt` has derivative infinity at 0. And an infinite one that meets a slope of 0 stops there:
//! `sqrt(x^2)` has derivative 0 at 0, as `|x|` has.

use std::f64::consts::FRAC_2_SQRT_PI;

use super::jvp::{no_derivative, sum};
use crate::graph::Equation;
use crate::lax;
use crate::op::{Binary, Comparison, Unary};
use crate::tensor::Tensor;
use crate::trace::known_number;

/// The product of a tangent and a slope.
fn scaled(t: Tensor, slope: Tensor) -> Tensor {
    lax::binary(Binary::MulOrZero, t, slope)
}

/// The quotient of a tangent and the inverse of a slope.
fn divided(t: Tensor, by: Tensor) -> Tensor {
    lax::binary(Binary::DivOrZero, t, by)
}

pub(super) fn number(value: f64, like: Tensor) -> Tensor {
    lax::full(value.into(), &like.ty())
}

pub(super) fn unary(op: Unary, x: Tensor, t: Tensor, y: Tensor) -> Option<Tensor> {
    let factor = match op {
        Unary::Abs if x.dtype().is_complex() => return Some(complex_abs(x, t, y)),
        Unary::Abs => lax::unary(Unary::Sign, x),
        Unary::Acos => lax::neg(lax::unary(Unary::Rsqrt, one_minus_square(x))),
        Unary::Acosh => {
            // sqrt((x - 1)(x + 1)), without the cancellation of x^2 - 1.
            let one = number(1.0, x);
            let below = lax::unary(Unary::Rsqrt, lax::binary(Binary::Sub, x, one));
            lax::mul(below, lax::unary(Unary::Rsqrt, lax::add(x, one)))
        }
        Unary::Asin => lax::unary(Unary::Rsqrt, one_minus_square(x)),
        Unary::Asinh => {
            let square = lax::add(lax::mul(x, x), number(1.0, x));
            lax::unary(Unary::Rsqrt, square)
        }
        Unary::Atan => {
            let square = lax::add(number(1.0, x), lax::mul(x, x));
            return Some(divided(t, square));
        }
        Unary::Atanh => return Some(divided(t, one_minus_square(x))),
        Unary::Cbrt => lax::binary(Binary::Div, number(1.0 / 3.0, x), lax::mul(y, y)),
        Unary::Cosh => lax::unary(Unary::Sinh, x),
        Unary::Digamma => lax::binary(Binary::Polygamma, number(1.0, x), x),
        Unary::Erfc => {
            let bell = lax::unary(Unary::Exp, lax::neg(lax::mul(x, x)));
            lax::mul(number(-FRAC_2_SQRT_PI, x), bell)
        }
        Unary::Imag | Unary::Real => return Some(lax::unary(op, t)),
        Unary::Lgamma => lax::unary(Unary::Digamma, x),
        Unary::Sinh => lax::unary(Unary::Cosh, x),
        Unary::Tan => lax::add(number(1.0, y), lax::mul(y, y)),
        Unary::Cos => lax::neg(lax::unary(Unary::Sin, x)),
        Unary::Erf => {
            let bell = lax::unary(Unary::Exp, lax::neg(lax::mul(x, x)));
            lax::mul(number(FRAC_2_SQRT_PI, x), bell)
        }
        Unary::Exp => y,
        Unary::Expm1 => lax::add(y, number(1.0, y)),
        Unary::Log => return Some(divided(t, x)),
        Unary::Log1p => {
            return Some(divided(t, lax::add(x, number(1.0, x))));
        }
        Unary::Logistic => lax::mul(y, lax::binary(Binary::Sub, number(1.0, y), y)),
        Unary::Neg => return Some(lax::neg(t)),
        Unary::Rsqrt => {
            let slope = lax::binary(Binary::Div, y, x);
            lax::mul(number(-0.5, x), slope)
        }
        Unary::Sin => lax::unary(Unary::Cos, x),
        Unary::Sqrt => lax::binary(Binary::Div, number(0.5, y), y),
        Unary::Tanh => lax::binary(Binary::Sub, number(1.0, y), lax::mul(y, y)),
        Unary::Sign if x.dtype().is_complex() => return Some(complex_sign(x, t, y)),
        Unary::Ceil
        | Unary::CountLeadingZeros
        | Unary::Floor
        | Unary::IsFinite
        | Unary::Not
        | Unary::PopulationCount
        | Unary::Round
        | Unary::RoundEven
        | Unary::Sign => return None,
    };
    Some(scaled(t, factor))
}

pub(super) fn binary(
    equation: &Equation,
    op: Binary,
    [x, y]: [Tensor; 2],
    t: [Option<Tensor>; 2],
    z: Tensor,
) -> Option<Tensor> {
    let [tx, ty] = t;
    match op {
        Binary::Add => sum(tx, ty),
        Binary::Sub => match (tx, ty) {
            (Some(tx), Some(ty)) => Some(lax::binary(Binary::Sub, tx, ty)),
            (tx, ty) => tx.or(ty.map(lax::neg)),
        },
        Binary::Mul if x == y && tx == ty => tx.map(|t| scaled(t, lax::add(x, x))),
        Binary::Mul => sum(tx.map(|t| scaled(t, y)), ty.map(|t| scaled(t, x))),
        Binary::Div => {
            let left = tx.map(|t| divided(t, y));
            let right = ty.map(|t| lax::neg(scaled(t, lax::binary(Binary::Div, z, y))));
            sum(left, right)
        }
        Binary::MulOrZero => sum(tx.map(|t| scaled(t, y)), ty.map(|t| scaled(x, t))),
        Binary::DivOrZero => {
            let left = tx.map(|t| divided(t, y));
            let right = ty.map(|t| lax::neg(scaled(divided(z, y), t)));
            sum(left, right)
        }
        Binary::Max => shared(Comparison::Gt, x, y, tx, ty),
        Binary::Min => shared(Comparison::Lt, x, y, tx, ty),
        Binary::Pow => {
            let left = tx.and_then(|t| Some(scaled(t, power_slope(x, y)?)));
            let right = ty.map(|t| scaled(t, lax::mul(z, log_or_zero(x))));
            sum(left, right)
        }
        Binary::Rem => {
            let right = ty.map(|t| {
                let quotient = lax::binary(Binary::Div, x, y);
                let size = lax::unary(Unary::Floor, lax::unary(Unary::Abs, quotient));
                let whole = lax::mul(lax::unary(Unary::Sign, quotient), size);
                lax::neg(scaled(t, whole))
            });
            sum(tx, right)
        }
        Binary::Atan2 => {
            // The coordinates over the square of the length, and 0 at the origin.
            let square = lax::add(lax::mul(x, x), lax::mul(y, y));
            let left = tx.map(|t| scaled(t, divided(y, square)));
            let right = ty.map(|t| lax::neg(scaled(t, divided(x, square))));
            sum(left, right)
        }
        Binary::Complex => {
            let part = |t: Option<Tensor>| t.unwrap_or_else(|| number(0.0, x));
            (tx.is_some() || ty.is_some()).then(|| lax::binary(Binary::Complex, part(tx), part(ty)))
        }
        Binary::Polygamma => {
            if tx.is_some() {
                no_derivative(equation, "there is no derivative by the order");
            }
            ty.map(|t| {
                let next = lax::add(x, number(1.0, x));
                scaled(t, lax::binary(Binary::Polygamma, next, y))
            })
        }
        Binary::NextAfter => {
            no_derivative(equation, "the neighbors of a number have no derivative")
        }
        Binary::And
        | Binary::Or
        | Binary::ShiftLeft
        | Binary::ShiftRight
        | Binary::ShiftRightLogical
        | Binary::Xor => None,
    }
}

/// `1 - x^2`, without cancellation near 1.
fn one_minus_square(x: Tensor) -> Tensor {
    let one = number(1.0, x);
    lax::mul(lax::binary(Binary::Sub, one, x), lax::add(one, x))
}

/// `Re(conj(x) t) / |x|`, and 0 at 0.
fn complex_abs(x: Tensor, t: Tensor, y: Tensor) -> Tensor {
    let part = |op: Unary, x: Tensor| lax::unary(op, x);
    // At 0 the direction is 0, and not its quotient with the length.
    let along = |op: Unary| scaled(part(op, t), divided(part(op, x), y));
    lax::add(along(Unary::Real), along(Unary::Imag))
}

/// The derivative of `x / |x|`, and 0 at 0.
fn complex_sign(x: Tensor, t: Tensor, y: Tensor) -> Tensor {
    let length = lax::unary(Unary::Abs, x);
    let (zero, one) = (number(0.0, length), number(1.0, length));
    let is_zero = lax::compare(Comparison::Eq, length, zero);
    let inverse = lax::select(is_zero, zero, lax::binary(Binary::Div, one, length));
    let change = complex_abs(x, t, length);
    let widen = |part: Tensor| lax::binary(Binary::Complex, part, zero);
    let across = lax::binary(Binary::Sub, t, lax::mul(y, widen(change)));
    lax::mul(across, widen(inverse))
}

/// The tangent of the operand that wins the comparison; half of each where neither does.
fn shared(
    wins: Comparison,
    x: Tensor,
    y: Tensor,
    tx: Option<Tensor>,
    ty: Option<Tensor>,
) -> Option<Tensor> {
    let weight = |one: Tensor, other: Tensor| {
        let (full, half, none) = (number(1.0, x), number(0.5, x), number(0.0, x));
        let tied = lax::select(lax::compare(Comparison::Eq, one, other), half, none);
        lax::select(lax::compare(wins, one, other), full, tied)
    };
    let left = tx.map(|t| scaled(t, weight(x, y)));
    let right = ty.map(|t| scaled(t, weight(y, x)));
    sum(left, right)
}

/// `y * x^(y-1)`, and 0 (`None` if that is known) where `y` is 0, for then the power is the constant
/// 1 even at `x = 0`.
fn power_slope(x: Tensor, y: Tensor) -> Option<Tensor> {
    if let Some(known) = known_number(y) {
        let exponent = known.as_f64();
        let power = || lax::binary(Binary::Pow, x, number(exponent - 1.0, y));
        return match exponent {
            0.0 => None,
            1.0 => Some(y),
            2.0 => Some(lax::add(x, x)),
            _ => Some(lax::mul(y, power())),
        };
    }
    let zero = number(0.0, y);
    let is_constant = lax::compare(Comparison::Eq, y, zero);
    let one = number(1.0, y);
    // Where the slope is not used, neither are its own derivatives, which must be finite then.
    let exponent = lax::select(is_constant, one, lax::binary(Binary::Sub, y, one));
    let slope = lax::mul(y, lax::binary(Binary::Pow, x, exponent));
    Some(lax::select(is_constant, zero, slope))
}

/// `log x`, and 0 at 0: the power is 0 there whatever a positive exponent is.
fn log_or_zero(x: Tensor) -> Tensor {
    let is_zero = lax::compare(Comparison::Eq, x, number(0.0, x));
    lax::unary(Unary::Log, lax::select(is_zero, number(1.0, x), x))
}
