"""Layers, attention and losses."""

import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .case import FLOATS, Case, case, f32, index, tensor

SOFTMAXES = {"softmax": jax.nn.softmax, "log_softmax": jax.nn.log_softmax}


def layer_norm(x, gain, offset, eps):
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + eps) * gain + offset


def rms_norm(x, gain, eps):
    return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + eps) * gain


def group_norm(x, gain, offset, groups, eps):
    """Of [batch, features, ...]."""
    parts = x.reshape(x.shape[0], groups, -1)
    mean = parts.mean(-1, keepdims=True)
    variance = jnp.square(parts - mean).mean(-1, keepdims=True)
    normal = ((parts - mean) * lax.rsqrt(variance + eps)).reshape(x.shape)
    shape = (-1,) + (1,) * (x.ndim - 2)
    return normal * gain.reshape(shape) + offset.reshape(shape)


def batch_norm(x, gain, offset, eps):
    """Of [batch, features, ...], by the statistics of the batch."""
    axes = (0, *range(2, x.ndim))
    shape = (-1,) + (1,) * (x.ndim - 2)
    mean = x.mean(axes)
    variance = jnp.square(x - mean.reshape(shape)).mean(axes)
    normal = (x - mean.reshape(shape)) * lax.rsqrt(variance + eps).reshape(shape)
    return normal * gain.reshape(shape) + offset.reshape(shape), mean, variance


def normalizations() -> Iterator[Case]:
    for name, function in SOFTMAXES.items():
        for shape, axis in [((4,), 0), ((2, 3), -1), ((2, 3), 0), ((2, 3, 2), 1)]:
            yield case(name, lambda x, f=function, a=axis: f(x, a), f32(*shape), axis=axis)
        for dtype in FLOATS[1:]:
            yield case(name, lambda x, f=function: f(x, -1), tensor(dtype, 2, 4), axis=-1, tolerance=2)
        wide = f32(2, 4, low=-60.0, high=60.0)
        yield case(name, lambda x, f=function: f(x, -1), wide, axis=-1, tolerance=4)
    for shape in ((4,), (2, 4), (2, 2, 3)):
        gain, offset = f32(shape[-1], low=0.5, high=1.5), f32(shape[-1])
        for eps in (1e-5, 1e-3):
            for shared in ((), (0,), (1,), (1, 2)):
                function = lambda x, g, o, e=eps: layer_norm(x, g, o, e)
                yield case("layer_norm", function, f32(*shape), gain, offset, shared=shared, eps=eps, tolerance=4)
                if 2 in shared:
                    continue
                function = lambda x, g, e=eps: rms_norm(x, g, e)
                yield case("rms_norm", function, f32(*shape), gain, shared=shared, eps=eps, tolerance=4)
    for dtype in ("f64",):
        inputs = tensor(dtype, 2, 4), tensor(dtype, 4), tensor(dtype, 4)
        yield case("layer_norm", lambda x, g, o: layer_norm(x, g, o, 1e-5), *inputs, eps=1e-5, tolerance=4)
        yield case("rms_norm", lambda x, g: rms_norm(x, g, 1e-5), *inputs[:2], eps=1e-5, tolerance=4)
    for shape, groups in [((2, 4), 2), ((1, 4, 3), 2), ((1, 2, 2, 2), 1), ((1, 3, 4), 3)]:
        inputs = f32(*shape), f32(shape[1], low=0.5, high=1.5), f32(shape[1])
        for shared in ((), (1, 2)):
            function = lambda x, g, o, n=groups: group_norm(x, g, o, n, 1e-5)
            yield case("group_norm", function, *inputs, shared=shared, groups=groups, eps=1e-5, tolerance=8)
    for shape in ((4, 2), (3, 2, 2), (2, 2, 2, 2)):
        inputs = f32(*shape), f32(shape[1], low=0.5, high=1.5), f32(shape[1])
        for shared in ((), (1, 2)):
            function = lambda x, g, o: batch_norm(x, g, o, 1e-5)
            yield case("batch_norm", function, *inputs, shared=shared, eps=1e-5, tolerance=8)
        inputs = *inputs, f32(shape[1]), f32(shape[1], low=0.5, high=1.5)

        def inference(x, g, o, mean, deviation):
            fit = lambda v: v.reshape((-1,) + (1,) * (x.ndim - 2))
            return (x - fit(mean)) * lax.rsqrt(fit(jnp.square(deviation)) + 1e-5) * fit(g) + fit(o)

        for shared in ((), (1, 2, 3, 4)):
            yield case("batch_norm_inference", inference, *inputs, shared=shared, eps=1e-5, tolerance=8)
    for shape in ((1, 2, 3), (2, 2, 2, 2)):
        inputs = f32(*shape), f32(shape[1], low=0.5, high=1.5), f32(shape[1])
        function = lambda x, g, o: group_norm(x, g, o, x.shape[1], 1e-5)
        yield case("instance_norm", function, *inputs, eps=1e-5, tolerance=8)
    for shape in ((4,), (2, 3)):
        yield case("swiglu", lambda g, x: jax.nn.silu(g) * x, f32(*shape), f32(*shape))
        yield case("geglu", lambda g, x: jax.nn.gelu(g, approximate=True) * x, f32(*shape), f32(*shape))
        yield case("prelu", lambda x, s: jnp.where(x >= 0, x, s * x), f32(*shape), f32(shape[-1]))
        yield case("squareplus", lambda x: (x + jnp.sqrt(x * x + 4)) / 2, f32(*shape), b=4.0)

        def softmax_where(x, m):
            m = m.at[..., 0].set(True)
            return jax.nn.softmax(x, -1, where=m)

        yield case("softmax_where", softmax_where, f32(*shape), tensor("bool", *shape), tolerance=2)
    for shape, axis in [((4,), 0), ((2, 4), -1), ((4, 3), 0)]:
        yield case("glu", lambda x, a=axis: jax.nn.glu(x, a), f32(*shape), axis=axis)
    yield case("normalize", lambda x: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5), f32(2, 4), eps=1e-5, tolerance=4)


def attention(q, k, v, *, causal=False, window=None, mask=None, softcap=None, block=None):
    """q [T, N, H], k and v [S, K, H]: N query heads share K heads of keys. `window` keys up to the query's own are seen.

    `block` is how the reader computes it, and changes nothing.
    """
    T, N, H = q.shape
    S, K, _ = k.shape
    q = q.reshape(T, K, N // K, H)
    scores = jnp.einsum("tkgh,skh->kgts", q, k) / math.sqrt(H)
    if softcap is not None:
        scores = softcap * jnp.tanh(scores / softcap)
    seen = jnp.ones((T, S), bool)
    at, keys = jnp.arange(T)[:, None] + (S - T), jnp.arange(S)[None, :]
    if causal:
        seen &= keys <= at
    if window is not None:
        seen &= keys > at - window
    if mask is not None:
        seen &= mask
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1)
    return jnp.einsum("kgts,skh->tkgh", weights, v).reshape(T, N, H)


def attentions() -> Iterator[Case]:
    for T, S, N, K, H in [(3, 3, 1, 1, 2), (4, 4, 2, 2, 2), (4, 4, 4, 2, 2), (3, 3, 2, 1, 3), (2, 4, 2, 2, 2)]:
        inputs = f32(T, N, H), f32(S, K, H), f32(S, K, H)
        for options in ({}, {"causal": True}, {"causal": True, "window": 2}, {"softcap": 2.0}):
            for shared in ((), (0,), (1, 2)) if options == {"causal": True} else ((),):
                function = lambda q, k, v, o=options: attention(q, k, v, **o)
                yield case("attention", function, *inputs, shared=shared, tolerance=4, **options)
            for block in (2, 8) if (T, N) == (4, 4) else ():
                function = lambda q, k, v, o=options: attention(q, k, v, **o)
                blocks = options | {"block": block}
                yield case("blockwise_attention", function, *inputs, forward=False, tolerance=8, **blocks)
        function = lambda q, k, v: attention(q, k, v, causal=True)
        blocks = {"causal": True, "block": 2}
        yield case("blockwise_attention", function, *inputs, forward=False, shared=(1, 2), tolerance=8, **blocks)

    # The diagonal is always seen: a row without any key is another matter.
    def masked(q, k, v, m):
        return attention(q, k, v, mask=m | jnp.eye(3, dtype=bool))

    inputs = f32(3, 2, 2), f32(3, 1, 2), f32(3, 1, 2), tensor("bool", 3, 3)
    for shared in ((), (3,), (1, 2), (0, 1, 2)):
        yield case("attention_mask", masked, *inputs, shared=shared, tolerance=4)
        yield case("blockwise_attention_mask", masked, *inputs, forward=False, shared=shared, tolerance=8, block=2)
    for dtype in ("f64", "bf16"):
        inputs = tensor(dtype, 3, 1, 2), tensor(dtype, 3, 1, 2), tensor(dtype, 3, 1, 2)
        yield case("attention", lambda q, k, v: attention(q, k, v, causal=True), *inputs, tolerance=4, causal=True)


ORIGINAL_LENGTH = 8


def frequencies(dims, base, scaling, factor):
    """The angle of each pair at position 1, and the factor of cosine and sine."""
    pairs = np.arange(dims // 2)
    if scaling == "ntk":
        base = base * factor ** (dims / (dims - 2))
    plain = base ** (-2.0 * pairs / dims)
    if scaling == "linear":
        return plain / factor, 1.0
    if scaling == "llama3":
        wavelength = 2 * np.pi / plain
        low, high = 1.0, 4.0
        smooth = np.clip((ORIGINAL_LENGTH / wavelength - low) / (high - low), 0, 1)
        return (1 - smooth) * plain / factor + smooth * plain, 1.0
    if scaling == "yarn":
        pair_of = lambda turns: dims * math.log(ORIGINAL_LENGTH / (turns * 2 * np.pi)) / (2 * math.log(base))
        low, high = max(math.floor(pair_of(32)), 0), min(math.ceil(pair_of(1)), dims - 1)
        ramp = np.clip((pairs - low) / max(high - low, 0.001), 0, 1)
        return plain / factor * ramp + plain * (1 - ramp), 0.1 * math.log(factor) + 1
    return plain, 1.0


def rope(x, position, *, base, scaling, factor=1.0, dims=None, interleaved=False):
    """x [T, N, H], one position a row; pairs are the halves of what turns of a head, or neighbors."""
    dims = x.shape[-1] if dims is None else dims
    turning, rest = x[..., :dims], x[..., dims:]
    frequency, magnitude = frequencies(dims, base, scaling, factor)
    angle = position[:, None, None].astype(jnp.float32) * jnp.asarray(frequency, jnp.float32)
    cos, sin = jnp.cos(angle) * np.float32(magnitude), jnp.sin(angle) * np.float32(magnitude)
    if interleaved:
        a, b = turning[..., ::2], turning[..., 1::2]
        turned = jnp.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(turning.shape)
    else:
        a, b = turning[..., : dims // 2], turning[..., dims // 2 :]
        turned = jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)
    return jnp.concatenate([turned, rest], -1)


def positions() -> Iterator[Case]:
    for shape in ((3, 1, 4), (2, 2, 4), (2, 1, 6)):
        inputs = f32(*shape), index(shape[0], below=20)
        for base in (10000.0, 100.0):
            for shared in ((), (0,), (1,)):
                options = {"base": base, "scaling": "none"}
                yield case("rope", lambda x, p, o=options: rope(x, p, **o), *inputs, shared=shared, tolerance=4, **options)
        for options in (
            {"base": 10000.0, "scaling": "none", "interleaved": True},
            {"base": 10000.0, "scaling": "none", "dims": 2},
            {"base": 10000.0, "scaling": "linear", "factor": 4.0},
            {"base": 10000.0, "scaling": "ntk", "factor": 4.0},
            {"base": 10000.0, "scaling": "llama3", "factor": 8.0},
            {"base": 10000.0, "scaling": "yarn", "factor": 4.0},
        ):
            yield case("rope", lambda x, p, o=options: rope(x, p, **o), *inputs, tolerance=8, **options)


def cross_entropy(logits, targets, weights=None, *, smoothing=0.0, ignored=None, z_loss=0.0):
    """The mean over the targets that are not ignored."""
    log_z = jax.nn.logsumexp(logits, axis=-1)
    safe = jnp.where(targets == ignored, 0, targets) if ignored is not None else targets
    picked = jnp.take_along_axis(logits, safe[..., None], axis=-1)[..., 0]
    loss = log_z - (1 - smoothing) * picked - smoothing * logits.mean(-1) + z_loss * jnp.square(log_z)
    weights = jnp.ones_like(loss) if weights is None else weights
    if ignored is not None:
        weights = jnp.where(targets == ignored, 0, weights)
    return (weights * loss).sum() / jnp.where(weights.sum() == 0, 1, weights.sum())


def losses() -> Iterator[Case]:
    for shape in ((3, 5), (2, 2, 4), (1, 3)):
        inputs = f32(*shape), index(*shape[:-1], below=shape[-1])
        for options in ({}, {"smoothing": 0.1}, {"z_loss": 0.01}, {"ignored": 0}, {"smoothing": 0.2, "z_loss": 0.001, "ignored": 1}):
            for shared in ((), (0,), (1,)):
                function = lambda x, t, o=options: cross_entropy(x, t, **o)
                yield case("cross_entropy", function, *inputs, shared=shared, tolerance=2, **options)
        weighted = *inputs, f32(*shape[:-1], low=0.25, high=2.0)
        for shared in ((), (2,)):
            yield case("cross_entropy", cross_entropy, *weighted, shared=shared, tolerance=4)
    inputs = tensor("f64", 3, 5), index(3, below=5)
    yield case("cross_entropy", cross_entropy, *inputs, tolerance=2)
    inputs = f32(4, 2), f32(2, 5), index(4, below=5)
    for chunks in ({"positions": 2, "classes": 2}, {"positions": 3, "classes": 5}, {"positions": 8, "classes": 8}):
        for options in ({}, {"smoothing": 0.1, "z_loss": 0.01}, {"ignored": 0}):
            for shared in ((), (1,)):
                function = lambda h, w, t, o=options: cross_entropy(h @ w, t, **o)
                params = chunks | options
                yield case("chunked_cross_entropy", function, *inputs, forward=False, shared=shared, tolerance=8, **params)
    for shape in ((4,), (2, 3)):
        inputs = f32(*shape), f32(*shape, low=0.0, high=1.0)
        function = lambda x, y: (jax.nn.softplus(x) - x * y).mean()
        yield case("binary_cross_entropy", function, *inputs, tolerance=2)
        for delta in (0.5, 1.5):

            def huber(x, y, d=delta):
                error = jnp.abs(x - y)
                return jnp.where(error <= d, 0.5 * error * error, d * (error - 0.5 * d)).mean()

            yield case("huber", huber, f32(*shape), f32(*shape), delta=delta, tolerance=2)

        def kl(x, y):
            x, y = jax.nn.log_softmax(x, -1), jax.nn.log_softmax(y, -1)
            return (jnp.exp(y) * (y - x)).sum(-1).mean()

        yield case("kl_div", kl, f32(*shape), f32(*shape), tolerance=8)
    for shape in ((4,), (2, 3)):
        yield case("mse", lambda x, y: jnp.square(x - y).mean(), f32(*shape), f32(*shape))
    for shape, ids in [((5, 2), (3,)), ((4, 3), (2, 2))]:
        for shared in ((), (0,), (1,)):
            inputs = f32(*shape), index(*ids, below=shape[0])
            yield case("embedding", lambda t, i: jnp.take(t, i, 0), *inputs, shared=shared)
            yield case("embedding_one_hot", lambda t, i: jnp.take(t, i, 0), *inputs, shared=shared)

    def mlp(x, up, down):
        return jax.nn.gelu(x @ up, approximate=True) @ down

    for shared in ((), (1, 2), (0,)):
        yield case("mlp", mlp, f32(2, 3), f32(3, 4), f32(4, 2), shared=shared, tolerance=8)


def cases() -> Iterator[Case]:
    yield from normalizations()
    yield from attentions()
    yield from positions()
    yield from losses()
