//! Special functions that are not primitives.

use std::panic::Location;

use super::Tensor;
use crate::dtype::DType;
use crate::error::ErrorKind;
use crate::trace::fail_at;

impl Tensor {
    /// The inverse of the error function: infinite at -1 and 1, NaN beyond.
    ///
    /// Polynomials in `log(1 - x^2)` with a relative error of about an ulp in `f32` and two in `f64`
    /// (Giles: "Approximating the erfinv function", GPU Computing Gems 2, 2011). Narrower types
    /// are computed in `f32`.
    #[track_caller]
    pub fn erf_inv(self) -> Tensor {
        let dtype = self.dtype();
        let x = match dtype {
            DType::F64 => self,
            dtype if dtype.is_float() => self.cast(DType::F32),
            _ => {
                let problem = format!("takes a floating-point tensor, not {}", self.ty());
                let help = "convert it with `.cast(...)`".to_owned();
                let kind = ErrorKind::DType { op: "erf_inv", problem };
                fail_at(kind, Some(help), Location::caller())
            }
        };
        let size = x.abs();
        let at_end = size.eq(1.0);
        // The polynomials never see the ends, so that they leave no NaN in a derivative.
        let inside = at_end.select(0.0, x);
        let w = -(-inside.square()).log1p();
        let slope = if dtype == DType::F64 { slope_f64(w) } else { slope_f32(w) };
        // The quotient is infinite at the ends, as the function and its derivative are.
        at_end.select(x / (1.0 - size), slope * inside).cast(dtype)
    }
}

/// `erf_inv(x) / x` for `w = -log(1 - x^2)`.
#[track_caller]
fn slope_f32(w: Tensor) -> Tensor {
    let is_central = w.lt(5.0);
    let central = horner(&F32_CENTRAL, w - 2.5);
    // The square root has no derivative at 0, where it is not used either.
    let tail = horner(&F32_TAIL, is_central.select(5.0, w).sqrt() - 3.0);
    is_central.select(central, tail)
}

#[track_caller]
fn slope_f64(w: Tensor) -> Tensor {
    let is_central = w.lt(6.25);
    let central = horner(&F64_CENTRAL, w - 3.125);
    let root = is_central.select(6.25, w).sqrt();
    let middle = horner(&F64_MIDDLE, root - 3.25);
    let tail = horner(&F64_TAIL, root - 5.0);
    is_central.select(central, w.lt(16.0).select(middle, tail))
}

/// The polynomial with these coefficients, that of the highest power first.
#[track_caller]
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
    -3.6444120640178196996e-21,
    -1.685059138182016589e-19,
    1.2858480715256400167e-18,
    1.115787767802518096e-17,
    -1.333171662854620906e-16,
    2.0972767875968561637e-17,
    6.6376381343583238325e-15,
    -4.0545662729752068639e-14,
    -8.1519341976054721522e-14,
    2.6335093153082322977e-12,
    -1.2975133253453532498e-11,
    -5.4154120542946279317e-11,
    1.051212273321532285e-9,
    -4.1126339803469836976e-9,
    -2.9070369957882005086e-8,
    4.2347877827932403518e-7,
    -1.3654692000834678645e-6,
    -1.3882523362786468719e-5,
    0.0001867342080340571352,
    -0.00074070253416626697512,
    -0.0060336708714301490533,
    0.24015818242558961693,
    1.6536545626831027356,
];

const F64_MIDDLE: [f64; 19] = [
    2.2137376921775787049e-9,
    9.0756561938885390979e-8,
    -2.7517406297064545428e-7,
    1.8239629214389227755e-8,
    1.5027403968909827627e-6,
    -4.013867526981545969e-6,
    2.9234449089955446044e-6,
    1.2475304481671778723e-5,
    -4.7318229009055733981e-5,
    6.8284851459573175448e-5,
    2.4031110387097893999e-5,
    -0.0003550375203628474796,
    0.00095328937973738049703,
    -0.0016882755560235047313,
    0.0024914420961078508066,
    -0.0037512085075692412107,
    0.005370914553590063617,
    1.0052589676941592334,
    3.0838856104922207635,
];

const F64_TAIL: [f64; 17] = [
    -2.7109920616438573243e-11,
    -2.5556418169965252055e-10,
    1.5076572693500548083e-9,
    -3.7894654401267369937e-9,
    7.6157012080783393804e-9,
    -1.4960026627149240478e-8,
    2.9147953450901080826e-8,
    -6.7711997758452339498e-8,
    2.2900482228026654717e-7,
    -9.9298272942317002539e-7,
    4.5260625972231537039e-6,
    -1.9681778105531670567e-5,
    7.5995277030017761139e-5,
    -0.00021503011930044477347,
    -0.00013871931833623122026,
    1.0103004648645343977,
    4.8499064014085844221,
];
