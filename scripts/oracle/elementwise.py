"""Element-wise operations, conversions and complex numbers."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .case import DTYPES, FLOATS, INTEGERS, SIGNED, Case, case, f32, is_float, is_integer, tensor

POSITIVE = {"low": 0.125, "high": 4.0}
INSIDE = {"low": -0.875, "high": 0.875}

# Function of real numbers, and where it is defined and its derivative moderate.
UNARY = {
    "neg": (lax.neg, {}),
    "abs": (lax.abs, {}),
    "sign": (lax.sign, {}),
    "floor": (lax.floor, {}),
    "ceil": (lax.ceil, {}),
    "round_even": (lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), {}),
    "round": (lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), {}),
    "trunc": (jnp.trunc, {}),
    "fract": (lambda x: x - jnp.trunc(x), {}),
    "exp": (lax.exp, {}),
    "exp2": (lax.exp2, {}),
    "expm1": (lax.expm1, {"low": -0.5, "high": 0.5}),
    "log": (lax.log, POSITIVE),
    "log2": (jnp.log2, POSITIVE),
    "log10": (jnp.log10, POSITIVE),
    "log1p": (lax.log1p, {"low": -0.5, "high": 0.5}),
    "sqrt": (lax.sqrt, POSITIVE),
    "rsqrt": (lax.rsqrt, POSITIVE),
    "cbrt": (lax.cbrt, POSITIVE),
    "square": (jnp.square, {}),
    "sinc": (jnp.sinc, POSITIVE),
    "logit": (jax.scipy.special.logit, {"low": 0.125, "high": 0.875}),
    "reciprocal": (jnp.reciprocal, POSITIVE),
    "sin": (lax.sin, {}),
    "cos": (lax.cos, {}),
    "tan": (lax.tan, {"low": -1.25, "high": 1.25}),
    "asin": (lax.asin, INSIDE),
    "acos": (lax.acos, INSIDE),
    "atan": (lax.atan, {}),
    "sinh": (lax.sinh, {}),
    "cosh": (lax.cosh, {}),
    "tanh": (lax.tanh, {}),
    "asinh": (lax.asinh, {}),
    "acosh": (lax.acosh, {"low": 1.25, "high": 4.0}),
    "atanh": (lax.atanh, INSIDE),
    "logistic": (lax.logistic, {}),
    "erf": (lax.erf, {}),
    "erfc": (lax.erfc, {}),
    "erf_inv": (lax.erf_inv, INSIDE),
    "lgamma": (lax.lgamma, POSITIVE),
    "digamma": (lax.digamma, {"low": 0.5, "high": 4.0}),
    "relu": (jax.nn.relu, {}),
    "relu6": (jax.nn.relu6, {"low": -4.0, "high": 8.0}),
    "silu": (jax.nn.silu, {}),
    "gelu": (lambda x: jax.nn.gelu(x, approximate=True), {}),
    "gelu_exact": (lambda x: jax.nn.gelu(x, approximate=False), {}),
    "softplus": (jax.nn.softplus, {}),
    "softsign": (jax.nn.soft_sign, {}),
    "log_sigmoid": (jax.nn.log_sigmoid, {}),
    "elu": (jax.nn.elu, {}),
    "selu": (jax.nn.selu, {}),
    "celu": (jax.nn.celu, {}),
    "leaky_relu": (jax.nn.leaky_relu, {}),
    "mish": (jax.nn.mish, {}),
    "hard_sigmoid": (jax.nn.hard_sigmoid, {"low": -4.0, "high": 4.0}),
    "hard_swish": (jax.nn.hard_swish, {"low": -4.0, "high": 4.0}),
    "hard_tanh": (jax.nn.hard_tanh, {}),
}
# The error of these is larger than that of one rounding.
LOOSE = {"lgamma": 4, "digamma": 8, "erf_inv": 4, "acosh": 4, "atanh": 4, "asinh": 4, "tan": 4, "pow": 4, "mish": 4, "sinc": 4, "logit": 4, "polygamma": 16}

BINARY = {
    "add": (lax.add, {}, {}),
    "sub": (lax.sub, {}, {}),
    "mul": (lax.mul, {}, {}),
    "div": (lax.div, {}, POSITIVE),
    "max": (jnp.maximum, {}, {}),
    "min": (jnp.minimum, {}, {}),
    "pow": (lax.pow, POSITIVE, {}),
    "rem": (lax.rem, {"low": 2.0, "high": 2.875}, {"low": 1.125, "high": 1.875}),
    "atan2": (lax.atan2, {}, POSITIVE),
}
BROADCASTS = [((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (2, 3)), ((), (4,)), ((3, 1), (1, 2)), ((2, 1, 3), (2, 1))]


def unary() -> Iterator[Case]:
    for name, (function, domain) in UNARY.items():
        for dtype in FLOATS:
            for shape in [(), (5,), (2, 3)] if dtype == "f32" else [(4,)]:
                yield case(name, function, tensor(dtype, *shape, **domain), tolerance=LOOSE.get(name, 1))
    for name, function in {"neg": lax.neg, "square": jnp.square, "sign": lax.sign, "abs": lax.abs}.items():
        for dtype in INTEGERS if name == "square" else SIGNED:
            yield case(name, function, tensor(dtype, 5))
    for name, function in {"not": lax.bitwise_not, "population_count": lax.population_count, "clz": lax.clz}.items():
        for dtype in INTEGERS:
            yield case(name, function, tensor(dtype, 2, 3, kind="bits"))
    for dtype in INTEGERS:
        yield case("relu", jax.nn.relu, tensor(dtype, 5))
    yield case("not", lax.bitwise_not, tensor("bool", 5))
    for power in (-2, -1, 0, 1, 2, 3, 5):
        yield case("integer_pow", lambda x, n=power: lax.integer_pow(x, n), f32(5, **POSITIVE), power=power, tolerance=4)
    for power in (0.5, 1.5, -0.5):
        yield case("scalar_pow", lambda x, p=power: x**p, f32(5, **POSITIVE), power=power, tolerance=4)
    for slope in (0.0, 0.2):
        yield case("leaky_relu", lambda x, s=slope: jax.nn.leaky_relu(x, s), f32(6), slope=slope)
    for alpha in (0.5, 2.0):
        yield case("elu", lambda x, a=alpha: jax.nn.elu(x, a), f32(6), alpha=alpha)
        yield case("celu", lambda x, a=alpha: jax.nn.celu(x, a), f32(6), alpha=alpha)
    for dtype in ("f32", "f64", "bf16", "f16"):
        for exponent, mantissa in ((5, 10), (8, 7), (4, 3), (5, 2)):
            if dtype == "f32" or (dtype == "bf16" and mantissa < 7):
                function = lambda x, e=exponent, m=mantissa: lax.reduce_precision(x, e, m)
                # Tangents and cotangents are rounded, which no inner product survives.
                params = {"exponent": exponent, "mantissa": mantissa}
                yield case("reduce_precision", function, tensor(dtype, 5), forward=False, **params)


    # Infinities and NaNs come of a division.
    odd = {"is_finite": jnp.isfinite, "is_nan": jnp.isnan, "is_inf": jnp.isinf}
    for name, function in odd.items():
        for dtype in FLOATS:
            described = tensor(dtype, 8, kind="ties")
            yield case(name, lambda x, f=function: f(x / jnp.maximum(jnp.zeros_like(x), x)), described, gradient=False)


def broadcast(function):
    """lax functions want equal shapes."""
    return lambda *inputs: function(*jnp.broadcast_arrays(*inputs))


def binary() -> Iterator[Case]:
    for name, (function, left, right) in BINARY.items():
        for n, (a, b) in enumerate(BROADCASTS):
            for shared in [(), (0,), (1,)][: 1 if n > 2 else 3]:
                inputs = f32(*a, **left), f32(*b, **right)
                yield case(name, broadcast(function), *inputs, shared=shared, tolerance=LOOSE.get(name, 1))
        for dtype in FLOATS[1:]:
            yield case(name, function, tensor(dtype, 4, **left), tensor(dtype, 4, **right), tolerance=LOOSE.get(name, 1))
    for name in ("max", "min"):
        for shared in ((), (1,)):
            inputs = f32(3, 4, kind="ties"), f32(3, 4, kind="ties")
            yield case(name, BINARY[name][0], *inputs, shared=shared)
    for name in ("add", "sub", "mul", "max", "min"):
        for dtype in INTEGERS:
            yield case(name, BINARY[name][0], tensor(dtype, 2, 3, kind="bits"), tensor(dtype, 2, 3, kind="bits"))
    for name, function in {"div": lax.div, "rem": lax.rem}.items():
        for dtype in INTEGERS:
            yield case(name, function, tensor(dtype, 6, low=-90 if dtype[0] == "i" else 0, high=100), tensor(dtype, 6, low=1))
    bits = {"and": lax.bitwise_and, "or": lax.bitwise_or, "xor": lax.bitwise_xor}
    for name, function in bits.items():
        for dtype in INTEGERS:
            yield case(name, function, tensor(dtype, 5, kind="bits"), tensor(dtype, 5, kind="bits"))
        yield case(name, function, tensor("bool", 2, 4), tensor("bool", 2, 4))
    for dtype in INTEGERS:
        amount = tensor(dtype, 5, low=0, high=8)
        right = lax.shift_right_arithmetic if dtype[0] == "i" else lax.shift_right_logical
        yield case("shift_left", lax.shift_left, tensor(dtype, 5, kind="bits"), amount)
        yield case("shift_right", right, tensor(dtype, 5, kind="bits"), amount)
        yield case("shift_right_logical", lax.shift_right_logical, tensor(dtype, 5, kind="bits"), amount)
    for dtype in ("f32", "f64"):
        yield case("next_after", lax.nextafter, tensor(dtype, 5), tensor(dtype, 5), gradient=False)
    for dtype in SIGNED + ["f32"]:
        below = {"low": -1.5, "high": -0.5} if dtype == "f32" else {"low": -5, "high": 0}
        for divisor in ({"low": 0.5, "high": 1.75} if dtype == "f32" else {"low": 1}, below):
            dividend = tensor(dtype, 6) if dtype == "f32" else tensor(dtype, 6, low=-90, high=100)
            yield case("modulo", jnp.mod, dividend, tensor(dtype, 6, **divisor), gradient=False)
            yield case("floor_div", jnp.floor_divide, dividend, tensor(dtype, 6, **divisor), gradient=False)
    for dtype in FLOATS:
        yield case("copysign", jnp.copysign, tensor(dtype, 6), tensor(dtype, 6), gradient=False)
    for order in (1, 2, 3):
        function = lambda n, x: lax.polygamma(lax.stop_gradient(jnp.round(n)), x)
        described = f32(4, low=order - 0.25, high=order + 0.25), f32(4, low=0.5, high=4.0)
        yield case("polygamma", function, *described, tolerance=16)
    for name, function in {"logaddexp": jnp.logaddexp, "hypot": jnp.hypot}.items():
        for shared in ((), (0,), (1,)):
            yield case(name, function, f32(2, 3), f32(3), shared=shared)


def comparisons() -> Iterator[Case]:
    compare = {"eq": lax.eq, "ne": lax.ne, "lt": lax.lt, "le": lax.le, "gt": lax.gt, "ge": lax.ge}
    for name, function in compare.items():
        for dtype in ["f32", "f64", "bf16", "f16"]:
            yield case(name, function, tensor(dtype, 6, kind="ties"), tensor(dtype, 6, kind="ties"))
        for dtype in INTEGERS:
            yield case(name, function, tensor(dtype, 6, low=1, high=4), tensor(dtype, 6, low=1, high=4))
        for shapes in BROADCASTS[1:4]:
            yield case(name, broadcast(function), *(f32(*s, kind="ties") for s in shapes), shared=(1,))
    for name in ("eq", "ne"):
        yield case(name, compare[name], tensor("bool", 6), tensor("bool", 6))
    for dtype in ["f32", "f64", "bf16", "f16", "bool", "i4", *INTEGERS]:
        inputs = tensor("bool", 2, 3), tensor(dtype, 2, 3), tensor(dtype, 2, 3)
        yield case("select", jnp.where, *inputs)
    for shapes in [((3,), (2, 3), ()), ((2, 1), (3,), (2, 3)), ((), (4,), (4,))]:
        for shared in [(), (0,), (1,), (1, 2)]:
            yield case("select", jnp.where, tensor("bool", *shapes[0]), f32(*shapes[1]), f32(*shapes[2]), shared=shared)
    for dtype in ["f32", "f64", "bf16", "f16"]:
        yield case("clamp", lambda x: jnp.clip(x, -1, 1), tensor(dtype, 8), low=-1.0, high=1.0)
    for dtype in INTEGERS:
        yield case("clamp", lambda x: jnp.clip(x, 2, 5), tensor(dtype, 8), low=2, high=5)
    for shared in [(), (0,), (1, 2)]:
        bounds = f32(6, low=-1.5, high=-0.5), f32(6, low=0.5, high=1.5)
        yield case("clamp_tensors", lambda x, a, b: jnp.clip(x, a, b), f32(6), *bounds, shared=shared)


def conversions() -> Iterator[Case]:
    real = [d for d in DTYPES if d != "c64"]
    for source in real:
        for target in real:
            if source == target:
                continue
            unsigned = target[0] == "u"
            if is_float(source) and is_integer(target):
                described = tensor(source, 5, low=0.0 if unsigned else -6.0, high=7.0)
            elif is_integer(source):
                described = tensor(source, 5, low=0 if unsigned or source[0] == "u" else -6, high=7)
            elif target == "bool":
                described = tensor(source, 5, kind="ties")
            else:
                described = tensor(source, 5)
            yield case("convert", lambda x, t=target: x.astype(DTYPES[t]), described, to=target)
    pairs = [("f32", "i32"), ("f32", "u32"), ("i32", "u32"), ("i8", "u8"), ("i64", "u64"), ("f64", "i64"), ("u64", "f64")]
    pairs += [("bf16", "u16"), ("f16", "i16"), ("u16", "i16"), ("f8e5m2", "u8"), ("f8e4m3fn", "i8"), ("u32", "f32")]
    for source, target in pairs:
        kind = "" if is_float(source) or is_float(target) else "bits"
        described = tensor(source, 4, kind=kind)
        if is_float(target):
            described = tensor(source, 4, low=1 << 20, high=1 << 30)
        function = lambda x, t=target: lax.bitcast_convert_type(x, DTYPES[t])
        yield case("bitcast", function, described, gradient=False, to=target)


def complex_numbers() -> Iterator[Case]:
    unary_functions = {
        "neg": lax.neg,
        "exp": lax.exp,
        "log": lax.log,
        "sin": lax.sin,
        "cos": lax.cos,
        "tanh": lax.tanh,
        "sqrt": lax.sqrt,
        "square": jnp.square,
        "conj": jnp.conj,
        "real": jnp.real,
        "imag": jnp.imag,
        "abs": jnp.abs,
        "angle": jnp.angle,
        "sign": jnp.sign,
        "rsqrt": lax.rsqrt,
        "logistic": lax.logistic,
    }
    for name, function in unary_functions.items():
        for shape in ((4,), (2, 3)):
            yield case(name, function, tensor("c64", *shape), gradient=False, tolerance=4)
    for name, function in {"add": lax.add, "sub": lax.sub, "mul": lax.mul, "div": lax.div}.items():
        yield case(name, function, tensor("c64", 4), tensor("c64", 4), gradient=False, tolerance=4)
        yield case(name, broadcast(function), tensor("c64", 2, 3), tensor("c64", 3), gradient=False, tolerance=4)
    for shape in ((), (4,), (2, 3)):
        yield case("complex", lax.complex, f32(*shape), f32(*shape))
    yield case("reduce_sum", lambda x: x.sum(0), tensor("c64", 3, 2), axes=[0])
    yield case("select", jnp.where, tensor("bool", 4), tensor("c64", 4), tensor("c64", 4))
    yield case("matmul", jnp.matmul, tensor("c64", 2, 3), tensor("c64", 3, 2), tolerance=4)

    # Real functions of real numbers through complex ones: their derivative needs no convention.
    def polar(x, y):
        z = lax.complex(x, y)
        return jnp.abs(z), jnp.real(z * z), jnp.imag(jnp.exp(z) / (z + 3))

    for shared in ((), (0,), (1,)):
        yield case("complex_polar", polar, f32(4, **POSITIVE), f32(4, **POSITIVE), shared=shared, tolerance=4)


def cases() -> Iterator[Case]:
    yield from unary()
    yield from binary()
    yield from comparisons()
    yield from conversions()
    yield from complex_numbers()
