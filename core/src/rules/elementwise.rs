//! Derivatives of element-wise functions.
//!
//! Conventions where a function has a kink or a jump: `abs` and `sign` have derivative 0 at 0, and
//! rounding has derivative 0 everywhere; `max` and `min` of equal operands share the derivative
//! equally; `atan2` has derivative 0 at the origin, and a complex absolute value at 0; `x^y` has
//! derivative 0 by `x` where `y` is 0, and by `y` where both are.
//!
//! A slope keeps its digits where the result has lost them: `tanh` is 1 from 9 on, and its slope
//! there is a small number and not 0, so it is computed from the operand. Squares that overflow before
//! the slope does are scaled. Of narrow types a slope of several operations is computed in `f32`.
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
use crate::literal::Number;
use crate::op::{Binary, Comparison, Unary};
use crate::tensor::{Tensor, scaled};
use crate::trace::known_number;

/// The quotient of a tangent and the inverse of a slope.
fn divided(t: Tensor, by: Tensor) -> Tensor {
    lax::binary(Binary::DivOrZero, t, by)
}

pub(super) fn number(value: f64, like: Tensor) -> Tensor {
    lax::full(value.into(), &like.ty())
}

pub(super) fn unary(op: Unary, x: Tensor, t: Tensor, y: Tensor) -> Option<Tensor> {
    Some(match op {
        Unary::Neg => lax::neg(t),
        Unary::Imag | Unary::Real => lax::unary(op, t),
        Unary::Abs if x.dtype().is_complex() => complex_abs(x, t, y),
        Unary::Sign if x.dtype().is_complex() => complex_sign(x, t, y),
        Unary::Log => divided(t, x),
        Unary::Log1p => divided(t, wide(x, |x| lax::add(x, number(1.0, x)))),
        Unary::Atanh => divided(t, wide(x, one_minus_square)),
        Unary::Abs => scaled(t, lax::unary(Unary::Sign, x)),
        Unary::Cos => scaled(t, lax::neg(lax::unary(Unary::Sin, x))),
        Unary::Cosh => scaled(t, lax::unary(Unary::Sinh, x)),
        Unary::Digamma => scaled(t, lax::binary(Binary::Polygamma, number(1.0, x), x)),
        Unary::Exp => scaled(t, y),
        Unary::Expm1 => scaled(t, lax::unary(Unary::Exp, x)),
        Unary::Lgamma => scaled(t, lax::unary(Unary::Digamma, x)),
        Unary::Sin => scaled(t, lax::unary(Unary::Cos, x)),
        Unary::Sinh => scaled(t, lax::unary(Unary::Cosh, x)),
        Unary::Sqrt => scaled(t, lax::binary(Binary::Div, number(0.5, y), y)),
        Unary::Acos => scaled(t, wide(x, |x| lax::neg(inverse_root(one_minus_square(x))))),
        Unary::Acosh => scaled(t, wide(x, acosh_slope)),
        Unary::Asin => scaled(t, wide(x, |x| inverse_root(one_minus_square(x)))),
        Unary::Asinh => scaled(t, wide(x, asinh_slope)),
        Unary::Atan => scaled(t, wide(x, atan_slope)),
        Unary::Cbrt => scaled(t, wide(y, cbrt_slope)),
        Unary::Erf => scaled(t, wide(x, |x| bell(FRAC_2_SQRT_PI, x))),
        Unary::Erfc => scaled(t, wide(x, |x| bell(-FRAC_2_SQRT_PI, x))),
        Unary::Logistic => scaled(t, wide(x, |x| logistic_slope(x, y))),
        Unary::Rsqrt => scaled(t, wide(x, |x| rsqrt_slope(x, y))),
        Unary::Tan => scaled(t, wide(y, |y| lax::add(number(1.0, y), lax::mul(y, y)))),
        Unary::Tanh => scaled(t, wide(x, |x| tanh_slope(x, y))),
        Unary::Ceil
        | Unary::CountLeadingZeros
        | Unary::Floor
        | Unary::IsFinite
        | Unary::Not
        | Unary::PopulationCount
        | Unary::Round
        | Unary::RoundEven
        | Unary::Sign => return None,
    })
}

/// A slope that takes several operations, of a narrow float in `f32`: it is rounded once, and nothing
/// on the way overflows.
fn wide(x: Tensor, slope: impl FnOnce(Tensor) -> Tensor) -> Tensor {
    let dtype = x.dtype();
    lax::convert(slope(lax::convert(x, dtype.accumulator())), dtype)
}

/// `1 / x`, to multiply by: of a quotient that is divided once more, compilers make one by a square, which
/// may overflow or vanish.
fn inverse(x: Tensor) -> Tensor {
    lax::binary(Binary::Div, number(1.0, x), x)
}

fn inverse_root(x: Tensor) -> Tensor {
    lax::unary(Unary::Rsqrt, x)
}

/// `1 - x^2`, without cancellation near 1.
fn one_minus_square(x: Tensor) -> Tensor {
    let one = number(1.0, x);
    lax::mul(lax::binary(Binary::Sub, one, x), lax::add(one, x))
}

/// `1 / sqrt((x - 1)(x + 1))`, without the cancellation of `x^2 - 1`.
fn acosh_slope(x: Tensor) -> Tensor {
    let one = number(1.0, x);
    let below = inverse_root(lax::binary(Binary::Sub, x, one));
    lax::mul(below, inverse_root(lax::add(x, one)))
}

/// `1 / sqrt(1 + x^2)`.
fn asinh_slope(x: Tensor) -> Tensor {
    let one = number(1.0, x);
    if x.dtype().is_complex() {
        return inverse_root(lax::add(lax::mul(x, x), one));
    }
    let ([_, one], square, _) = scaled_down([x, one]);
    lax::mul(one, inverse_root(square))
}

/// `1 / (1 + x^2)`.
fn atan_slope(x: Tensor) -> Tensor {
    let one = number(1.0, x);
    if x.dtype().is_complex() {
        return lax::binary(Binary::Div, one, lax::add(one, lax::mul(x, x)));
    }
    let ([_, one], square, _) = scaled_down([x, one]);
    lax::binary(Binary::Div, lax::mul(one, one), square)
}

/// A third of the result's inverse square.
fn cbrt_slope(y: Tensor) -> Tensor {
    lax::binary(Binary::Div, number(1.0 / 3.0, y), lax::mul(y, y))
}

/// `factor * e^(-x^2)`.
fn bell(factor: f64, x: Tensor) -> Tensor {
    let bell = lax::unary(Unary::Exp, lax::neg(lax::mul(x, x)));
    lax::mul(number(factor, x), bell)
}

/// The product of the function at `x` and at `-x`. One less the result would be the second factor, but
/// for the digits that rounding the result near 1 has cost.
fn logistic_slope(x: Tensor, y: Tensor) -> Tensor {
    let y = lax::convert(y, x.dtype());
    let other = match x.dtype().is_complex() {
        true => lax::binary(Binary::Sub, number(1.0, y), y),
        false => lax::unary(Unary::Logistic, lax::neg(x)),
    };
    lax::mul(y, other)
}

/// `-1 / (2 x sqrt(x))`.
fn rsqrt_slope(x: Tensor, y: Tensor) -> Tensor {
    let slope = lax::binary(Binary::Div, lax::convert(y, x.dtype()), x);
    lax::mul(number(-0.5, x), slope)
}

/// `1 / cosh(x)^2`, for in `1 - y^2` a result near 1 has lost its digits.
fn tanh_slope(x: Tensor, y: Tensor) -> Tensor {
    if x.dtype().is_complex() {
        return lax::binary(Binary::Sub, number(1.0, y), lax::mul(y, y));
    }
    let inverse = inverse(lax::unary(Unary::Cosh, x));
    lax::mul(inverse, inverse)
}

/// Real numbers over the size of the larger one, the sum of the squares of these, and that size: their own
/// squares may overflow, or vanish. What is made of the quotients does not depend on the scale, which has no
/// derivative.
fn scaled_down(numbers: [Tensor; 2]) -> ([Tensor; 2], Tensor, Tensor) {
    let [x, y] = numbers.map(|x| lax::unary(Unary::Abs, x));
    let largest = lax::binary(Binary::Max, x, y).stop_gradient();
    let fits = largest.gt(0.0) & largest.lt(f64::INFINITY);
    let scale = lax::select(fits, largest, number(1.0, x));
    let parts = numbers.map(|x| lax::binary(Binary::Div, x, scale));
    let [a, b] = parts.map(|x| lax::mul(x, x));
    (parts, lax::add(a, b), scale)
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
            let right = ty.map(|t| lax::neg(scaled(t, lax::mul(z, inverse(y)))));
            sum(left, right)
        }
        Binary::MulOrZero => sum(tx.map(|t| scaled(t, y)), ty.map(|t| scaled(x, t))),
        Binary::DivOrZero => {
            let left = tx.map(|t| divided(t, y));
            let right = ty.map(|t| lax::neg(scaled(scaled(z, inverse(y)), t)));
            sum(left, right)
        }
        Binary::Max => shared(Comparison::Gt, x, y, tx, ty),
        Binary::Min => shared(Comparison::Lt, x, y, tx, ty),
        Binary::Pow => {
            let left = tx.and_then(|t| Some(scaled(t, power_slope(x, y)?)));
            let right = ty.map(|t| scaled(t, wide(x, |x| exponent_slope(x, y, z))));
            sum(left, right)
        }
        Binary::Rem => {
            // How often `y` was taken away, which the rounded quotient may miss by one.
            let right = ty.map(|t| {
                let whole = |x: Tensor| {
                    let taken = lax::binary(Binary::Sub, x, lax::convert(z, x.dtype()));
                    let count = lax::binary(Binary::Div, taken, lax::convert(y, x.dtype()));
                    lax::neg(lax::unary(Unary::RoundEven, count))
                };
                scaled(t, wide(x, whole))
            });
            sum(tx, right)
        }
        Binary::Atan2 => {
            let [left, right] = atan2_slopes(x, y);
            sum(tx.map(|t| scaled(t, left)), ty.map(|t| scaled(t, right)))
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
    let known = known_number(y).map(Number::as_f64);
    match known {
        Some(0.0) => return None,
        Some(1.0) => return Some(y),
        Some(2.0) => return Some(lax::add(x, x)),
        _ => {}
    }
    Some(wide(x, |x| {
        let y = known.map_or_else(|| lax::convert(y, x.dtype()), |y| number(y, x));
        let exponent = lax::binary(Binary::Sub, y, number(1.0, y));
        scaled(lax::binary(Binary::Pow, x, exponent), y)
    }))
}

/// `z log x`, where `z` is `x^y`: 0 where `z` is, and at `0^0`.
fn exponent_slope(x: Tensor, y: Tensor, z: Tensor) -> Tensor {
    let is_zero = |x: Tensor| lax::compare(Comparison::Eq, x, number(0.0, x));
    let z = lax::convert(z, x.dtype());
    let power = lax::select(is_zero(x) & is_zero(y), number(0.0, z), z);
    scaled(power, lax::unary(Unary::Log, x))
}

/// The coordinates over the square of the length, the second one with the other sign; 0 at the origin.
fn atan2_slopes(x: Tensor, y: Tensor) -> [Tensor; 2] {
    let dtype = x.dtype();
    let [x, y] = [x, y].map(|x| lax::convert(x, dtype.accumulator()));
    let slopes = match dtype.is_complex() {
        true => {
            let square = lax::add(lax::mul(x, x), lax::mul(y, y));
            [divided(y, square), lax::neg(divided(x, square))]
        }
        false => {
            let ([x, y], square, scale) = scaled_down([x, y]);
            let over = |part: Tensor| divided(divided(part, square), scale);
            [over(y), lax::neg(over(x))]
        }
    };
    slopes.map(|slope| lax::convert(slope, dtype))
}
