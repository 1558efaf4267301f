"""Goldens of single operations, made by JAX: values, gradients and random numbers.

Writes `ops.json`, the cases of each family one a line, and beside it `ops.bin` with the numbers. A case has

    op, params      what is computed
    in              inputs of one row: element type, shape, low, high, and "ties" or "bits"
    shared          inputs that all rows have in common (left out: none)
    out             results of one row: element type and shape
    gradient        false where it is not compared (left out: there are gradients of the float inputs, for cotangents of
                    the float results, if there are both)
    forward         false where the derivative in forward mode is not compared (left out: it is)
    tolerance       how many times the error of the element type is allowed (left out: 1)

Each case is computed for ROWS rows, so that a reader can compare a single row and a batch. Inputs are made from an integer
hash, so that a reader in another language makes the same ones:

    mix32(x):  x ^= x>>16; x *= 0x7feb352d; x ^= x>>15; x *= 0x846ca68b; x ^= x>>16        (u32, wrapping)
    h(k, i) = mix32(i + 1000003 * (k + 1)), for element i in row-major order of [ROWS, shape] (of [shape] if shared)
    float input k:    low + (h >> 8) * 2^-24 * (high - low), computed in f64; narrower types are rounded to f32 first
    with "ties":      rounded to a multiple of 1/2, so that equal elements occur
    integer input k:  low + h mod (high - low)
    with "bits":      the lower bits of h(k, i) + h(k + 50, i) * 2^32
    complex input k:  real parts as float input k, imaginary ones as float input k + 50
    cotangent of result j: as float input 100 + j in -1..1

`ops.bin` holds, case by case, the results and then the gradients, each of shape [ROWS, shape], little-endian. f8, f16 and
bf16 are stored as f32, i4 as i8, u4 as u8; complex numbers as pairs. The gradient of a shared input is that of each row.

What JAX gives NaN for is not here: the values that are right there are tested beside the operations.

    python scripts/oracle_jax.py tests/goldens
"""

import argparse
import json
import re
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from oracle import control, elementwise, indexing, linear, network, random, reduction
from oracle.case import Case, Input, dtype_of, is_float, make
from reference_jax import start_backend

ROWS = 2
WIDE = {"bf16": "f4", "f16": "f4", "f8e4m3fn": "f4", "f8e5m2": "f4", "i4": "i1", "u4": "u1", "bool": "u1", "c64": "c8"}
# Alphabetical, for that is the order in which readers of JSON may meet them.
FAMILIES = (control, elementwise, indexing, linear, network, random, reduction)


def stored(array) -> bytes:
    array = np.asarray(array)
    name = dtype_of(array)
    wide = np.dtype(WIDE.get(name, array.dtype)).newbyteorder("<")
    if array.dtype.kind in "fc" or is_float(name):
        assert np.isfinite(array.astype(np.complex128)).all(), f"not finite: {array}"
    return array.astype(wide).tobytes()


def compute(case: Case) -> tuple[dict, bytes]:
    """The line of a case and its numbers."""
    arrays = [make(k, d, None if k in case.shared else ROWS) for k, d in enumerate(case.inputs)]
    floats = [k for k, d in enumerate(case.inputs) if is_float(d.dtype)]

    def results(*inputs):
        value = case.function(*inputs)
        return tuple(value) if isinstance(value, (tuple, list)) else (value,)

    def row_of(array, k, row):
        return jnp.asarray(array if k in case.shared else array[row])

    first = [row_of(a, k, 0) for k, a in enumerate(arrays)]
    outputs = jax.eval_shape(results, *first)
    names = [dtype_of(jnp.zeros((), o.dtype)) for o in outputs]
    differentiable = bool(floats) and any(map(is_float, names))
    has_gradient = differentiable and case.gradient
    cotangents = [
        make(100 + j, Input(name, o.shape, -1.0, 1.0), ROWS)
        for j, (name, o) in enumerate(zip(names, outputs))
        if is_float(name)
    ]

    @jax.jit
    def run(inputs, cotangents):
        if not has_gradient:
            return results(*inputs), ()

        def of_floats(*values):
            full = list(inputs)
            for k, value in zip(floats, values):
                full[k] = value
            out = results(*full)
            return tuple(o for o, n in zip(out, names) if is_float(n)), out

        _, pullback, out = jax.vjp(of_floats, *(inputs[k] for k in floats), has_aux=True)
        return out, pullback(tuple(cotangents))

    rows = [
        run([row_of(a, k, row) for k, a in enumerate(arrays)], [jnp.asarray(c[row]) for c in cotangents]) for row in range(ROWS)
    ]
    line = {"op": case.op}
    if case.params:
        line["params"] = case.params
    line["in"] = [str(d) for d in case.inputs]
    if case.shared:
        line["shared"] = list(case.shared)
    line["out"] = [f"{name}[{','.join(map(str, o.shape))}]" for name, o in zip(names, outputs)]
    if differentiable and not case.gradient:
        line["gradient"] = False
    if has_gradient and not case.forward:
        line["forward"] = False
    if case.tolerance != 1:
        line["tolerance"] = case.tolerance
    numbers = [np.stack([np.asarray(r[part][j]) for r in rows]) for part in (0, 1) for j in range(len(rows[0][part]))]
    return line, b"".join(map(stored, numbers))


def wide_types(case: Case) -> bool:
    """Whether 64-bit types occur, which JAX has only when told."""
    text = json.dumps([str(d) for d in case.inputs]) + json.dumps(case.params)
    return bool(re.search(r"\b[iuf]64\b", text))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where ops.json and ops.bin are written")
    parser.add_argument("--only", default="", help="only operations whose name matches this expression")
    args = parser.parse_args()
    start_backend(1)
    assert jax.config.jax_threefry_partitionable
    started, seen, lines, numbers, faults = time.time(), set(), {}, [], []
    for family in FAMILIES:
        of_family = lines.setdefault(family.__name__.split(".")[-1], [])
        for case in family.cases():
            if not re.search(args.only, case.op):
                continue
            with jax.enable_x64(wide_types(case)):
                try:
                    line, data = compute(case)
                except Exception as error:
                    faults.append(f"{case.op} {case.params} {list(map(str, case.inputs))}: {type(error).__name__} {error}")
                    continue
            text = json.dumps(line, separators=(",", ":"))
            assert text not in seen, f"twice: {text}"
            seen.add(text)
            of_family.append(text)
            numbers.append(data)
    assert not faults, f"{len(faults)} faults\n" + "\n".join(fault[:600] for fault in faults)
    text = ",\n".join(f'"{name}":[\n' + ",\n".join(of_family) + "]" for name, of_family in lines.items())
    (args.folder / "ops.json").write_text("{" + text + "}\n")
    (args.folder / "ops.bin").write_bytes(b"".join(numbers))
    counts = {name: len(of_family) for name, of_family in lines.items()}
    print(f"{sum(counts.values())} cases {counts}, {len(text)} + {sum(map(len, numbers))} bytes, {time.time() - started:.0f} s")


if __name__ == "__main__":
    main()
