"""Control flow, and transforms of functions."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax import lax

from .case import Case, case, f32, index, tensor


def branches() -> Iterator[Case]:
    def cond(p, x, y):
        return lax.cond(p, lambda x, y: (jnp.sin(x) * y, x), lambda x, y: (x + y, jnp.exp(y)), x, y)

    def switch(i, x):
        return lax.switch(i, [lambda x: x * x, lambda x: jnp.sin(x), lambda x: jnp.exp(x) + 1], x)

    for shape in ((), (3,)):
        for shared in ((), (0,), (1,), (0, 2)):
            yield case("cond", cond, tensor("bool"), f32(*shape), f32(*shape), shared=shared)
        for shared in ((), (0,), (1,)):
            # Below 0 and above 2 the index is clamped.
            yield case("switch", switch, index(below=5, low=-1), f32(*shape), shared=shared)


def loops() -> Iterator[Case]:
    def step(carry, x):
        carry = jnp.tanh(carry + x)
        return carry, carry * x

    for length in (1, 3):
        for shape in ((), (2,)):
            for reverse in (False, True):
                for shared in ((), (0,), (1,)):
                    function = lambda c, xs, r=reverse: lax.scan(step, c, xs, reverse=r)
                    inputs = f32(*shape), f32(length, *shape)
                    yield case("scan", function, *inputs, shared=shared, reverse=reverse, tolerance=2)
    # What the body captures.
    def captured(c, xs, w):
        return lax.scan(lambda c, x: (jnp.tanh(w @ c + x), c), c, xs)

    for shared in ((), (2,), (0, 1)):
        yield case("scan_captured", captured, f32(2), f32(3, 2), f32(2, 2), shared=shared, tolerance=4)

    def recurrence(c, xs):
        def outer(c, x):
            return lax.scan(lambda c, y: (c * 0.5 + y, c), c, x)

        return lax.scan(outer, c, xs)

    yield case("scan_nested", recurrence, f32(), f32(2, 3), tolerance=2)

    def collatz(n):
        def body(state):
            n, count = state
            return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), count + 1

        return lax.while_loop(lambda state: state[0] > 1, body, (n, jnp.int32(0)))

    for shape_low, high in ((1, 4), (3, 30)):
        yield case("while_collatz", collatz, tensor("i32", low=shape_low, high=high))

    def halve(x):
        return lax.while_loop(lambda x: jnp.sum(jnp.abs(x)) > 1, lambda x: x * 0.5, x)

    for shape in ((), (3,)):
        # Reverse mode has no derivative of it.
        yield case("while_halve", halve, f32(*shape), gradient=False)

    def powers(x):
        return lax.fori_loop(0, 4, lambda i, y: y * x + i, jnp.ones_like(x))

    for shape in ((), (2, 2)):
        yield case("fori", powers, f32(*shape), tolerance=2)

    def bounded(n, x):
        return lax.fori_loop(0, n, lambda i, y: y + x * i, x)

    for shared in ((), (0,), (1,)):
        yield case("fori_dynamic", bounded, index(below=5), f32(2), shared=shared, gradient=False)


def transforms() -> Iterator[Case]:
    def energy(x):
        return jnp.sum(jnp.sin(x) * jnp.roll(x, 1)) + jnp.prod(x)

    def field(x):
        return jnp.stack([jnp.sum(x * x), jnp.sin(x[0]) * x[-1], jnp.exp(-jnp.max(x))])

    for n in (2, 3):
        yield case("grad", jax.grad(energy), f32(n), tolerance=4)
        yield case("hessian", jax.hessian(energy), f32(n), tolerance=4)
        yield case("jacfwd", jax.jacfwd(field), f32(n), tolerance=4)
        yield case("jacrev", jax.jacrev(field), f32(n), tolerance=4)
        yield case("value_and_grad", jax.value_and_grad(energy), f32(n), tolerance=4)
        yield case("jvp", lambda x, t: jax.jvp(field, (x,), (t,)), f32(n), f32(n), tolerance=4)
        yield case("linearize", lambda x, t: jax.linearize(field, x)[1](t), f32(n), f32(n), tolerance=4)
        yield case("vmap_grad", lambda x: jax.vmap(jax.grad(energy))(x), f32(2, n), tolerance=4)
        hessian_product = lambda x, t: jax.jvp(jax.grad(energy), (x,), (t,))[1]
        yield case("hessian_product", hessian_product, f32(n), f32(n), tolerance=4)
    yield case("hessian_sort", jax.hessian(lambda x: jnp.sum(jnp.sort(x) ** 2 * jnp.arange(1, 4, dtype=x.dtype))), f32(3), tolerance=4)

    @jax.custom_jvp
    def clipped(x):
        return jnp.clip(x, -1, 1)

    # A derivative that is not the function's own.
    clipped.defjvp(lambda primals, tangents: (clipped(*primals), 2 * tangents[0]))

    @jax.custom_vjp
    def rounded(x, scale):
        return jnp.round(x / scale) * scale

    rounded.defvjp(lambda x, scale: (rounded(x, scale), x), lambda x, ct: (ct, ct * x))

    for shape in ((), (4,)):
        yield case("custom_jvp", clipped, f32(*shape))
        yield case("custom_vjp", rounded, f32(*shape), f32(*shape, low=0.25, high=1.0), forward=False)
        yield case("stop_gradient", lambda x: x * lax.stop_gradient(x), f32(*shape))
        yield case("remat", jax.checkpoint(lambda x: jnp.sin(jnp.sin(x) * x)), f32(*shape))
        yield case("nested_jit", jax.jit(lambda x: jax.jit(jnp.tanh)(x) * x), f32(*shape))


def cases() -> Iterator[Case]:
    yield from branches()
    yield from loops()
    yield from transforms()
