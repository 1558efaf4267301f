//! Functions of elements that are not primitives.

use std::f64::consts::{LN_2, LN_10, PI};
use std::panic::Location;

use super::{IntoOperand, Operand, Tensor, scaled, with_slopes};
use crate::dtype::DType;
use crate::error::ErrorKind;
use crate::lax;
use crate::op::Binary;
use crate::random::Key;
use crate::trace::{fail, method, note_square};
use crate::transform::custom_jvp;

/// Functions of real numbers.
impl Tensor {
    /// 2^x.
    #[track_caller]
    pub fn exp2(self) -> Tensor {
        method("exp2", Location::caller(), || {
            Tensor::full(2, self.dtype(), self.shape()).pow(self)
        })
    }

    /// The logarithm to base 2.
    #[track_caller]
    pub fn log2(self) -> Tensor {
        method("log2", Location::caller(), || self.log() / LN_2)
    }

    /// The logarithm to base 10.
    #[track_caller]
    pub fn log10(self) -> Tensor {
        method("log10", Location::caller(), || self.log() / LN_10)
    }

    /// 1 / x.
    #[track_caller]
    pub fn recip(self) -> Tensor {
        method("recip", Location::caller(), || 1 / self)
    }

    /// `log(x / (1 - x))`, the inverse of [`Tensor::sigmoid`].
    #[track_caller]
    pub fn logit(self) -> Tensor {
        method("logit", Location::caller(), || self.log() - (-self).log1p())
    }

    /// `sin(pi x) / (pi x)`, and 1 at 0.
    #[track_caller]
    pub fn sinc(self) -> Tensor {
        method("sinc", Location::caller(), || {
            let dtype = self.dtype();
            let x = self.cast(dtype.accumulator()) * PI;
            let square = x.square();
            let is_near = square.lt(1);
            let far = is_near.select(1.0, x);
            // The series near 0, where derivatives of the quotient cancel: 1 - x^2 / (2 * 3) (1 - ...).
            let terms = (1..=9).rev().map(|n| f64::from(2 * n * (2 * n + 1)));
            let series = terms.fold(x.zeros_like() + 1.0, |sum, term| 1.0 - square * sum / term);
            is_near.select(series, far.sin() / far).cast(dtype)
        })
    }

    /// `sqrt(x^2 + y^2)` without overflow; its derivative at the origin is 0.
    #[track_caller]
    pub fn hypot(self, rhs: impl IntoOperand) -> Tensor {
        let rhs = rhs.into();
        method("hypot", Location::caller(), || {
            let (x, y) = self.alike(rhs);
            let hypot = with_slopes(x, y, |x, y| (length(x, y), direction(x, y).into()));
            note_square(hypot, move || x.square() + y.square());
            hypot
        })
    }

    /// `log(e^x + e^y)` without overflow.
    #[track_caller]
    pub fn logaddexp(self, rhs: impl IntoOperand) -> Tensor {
        let rhs = rhs.into();
        method("logaddexp", Location::caller(), || {
            let (x, y) = self.alike(rhs);
            with_slopes(x, y, |x, y| {
                let (apart, largest) = (x - y, x.maximum(y));
                // Of two equal infinities.
                let same = apart.is_nan();
                let value = largest + same.select(0, (-apart.abs()).exp().log1p());
                // Of nothing but -inf no derivative passes, and of two that are inf a half for each.
                let none = largest.eq(f64::NEG_INFINITY);
                let both = x.minimum(y).eq(f64::INFINITY);
                let part = |apart: Tensor| none.select(0, both.select(0.5, apart.sigmoid()));
                (value, [part(apart), part(y - x)])
            })
        })
    }

    /// The absolute value of `self` with the sign of `sign`, that of a zero or NaN included.
    #[track_caller]
    pub fn copysign(self, sign: impl IntoOperand) -> Tensor {
        let sign = sign.into();
        method("copysign", Location::caller(), || {
            let (x, sign) = self.alike(sign);
            let bits = sign.stop_gradient().bitcast(bits_of("copysign", sign));
            let size = x.abs();
            bits.lt(0).select(-size, size)
        })
    }

    /// -1, 0 or 1: [`Tensor::sign`].
    #[track_caller]
    pub fn signum(self) -> Tensor {
        method("signum", Location::caller(), || self.sign())
    }

    /// The integer part, towards 0; its derivative is 0.
    #[track_caller]
    pub fn trunc(self) -> Tensor {
        method("trunc", Location::caller(), || {
            self.lt(0).select(self.ceil(), self.floor())
        })
    }

    /// `x - trunc(x)`, with the sign of `x`.
    #[track_caller]
    pub fn fract(self) -> Tensor {
        method("fract", Location::caller(), || self - self.trunc())
    }

    /// Whether a number is NaN.
    #[track_caller]
    pub fn is_nan(self) -> Tensor {
        method("is_nan", Location::caller(), || self.ne(self))
    }

    /// Whether a float is infinite, of either sign.
    #[track_caller]
    pub fn is_inf(self) -> Tensor {
        method("is_inf", Location::caller(), || {
            !(self.is_finite() | self.is_nan())
        })
    }

    /// NaN as 0, and infinities as the largest finite number of their sign. The derivative there is 0.
    #[track_caller]
    pub fn nan_to_num(self) -> Tensor {
        method("nan_to_num", Location::caller(), || {
            let Some(largest) = self.dtype().largest_finite() else {
                return self;
            };
            let number = self.is_nan().select(0, self);
            let outside = self.is_inf();
            let limit = self.gt(0).select(
                Tensor::full(largest, self.dtype(), self.shape()),
                Tensor::full(-largest, self.dtype(), self.shape()),
            );
            outside.select(limit, number)
        })
    }

    /// The inverse of the error function: infinite at -1 and 1, NaN beyond.
    ///
    /// Polynomials in `log(1 - x^2)` with a relative error of about an ulp in `f32` and two in `f64`
    /// (Giles: "Approximating the erfinv function", GPU Computing Gems 2, 2011). Narrower types
    /// are computed in `f32`. The derivative is `sqrt(pi) / 2 e^(y^2)` of the result `y`.
    #[track_caller]
    pub fn erf_inv(self) -> Tensor {
        method("erf_inv", Location::caller(), || {
            let dtype = self.dtype();
            let slope = match dtype {
                DType::F64 => slope_f64,
                dtype if dtype.is_float() => slope_f32,
                _ => not_a_float("erf_inv", self),
            };
            let wide = dtype.accumulator();
            let value = move |x: Tensor| inverse(x, slope);
            let with_tangent = move |x: Tensor, t: Tensor| {
                let y = value(x);
                (y, t * y.square().exp() * (PI.sqrt() / 2.0))
            };
            custom_jvp(value, with_tangent)(self.cast(wide)).cast(dtype)
        })
    }

    /// The same values in a narrower float type, each rounded up or down at random so that its
    /// mean is the value itself: small updates of weights are not lost. What the type does not reach
    /// becomes what [`Tensor::cast`] makes of it. The derivative is that of the cast.
    #[track_caller]
    pub fn stochastic_cast(self, key: Key, dtype: DType) -> Tensor {
        method("stochastic_cast", Location::caller(), || {
            let Some((mantissa, smallest)) = dtype.precision() else {
                let problem = format!("rounds to a floating-point type, not {dtype}");
                fail(
                    ErrorKind::DType {
                        op: "stochastic_cast",
                        problem,
                    },
                    None,
                )
            };
            let from = self.dtype();
            if !from.is_float() {
                not_a_float("stochastic_cast", self)
            }
            if from.precision().is_some_and(|(bits, _)| bits <= mantissa) {
                return self.cast(dtype);
            }
            let wide = from.accumulator();
            let noise = key.uniform(wide, self.shape());
            let rounded = move |x: Tensor| {
                // The power of two below, which divides without rounding.
                let exponent = match wide {
                    DType::F64 => x.bitcast(DType::I64) & 0x7ff0_0000_0000_0000_i64,
                    _ => x.bitcast(DType::I32) & 0x7f80_0000,
                };
                let power = exponent.bitcast(wide).maximum(smallest);
                let steps = f64::from(mantissa).exp2();
                let scaled = x / power * steps;
                let below = scaled.floor();
                let up = noise.lt(scaled - below).cast(wide);
                let result = (below + up) / steps * power;
                x.is_finite().select(result, x).cast(dtype)
            };
            let with_tangent = move |x: Tensor, t: Tensor| (rounded(x), t.cast(dtype));
            custom_jvp(rounded, with_tangent)(self.cast(wide))
        })
    }
}

/// Division with a remainder, of integers or floats. The operator `%` is the remainder with the sign of
/// the dividend, numpy's `fmod`.
impl Tensor {
    /// The remainder that is not negative, whatever the signs.
    #[track_caller]
    pub fn rem_euclid(self, rhs: impl IntoOperand) -> Tensor {
        let rhs = rhs.into();
        method("rem_euclid", Location::caller(), || {
            let (x, y) = self.alike(rhs);
            let rest = x % y;
            if y.dtype().is_unsigned_integer() {
                return rest;
            }
            rest.lt(0).select(rest + y.abs(), rest)
        })
    }

    /// The remainder with the sign of the divisor, as numpy's `mod`: `x - y * floor_div(x, y)`.
    #[track_caller]
    pub fn modulo(self, rhs: impl IntoOperand) -> Tensor {
        let rhs = rhs.into();
        method("modulo", Location::caller(), || {
            let (x, y) = self.alike(rhs);
            let rest = x % y;
            if y.dtype().is_unsigned_integer() {
                return rest;
            }
            (rest.ne(0) & rest.lt(0).ne(y.lt(0))).select(rest + y, rest)
        })
    }

    /// The quotient rounded down, as numpy's `floor_divide`.
    #[track_caller]
    pub fn floor_div(self, rhs: impl IntoOperand) -> Tensor {
        let rhs = rhs.into();
        method("floor_div", Location::caller(), || {
            let (x, y) = self.alike(rhs);
            if x.dtype().is_float() {
                // A quotient that is rounded up to an integer is not rounded down any more; without
                // the remainder it is whole, but for rounding.
                return ((x - x.modulo(y)) / y).round_even();
            }
            (x - x.modulo(y)) / y
        })
    }

    /// Both operands with one element type and shape.
    #[track_caller]
    fn alike(self, rhs: Operand) -> (Tensor, Tensor) {
        super::arithmetic::together("binary", self.into(), rhs, Location::caller())
    }
}

/// The signed integers of as many bits.
fn bits_of(op: &'static str, x: Tensor) -> DType {
    match x.dtype() {
        DType::F64 => DType::I64,
        DType::F32 => DType::I32,
        DType::F16 | DType::BF16 => DType::I16,
        DType::F8E4M3FN | DType::F8E5M2 => DType::I8,
        _ => not_a_float(op, x),
    }
}

/// The length of a vector of two elements.
#[track_caller]
fn length(x: Tensor, y: Tensor) -> Tensor {
    // Any scale gives the same result and the same derivatives.
    let largest = x.abs().maximum(y.abs()).stop_gradient();
    let fits = largest.gt(0) & largest.lt(f64::INFINITY);
    let scale = fits.select(largest, 1);
    ((x / scale).square() + (y / scale).square()).sqrt() * scale
}

/// A vector of two elements over its length, and 0 of 0. It moves across itself, which is written as it
/// is: as derivatives of quotients the parts along it would cancel.
#[track_caller]
fn direction(x: Tensor, y: Tensor) -> (Tensor, Tensor) {
    let value = |(x, y): (Tensor, Tensor)| {
        let length = length(x, y);
        let over = |x: Tensor| {
            let quotient = lax::binary(Binary::DivOrZero, x, length);
            x.abs().eq(f64::INFINITY).select(x.sign(), quotient)
        };
        (over(x), over(y))
    };
    let with_tangent = move |(x, y): (Tensor, Tensor), t: (Tensor, Tensor)| {
        let (a, b) = value((x, y));
        let across = scaled(t.0, b) - scaled(t.1, a);
        let turn = lax::binary(Binary::DivOrZero, across, length(x, y));
        ((a, b), (scaled(turn, b), -scaled(turn, a)))
    };
    custom_jvp(value, with_tangent)((x, y))
}

fn not_a_float(op: &'static str, x: Tensor) -> ! {
    let problem = format!("takes a floating-point tensor, not {}", x.ty());
    let help = "convert it with `.cast(...)`".to_owned();
    fail(ErrorKind::DType { op, problem }, Some(help))
}

fn inverse(x: Tensor, slope: fn(Tensor) -> Tensor) -> Tensor {
    let size = x.abs();
    let at_end = size.eq(1.0);
    // The polynomials never see the ends, so that they leave no NaN in a derivative.
    let inside = at_end.select(0.0, x);
    let w = -(-inside.square()).log1p();
    // The quotient is infinite at the ends, as the function and its derivative are.
    at_end.select(x / (1.0 - size), slope(w) * inside)
}

/// `erf_inv(x) / x` for `w = -log(1 - x^2)`.
fn slope_f32(w: Tensor) -> Tensor {
    let is_central = w.lt(5.0);
    let central = horner(&F32_CENTRAL, w - 2.5);
    // The square root has no derivative at 0, where it is not used either.
    let tail = horner(&F32_TAIL, is_central.select(5.0, w).sqrt() - 3.0);
    is_central.select(central, tail)
}

fn slope_f64(w: Tensor) -> Tensor {
    let is_central = w.lt(6.25);
    let central = horner(&F64_CENTRAL, w - 3.125);
    let root = is_central.select(6.25, w).sqrt();
    let middle = horner(&F64_MIDDLE, root - 3.25);
    let tail = horner(&F64_TAIL, root - 5.0);
    is_central.select(central, w.lt(16.0).select(middle, tail))
}

/// The polynomial with these coefficients, that of the highest power first.
fn horner(coefficients: &[f64], x: Tensor) -> Tensor {
    let mut sum = Tensor::full(coefficients[0], x.dtype(), x.shape());
    for &coefficient in &coefficients[1..] {
        sum = sum * x + coefficient;
    }
    sum
}

const F32_CENTRAL: [f64; 9] = [
    2.81022636e-08,
    3.43273939e-07,
    -3.5233877e-06,
    -4.39150654e-06,
    0.00021858087,
    -0.00125372503,
    -0.00417768164,
    0.246640727,
    1.50140941,
];

const F32_TAIL: [f64; 9] = [
    -0.000200214257,
    0.000100950558,
    0.00134934322,
    -0.00367342844,
    0.00573950773,
    -0.0076224613,
    0.00943887047,
    1.00167406,
    2.83297682,
];

const F64_CENTRAL: [f64; 23] = [
    -3.64441206401782e-21,
    -1.6850591381820166e-19,
    1.28584807152564e-18,
    1.1157877678025181e-17,
    -1.333171662854621e-16,
    2.0972767875968562e-17,
    6.637638134358324e-15,
    -4.054566272975207e-14,
    -8.151934197605472e-14,
    2.6335093153082323e-12,
    -1.2975133253453532e-11,
    -5.415412054294628e-11,
    1.0512122733215323e-9,
    -4.112633980346984e-9,
    -2.9070369957882005e-8,
    4.2347877827932404e-7,
    -1.3654692000834679e-6,
    -1.3882523362786469e-5,
    0.00018673420803405714,
    -0.000740702534166267,
    -0.006033670871430149,
    0.24015818242558962,
    1.6536545626831027,
];

const F64_MIDDLE: [f64; 19] = [
    2.2137376921775787e-9,
    9.075656193888539e-8,
    -2.7517406297064545e-7,
    1.8239629214389228e-8,
    1.5027403968909828e-6,
    -4.013867526981546e-6,
    2.9234449089955446e-6,
    1.2475304481671779e-5,
    -4.7318229009055734e-5,
    6.828485145957318e-5,
    2.4031110387097894e-5,
    -0.0003550375203628475,
    0.0009532893797373805,
    -0.0016882755560235047,
    0.002491442096107851,
    -0.003751208507569241,
    0.005370914553590064,
    1.0052589676941592,
    3.0838856104922208,
];

const F64_TAIL: [f64; 17] = [
    -2.7109920616438573e-11,
    -2.555641816996525e-10,
    1.5076572693500548e-9,
    -3.789465440126737e-9,
    7.61570120807834e-9,
    -1.496002662714924e-8,
    2.914795345090108e-8,
    -6.771199775845234e-8,
    2.2900482228026655e-7,
    -9.9298272942317e-7,
    4.526062597223154e-6,
    -1.968177810553167e-5,
    7.599527703001776e-5,
    -0.00021503011930044477,
    -0.00013871931833623122,
    1.0103004648645344,
    4.849906401408584,
];
