"""Random numbers: the same bits as JAX draws from the same key. A key is an input, two words of u32."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from .case import DTYPES, Case, case, f32, tensor

KEY = tensor("u32", 2, kind="bits")
SHAPES = [(), (5,), (2, 3)]


def draw(op: str, function, *inputs, **params) -> Case:
    """`function` of a key and inputs."""
    of_words = lambda words, *rest: function(jax.random.wrap_key_data(words), *rest)
    return case(op, of_words, KEY, *inputs, **params)


def keys() -> Iterator[Case]:
    data = jax.random.key_data
    for seed in (0, 42, 2**32 + 7):
        with jax.enable_x64(True):
            # A seed above 2^32 keeps its upper word only as a 64-bit integer.
            words = np.asarray(data(jax.random.key(np.int64(seed))))
        yield case("seed", lambda x, w=words: x ^ w, KEY, seed=seed)
    for count in (1, 2, 3, 7):
        yield draw("split_array", lambda key, n=count: data(jax.random.split(key, n)), count=count)
        yield draw("key_split", lambda key, n=count: data(jax.random.split(key, n)), count=count)
    for value in (0, 1, 7, 2**31, 2**32 - 1):
        yield draw("fold_in", lambda key, v=value: data(jax.random.fold_in(key, np.uint32(v))), data=value)
    yield draw("fold_in_traced", lambda key, v: data(jax.random.fold_in(key, v)), tensor("u32", kind="bits"))
    for shape in SHAPES + [(0,), (3, 4)]:
        yield draw("bits", lambda key, s=shape: jax.random.bits(key, s, "uint32"), shape=list(shape))


def draws() -> Iterator[Case]:
    for shape in SHAPES[1:]:
        named = {"shape": list(shape)}
        yield draw("uniform", lambda key, s=shape: jax.random.uniform(key, s, jnp.float32), to="f32", **named)
        for low, high in ((-1.0, 3.0), (0.0, 100.0)):
            function = lambda key, s=shape, b=(low, high): jax.random.uniform(key, s, jnp.float32, *b)
            yield draw("uniform_in", function, to="f32", low=low, high=high, **named)
        yield draw("normal", lambda key, s=shape: jax.random.normal(key, s, jnp.float32), to="f32", **named)
        for low, high in ((-2.0, 2.0), (0.0, 1.0)):
            function = lambda key, s=shape, b=(low, high): jax.random.truncated_normal(key, *b, s, jnp.float32)
            yield draw("truncated_normal", function, low=low, high=high, to="f32", **named)
        for p in (0.3, 0.9):
            yield draw("bernoulli", lambda key, s=shape, p=p: jax.random.bernoulli(key, np.float32(p), s), p=p, **named)
        yield draw("gumbel", lambda key, s=shape: jax.random.gumbel(key, s, jnp.float32), to="f32", **named)
        yield draw("exponential", lambda key, s=shape: jax.random.exponential(key, s, jnp.float32), to="f32", **named)
        for low, high in ((0, 10), (-5, 1000), (0, 1)):
            function = lambda key, s=shape, b=(low, high): jax.random.randint(key, s, *b, jnp.int32)
            yield draw("randint", function, low=low, high=high, **named)
        for alpha in (0.5, 2.5) if shape == (5,) else (1.0,):
            function = lambda key, s=shape, a=alpha: jax.random.gamma(key, np.float32(a), s, jnp.float32)
            yield draw("gamma", function, alpha=alpha, to="f32", tolerance=4, **named)
    for shape in SHAPES[1:2]:
        named = {"to": "f32", "shape": list(shape)}
        yield draw("laplace", lambda key, s=shape: jax.random.laplace(key, s, jnp.float32), **named)
        for alpha in (0.5, 2.5):
            function = lambda key, s=shape, a=alpha: jax.random.loggamma(key, np.float32(a), s, jnp.float32)
            yield draw("loggamma", function, alpha=alpha, tolerance=4, **named)
        for a, b in ((0.5, 2.0), (3.0, 1.0)):
            function = lambda key, s=shape, p=(a, b): jax.random.beta(key, np.float32(p[0]), np.float32(p[1]), s, jnp.float32)
            yield draw("beta", function, alpha=a, beta=b, tolerance=4, **named)
        for shared in ((), (0,), (1,)):
            function = lambda key, x, s=shape: jax.random.dirichlet(key, x * x + 0.5, s, jnp.float32)
            yield draw("dirichlet", function, f32(3), shared=shared, gradient=False, tolerance=8, **named)
    for dtype, low, high in [("i8", -100, 100), ("u8", 0, 256), ("i16", -5, 9), ("u32", 3, 1 << 31), ("i64", -5, 1 << 40)]:
        # Bounds beyond i32 need a type.
        bounds = [np.asarray(b, DTYPES[dtype]) if b >= 1 << 31 else b for b in (low, high)]
        function = lambda key, d=dtype, b=bounds: jax.random.randint(key, (5,), *b, DTYPES[d])
        yield draw("randint_as", function, low=low, high=high, to=dtype, shape=[5])
    for shape, axis in [((5,), 0), ((2, 4), 1), ((3, 2), 0)]:
        for shared in ((), (0,), (1,)):
            function = lambda key, x, a=axis: jax.random.permutation(key, x, axis=a)
            yield draw("shuffle", function, f32(*shape), shared=shared, axis=axis)
    for count, shape in [(5, (3,)), (7, (2, 2)), (4, ())]:
        for replace in (False, True):
            function = lambda key, n=count, s=shape, r=replace: jax.random.choice(key, n, s, r).astype(np.int32)
            yield draw("choice", function, count=count, shape=list(shape), replace=replace)

            def weighted(key, x, s=shape, r=replace):
                return jax.random.choice(key, x.shape[0], s, r, jax.nn.softmax(x)).astype(np.int32)

            yield draw("choice_weighted", weighted, f32(count), shape=list(shape), replace=replace)
    # Normal and Gumbel numbers of narrow types are another matter: JAX draws them of few bits, Shardax in f32.
    draws_of = {"uniform": jax.random.uniform, "normal": jax.random.normal, "gumbel": jax.random.gumbel}
    for name, dtype in [("uniform", "bf16"), ("uniform", "f16"), *((name, "f64") for name in draws_of)]:
        function = lambda key, f=draws_of[name], d=dtype: f(key, (5,), DTYPES[d])
        yield draw(name, function, to=dtype, shape=[5])
    for size in (1, 2, 7, 12):
        yield draw("permutation", lambda key, n=size: jax.random.permutation(key, n).astype(np.int32), size=size)
    for shape in ((5,), (2, 4)):
        function = lambda key, x: jax.random.categorical(key, x, axis=-1).astype(np.int32)
        for shared in ((), (0,), (1,)):
            yield draw("categorical", function, f32(*shape), shared=shared)
    for shared in ((), (0,), (1,)):

        def dropout(key, x):
            return jnp.where(jax.random.bernoulli(key, np.float32(0.75), x.shape), x / np.float32(0.75), 0)

        yield draw("dropout", dropout, f32(2, 4), shared=shared, rate=0.25)


def cases() -> Iterator[Case]:
    yield from keys()
    yield from draws()
