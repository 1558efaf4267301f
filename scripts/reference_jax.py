"""The reference training run in plain JAX: the numbers that Shardax has to meet.

A small GPT is defined to the last bit (integer-hash initial values and tokens, AdamW, global-norm clipping), so two
frameworks can be compared loss by loss. This script runs it on one device and on eight (data 2 x model 4 with Megatron
sharding, data 8 replicated and with FSDP), checks the layouts against one another, and writes the losses of one device to
`tests/goldens/reference_SIZE.json`.

    SHARDAX_PLUGIN=path/to/plugin.so python scripts/reference_jax.py --size tiny --size small --write tests/goldens

Without a plugin the CPU client of jaxlib is used. Other scripts import the model, the layouts and `start_backend` from here.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P


class Config(NamedTuple):
    """Sizes: L layers, D width, H heads, V vocabulary, T context length, B batch."""

    L: int
    D: int
    H: int
    V: int
    T: int
    B: int


CONFIGS = {
    "tiny": Config(L=2, D=64, H=4, V=256, T=64, B=8),
    "small": Config(L=4, D=256, H=8, V=256, T=128, B=16),
    "gpt2": Config(L=12, D=768, H=12, V=50257, T=256, B=4),
}

LEARNING_RATE = 1e-3
WEIGHT_DECAY = 0.1
BETA1, BETA2, EPSILON = 0.9, 0.95, 1e-8

# Losses of the layouts differ by the order of f32 additions only.
TOLERANCE = 1e-4


def start_backend(device_count: int, plugin: str | None = None):
    """Makes `device_count` virtual CPU devices, on the PJRT plugin `plugin` when it is given, and returns them.

    Must be called before anything else starts a JAX backend.
    """
    if plugin:
        from jax._src.xla_bridge import register_plugin

        register_plugin("cpux", library_path=plugin, options={"cpu_device_count": device_count})
        jax.config.update("jax_platforms", "cpux")
    else:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", device_count)
    return jax.devices()


# --------------------------------------------------------------------------------------------------------------------
# Initial values and tokens: integer hashes, equal to the last bit on every machine


def mix32(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.uint32)
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x7FEB352D)
    x ^= x >> np.uint32(15)
    x *= np.uint32(0x846CA68B)
    x ^= x >> np.uint32(16)
    return x


def fnv1a(text: str) -> np.uint32:
    hash_value = 0x811C9DC5
    for byte in text.encode():
        hash_value = ((hash_value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return np.uint32(hash_value)


def initial_weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    index = np.arange(np.prod(shape), dtype=np.uint32)
    random = mix32(index * np.uint32(0x9E3779B9) + fnv1a(name))
    uniform = (random >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
    return ((uniform - np.float32(0.5)) * np.float32(0.08)).reshape(shape)


def parameter_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    layers, width, heads, vocab, context, _ = config
    head_dim = width // heads
    return {
        "wte": (vocab, width),
        "wpe": (context, width),
        "wqkv": (layers, width, 3, heads, head_dim),
        "bqkv": (layers, 3, heads, head_dim),
        "wo": (layers, heads, head_dim, width),
        "bo": (layers, width),
        "w1": (layers, width, 4 * width),
        "b1": (layers, 4 * width),
        "w2": (layers, 4 * width, width),
        "b2": (layers, width),
        "ln1_g": (layers, width),
        "ln1_b": (layers, width),
        "ln2_g": (layers, width),
        "ln2_b": (layers, width),
        "lnf_g": (width,),
        "lnf_b": (width,),
    }


WEIGHTS = ("wte", "wpe", "wqkv", "wo", "w1", "w2")
LAYER_PARAMETERS = ("wqkv", "bqkv", "wo", "bo", "w1", "b1", "w2", "b2", "ln1_g", "ln1_b", "ln2_g", "ln2_b")


def initial_parameters(config: Config) -> dict[str, np.ndarray]:
    def value(name, shape):
        if name in WEIGHTS:
            return initial_weight(name, shape)
        return np.full(shape, 1.0 if name.endswith("_g") else 0.0, np.float32)

    return {name: value(name, shape) for name, shape in parameter_shapes(config).items()}


def initial_state(config: Config) -> dict:
    """Parameters, AdamW moments and the step number, on the host."""
    params = initial_parameters(config)
    zeros = {name: np.zeros_like(value) for name, value in params.items()}
    return {"params": params, "m": zeros, "v": dict(zeros), "step": np.int32(0)}


def tokens(config: Config, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of a step, each i32 [B, T]."""
    row = np.arange(config.B, dtype=np.uint32)[:, None]
    position = np.arange(config.T + 1, dtype=np.uint32)[None, :]
    random = mix32(np.uint32(0x00C0FFEE) + np.uint32(step * config.B) + row)
    vocab = np.uint32(config.V)
    token = (random % vocab + position * (1 + (random >> np.uint32(8)) % np.uint32(7))) % vocab
    token = token.astype(np.int32)
    return token[:, :-1].copy(), token[:, 1:].copy()


# --------------------------------------------------------------------------------------------------------------------
# The model and its training step


def layer_norm(x, gain, offset):
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * gain + offset


def attention(x, p):
    length, head_dim = x.shape[1], p["wqkv"].shape[-1]
    qkv = jnp.einsum("btd,dchk->btchk", x, p["wqkv"]) + p["bqkv"]
    q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
    scores = jnp.einsum("bqhk,bshk->bhqs", q, k) / np.float32(np.sqrt(head_dim))
    causal = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e30), axis=-1)
    mixed = jnp.einsum("bhqs,bshk->bqhk", weights, v)
    return jnp.einsum("bqhk,hkd->bqd", mixed, p["wo"]) + p["bo"]


def mlp(x, p):
    hidden = jax.nn.gelu(jnp.einsum("btd,df->btf", x, p["w1"]) + p["b1"], approximate=True)
    return jnp.einsum("btf,fd->btd", hidden, p["w2"]) + p["b2"]


def block(h, p):
    h = h + attention(layer_norm(h, p["ln1_g"], p["ln1_b"]), p)
    return h + mlp(layer_norm(h, p["ln2_g"], p["ln2_b"]), p)


def layers(h, params):
    """All blocks: a scan over stacked parameters, or one after the other when `unstack` has split them."""
    if LAYER_PARAMETERS[0] in params:
        stack = {name: params[name] for name in LAYER_PARAMETERS}
        h, _ = jax.lax.scan(lambda h, p: (block(h, p), None), h, stack)
        return h
    layer = 0
    while f"{LAYER_PARAMETERS[0]}.{layer}" in params:
        h = block(h, {name: params[f"{name}.{layer}"] for name in LAYER_PARAMETERS})
        layer += 1
    return h


def unstack(values: dict) -> dict:
    """Every layer's parameters as entries of their own, `wo.3` for layer 3 of `wo`."""
    split = {}
    for name, value in values.items():
        if name in LAYER_PARAMETERS:
            split |= {f"{name}.{layer}": value[layer] for layer in range(value.shape[0])}
        else:
            split[name] = value
    return split


def loss_fn(params, inputs, targets):
    h = params["wte"][inputs] + params["wpe"][: inputs.shape[1]]
    h = layers(h, params)
    h = layer_norm(h, params["lnf_g"], params["lnf_b"])
    logits = jnp.einsum("btd,vd->btv", h, params["wte"])
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return (jax.nn.logsumexp(logits, axis=-1) - picked).mean()


def adamw(state, grads):
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in grads.values()))
    scale = 1.0 / jnp.maximum(norm, 1.0)
    t = (state["step"] + 1).astype(jnp.float32)
    correction1, correction2 = 1.0 - BETA1**t, 1.0 - BETA2**t
    params, first, second = {}, {}, {}
    for name, p in state["params"].items():
        g = grads[name] * scale
        m = BETA1 * state["m"][name] + (1.0 - BETA1) * g
        v = BETA2 * state["v"][name] + (1.0 - BETA2) * jnp.square(g)
        decay = WEIGHT_DECAY if name.split(".")[0] in WEIGHTS else 0.0
        update = (m / correction1) / (jnp.sqrt(v / correction2) + EPSILON) + decay * p
        params[name], first[name], second[name] = p - LEARNING_RATE * update, m, v
    return {"params": params, "m": first, "v": second, "step": state["step"] + 1}


def train_step(state, inputs, targets):
    """One step of training: the new state, and the loss before the update."""
    loss, grads = jax.value_and_grad(loss_fn)(state["params"], inputs, targets)
    return adamw(state, grads), loss


# --------------------------------------------------------------------------------------------------------------------
# Layouts


class Layout(NamedTuple):
    """Where arrays lie: shardings of the state and of the tokens."""

    state: dict
    batch: NamedSharding


def megatron_spec(name: str, shape) -> P:
    """Heads, hidden units of the MLP and vocabulary are split over `model`."""
    return {
        "wte": P("model", None),
        "wqkv": P(None, None, None, "model", None),
        "bqkv": P(None, None, "model", None),
        "wo": P(None, "model", None, None),
        "w1": P(None, None, "model"),
        "b1": P(None, "model"),
        "w2": P(None, "model", None),
    }.get(name, P())


def fsdp_spec(name: str, shape) -> P:
    """Every parameter is split over `data` along its first dimension that 8 divides, the layer dimension excepted."""
    first = 1 if name in LAYER_PARAMETERS else 0
    for dimension in range(first, len(shape)):
        if shape[dimension] % 8 == 0:
            return P(*[None] * dimension, "data")
    return P()


LAYOUTS = {
    "1": (("data",), (1,), lambda name, shape: P()),
    "data2_model4": (("data", "model"), (2, 4), megatron_spec),
    "data8_ddp": (("data",), (8,), lambda name, shape: P()),
    "data8_fsdp": (("data",), (8,), fsdp_spec),
}


def make_layout(name: str, config: Config, devices) -> Layout:
    axes, sizes, spec = LAYOUTS[name]
    count = int(np.prod(sizes))
    mesh = jax.sharding.Mesh(np.array(devices[:count]).reshape(sizes), axes)
    params = {k: NamedSharding(mesh, spec(k, shape)) for k, shape in parameter_shapes(config).items()}
    state = {"params": params, "m": params, "v": params, "step": NamedSharding(mesh, P())}
    return Layout(state, NamedSharding(mesh, P("data", None)))


def jit_step(layout: Layout, step=train_step):
    replicated = NamedSharding(layout.batch.mesh, P())
    return jax.jit(
        step,
        in_shardings=(layout.state, layout.batch, layout.batch),
        out_shardings=(layout.state, replicated),
        donate_argnums=0,
    )


def run_losses(config: Config, layout: Layout, steps: int) -> list[float]:
    step = jit_step(layout)
    state = jax.device_put(initial_state(config), layout.state)
    losses = []
    for index in range(steps):
        inputs, targets = (jax.device_put(x, layout.batch) for x in tokens(config, index))
        state, loss = step(state, inputs, targets)
        losses.append(float(loss))
    return losses


# --------------------------------------------------------------------------------------------------------------------
# Command line


def check_against(golden: dict, config: Config, losses: dict[str, list[float]]) -> None:
    """Checks initial values, tokens and losses against a golden made elsewhere."""
    assert golden["config"] == config._asdict(), f"config differs: {golden['config']}"
    for name, value in initial_parameters(config).items():
        sums = [float(value.astype(np.float64).sum()), float(np.abs(value.astype(np.float64)).sum())]
        expected = golden["init_checksums_sum_abs"][name]
        assert np.allclose(sums, expected, rtol=1e-9, atol=1e-9), f"{name}: sums {sums}, expected {expected}"
    first = golden["tokens_step0_row0"]
    assert tokens(config, 0)[0][0, : len(first)].tolist() == first, "the tokens of step 0 differ"
    for layout, values in losses.items():
        expected = golden["losses"].get(f"cpu:{layout}", golden["losses"]["cpu:1"])
        worst = max(abs(a - b) for a, b in zip(values, expected))
        assert worst < TOLERANCE, f"{layout}: a loss differs by {worst}"
        print(f"  {layout}: within {worst:.1e} of the golden", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", action="append", choices=CONFIGS, help="may be repeated; default: tiny")
    parser.add_argument("--layout", action="append", choices=LAYOUTS, help="may be repeated; default: all of them")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--plugin", default=os.environ.get("SHARDAX_PLUGIN"), help="default: $SHARDAX_PLUGIN, else jaxlib")
    parser.add_argument("--check", type=Path, help="an independent golden of the tiny size: compare, and write its losses")
    parser.add_argument("--write", type=Path, metavar="DIR", help="write reference_SIZE.json with the losses of one device")
    args = parser.parse_args()

    devices = start_backend(8, args.plugin)
    for size in args.size or ["tiny"]:
        config = CONFIGS[size]
        losses = {}
        for name in args.layout or LAYOUTS:
            start = time.perf_counter()
            losses[name] = run_losses(config, make_layout(name, config, devices), args.steps)
            print(f"{size} {name}: {losses[name]} ({time.perf_counter() - start:.1f} s)", file=sys.stderr)
        for name, values in losses.items():
            first = next(iter(losses.values()))
            worst = max(abs(a - b) for a, b in zip(values, first))
            assert worst < TOLERANCE, f"{size} {name}: a loss differs by {worst} from the first layout's"
        reference = losses.get("1")
        if args.check and size == "tiny":
            checked = json.loads(args.check.read_text())
            check_against(checked, config, losses)
            reference = checked["losses"]["cpu:1"]
        if args.write:
            if reference is None:
                parser.error("--write needs the layout 1: the golden holds the losses of one device")
            golden = {"config": config._asdict(), "losses": reference}
            path = args.write / f"reference_{size}.json"
            path.write_text(json.dumps(golden, indent=1) + "\n")
            print(f"wrote {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
