//! Element-wise operations, conversions and complex numbers.

use shardax::prelude::*;

use crate::golden::Params;

pub(super) fn apply(op: &str, params: &Params, x: &[Tensor]) -> Option<Vec<Tensor>> {
    let several = match op {
        "complex_polar" => polar(x[0], x[1]),
        _ => Vec::new(),
    };
    if !several.is_empty() {
        return Some(several);
    }
    let result = match *x {
        [a] => unary(op, a)
            .or_else(|| unit(op, params, a))
            .or_else(|| with_params(op, params, a)),
        [a, b] => binary(op, a, b),
        [a, b, c] => ternary(op, a, b, c),
        _ => None,
    };
    result.map(|result| vec![result])
}

fn unary(op: &str, x: Tensor) -> Option<Tensor> {
    Some(match op {
        "neg" => -x,
        "not" => !x,
        "abs" => x.abs(),
        "sign" => x.sign(),
        "floor" => x.floor(),
        "ceil" => x.ceil(),
        "round" => x.round(),
        "round_even" => x.round_even(),
        "trunc" => x.trunc(),
        "fract" => x.fract(),
        "exp" => x.exp(),
        "exp2" => x.exp2(),
        "expm1" => x.expm1(),
        "log" => x.log(),
        "log2" => x.log2(),
        "log10" => x.log10(),
        "log1p" => x.log1p(),
        "sqrt" => x.sqrt(),
        "rsqrt" => x.rsqrt(),
        "cbrt" => x.cbrt(),
        "square" => x.square(),
        "reciprocal" => x.recip(),
        "sinc" => x.sinc(),
        "logit" => x.logit(),
        "sin" => x.sin(),
        "cos" => x.cos(),
        "tan" => x.tan(),
        "asin" => x.asin(),
        "acos" => x.acos(),
        "atan" => x.atan(),
        "sinh" => x.sinh(),
        "cosh" => x.cosh(),
        "tanh" => x.tanh(),
        "asinh" => x.asinh(),
        "acosh" => x.acosh(),
        "atanh" => x.atanh(),
        "logistic" => x.sigmoid(),
        "erf" => x.erf(),
        "erfc" => x.erfc(),
        "erf_inv" => x.erf_inv(),
        "lgamma" => x.lgamma(),
        "digamma" => x.digamma(),
        "population_count" => x.popcount(),
        "clz" => x.leading_zeros(),
        "is_finite" => (x / x.zeros_like().maximum(x)).is_finite(),
        "is_nan" => (x / x.zeros_like().maximum(x)).is_nan(),
        "is_inf" => (x / x.zeros_like().maximum(x)).is_inf(),
        "real" => x.real(),
        "imag" => x.imag(),
        "conj" => x.conj(),
        "angle" => x.angle(),
        _ => return None,
    })
}

/// Activations.
fn unit(op: &str, params: &Params, x: Tensor) -> Option<Tensor> {
    let or = |name: &str, default: f64| match params.has(name) {
        true => params.float(name),
        false => default,
    };
    Some(match op {
        "relu" => x.relu(),
        "relu6" => x.relu6(),
        "leaky_relu" => x.leaky_relu(or("slope", 0.01)),
        "elu" => x.elu(or("alpha", 1.0)),
        "celu" => x.celu(or("alpha", 1.0)),
        "selu" => x.selu(),
        "silu" => x.silu(),
        "gelu" => x.gelu(),
        "gelu_exact" => x.gelu_exact(),
        "softplus" => x.softplus(),
        "softsign" => x.softsign(),
        "log_sigmoid" => x.log_sigmoid(),
        "mish" => x.mish(),
        "hard_sigmoid" => x.hard_sigmoid(),
        "hard_swish" => x.hard_swish(),
        "hard_tanh" => x.hard_tanh(),
        _ => return None,
    })
}

fn with_params(op: &str, params: &Params, x: Tensor) -> Option<Tensor> {
    let bits = |name: &str| params.int(name) as u32;
    Some(match op {
        "integer_pow" => x.pow(params.int("power")),
        "scalar_pow" => x.pow(params.float("power")),
        "clamp" if x.dtype().is_float() => x.clamp(params.float("low"), params.float("high")),
        "clamp" => x.clamp(params.int("low"), params.int("high")),
        "convert" => x.cast(params.dtype("to")),
        "bitcast" => x.bitcast(params.dtype("to")),
        "reduce_precision" => x.reduce_precision(bits("exponent"), bits("mantissa")),
        _ => return None,
    })
}

fn binary(op: &str, x: Tensor, y: Tensor) -> Option<Tensor> {
    Some(match op {
        "add" => x + y,
        "sub" => x - y,
        "mul" => x * y,
        "div" => x / y,
        "rem" => x % y,
        "modulo" => x.modulo(y),
        "floor_div" => x.floor_div(y),
        "copysign" => x.copysign(y),
        "polygamma" => x.round().stop_gradient().polygamma(y),
        "max" => x.maximum(y),
        "min" => x.minimum(y),
        "pow" => x.pow(y),
        "atan2" => x.atan2(y),
        "hypot" => x.hypot(y),
        "logaddexp" => x.logaddexp(y),
        "next_after" => x.nextafter(y),
        "complex" => x.complex(y),
        "and" => x & y,
        "or" => x | y,
        "xor" => x ^ y,
        "shift_left" => x << y,
        "shift_right" => x >> y,
        "shift_right_logical" => x.shift_right_logical(y),
        "eq" => x.eq(y),
        "ne" => x.ne(y),
        "lt" => x.lt(y),
        "le" => x.le(y),
        "gt" => x.gt(y),
        "ge" => x.ge(y),
        _ => return None,
    })
}

fn ternary(op: &str, x: Tensor, y: Tensor, z: Tensor) -> Option<Tensor> {
    Some(match op {
        "select" => x.select(y, z),
        "clamp_tensors" => x.clamp(y, z),
        _ => return None,
    })
}

/// Real functions of real numbers, through complex ones.
fn polar(x: Tensor, y: Tensor) -> Vec<Tensor> {
    let z = x.complex(y);
    vec![z.abs(), (z * z).real(), (z.exp() / (z + 3.0)).imag()]
}
