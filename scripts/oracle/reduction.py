"""Reductions, running reductions, windows and pooling."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .case import FLOATS, INTEGERS, Case, case, f32, tensor

AXES = [((4,), [0]), ((2, 3), [0]), ((2, 3), [1]), ((2, 3), [0, 1]), ((2, 3, 2), [1]), ((2, 3, 2), [0, 2]), ((2, 1, 3), [1])]
REDUCTIONS = {
    "reduce_sum": jnp.sum,
    "reduce_prod": jnp.prod,
    "reduce_max": jnp.max,
    "reduce_min": jnp.min,
    "mean": jnp.mean,
    "var": jnp.var,
    "logsumexp": jax.nn.logsumexp,
}
# Without the axes along which a single element gives a root at 0.
ROOTS = {"std": jnp.std, "norm": lambda x, axis: jnp.sqrt(jnp.sum(jnp.square(x), axis))}
# JAX would widen sums and products of narrow integers.
INTEGER_REDUCTIONS = {
    "reduce_sum": lambda x: jnp.sum(x, 1, dtype=x.dtype),
    "reduce_prod": lambda x: jnp.prod(x, 1, dtype=x.dtype),
    "reduce_max": lambda x: jnp.max(x, 1),
    "reduce_min": lambda x: jnp.min(x, 1),
}


def reductions() -> Iterator[Case]:
    for name, function in (REDUCTIONS | ROOTS).items():
        for shape, axes in AXES[:6] if name in ROOTS else AXES:
            yield case(name, lambda x, f=function, a=tuple(axes): f(x, axis=a), f32(*shape), axes=axes, tolerance=2)
        for dtype in FLOATS[1:]:
            # What is summed is rounded at different points, hence the tolerance.
            described = tensor(dtype, 2, 3)
            yield case(name, lambda x, f=function: f(x, axis=(1,)), described, axes=[1], tolerance=4)
    for name in ("reduce_max", "reduce_min"):
        for shape, axes in [((6,), [0]), ((3, 6), [1]), ((6, 3), [0]), ((3, 4), [0, 1])]:
            function = lambda x, f=REDUCTIONS[name], a=tuple(axes): f(x, axis=a)
            yield case(name, function, f32(*shape, kind="ties"), axes=axes)
    for dtype in INTEGERS:
        for name, function in INTEGER_REDUCTIONS.items():
            yield case(name, function, tensor(dtype, 2, 4, kind="bits"), axes=[1])
    for name, function in {"reduce_and": jnp.all, "reduce_or": jnp.any}.items():
        for shape, axes in AXES:
            yield case(name, lambda x, f=function, a=tuple(axes): f(x, axis=a), tensor("bool", *shape), axes=axes)
    for name, function in {"argmax": jnp.argmax, "argmin": jnp.argmin}.items():
        for shape, axis in [((4,), 0), ((2, 3), 0), ((2, 3), 1), ((2, 3, 2), 1), ((2, 3, 2), -1), ((1,), 0)]:
            for kind in ("", "ties"):
                f = lambda x, f=function, a=axis: f(x, a).astype(np.int32)
                yield case(name, f, f32(*shape, kind=kind), axis=axis)
        for dtype in [*FLOATS[1:], *INTEGERS]:
            yield case(name, lambda x, f=function: f(x, 1).astype(np.int32), tensor(dtype, 2, 5), axis=1)
    for shape in ((3,), (2, 4)):
        weighted = lambda x, w: jax.nn.logsumexp(x, -1, b=w)
        for shared in ((), (0,), (1,)):
            yield case("logsumexp_weights", weighted, f32(*shape), f32(*shape, low=0.25, high=2.0), shared=shared)
    for p in (1, 3):
        function = lambda x, p=p: jnp.sum(jnp.abs(x) ** p, -1) ** (1 / p)
        yield case("norm_p", function, f32(2, 3, low=0.25, high=2.0), p=p, tolerance=4)
    for shape, axes in AXES:
        function = lambda x, a=tuple(axes): jnp.count_nonzero(x, axis=a).astype(np.int32)
        yield case("count_nonzero", function, f32(*shape, low=-1.0, high=1.0, kind="ties"), axes=axes)
    for axis in (0, 1):
        for q in (0.0, 0.3, 0.5, 1.0):
            function = lambda x, q=q, a=axis: jnp.quantile(x, np.float32(q), axis=a)
            yield case("quantile", function, f32(4, 5), q=q, axis=axis, tolerance=2)
        yield case("median", lambda x, a=axis: jnp.median(x, axis=a), f32(4, 5), axis=axis, tolerance=2)
    for length in (3, 6):
        function = lambda x, n=length: jnp.bincount(x, length=n).astype(np.int32)
        yield case("bincount", function, tensor("i32", 8, low=0, high=length), length=length)
    for bins in (2, 5):
        function = lambda x, n=bins: jnp.histogram(x, n, (-2.0, 2.0))[0].astype(np.int32)
        yield case("histogram", function, f32(9), gradient=False, bins=bins)
    for length in (1, 2, 5):
        for reverse in (False, True):
            function = lambda x, r=reverse: lax.associative_scan(jnp.matmul, x, reverse=r, axis=0)
            yield case("associative_scan", function, f32(length, 2, 2, low=-1.0, high=1.0), reverse=reverse, tolerance=4)
    for ddof in (0, 1):
        yield case("std_ddof", lambda x, d=ddof: jnp.std(x, -1, ddof=d), f32(2, 4), ddof=ddof, tolerance=2)
        yield case("var_ddof", lambda x, d=ddof: jnp.var(x, -1, ddof=d), f32(2, 4), ddof=ddof, tolerance=2)


CUMULATIVE = {
    "cumsum": lax.cumsum,
    "cumprod": lax.cumprod,
    "cummax": lax.cummax,
    "cummin": lax.cummin,
    "cumlogsumexp": lax.cumlogsumexp,
}


def cumulative() -> Iterator[Case]:
    for name, function in CUMULATIVE.items():
        for shape, axis in [((1,), 0), ((5,), 0), ((2, 3), 0), ((2, 3), 1), ((2, 3, 2), 1)][: 3 if name == "cumlogsumexp" else 5]:
            for reverse in (False, True):
                f = lambda x, f=function, a=axis, r=reverse: f(x, a, reverse=r)
                yield case(name, f, f32(*shape), axis=axis, reverse=reverse, tolerance=2)
        for dtype in FLOATS[1:]:
            f = lambda x, f=function: f(x, 1)
            yield case(name, f, tensor(dtype, 2, 4), axis=1, reverse=False, tolerance=4)
        if name != "cumlogsumexp":
            for dtype in INTEGERS:
                yield case(name, lambda x, f=function: f(x, 1), tensor(dtype, 2, 4), axis=1, reverse=False)


WINDOWS = [
    # shape, sizes, strides, padding, base dilation, window dilation
    ((6,), [2], [1], [[0, 0]], [1], [1]),
    ((6,), [3], [2], [[1, 1]], [1], [1]),
    ((6,), [2], [1], [[0, 1]], [1], [3]),
    ((4,), [3], [1], [[1, 0]], [2], [1]),
    ((7,), [2], [3], [[0, 0]], [1], [2]),
    ((3, 4), [2, 2], [1, 1], [[0, 0], [0, 0]], [1, 1], [1, 1]),
    ((4, 4), [2, 2], [2, 2], [[0, 0], [0, 0]], [1, 1], [1, 1]),
    ((3, 4), [2, 3], [1, 2], [[1, 0], [1, 1]], [1, 1], [1, 1]),
    ((3, 4), [1, 2], [2, 1], [[0, 0], [0, 0]], [1, 1], [1, 2]),
    ((2, 3), [2, 1], [1, 1], [[1, 1], [0, 0]], [2, 1], [1, 1]),
    ((2, 3, 3), [1, 2, 2], [1, 1, 2], [[0, 0], [0, 0], [1, 0]], [1, 1, 1], [1, 1, 1]),
]


def windows() -> Iterator[Case]:
    for name, (combine, start) in {"reduce_window_and": (lax.bitwise_and, True), "reduce_window_or": (lax.bitwise_or, False)}.items():
        for shape, sizes, strides, padding, base, dilation in WINDOWS:
            options = start, combine, sizes, strides, [tuple(q) for q in padding], base, dilation
            named = {"sizes": sizes, "strides": strides, "padding": padding, "base_dilation": base, "window_dilation": dilation}
            yield case(name, lambda x, o=options: lax.reduce_window(x, *o), tensor("bool", *shape), **named)
    # JAX has no derivative of products of windows; the values are compared.
    for shape, sizes, strides, padding, base, dilation in WINDOWS:

        def products(x, z=sizes, t=strides, p=padding, b=base, d=dilation):
            return lax.reduce_window(x, np.float32(1), lax.mul, z, t, [tuple(q) for q in p], b, d)

        named = {"sizes": sizes, "strides": strides, "padding": padding, "base_dilation": base, "window_dilation": dilation}
        yield case("reduce_window_prod", products, f32(*shape), gradient=False, tolerance=2, **named)
    reducers = {
        "reduce_window_sum": (lax.add, 0.0),
        "reduce_window_max": (lax.max, -np.inf),
        "reduce_window_min": (lax.min, np.inf),
    }
    for name, (combine, start) in reducers.items():
        for shape, sizes, strides, padding, base, dilation in WINDOWS:
            ones = [1] * len(shape)
            if name != "reduce_window_sum" and base != ones:
                # Windows without any element would give infinities.
                continue
            # JAX has no derivative of other dilated windows.
            gradient = name == "reduce_window_sum" or dilation == ones

            def function(x, c=combine, s=start, z=sizes, t=strides, p=padding, b=base, d=dilation):
                return lax.reduce_window(x, np.asarray(s, x.dtype), c, z, t, [tuple(q) for q in p], b, d)

            params = {
                "sizes": sizes,
                "strides": strides,
                "padding": padding,
                "base_dilation": base,
                "window_dilation": dilation,
            }
            yield case(name, function, f32(*shape), gradient=gradient, tolerance=2, **params)
        for dtype in FLOATS[1:]:
            function = lambda x, c=combine, s=start: lax.reduce_window(x, np.asarray(s, x.dtype), c, [2], [1], [(0, 0)])
            params = {"sizes": [2], "strides": [1], "padding": [[0, 0]], "base_dilation": [1], "window_dilation": [1]}
            yield case(name, function, tensor(dtype, 5), tolerance=2, **params)

    # Pooling of operands as batch, features, space.
    def pool(x, kind, size, stride, padding):
        rank = x.ndim - 2
        window, strides = (1, 1) + (size,) * rank, (1, 1) + (stride,) * rank
        padding = [(0, 0)] * 2 + [(padding, padding)] * rank
        if kind == "max_pool":
            return lax.reduce_window(x, -np.inf, lax.max, window, strides, padding)
        if kind == "min_pool":
            return lax.reduce_window(x, np.inf, lax.min, window, strides, padding)
        total = lax.reduce_window(x, 0.0, lax.add, window, strides, padding)
        return total if kind == "sum_pool" else total / size**rank

    for kind in ("max_pool", "min_pool", "sum_pool", "avg_pool"):
        for shape in ((1, 2, 6), (2, 1, 4, 4), (1, 1, 2, 4, 2)):
            for size, stride, padding in [(2, 2, 0), (2, 1, 0), (2, 2, 1)]:
                function = lambda x, k=kind, s=(size, stride, padding): pool(x, k, *s)
                yield case(kind, function, f32(*shape), size=size, stride=stride, padding=padding, tolerance=2)


def cases() -> Iterator[Case]:
    yield from reductions()
    yield from cumulative()
    yield from windows()
