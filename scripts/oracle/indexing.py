"""What selects, moves, joins, orders or looks up elements."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .case import DTYPES, FLOATS, INTEGERS, Case, case, f32, index, tensor

NARROW = ["bool", "i4", "u4", "f8e4m3fn", "f8e5m2"]
SOME = ["f64", "bf16", "i8", "i32", "u64", "bool"]


def shapes() -> Iterator[Case]:
    for shape, permutation in [((2, 3), [1, 0]), ((2, 3, 2), [2, 0, 1]), ((2, 3, 2), [1, 0, 2]), ((3,), [0]), ((1, 2, 3, 2), [3, 1, 0, 2])]:
        yield case("transpose", lambda x, p=permutation: x.transpose(p), f32(*shape), permutation=permutation)
    for shape, new in [((2, 6), [3, 4]), ((2, 3), [6]), ((6,), [2, 3]), ((1, 4), [4]), ((), [1, 1]), ((2, 3, 2), [3, 2, 2])]:
        yield case("reshape", lambda x, s=new: x.reshape(s), f32(*shape), shape=new)
    for shape, new in [((3,), [2, 3]), ((2, 1), [2, 3]), ((), [2, 2]), ((1, 3), [2, 1, 3]), ((2, 1, 2), [2, 3, 2])]:
        yield case("broadcast", lambda x, s=new: jnp.broadcast_to(x, s), f32(*shape), shape=new)
    for shape, axes in [((4,), [0]), ((2, 3), [1]), ((2, 3), [0, 1]), ((2, 3, 2), [0, 2])]:
        yield case("reverse", lambda x, a=tuple(axes): jnp.flip(x, a), f32(*shape), axes=axes)
    for shape, shift, axis in [((5,), 2, 0), ((5,), -1, 0), ((2, 3), 1, 1), ((3, 2), 4, 0), ((2, 3), 0, 1)]:
        yield case("roll", lambda x, s=shift, a=axis: jnp.roll(x, s, a), f32(*shape), shift=shift, axis=axis)
    for name, function in {"tril": jnp.tril, "triu": jnp.triu}.items():
        for shape in ((3, 3), (2, 4), (2, 3, 2)):
            for diagonal in (-1, 0, 1):
                yield case(name, lambda x, f=function, d=diagonal: f(x, d), f32(*shape), diagonal=diagonal)
    for shape, axis in [((3,), 0), ((2, 3), 1), ((2, 3), -1)]:
        yield case("expand_dims", lambda x, a=axis: jnp.expand_dims(x, a), f32(*shape), axis=axis)
    for shape, axis in [((1, 3), 0), ((2, 1, 3), 1)]:
        yield case("squeeze", lambda x, a=axis: jnp.squeeze(x, a), f32(*shape), axis=axis)
    yield case("swap_axes", lambda x: jnp.swapaxes(x, 0, 2), f32(2, 3, 2), a=0, b=2)
    for shape, counts in [((3,), [2]), ((2, 2), [1, 2]), ((1, 2), [2, 2])]:
        yield case("tile", lambda x, c=counts: jnp.tile(x, c), f32(*shape), counts=counts)
    for shape, count, axis in [((3,), 2, 0), ((2, 2), 3, 1), ((2, 2), 2, 0)]:
        yield case("repeat", lambda x, n=count, a=axis: jnp.repeat(x, n, a), f32(*shape), count=count, axis=axis)
    for source, to in ((0, 2), (2, 0), (-1, 1)):
        function = lambda x, s=source, t=to: jnp.moveaxis(x, s, t)
        yield case("moveaxis", function, f32(2, 3, 2), **{"from": source, "to": to})
    for diagonal in (-1, 0, 1):
        for shape in ((3, 3), (2, 4)):
            yield case("diagonal", lambda x, d=diagonal: jnp.diagonal(x, d), f32(*shape), diagonal=diagonal)
        yield case("diag", lambda x, d=diagonal: jnp.diag(x, d), f32(3), diagonal=diagonal)
    for count in (1, 2, 5):
        function = lambda x, n=count: jnp.linspace(-1.0, 2.0, n, dtype=jnp.float32) + x
        yield case("linspace_add", function, f32(), count=count)
    for dtype in [*SOME, *NARROW[1:], "f16", "u8", "i64"]:
        yield case("transpose", lambda x: x.transpose(1, 0), tensor(dtype, 2, 3), permutation=[1, 0])
        yield case("reshape", lambda x: x.reshape(3, 2), tensor(dtype, 2, 3), shape=[3, 2])
        yield case("broadcast", lambda x: jnp.broadcast_to(x, (2, 3)), tensor(dtype, 3), shape=[2, 3])
        yield case("reverse", lambda x: jnp.flip(x, 1), tensor(dtype, 2, 3), axes=[1])
    for dtype in ["f32", "f64", "bf16", "i8", "i32", "i64", "u8", "u32"]:
        for shape, axis in [([4], 0), ([2, 3], 1), ([2, 3], 0)]:
            # A count is the same in every row; the input is there to be batched.
            function = lambda x, d=dtype, s=shape, a=axis: lax.broadcasted_iota(DTYPES[d], s, a) + x
            yield case("iota_add", function, tensor(dtype), shape=shape, axis=axis)


def slices() -> Iterator[Case]:
    for shape, starts, limits, strides in [
        ((5,), [1], [4], [1]),
        ((5,), [0], [5], [2]),
        ((4, 5), [1, 0], [3, 4], [1, 2]),
        ((3, 4), [2, 1], [3, 2], [1, 1]),
        ((2, 3, 4), [0, 1, 0], [2, 3, 4], [1, 1, 3]),
        ((3, 2), [1, 0], [1, 2], [1, 1]),
    ]:
        function = lambda x, s=(starts, limits, strides): lax.slice(x, *s)
        yield case("slice", function, f32(*shape), starts=starts, limits=limits, strides=strides)
        if limits != [1, 2]:
            yield case("slice", function, tensor("i32", *shape), starts=starts, limits=limits, strides=strides)
    for shape, position, axis in [((4,), 2, 0), ((2, 3), 1, 1), ((3, 2), 0, 0)]:
        yield case("index", lambda x, i=position, a=axis: jnp.take(x, i, a), f32(*shape), index=position, axis=axis)
    for shape, config in [
        ((4,), [[1, 2, 0]]),
        ((4,), [[1, 2, 1]]),
        ((5,), [[-1, 1, 0]]),
        ((5,), [[1, -2, 0]]),
        ((4,), [[-1, -1, 1]]),
        ((3,), [[0, 0, 2]]),
        ((2, 3), [[1, 0, 0], [0, 1, 1]]),
        ((2, 3), [[0, -1, 1], [-1, 2, 0]]),
        ((1, 2, 2), [[0, 1, 0], [1, 0, 0], [0, 0, 1]]),
    ]:
        for shared in ((), (0,), (1,)):
            function = lambda x, v, c=config: lax.pad(x, v, [tuple(d) for d in c])
            yield case("pad", function, f32(*shape), f32(), shared=shared, config=config)
    for dtype in [*SOME, "f16", "u8"]:
        function = lambda x, v: lax.pad(x, v, [(1, 0, 0), (0, 1, 1)])
        yield case("pad", function, tensor(dtype, 2, 2), tensor(dtype), config=[[1, 0, 0], [0, 1, 1]])
    for shape, sizes in [((5,), [2]), ((4, 4), [2, 2]), ((4, 3), [1, 3]), ((2, 3, 3), [2, 1, 2])]:
        # Starts reach beyond the last place where the window fits, and are clamped.
        starts = index(len(shape), below=5, low=-1)
        for shared in ((), (0,), (1,)):

            def dynamic_slice(x, i, sizes=sizes):
                return lax.dynamic_slice(x, tuple(i), sizes, allow_negative_indices=False)

            def dynamic_update(x, u, i):
                return lax.dynamic_update_slice(x, u, tuple(i), allow_negative_indices=False)

            yield case("dynamic_slice", dynamic_slice, f32(*shape), starts, shared=shared, sizes=sizes)
            yield case("dynamic_update", dynamic_update, f32(*shape), f32(*sizes), starts, shared=shared)
        yield case("dynamic_update", dynamic_update, f32(*shape), f32(*sizes), starts, shared=(2,))
        yield case("dynamic_update", dynamic_update, f32(*shape), f32(*sizes), starts, shared=(0, 2))
    for dtype in SOME:
        starts = index(2, below=3)
        yield case("dynamic_slice", lambda x, i: lax.dynamic_slice(x, tuple(i), (2, 2)), tensor(dtype, 3, 3), starts, sizes=[2, 2])
        update = lambda x, u, i: lax.dynamic_update_slice(x, u, tuple(i))
        yield case("dynamic_update", update, tensor(dtype, 3, 3), tensor(dtype, 2, 1), starts)


def joins() -> Iterator[Case]:
    for parts, axis in [([(2,), (3,)], 0), ([(2, 2), (2, 1)], 1), ([(1, 2), (2, 2), (1, 2)], 0), ([(2, 1, 2), (2, 2, 2)], -2)]:
        for shared in ((), (0,), (1,)):
            function = lambda *x, a=axis: jnp.concatenate(x, a)
            yield case("concatenate", function, *(f32(*s) for s in parts), shared=shared, axis=axis)
    for shape, axis in [((), 0), ((2,), 0), ((2,), 1), ((2, 3), 1), ((2, 3), -1)]:
        for shared in ((), (1,)):
            yield case("stack", lambda *x, a=axis: jnp.stack(x, a), f32(*shape), f32(*shape), shared=shared, axis=axis)
    for shape, axis, sizes in [((5,), 0, [2, 3]), ((2, 4), 1, [1, 2, 1]), ((4, 2), 0, [2, 2])]:
        points = list(np.cumsum(sizes)[:-1])
        yield case("split", lambda x, p=points, a=axis: jnp.split(x, p, a), f32(*shape), axis=axis, sizes=sizes)
    for dtype in [*SOME, "i4", "f8e5m2", "f16"]:
        yield case("concatenate", lambda *x: jnp.concatenate(x, 0), tensor(dtype, 2, 2), tensor(dtype, 1, 2), axis=0)
        yield case("stack", lambda *x: jnp.stack(x, 0), tensor(dtype, 2), tensor(dtype, 2), axis=0)


def multiply_rows(x, u, i, axis):
    """x with rows along `axis` multiplied; JAX has no derivative of its own scatter for indices that occur twice."""
    x, u = jnp.moveaxis(x, axis, 0), jnp.moveaxis(u, axis, 0)
    hit = (jnp.arange(x.shape[0])[None, :] == i[:, None]).reshape(len(i), x.shape[0], *[1] * (x.ndim - 1))
    return jnp.moveaxis(x * jnp.prod(jnp.where(hit, u[:, None], 1), 0, dtype=x.dtype), 0, axis)


SCATTERS = {"set": "set", "add": "add", "mul": "multiply", "min": "min", "max": "max"}


def gathers() -> Iterator[Case]:
    for shape, indices, axis in [
        ((5,), (3,), 0),
        ((5, 2), (2, 2), 0),
        ((2, 4), (3,), 1),
        ((2, 4, 2), (2,), 1),
        ((3, 2), (), 0),
        ((2, 3), (2, 1), -1),
    ]:
        for shared in ((), (0,), (1,)):
            function = lambda x, i, a=axis: jnp.take(x, i, a)
            yield case("take", function, f32(*shape), index(*indices, below=shape[axis]), shared=shared, axis=axis)
    for shape, indices, axis in [((5,), (3,), 0), ((2, 4), (2, 3), 1), ((4, 2), (1, 2), 0), ((2, 3, 2), (2, 2, 2), 1)]:
        below = shape[axis]
        for shared in ((), (0,), (1,)):
            function = lambda x, i, a=axis: jnp.take_along_axis(x, i, a)
            yield case("take_along", function, f32(*shape), index(*indices, below=below), shared=shared, axis=axis)
    for shape, axis in [((5,), 0), ((2, 4), 1), ((4, 2), 0)]:
        # Every position once, so that which of two values wins is no question.
        def put(x, u, order, a=axis):
            return jnp.put_along_axis(x, jnp.argsort(order, a), u, a, inplace=False)

        for shared in ((), (0,), (1,)):
            yield case("put_along", put, f32(*shape), f32(*shape), f32(*shape), shared=shared, axis=axis)
    for name, method in SCATTERS.items():
        for shape, count, axis in [((5,), 3, 0), ((4, 2), 3, 0), ((2, 4), 2, 1), ((2, 3, 2), 2, 1)]:
            updates = list(shape)
            updates[axis] = count

            def scatter(x, u, i, m=method, a=axis):
                if m == "set":
                    # Different positions.
                    i = (i[0] + jnp.arange(i.shape[0])) % x.shape[a]
                if m == "multiply":
                    return multiply_rows(x, u, i, a)
                at = x.at[(slice(None),) * (a % x.ndim) + (i,)]
                return getattr(at, m)(u)

            domain = {"low": 0.25, "high": 2.0} if name == "mul" else {}
            for shared in ((), (0,), (1,), (2,)):
                inputs = f32(*shape, **domain), f32(*updates, **domain), index(count, below=shape[axis])
                yield case(f"scatter_{name}", scatter, *inputs, shared=shared, axis=axis, tolerance=4)
        for dtype in ["f64", "bf16", "i32", "i64", "u8"]:

            def scatter(x, u, i, m=method):
                if m == "set":
                    i = (i[0] + jnp.arange(i.shape[0])) % x.shape[0]
                return multiply_rows(x, u, i, 0) if m == "multiply" else getattr(x.at[i], m)(u)

            domain = {"low": 0.25, "high": 2.0} if name == "mul" and dtype in FLOATS else {}
            inputs = tensor(dtype, 4, 2, **domain), tensor(dtype, 3, 2, **domain), index(3, below=4)
            yield case(f"scatter_{name}", scatter, *inputs, axis=0, tolerance=4)
        kind = {"kind": "ties"}
        if name in ("min", "max"):
            function = lambda x, u, i, m=method: getattr(x.at[i], m)(u)
            yield case(f"scatter_{name}_values", function, f32(4, **kind), f32(6, **kind), index(6, below=4), gradient=False)
    for dtype in [*SOME, "f16", "u8", "i64"]:
        yield case("take", lambda x, i: jnp.take(x, i, 0), tensor(dtype, 4, 2), index(3, below=4), axis=0)
    for dtype in ["i8", "i64", "u8", "u32"]:
        yield case("take", lambda x, i: jnp.take(x, i, 0), f32(4, 2), tensor(dtype, 3, low=0, high=4), axis=0)
    # Index vectors: x[i, j], windows at (i, j), and blocks with a batch dimension in common.
    for shape, below, sizes, offset, collapsed in [
        ((3, 4), 3, [1, 1], [], [0, 1]),
        ((4, 4), 3, [2, 2], [1, 2], []),
        ((4, 3), 3, [2, 1], [1], [1]),
        ((4, 3), 3, [1, 3], [1], [0]),
    ]:
        vectors = 2 if sizes != [1, 3] else 1
        dims = lax.GatherDimensionNumbers(tuple(offset), tuple(collapsed), tuple(range(vectors)))

        def gather(x, i, d=dims, s=sizes):
            return lax.gather(x, i, d, s, mode="clip")

        params = {"sizes": sizes, "offset": offset, "collapsed": collapsed, "start_map": list(range(vectors))}
        params |= {"operand_batch": [], "indices_batch": []}
        for shared in ((), (0,), (1,)):
            yield case("gather", gather, f32(*shape), index(2, vectors, below=below), shared=shared, **params)
    # A dimension that operand and indices have in common.
    for shape, sizes, offset in [((3, 4), [1, 2], [1]), ((3, 4, 2), [1, 2, 2], [1, 2])]:
        dims = lax.GatherDimensionNumbers(tuple(offset), (), (1,), (0,), (0,))

        def gather(x, i, d=dims, s=sizes):
            return lax.gather(x, i, d, s, mode="clip")

        params = {"sizes": sizes, "offset": offset, "collapsed": [], "start_map": [1], "operand_batch": [0], "indices_batch": [0]}
        for shared in ((), (0,), (1,)):
            yield case("gather", gather, f32(*shape), index(shape[0], 1, below=3), shared=shared, **params)
    for shape, vectors in [((4,), (3, 1)), ((3, 3), (4, 2)), ((3, 3, 2), (2, 2)), ((3, 2), (2, 2, 1))]:
        depth = vectors[-1]
        at = lambda i, d=depth: tuple(i[..., k] for k in range(d))
        inputs = f32(*shape), f32(*vectors[:-1], *shape[depth:]), index(*vectors, below=3)
        for shared in ((), (0,), (1,)):
            yield case("gather_nd", lambda x, i, a=at: x[a(i)], f32(*shape), index(*vectors, below=3), shared=shared)
            yield case("scatter_nd_add", lambda x, u, i, a=at: x.at[a(i)].add(u), *inputs, shared=shared)
    for classes in (3, 5):
        for shape in ((), (3,), (2, 2)):
            for dtype in ("f32", "bf16", "i32", "bool"):
                function = lambda i, c=classes, d=dtype: jax.nn.one_hot(i, c, dtype=DTYPES[d])
                yield case("one_hot", function, index(*shape, below=classes), classes=classes, to=dtype)


def orders() -> Iterator[Case]:
    for shape, axis in [((6,), 0), ((2, 5), 1), ((5, 2), 0), ((2, 3, 2), 1), ((1,), 0)]:
        for kind in ("", "ties"):
            for descending in (False, True):
                ties = f32(*shape, kind=kind)
                options = {"axis": axis, "stable": True, "descending": descending}
                params = {"axis": axis, "descending": descending}
                # JAX reverses equal elements here, where those of a stable order keep theirs.
                gradient = not (kind and descending)
                yield case("sort", lambda x, o=options: jnp.sort(x, **o), ties, gradient=gradient, **params)
                yield case("argsort", lambda x, o=options: jnp.argsort(x, **o).astype(np.int32), ties, **params)
    for dtype in [*FLOATS[1:], *INTEGERS, "bool"]:
        params = {"axis": 0, "descending": False}
        function = lambda x: jnp.argsort(x, stable=True).astype(np.int32)
        yield case("sort", jnp.sort, tensor(dtype, 6), **params)
        yield case("argsort", function, tensor(dtype, 6), **params)
    for keys in (1, 2):
        for shared in ((), (0,), (2,)):
            function = lambda *x, k=keys: lax.sort(x, dimension=-1, is_stable=True, num_keys=k)
            inputs = f32(2, 5, kind="ties"), f32(2, 5), f32(2, 5)
            yield case("sort_many", function, *inputs, shared=shared, axis=-1, keys=keys)
        inputs = index(6, below=3), f32(6), tensor("bool", 6)
        yield case("sort_many", lambda *x, k=keys: lax.sort(x, is_stable=True, num_keys=k), *inputs, axis=0, keys=keys)
    for shape in ((6,), (2, 5)):
        for k in (1, 2, 5):
            for kind in ("", "ties"):
                yield case("top_k", lambda x, k=k: lax.top_k(x, k), f32(*shape, kind=kind), k=k)
    for dtype in [*FLOATS[1:], "i32", "u8"]:
        yield case("top_k", lambda x: lax.top_k(x, 3), tensor(dtype, 2, 5), k=3)
    for side in ("left", "right"):
        for queries in ((), (4,), (2, 2)):
            for shared in ((), (0,)):

                def search(a, q, s=side):
                    return jnp.searchsorted(jnp.sort(a), q, side=s).astype(np.int32)

                inputs = f32(5, kind="ties"), f32(*queries, kind="ties")
                yield case("searchsorted", search, *inputs, shared=shared, side=side)
        yield case("searchsorted", search, index(5, below=6), index(4, below=6), side=side)
    for size in (2, 4, 6):
        function = lambda x, n=size: jnp.unique(x, size=n, fill_value=-1)
        yield case("unique", function, index(6, below=4), size=size, fill=-1)
    yield case("unique", lambda x: jnp.unique(x, size=4, fill_value=9), f32(5, kind="ties"), gradient=False, size=4, fill=9)


def cases() -> Iterator[Case]:
    yield from shapes()
    yield from slices()
    yield from joins()
    yield from gathers()
    yield from orders()
