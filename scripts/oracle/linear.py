"""Products, convolutions, factorizations and Fourier transforms."""

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
from jax import lax

from .case import DTYPES, Case, case, f32, tensor

EINSUMS = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("ij,kj->ik", (2, 3), (4, 3)),
    ("ji,jk->ik", (3, 2), (3, 4)),
    ("ji,kj->ik", (3, 2), (4, 3)),
    ("ij,jk->ki", (2, 3), (3, 4)),
    ("i,i->", (5,), (5,)),
    ("i,j->ij", (3,), (4,)),
    ("i,j->ji", (3,), (4,)),
    ("ij,j->i", (2, 3), (3,)),
    ("i,ij->j", (2,), (2, 3)),
    ("ij,ij->", (2, 3), (2, 3)),
    ("ij,ij->i", (2, 3), (2, 3)),
    ("ij,ij->ji", (2, 3), (2, 3)),
    ("bij,bjk->bik", (2, 2, 3), (2, 3, 2)),
    ("bij,jk->bik", (2, 2, 3), (3, 2)),
    ("ij,bjk->bik", (2, 3), (2, 3, 2)),
    ("bij,bkj->bik", (2, 2, 3), (2, 4, 3)),
    ("bij,bkj->kbi", (2, 2, 3), (2, 4, 3)),
    ("bqhk,bshk->bhqs", (1, 2, 2, 3), (1, 3, 2, 3)),
    ("bhqs,bshk->bqhk", (1, 2, 2, 3), (1, 3, 2, 2)),
    ("btd,dchk->btchk", (1, 2, 3), (3, 2, 1, 2)),
    ("bqhk,hkd->bqd", (1, 2, 2, 2), (2, 2, 3)),
    ("btd,vd->btv", (1, 2, 3), (4, 3)),
    ("abc,cde->abde", (2, 1, 3), (3, 2, 2)),
    ("abcd,dcef->abef", (1, 2, 3, 2), (2, 3, 2, 1)),
    ("ab,bc,cd->ad", (2, 3), (3, 2), (2, 2)),
    ("ab,bc,ad->cd", (2, 3), (3, 2), (2, 2)),
    ("a,ab,b->", (2,), (2, 3), (3,)),
    ("i,i,i->i", (4,), (4,), (4,)),
    ("ij->ji", (2, 3)),
    ("ij->i", (2, 3)),
    ("ij->", (2, 3)),
    ("ijk->kij", (2, 3, 2)),
    ("ii->i", (3, 3)),
    ("ii->", (3, 3)),
    ("iij->ij", (2, 2, 3)),
    ("ij,jj->i", (2, 3), (3, 3)),
    ("...ij,...jk->...ik", (2, 1, 2, 3), (2, 3, 2)),
    ("...i,i->...", (2, 2, 3), (3,)),
    ("ij,jk", (2, 3), (3, 4)),
    ("ba", (2, 3)),
]
MATMULS = [((2, 3), (3, 4)), ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 2, 3), (3, 2)), ((2, 1, 2, 3), (3, 3, 2))]


def products() -> Iterator[Case]:
    for text, *shapes in EINSUMS:
        for shared in [()] + ([(0,), (1,)] if len(shapes) > 1 else []):
            function = lambda *x, t=text: jnp.einsum(t, *x)
            yield case("einsum", function, *(f32(*s) for s in shapes), shared=shared, subscripts=text, tolerance=2)
    for a, b in MATMULS:
        for shared in ((), (0,), (1,)):
            yield case("matmul", jnp.matmul, f32(*a), f32(*b), shared=shared, tolerance=2)
    for dtype in ("f64", "bf16", "f16"):
        for a, b in MATMULS[:2]:
            yield case("matmul", jnp.matmul, tensor(dtype, *a), tensor(dtype, *b), tolerance=2)
    for dtype in ("i8", "i16", "i32", "i64", "u8", "u32"):
        yield case("matmul", jnp.matmul, tensor(dtype, 2, 3), tensor(dtype, 3, 2))
    for a, b in [((2, 3), (3, 4)), ((2, 2, 3), (3, 2))]:
        for source, target in [("bf16", "f32"), ("f16", "f32"), ("i8", "i32"), ("f8e4m3fn", "f32"), ("u8", "u32")]:
            function = lambda x, y, t=target: lax.dot_general(
                x, y, (((x.ndim - 1,), (0,)), ((), ())), preferred_element_type=DTYPES[t]
            )
            inputs = tensor(source, *a), tensor(source, *b)
            yield case("dot_as", function, *inputs, gradient=source in ("bf16", "f16"), to=target, tolerance=2)
    for lhs_batch, rhs_batch, lhs_contract, rhs_contract, a, b in [
        ([0], [0], [2], [1], (2, 2, 3), (2, 3, 2)),
        ([1], [2], [0], [0], (3, 2, 2), (3, 2, 2)),
        ([], [], [0, 1], [1, 0], (2, 3), (3, 2)),
        ([0, 1], [1, 0], [2], [2], (2, 1, 3), (1, 2, 3)),
        ([], [], [], [], (2,), (3,)),
    ]:
        dims = ((tuple(lhs_contract), tuple(rhs_contract)), (tuple(lhs_batch), tuple(rhs_batch)))
        params = {"lhs_batch": lhs_batch, "rhs_batch": rhs_batch, "lhs_contract": lhs_contract, "rhs_contract": rhs_contract}
        for shared in ((), (0,), (1,)):
            function = lambda x, y, d=dims: lax.dot_general(x, y, d)
            yield case("dot_general", function, f32(*a), f32(*b), shared=shared, tolerance=2, **params)


def convolutions() -> Iterator[Case]:
    """Operands as batch, features, space; kernels as features out, features in, space."""
    def conv(x, y, *, dtype="f32", shared=(), groups=1, batch_groups=1, **options) -> Case:
        rank = len(x) - 2
        ones = [1] * rank
        options = {
            "strides": ones,
            "padding": [[0, 0]] * rank,
            "lhs_dilation": ones,
            "rhs_dilation": ones,
            **options,
        }

        def function(a, b):
            return lax.conv_general_dilated(
                a,
                b,
                options["strides"],
                [tuple(p) for p in options["padding"]],
                options["lhs_dilation"],
                options["rhs_dilation"],
                feature_group_count=groups,
                batch_group_count=batch_groups,
            )

        params = options | {"groups": groups, "batch_groups": batch_groups}
        return case("conv", function, tensor(dtype, *x), tensor(dtype, *y), shared=shared, tolerance=4, **params)

    for shared in ((), (0,), (1,)):
        yield conv((1, 1, 5), (1, 1, 3), shared=shared)
        yield conv((2, 2, 5), (3, 2, 2), shared=shared)
        yield conv((1, 2, 6), (2, 2, 3), padding=[[1, 1]], strides=[2], shared=shared)
        yield conv((1, 2, 5), (2, 2, 2), padding=[[2, 0]], rhs_dilation=[2], shared=shared)
        yield conv((1, 2, 4), (1, 2, 3), padding=[[1, 2]], lhs_dilation=[2], shared=shared)
        yield conv((1, 4, 4), (4, 2, 2), groups=2, shared=shared)
        yield conv((1, 3, 4), (3, 1, 2), groups=3, shared=shared)
        yield conv((1, 2, 4), (4, 1, 3), groups=2, padding=[[1, 1]], strides=[2], shared=shared)
        yield conv((4, 2, 4), (2, 2, 2), batch_groups=2, shared=shared)
        yield conv((1, 2, 4, 4), (2, 2, 2, 2), shared=shared)
        yield conv((1, 1, 4, 5), (1, 1, 3, 2), padding=[[1, 1], [0, 1]], strides=[2, 1], shared=shared)
        yield conv((1, 4, 3, 3), (4, 1, 2, 2), groups=4, padding=[[1, 0], [0, 1]], shared=shared)
    yield conv((1, 2, 5), (2, 2, 2), padding=[[-1, 1]])
    yield conv((1, 1, 6), (1, 1, 3), padding=[[2, 2]], strides=[3], rhs_dilation=[2])
    yield conv((1, 1, 4), (1, 1, 3), padding=[[2, 2]], strides=[2], lhs_dilation=[3])
    yield conv((2, 1, 4), (2, 1, 4))
    yield conv((2, 2, 1), (2, 2, 1))
    yield conv((1, 2, 3, 4), (1, 2, 1, 1), strides=[2, 2])
    yield conv((1, 1, 4, 4), (2, 1, 2, 2), rhs_dilation=[2, 1], lhs_dilation=[1, 2], padding=[[0, 0], [1, 1]])
    yield conv((2, 2, 3, 3), (2, 2, 2, 2), batch_groups=2, padding=[[1, 1], [0, 0]])
    yield conv((1, 1, 3, 3, 3), (1, 1, 2, 2, 2))
    yield conv((1, 2, 2, 3, 2), (2, 2, 2, 2, 1), padding=[[1, 0], [0, 0], [0, 1]], strides=[1, 2, 1])
    yield conv((1, 2, 3, 2, 2), (2, 1, 2, 1, 2), groups=2)
    for dtype in ("f64", "bf16", "f16"):
        yield conv((1, 2, 5), (2, 2, 3), dtype=dtype)
        yield conv((1, 2, 4, 4), (2, 2, 2, 2), dtype=dtype, padding=[[1, 1], [1, 1]], strides=[2, 2])
    for rank in (1, 2):
        space, window = [4] * rank, [2] * rank
        letters = "HW"[:rank]
        specs = f"N{letters}C", f"{letters}IO", f"N{letters}C"
        function = lambda x, y, r=rank, s=specs: lax.conv_general_dilated(x, y, [1] * r, "SAME", dimension_numbers=s)
        for shared in ((), (0,), (1,)):
            yield case("conv_same_last", function, f32(1, *space, 2), f32(*window, 2, 3), shared=shared, rank=rank, tolerance=4)


def positive(x):
    return x @ x.T + 2 * jnp.eye(x.shape[0], dtype=x.dtype)


def solve(a, b, **options):
    a = a + 3 * jnp.eye(a.shape[-1], dtype=a.dtype)
    return lax.linalg.triangular_solve(a, b, **options)


def factorizations() -> Iterator[Case]:
    for dtype in ("f32", "f64"):
        for n in (1, 2, 3, 4):
            function = lambda x: jnp.linalg.cholesky(positive(x))
            yield case("cholesky", function, tensor(dtype, n, n), tolerance=8)
    yield case("cholesky_batch", lambda x: jnp.linalg.cholesky(jnp.stack([positive(x[0]), positive(x[1])])), f32(2, 2, 2), tolerance=8)
    for left in (True, False):
        for lower in (True, False):
            for transpose in (True, False):
                for unit_diagonal in (True, False):
                    options = {
                        "left_side": left,
                        "lower": lower,
                        "transpose_a": transpose,
                        "unit_diagonal": unit_diagonal,
                    }
                    named = {"left": left, "lower": lower, "transpose": transpose, "unit_diagonal": unit_diagonal}
                    function = lambda a, b, o=options: solve(a, b, **o)
                    b = (3, 2) if left else (2, 3)
                    for shared in ((), (0,), (1,)) if not unit_diagonal else ((),):
                        inputs = f32(3, 3, low=-1.0, high=1.0), f32(*b)
                        yield case("triangular_solve", function, *inputs, shared=shared, tolerance=8, **named)
    options = {"left": True, "lower": True, "transpose": False, "unit_diagonal": False}
    function = lambda a, b: solve(a, b, left_side=True, lower=True)
    yield case("triangular_solve", function, tensor("f64", 3, 3, low=-1.0, high=1.0), tensor("f64", 3, 2), tolerance=8, **options)
    yield case("triangular_solve", function, f32(2, 3, 3, low=-1.0, high=1.0), f32(2, 3, 1), tolerance=8, **options)
    for shape in ((2, 2), (3, 3), (3, 2), (4, 2)):
        # The signs of columns are a choice: q r and |r| are not.
        def qr(x):
            q, r = jnp.linalg.qr(x)
            return q @ r, jnp.abs(r)

        yield case("qr", qr, f32(*shape), tolerance=16)


def systems() -> Iterator[Case]:
    for n in (1, 2, 3):
        matrix = f32(n, n, low=-1.0, high=1.0)
        eye = 3 * np.eye(n, dtype=np.float32)
        for columns in (1, 2):
            for shared in ((), (0,), (1,)):
                function = lambda a, b, e=eye: jnp.linalg.solve(a + e, b)
                yield case("solve", function, matrix, f32(n, columns), shared=shared, tolerance=16)
        yield case("inv", lambda a, e=eye: jnp.linalg.inv(a + e), matrix, tolerance=16)
        yield case("det", jnp.linalg.det, f32(n, n), tolerance=16)
        yield case("slogdet", lambda a: tuple(jnp.linalg.slogdet(a)), f32(n, n), tolerance=16)
        yield case("trace", jnp.trace, f32(n, n))
    for shared in ((), (0,), (1,)):
        yield case("outer", jnp.outer, f32(2), f32(3), shared=shared)
        yield case("kron", jnp.kron, f32(2, 2), f32(1, 3), shared=shared)


def transforms() -> Iterator[Case]:
    """Of real inputs and to real results, so that derivatives need no convention; complex ones are compared by value."""
    kinds = {"fft": jnp.fft.fft, "ifft": jnp.fft.ifft}
    for name, function in kinds.items():
        for n in (1, 2, 3, 4, 5, 8):

            def parts(x, y, f=function):
                z = f(lax.complex(x, y))
                return jnp.real(z), jnp.imag(z)

            yield case(f"{name}_parts", parts, f32(n), f32(n), shared=(1,) if n == 4 else (), tolerance=4)
        for shape in ((4,), (2, 3)):
            yield case(name, function, tensor("c64", *shape), gradient=False, tolerance=4)
    for n in (1, 2, 3, 4, 5, 8):

        def rfft(x):
            z = jnp.fft.rfft(x)
            return jnp.real(z), jnp.imag(z)

        yield case("rfft_parts", rfft, f32(2, n), tolerance=4)
    for n in (2, 4, 5, 6):

        def irfft(x, y, n=n):
            # The imaginary part of what has no partner is not read.
            keep = jnp.asarray([0 < k and 2 * k != n for k in range(n // 2 + 1)])
            return jnp.fft.irfft(lax.complex(x, jnp.where(keep, y, 0)), n)

        half = n // 2 + 1
        yield case("irfft_parts", irfft, f32(half), f32(half), n=n, tolerance=4)
    for shape in ((2, 2), (2, 3), (3, 4)):

        def fft2(x, y):
            z = jnp.fft.fft2(lax.complex(x, y))
            return jnp.real(z), jnp.imag(z)

        def rfft2(x):
            z = jnp.fft.rfft2(x)
            return jnp.real(z), jnp.imag(z)

        yield case("fft2_parts", fft2, f32(*shape), f32(*shape), tolerance=4)
        yield case("rfft2_parts", rfft2, f32(*shape), tolerance=4)
        half = lambda x: jnp.fft.irfft2(jnp.fft.rfft2(x) * 0.5, x.shape)
        yield case("irfft2_rfft2", half, f32(*shape), tolerance=4)

        def fft3(x):
            z = jnp.fft.rfftn(x)
            return jnp.real(z), jnp.imag(z)

        yield case("fft3_parts", fft3, f32(2, *shape), tolerance=8)
        yield case("ifft2", jnp.fft.ifft2, tensor("c64", *shape), gradient=False, tolerance=4)


def cases() -> Iterator[Case]:
    yield from products()
    yield from convolutions()
    yield from factorizations()
    yield from systems()
    yield from transforms()
