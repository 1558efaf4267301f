"""Values and derivatives of element-wise functions, computed with mpmath to far more digits than a float has.

Writes `slopes.json`, one function a line: its name and rows of the numbers at which it is taken, followed by

    of one operand      f, f', f'', f'''
    of two, x and y     f, fx, fy, fxx, fxy, fyy, fxxx, fxxy, fxyy, fyyy

The derivatives of the highest order say how much an error in the last digit of an operand changes those below. All
operands have eight bits of mantissa, so that every floating-point type with a mantissa as long holds them.

    python scripts/slopes_mpmath.py tests/goldens
"""

import argparse
import json
from pathlib import Path

import mpmath
from mpmath import mp, mpf

LARGEST = mpf(2) ** 1023


def short(x):
    """The number with eight bits of mantissa that is nearest."""
    mantissa, exponent = mpmath.frexp(mpf(x))
    return mpmath.ldexp(mpmath.nint(mpmath.ldexp(mantissa, 8)), exponent - 8)


def both(*numbers):
    return [-x for x in reversed(numbers)] + list(numbers)


SMALL = [2.0**-100, 2.0**-33, 1.1e-3]
USUAL = [0.02, 0.1, 0.3, 0.5, 0.77, 1, 1.3, 2, 2.9, 3.5]
LARGE = [5, 6.1, 7, 9, 10.5, 12, 16.5, 20, 30]
HUGE = [50, 100, 300, 1e4, 1e10, 1e20, 1e30, 2.0**600]
NEAR_ONE = [1 - 2.0**-4, 1 - 2.0**-8]
NEAR_HALF_PI = [1.4, 1.55, 1.5703125]

REAL = both(*SMALL, *USUAL, *LARGE, 50, 100)
WIDE = both(*SMALL, *USUAL, *LARGE, *HUGE)
POSITIVE = SMALL + USUAL + LARGE + HUGE
INSIDE = both(*SMALL, 0.02, 0.1, 0.3, 0.5, 0.77, *NEAR_ONE)


def sigmoid(x):
    return 1 / (1 + mpmath.exp(-x))


def softplus(x):
    return mpmath.log1p(mpmath.exp(x))


def gelu(x):
    return x * sigmoid(2 * mpmath.sqrt(2 / mpmath.pi) * (x + mpf(0.044715) * x**3))


def gelu_exact(x):
    return x * mpmath.erfc(-x / mpmath.sqrt(2)) / 2


def lgamma(x):
    return mpmath.log(abs(mpmath.gamma(x)))


def erf_inv(x):
    return mpmath.erfinv(x)


ONE = {
    "acos": (mpmath.acos, INSIDE),
    "acosh": (mpmath.acosh, [1 + 2.0**-7, 1.125, *USUAL[6:], *LARGE, *HUGE]),
    "asin": (mpmath.asin, INSIDE),
    "asinh": (mpmath.asinh, WIDE),
    "atan": (mpmath.atan, WIDE),
    "atanh": (mpmath.atanh, INSIDE),
    "cbrt": (lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)), WIDE),
    "cos": (mpmath.cos, both(*SMALL, *USUAL, *LARGE)),
    "cosh": (mpmath.cosh, REAL),
    "digamma": (mpmath.digamma, [-2.5, -0.3, 2.0**-33, 1.1e-3, *USUAL, *LARGE, 100, 1e4]),
    "elu": (lambda x: mpmath.expm1(x), [-x for x in SMALL + USUAL + LARGE + HUGE]),
    "erf": (mpmath.erf, both(*SMALL, *USUAL, 5, 6.1, 7, 9)),
    "erf_inv": (erf_inv, INSIDE),
    "erfc": (mpmath.erfc, both(*SMALL, *USUAL, 5, 6.1, 7, 9)),
    "exp": (mpmath.exp, REAL),
    "exp2": (lambda x: mpf(2) ** x, REAL),
    "expm1": (mpmath.expm1, REAL),
    "gelu": (gelu, both(*SMALL, *USUAL, 5, 6.1, 7)),
    "gelu_exact": (gelu_exact, both(*SMALL, *USUAL, 5, 6.1, 7, 9)),
    "lgamma": (lgamma, [-2.5, -0.3, 2.0**-33, 1.1e-3, *USUAL, *LARGE, 100, 1e4]),
    "log": (mpmath.log, POSITIVE),
    "log10": (mpmath.log10, POSITIVE),
    "log1p": (mpmath.log1p, [-1 + 2.0**-8, -0.9, *both(*SMALL, 0.02, 0.1, 0.3, 0.5, 0.77), *POSITIVE[13:]]),
    "log2": (lambda x: mpmath.log(x, 2), POSITIVE),
    "log_sigmoid": (lambda x: -softplus(-x), REAL),
    "logit": (lambda x: mpmath.log(x / (1 - x)), [*SMALL, 0.02, 0.1, 0.3, 0.77, *NEAR_ONE]),
    "mish": (lambda x: x * mpmath.tanh(softplus(x)), both(*SMALL, *USUAL, *LARGE)),
    "pow 0.3125": (lambda x: x ** mpf(0.3125), POSITIVE),
    "pow -2.5": (lambda x: x ** mpf(-2.5), POSITIVE),
    "pow 3": (lambda x: x**3, WIDE),
    "recip": (lambda x: 1 / x, WIDE),
    "rsqrt": (lambda x: 1 / mpmath.sqrt(x), POSITIVE),
    "sigmoid": (sigmoid, REAL),
    "silu": (lambda x: x * sigmoid(x), REAL),
    "sin": (mpmath.sin, both(*SMALL, *USUAL, *LARGE)),
    "sinc": (lambda x: mpmath.sinc(mpmath.pi * x), both(*SMALL, 0.02, 0.03, 0.032, *USUAL[1:])),
    "sinh": (mpmath.sinh, REAL),
    "softplus": (softplus, REAL),
    "softsign": (lambda x: x / (1 + abs(x)), WIDE),
    "sqrt": (mpmath.sqrt, POSITIVE),
    "square": (lambda x: x**2, WIDE),
    "squareplus": (lambda x: (x + mpmath.sqrt(x**2 + 4)) / 2, WIDE),
    "tan": (mpmath.tan, both(*SMALL, *USUAL[:6], *NEAR_HALF_PI)),
    "tanh": (mpmath.tanh, REAL),
}

MAGNITUDES = [2.0**-600, 2.0**-100, 2.0**-33, 0.3, 1, 2.9, 7, 1e10, 1e30, 2.0**600]
PAIRS = [(x, y) for x in MAGNITUDES for y in MAGNITUDES]
ALL_SIGNS = [(a * x, b * y) for x, y in PAIRS for a, b in [(1, 1), (-1, 1), (1, -1)] if x == y or max(x, y) < 10]
SUMS = [(x, y) for x in [-90, -7, -1, 0, 1e-3, 1, 7, 20] for y in [-90, -20, -1, 0, 1, 1.5, 7, 90]]
BASES = [2.0**-33, 0.3, 1, 2.9, 7, 100]
EXPONENTS = [-3, -0.5, 0, 1e-3, 0.3, 1, 2, 2.9, 7]

TWO = {
    "atan2": (mpmath.atan2, PAIRS + ALL_SIGNS),
    "div": (lambda x, y: x / y, PAIRS),
    "hypot": (lambda x, y: mpmath.sqrt(x**2 + y**2), PAIRS + ALL_SIGNS),
    "logaddexp": (lambda x, y: x + softplus(y - x), SUMS),
    "mul": (lambda x, y: x * y, PAIRS),
    "pow": (lambda x, y: x**y, [(x, y) for x in BASES for y in EXPONENTS]),
}

ORDERS = [(0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (0, 2), (3, 0), (2, 1), (1, 2), (0, 3)]


def number(value):
    """A float; what is beyond them stays infinite."""
    value = mpmath.re(value)
    return float(value) if abs(value) < LARGEST else float(mpmath.sign(value)) * 1e308


def derivative(f, at, order):
    """By differences over steps that are small beside the smallest operand, where none is 0."""
    return mpmath.diff(f, at, order, relative=0 not in (at if isinstance(at, tuple) else (at,)))


def one(f, at):
    return [number(f(at) if order == 0 else derivative(f, at, order)) for order in range(4)]


def two(f, at):
    return [number(f(*at) if order == (0, 0) else derivative(f, at, order)) for order in ORDERS]


def precision(points):
    """Bits enough for differences of the largest and the smallest of these."""
    return 500 + 8 * max(abs(mpmath.frexp(x)[1]) for x in points)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    functions = {}
    for name, (f, points) in ONE.items():
        points = sorted({float(short(x)) for x in points})
        mp.prec = precision(points)
        functions[name] = [[x, *one(f, mpf(x))] for x in points]
        print(name, len(points), flush=True)
    for name, (f, points) in TWO.items():
        points = sorted({(float(short(x)), float(short(y))) for x, y in points})
        mp.prec = precision([x for pair in points for x in pair])
        functions[name] = [[*at, *two(f, tuple(map(mpf, at)))] for at in points]
        print(name, len(points), flush=True)
    lines = [f"{json.dumps(name)}: {json.dumps(rows)}" for name, rows in functions.items()]
    (folder / "slopes.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
