"""Goldens of single operations, made by JAX: values, gradients and random numbers.

Writes `ops.json` with three lists. Every input is made from an integer hash, so a reader in another language makes the
same inputs and the file holds results only:

    mix32(x):  x ^= x>>16; x *= 0x7feb352d; x ^= x>>15; x *= 0x846ca68b; x ^= x>>16        (u32, wrapping)
    float input k of a case, element i (row-major):  low + (mix32(i + 1000003 * (k + 1)) >> 8) * 2^-24 * (high - low)
    integer input k, element i:                      low + mix32(i + 1000003 * (k + 1)) mod (high - low)
    cotangent of the output, element i:              as a float input with k = 99, low = -1, high = 1

Floats are computed in f64 and rounded to f32, the range of an input is given with it. `ties` rounds a float input to a
multiple of 1/2, so that equal elements occur. `vjp` holds one list for each float input, in order. A case without `vjp` has
an integer result. Where elements tie, JAX shares the gradient of maximum, minimum, reduce_max and reduce_min evenly.

    python scripts/oracle_jax.py tests/goldens/ops.json
"""

import argparse
import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from reference_jax import mix32, start_backend


def hashed(k: int, count: int) -> np.ndarray:
    return mix32((np.arange(count, dtype=np.uint32) + np.uint32(1000003 * (k + 1))).astype(np.uint32))


def f32(*shape: int, low: float = -2.0, high: float = 2.0, ties: bool = False) -> dict:
    """A float input, described as the golden file describes it."""
    described = {"dtype": "f32", "shape": list(shape), "low": low, "high": high}
    return described | {"ties": True} if ties else described


def i32(*shape: int, low: int = 0, high: int) -> dict:
    """An integer input in low..high."""
    return {"dtype": "i32", "shape": list(shape), "low": low, "high": high}


def make_input(k: int, described: dict) -> np.ndarray:
    shape, low, high = described["shape"], described["low"], described["high"]
    random = hashed(k, math.prod(shape))
    if described["dtype"] == "i32":
        return (low + (random % np.uint32(high - low)).astype(np.int64)).astype(np.int32).reshape(shape)
    value = (low + (random >> np.uint32(8)).astype(np.float64) * 2.0**-24 * (high - low)).astype(np.float32)
    if described.get("ties"):
        value = np.round(value * 2) / np.float32(2)
    return value.astype(np.float32).reshape(shape)


def layer_norm(x, gain, offset):
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * gain + offset


def cross_entropy(logits, targets):
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return (jax.nn.logsumexp(logits, axis=-1) - picked).mean()


def attention(q, k, v):
    scores = jnp.einsum("qk,sk->qs", q, k) / np.float32(math.sqrt(q.shape[-1]))
    causal = jnp.tril(jnp.ones(scores.shape, bool))
    return jax.nn.softmax(jnp.where(causal, scores, -1e30), axis=-1) @ v


POSITIVE = {"low": 0.1, "high": 4.0}

# name, function, inputs. The name says what is computed; where a name needs arguments they are in the name.
CASES = [
    ("neg", lax.neg, [f32(6)]),
    ("abs", lax.abs, [f32(6)]),
    ("sign", lax.sign, [f32(6)]),
    ("exp", lax.exp, [f32(6)]),
    ("log", lax.log, [f32(6, **POSITIVE)]),
    ("expm1", lax.expm1, [f32(6, low=-0.5, high=0.5)]),
    ("log1p", lax.log1p, [f32(6, low=-0.5, high=0.5)]),
    ("sqrt", lax.sqrt, [f32(6, **POSITIVE)]),
    ("rsqrt", lax.rsqrt, [f32(6, **POSITIVE)]),
    ("sin", lax.sin, [f32(6)]),
    ("cos", lax.cos, [f32(6)]),
    ("tanh", lax.tanh, [f32(6)]),
    ("logistic", lax.logistic, [f32(6)]),
    ("erf", lax.erf, [f32(6)]),
    ("square", jnp.square, [f32(6)]),
    ("integer_pow 3", lambda x: lax.integer_pow(x, 3), [f32(6)]),
    ("relu", jax.nn.relu, [f32(6)]),
    ("silu", jax.nn.silu, [f32(6)]),
    ("softplus", jax.nn.softplus, [f32(6)]),
    ("gelu tanh", lambda x: jax.nn.gelu(x, approximate=True), [f32(8, low=-4.0, high=4.0)]),
    ("gelu erf", lambda x: jax.nn.gelu(x, approximate=False), [f32(8, low=-4.0, high=4.0)]),
    ("add broadcast [2,3]+[3]", lambda x, y: x + y, [f32(2, 3), f32(3)]),
    ("mul broadcast [2,1]*[2,3]", lambda x, y: x * y, [f32(2, 1), f32(2, 3)]),
    ("div", lambda x, y: x / y, [f32(6), f32(6, **POSITIVE)]),
    ("pow", lambda x, y: x**y, [f32(6, **POSITIVE), f32(6)]),
    ("maximum ties", jnp.maximum, [f32(12, ties=True), f32(12, ties=True)]),
    ("minimum ties", jnp.minimum, [f32(12, ties=True), f32(12, ties=True)]),
    ("select x>0", lambda x, y: jnp.where(x > 0, x, y), [f32(6), f32(6)]),
    ("clamp -1 1", lambda x: lax.clamp(-1.0, x, 1.0), [f32(8)]),
    ("reduce_sum axis 1", lambda x: x.sum(1), [f32(3, 4)]),
    ("reduce_mean axes 0,2", lambda x: x.mean((0, 2)), [f32(2, 3, 2)]),
    ("reduce_prod axis 1", lambda x: x.prod(1), [f32(3, 4)]),
    ("reduce_max axis 1", lambda x: x.max(1), [f32(3, 4)]),
    ("reduce_max axis 1 ties", lambda x: x.max(1), [f32(3, 6, ties=True)]),
    ("reduce_min axis 0 ties", lambda x: x.min(0), [f32(6, 3, ties=True)]),
    ("argmax axis 1 ties", lambda x: jnp.argmax(x, 1).astype(jnp.int32), [f32(3, 6, ties=True)]),
    ("argmin axis 0 ties", lambda x: jnp.argmin(x, 0).astype(jnp.int32), [f32(6, 3, ties=True)]),
    ("cumsum axis 1", lambda x: jnp.cumsum(x, 1), [f32(3, 4)]),
    ("logsumexp last", lambda x: jax.nn.logsumexp(x, -1), [f32(3, 4)]),
    ("softmax last", lambda x: jax.nn.softmax(x, -1), [f32(3, 4)]),
    ("log_softmax last", lambda x: jax.nn.log_softmax(x, -1), [f32(3, 4)]),
    ("variance last", lambda x: x.var(-1), [f32(3, 4)]),
    ("layer_norm eps 1e-5", layer_norm, [f32(3, 4), f32(4), f32(4)]),
    ("rms_norm eps 1e-6", lambda x, g: x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6) * g, [f32(3, 4), f32(4)]),
    ("cross_entropy mean", cross_entropy, [f32(3, 5), i32(3, high=5)]),
    ("causal attention q,k,v [4,3]", attention, [f32(4, 3), f32(4, 3), f32(4, 3)]),
    ("matmul [2,3]@[3,4]", lambda x, y: x @ y, [f32(2, 3), f32(3, 4)]),
    ("einsum bij,bjk->bik", lambda x, y: jnp.einsum("bij,bjk->bik", x, y), [f32(2, 2, 3), f32(2, 3, 2)]),
    ("einsum bqhk,bshk->bhqs", lambda x, y: jnp.einsum("bqhk,bshk->bhqs", x, y), [f32(1, 2, 2, 3), f32(1, 3, 2, 3)]),
    ("einsum btd,dchk->btchk", lambda x, y: jnp.einsum("btd,dchk->btchk", x, y), [f32(1, 2, 3), f32(3, 2, 1, 2)]),
    ("einsum bqhk,hkd->bqd", lambda x, y: jnp.einsum("bqhk,hkd->bqd", x, y), [f32(1, 2, 2, 2), f32(2, 2, 3)]),
    ("einsum btd,vd->btv", lambda x, y: jnp.einsum("btd,vd->btv", x, y), [f32(1, 2, 3), f32(4, 3)]),
    ("transpose 2,0,1", lambda x: x.transpose(2, 0, 1), [f32(2, 3, 4)]),
    ("reshape [2,6]->[3,4]", lambda x: x.reshape(3, 4), [f32(2, 6)]),
    ("reverse axis 1", lambda x: jnp.flip(x, 1), [f32(2, 3)]),
    ("concatenate axis 1", lambda x, y: jnp.concatenate([x, y], 1), [f32(2, 2), f32(2, 3)]),
    ("slice [1:3, 0:4:2]", lambda x: x[1:3, 0:4:2], [f32(4, 5)]),
    ("pad low 1 high 2 interior 1 with 0.5", lambda x: lax.pad(x, jnp.float32(0.5), [(1, 2, 1)]), [f32(4)]),
    ("dynamic_slice [i,j] sizes 2,2", lambda x, i: lax.dynamic_slice(x, (i[0], i[1]), (2, 2)), [f32(4, 4), i32(2, high=3)]),
    (
        "dynamic_slice clamped start 9,-3 sizes 2,2",
        lambda x: lax.dynamic_slice(x, (jnp.int32(9), jnp.int32(-3)), (2, 2), allow_negative_indices=False),
        [f32(4, 4)],
    ),
    (
        "dynamic_update_slice [i,j]",
        lambda x, u, i: lax.dynamic_update_slice(x, u, (i[0], i[1])),
        [f32(4, 4), f32(2, 2), i32(2, high=3)],
    ),
    ("gather rows x[i]", lambda x, i: x[i], [f32(5, 3), i32(2, 2, high=5)]),
    ("take_along_axis last", lambda x, i: jnp.take_along_axis(x, i, axis=-1), [f32(3, 4), i32(3, 2, high=4)]),
    ("scatter_add rows x.at[i].add(u)", lambda x, u, i: x.at[i].add(u), [f32(4, 3), f32(5, 3), i32(5, high=4)]),
    ("sort last", lambda x: jnp.sort(x, -1), [f32(2, 6)]),
    ("sort last ties", lambda x: jnp.sort(x, -1), [f32(2, 6, ties=True)]),
    ("argsort stable last ties", lambda x: jnp.argsort(x, -1, stable=True).astype(jnp.int32), [f32(2, 6, ties=True)]),
    ("top_k 3 values", lambda x: lax.top_k(x, 3)[0], [f32(2, 6)]),
    ("top_k 3 indices ties", lambda x: lax.top_k(x, 3)[1], [f32(2, 6, ties=True)]),
    ("one_hot 4", lambda i: jax.nn.one_hot(i, 4, dtype=jnp.int32), [i32(3, high=4)]),
]


def numbers(array) -> list:
    array = np.asarray(array)
    if array.dtype == np.float32:
        # Nine significant digits determine an f32.
        return [float(f"{x:.9g}") for x in array.ravel().tolist()]
    return array.ravel().tolist()


def op_golden(name: str, function, described: list[dict]) -> dict:
    inputs = [jnp.asarray(make_input(k, d)) for k, d in enumerate(described)]
    floats = [k for k, d in enumerate(described) if d["dtype"] == "f32"]

    def of_floats(*values):
        full = list(inputs)
        for k, value in zip(floats, values):
            full[k] = value
        return function(*full)

    golden = {"name": name, "inputs": described}
    output, vjp = jax.vjp(of_floats, *(inputs[k] for k in floats)) if floats else (function(*inputs), None)
    golden["shape"] = list(output.shape)
    golden["value"] = numbers(output)
    if jnp.issubdtype(output.dtype, jnp.floating):
        cotangent = make_input(99, f32(*output.shape, low=-1.0, high=1.0))
        golden["vjp"] = [numbers(g) for g in vjp(jnp.asarray(cotangent))]
    finite = [*golden["value"], *(x for g in golden.get("vjp", []) for x in g)]
    assert all(math.isfinite(x) for x in finite), f"{name}: not finite"
    return golden


def random_goldens() -> list[dict]:
    """threefry2x32 as JAX uses it: keys, splitting, folding, bits and distributions."""
    assert jax.config.jax_threefry_partitionable
    data = lambda key: np.asarray(jax.random.key_data(key))
    goldens = []
    for seed in (0, 42, 2**32 + 7):
        with jax.enable_x64(True):
            # A seed above 2^32 keeps its upper word only as a 64-bit integer.
            words = np.asarray(jax.random.key_data(jax.random.key(np.int64(seed))))
        key = jax.random.wrap_key_data(jnp.asarray(words))
        entry = {"seed": seed, "key": data(key).tolist()}
        for count in (2, 3):
            entry[f"split {count}"] = data(jax.random.split(key, count)).tolist()
        for value in (0, 1, 7, 2**32 - 1):
            entry[f"fold_in {value}"] = data(jax.random.fold_in(key, np.uint32(value))).tolist()
        entry["bits u32 [5]"] = numbers(jax.random.bits(key, (5,), "uint32"))
        entry["bits u32 [2,3]"] = numbers(jax.random.bits(key, (2, 3), "uint32"))
        entry["bits u32 []"] = numbers(jax.random.bits(key, (), "uint32"))
        entry["bits u16 [5]"] = numbers(jax.random.bits(key, (5,), "uint16"))
        entry["bits u8 [5]"] = numbers(jax.random.bits(key, (5,), "uint8"))
        entry["uniform f32 [6]"] = numbers(jax.random.uniform(key, (6,)))
        entry["uniform f32 [2,3] -1..3"] = numbers(jax.random.uniform(key, (2, 3), minval=-1.0, maxval=3.0))
        entry["normal f32 [6]"] = numbers(jax.random.normal(key, (6,)))
        entry["truncated_normal f32 [6] -2..2"] = numbers(jax.random.truncated_normal(key, -2.0, 2.0, (6,)))
        entry["bernoulli 0.3 [8]"] = [int(x) for x in jax.random.bernoulli(key, 0.3, (8,))]
        entry["gumbel f32 [6]"] = numbers(jax.random.gumbel(key, (6,)))
        entry["randint i32 [6] 0..10"] = numbers(jax.random.randint(key, (6,), 0, 10))
        entry["randint i32 [6] -5..1000"] = numbers(jax.random.randint(key, (6,), -5, 1000))
        entry["permutation 7"] = numbers(jax.random.permutation(key, 7))
        logits = jnp.asarray(make_input(0, f32(4, 5)))
        entry["categorical logits f32 [4,5] input 0"] = numbers(jax.random.categorical(key, logits, axis=-1))
        goldens.append(entry)
    return goldens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="the file to write")
    args = parser.parse_args()
    start_backend(1)
    ops = [op_golden(*case) for case in CASES]
    first = numbers(make_input(0, f32(3)))
    text = json.dumps({"input_check": first, "ops": ops, "random": random_goldens()})
    # One case a line: readable in a diff, and small.
    for start in ('"ops": [', '"random": ['):
        text = text.replace(start, start + "\n")
    text = text.replace('}, {"name"', '},\n{"name"').replace('}, {"seed"', '},\n{"seed"')
    args.path.write_text(text + "\n")
    print(f"wrote {len(ops)} cases, {len(text)} bytes")


if __name__ == "__main__":
    main()
