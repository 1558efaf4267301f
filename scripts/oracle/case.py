"""What a case is, and the inputs that are made of a hash."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from reference_jax import mix32

DTYPES = {
    "bool": np.bool_,
    "i4": ml_dtypes.int4,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "u4": ml_dtypes.uint4,
    "u8": np.uint8,
    "u16": np.uint16,
    "u32": np.uint32,
    "u64": np.uint64,
    "f8e4m3fn": ml_dtypes.float8_e4m3fn,
    "f8e5m2": ml_dtypes.float8_e5m2,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
    "c64": np.complex64,
}
NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}

SIGNED = ["i8", "i16", "i32", "i64"]
UNSIGNED = ["u8", "u16", "u32", "u64"]
INTEGERS = SIGNED + UNSIGNED
FLOATS = ["f32", "f64", "bf16", "f16"]


def is_float(dtype: str) -> bool:
    return dtype.startswith(("f", "bf"))


def is_integer(dtype: str) -> bool:
    return dtype[0] in "iu"


@dataclass(frozen=True)
class Input:
    """An input of one row. `kind` is "", "ties" (floats rounded to multiples of 1/2) or "bits" (integers of any bits)."""

    dtype: str
    shape: tuple[int, ...]
    low: float = -2.0
    high: float = 2.0
    kind: str = ""

    def __str__(self) -> str:
        shape = ",".join(map(str, self.shape))
        return f"{self.dtype}[{shape}] {self.low:g} {self.high:g} {self.kind}".strip()


@dataclass
class Case:
    """`function` of `inputs`, computed for every row of a batch.

    `shared` are the inputs that all rows have in common. `gradient` says whether the derivative is compared, `forward` whether
    in forward mode too, `tolerance` by how much the error that is allowed exceeds that of the element type.
    """

    op: str
    function: Callable
    inputs: list[Input]
    params: dict = field(default_factory=dict)
    shared: tuple[int, ...] = ()
    gradient: bool = True
    tolerance: float = 1
    forward: bool = True


def case(
    op: str, function: Callable, *inputs: Input, shared=(), gradient=True, tolerance=1, forward=True, **params
) -> Case:
    return Case(op, function, list(inputs), params, tuple(shared), gradient, tolerance, forward)


def tensor(dtype: str, *shape: int, low: float | None = None, high: float | None = None, kind: str = "") -> Input:
    """An input in `low..high`; without them -2..2 for floats, -9..10 or 0..10 for integers, both values for bool."""
    if dtype == "bool":
        default = (0, 2)
    elif is_integer(dtype):
        default = (-9 if dtype[0] == "i" else 0, 10) if dtype not in ("i4", "u4") else (-7 if dtype == "i4" else 0, 8)
    else:
        default = (-2.0, 2.0)
    return Input(dtype, shape, default[0] if low is None else low, default[1] if high is None else high, kind)


def f32(*shape: int, **options) -> Input:
    return tensor("f32", *shape, **options)


def index(*shape: int, below: int, low: int = 0) -> Input:
    """Integers in `low..below`."""
    return tensor("i32", *shape, low=low, high=below)


# --------------------------------------------------------------------------------------------------------------------
# Values


def hashed(k: int, count: int) -> np.ndarray:
    return mix32((np.arange(count, dtype=np.uint32) + np.uint32(1000003 * (k + 1) % 2**32)).astype(np.uint32))


def make(k: int, described: Input, rows: int | None = None) -> np.ndarray:
    """Input `k` of a case; with `rows`, that many along a leading dimension."""
    shape = described.shape if rows is None else (rows, *described.shape)
    count = math.prod(shape)
    dtype = DTYPES[described.dtype]
    if described.dtype == "c64":
        part = Input("f32", shape, described.low, described.high, described.kind)
        return make(k, part) + 1j * make(k + 50, part)
    if described.kind == "bits":
        wide = hashed(k, count).astype(np.uint64) | hashed(k + 50, count).astype(np.uint64) << np.uint64(32)
        return wide.astype(np.dtype(dtype)).reshape(shape)
    if is_float(described.dtype):
        unit = (hashed(k, count) >> np.uint32(8)).astype(np.float64) * 2.0**-24
        values = described.low + unit * (described.high - described.low)
        if described.kind == "ties":
            values = np.round(values * 2) / 2
        # Narrow types are made of f32, as the reader makes them.
        return (values if described.dtype == "f64" else values.astype(np.float32)).astype(dtype).reshape(shape)
    low, high = int(described.low), int(described.high)
    return (low + (hashed(k, count) % np.uint32(high - low)).astype(np.int64)).astype(dtype).reshape(shape)


def dtype_of(array) -> str:
    return NAMES[np.dtype(jnp.asarray(array).dtype)]
