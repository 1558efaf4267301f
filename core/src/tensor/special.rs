//! Special functions that are not primitives.

use std::panic::Location;

use super::Tensor;
use crate::dtype::DType;
use crate::error::ErrorKind;
use crate::trace::{fail, method};

impl Tensor {
    /// The inverse of the error function: infinite at -1 and 1, NaN beyond.
    ///
    /// Polynomials in `log(1 - x^2)` with a relative error of about an ulp in `f32` and two in `f64`
    /// (Giles: "Approximating the erfinv function", GPU Computing Gems 2, 2011). Narrower types
    /// are computed in `f32`.
    #[track_caller]
    pub fn erf_inv(self) -> Tensor {
        method("erf_inv", Location::caller(), || {
            let dtype = self.dtype();
            match dtype {
                DType::F64 => inverse(self, slope_f64),
                dtype if dtype.is_float() => inverse(self.cast(DType::F32), slope_f32).cast(dtype),
                _ => {
                    let problem = format!("takes a floating-point tensor, not {}", self.ty());
                    let help = "convert it with `.cast(...)`".to_owned();
                    fail(
                        ErrorKind::DType {
                            op: "erf_inv",
                            problem,
                        },
                        Some(help),
                    )
                }
            }
        })
    }
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
