"""The JAX half of the benchmarks: the same programs as Shardax runs, on the same PJRT plugin.

    python benches/jax/bench.py trace [--repeat N]                    trace and lower, scanned `small` and 32 layers unrolled
    python benches/jax/bench.py call  [--repeat N] [--devices 1|8]    host time of one call, 100 arguments to 100 results
    python benches/jax/bench.py step  [--repeat N] [--size S] [--layout L]    a steady training step
    python benches/jax/bench.py start [--repeat N] [--layout L]       process start to first loss of `tiny`, warm cache

Each prints one line of JSON. Times are medians; `_ms` and `_us` name the unit. The plugin is `$SHARDAX_PLUGIN`, or the CPU
client of jaxlib without it.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

# Un-awaited launches: more of them starve the CPU runtime's threads at a rendezvous.
WINDOW = 8


def median_of(repeat: int, measure) -> float:
    return statistics.median(measure() for _ in range(repeat))


def trace(args) -> dict:
    """Trace and lower, nothing cached from the run before. Inputs are shapes: no memory, no transfer."""
    import jax
    import jax.numpy as jnp

    import reference_jax as reference

    reference.start_backend(1, args.plugin)

    def abstract(config, split):
        shapes = reference.parameter_shapes(config)
        params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
        if split:
            params = jax.eval_shape(reference.unstack, params)
        token = jax.ShapeDtypeStruct((config.B, config.T), jnp.int32)
        state = {"params": params, "m": params, "v": params, "step": jax.ShapeDtypeStruct((), jnp.int32)}
        return state, token, token

    def measure(inputs, text=False):
        jax.clear_caches()
        step = jax.jit(reference.train_step, donate_argnums=0)
        start = time.perf_counter()
        lowered = step.lower(*inputs)
        if text:
            lowered.as_text()
        return time.perf_counter() - start

    small = reference.CONFIGS["small"]
    scanned, unrolled = abstract(small, False), abstract(small._replace(L=32), True)
    measure(scanned)  # imports that JAX delays to the first trace
    fewer = max(1, args.repeat // 3)
    return {
        "small_ms": 1e3 * median_of(args.repeat, lambda: measure(scanned)),
        "small_with_text_ms": 1e3 * median_of(args.repeat, lambda: measure(scanned, text=True)),
        "unrolled32_ms": 1e3 * median_of(fewer, lambda: measure(unrolled)),
        "unrolled32_with_text_ms": 1e3 * median_of(fewer, lambda: measure(unrolled, text=True)),
        "small_leaves": len(jax.tree.leaves(scanned)),
        "unrolled32_leaves": len(jax.tree.leaves(unrolled)),
    }


def call(args) -> dict:
    """Host time of one non-blocking call of 100 arguments f32[16], each result its argument plus one.

    On more than one device each array is split over all of them. `host` awaits the results outside the measured time.
    `execute` is the same launch through jaxlib's binding of the executable, without jit: an upper bound of what the
    runtime itself takes (on several devices it may exceed `host`, since jit has a faster path than that binding).
    """
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec as P

    import reference_jax as reference

    devices = reference.start_backend(args.devices, args.plugin)
    mesh = jax.sharding.Mesh(np.array(devices[: args.devices]), ("data",))
    sharding = NamedSharding(mesh, P("data"))
    arrays = [jax.device_put(np.arange(16, dtype=np.float32) + i, sharding) for i in range(100)]
    function = jax.jit(lambda *xs: [x + 1 for x in xs], in_shardings=sharding, out_shardings=sharding)
    executable = function.lower(*arrays).compile().runtime_executable()

    def timed(launch, wait):
        start = time.perf_counter()
        results = launch()
        elapsed = time.perf_counter() - start
        wait(results)
        return elapsed

    def call_once():
        return timed(lambda: function(*arrays), jax.block_until_ready)

    def execute_once():
        return timed(
            lambda: executable.execute_sharded(arrays),
            lambda results: [a.block_until_ready() for shards in results.disassemble_into_single_device_arrays() for a in shards],
        )

    def windowed(count):
        pending = deque()
        start = time.perf_counter()
        for _ in range(count):
            if len(pending) == WINDOW:
                jax.block_until_ready(pending.popleft())
            pending.append(function(*arrays))
        jax.block_until_ready(list(pending))
        return (time.perf_counter() - start) / count

    for _ in range(20):
        call_once(), execute_once()
    return {
        "devices": args.devices,
        "host_us": 1e6 * median_of(args.repeat, call_once),
        "execute_us": 1e6 * median_of(args.repeat, execute_once),
        "windowed_us": 1e6 * windowed(args.repeat),
    }


def step(args) -> dict:
    """A steady step of training with donated state: awaited each time, and with a bounded window of un-awaited steps."""
    import jax

    import reference_jax as reference

    config = reference.CONFIGS[args.size]
    _, sizes, _ = reference.LAYOUTS[args.layout]
    devices = reference.start_backend(math.prod(sizes), args.plugin)
    layout = reference.make_layout(args.layout, config, devices)
    batches = [[jax.device_put(x, layout.batch) for x in reference.tokens(config, index)] for index in range(8)]
    state = jax.device_put(reference.initial_state(config), layout.state)
    train_step = reference.jit_step(layout)
    start = time.perf_counter()
    state, loss = train_step(state, *batches[0])
    float(loss)
    first = time.perf_counter() - start

    blocking = []
    for index in range(args.repeat + 5):
        start = time.perf_counter()
        state, loss = train_step(state, *batches[index % len(batches)])
        float(loss)
        blocking.append(time.perf_counter() - start)

    # The loss of each step is the handle to wait on; a donated state cannot be awaited.
    pending, marks = deque(), []
    for index in range(args.repeat + WINDOW):
        if len(pending) == WINDOW:
            pending.popleft().block_until_ready()
            marks.append(time.perf_counter())
        state, loss = train_step(state, *batches[index % len(batches)])
        pending.append(loss)
    jax.block_until_ready(list(pending))
    return {
        "size": args.size,
        "layout": args.layout,
        "compile_and_first_ms": 1e3 * first,
        "blocking_ms": 1e3 * statistics.median(blocking[5:]),
        "windowed_ms": 1e3 * statistics.median(b - a for a, b in zip(marks, marks[1:])) if len(marks) > 1 else None,
        "loss": float(loss),
    }


def first_loss(args) -> None:
    """The child of `start`: prints the first loss of `tiny` and nothing else."""
    import jax

    import reference_jax as reference

    jax.config.update("jax_compilation_cache_dir", os.environ["BENCH_JAX_CACHE"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    config = reference.CONFIGS["tiny"]
    devices = reference.start_backend(1 if args.layout == "1" else 8, args.plugin)
    (loss,) = reference.run_losses(config, reference.make_layout(args.layout, config, devices), 1)
    print(loss, flush=True)


def start(args) -> dict:
    """Wall time from the start of a process to its first loss, seen from outside, and the peak memory of that process."""

    def run(cache):
        environment = os.environ | {"BENCH_JAX_CACHE": cache}
        command = [sys.executable, __file__, "first-loss", "--layout", args.layout]
        begin = time.perf_counter()
        child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = child.stdout.readline()
        elapsed = time.perf_counter() - begin
        child.stdout.close()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0 or not line:
            sys.exit(f"the measured process ended with code {child.returncode}")
        return elapsed, usage.ru_maxrss / 1024, float(line)

    with tempfile.TemporaryDirectory() as cache:
        cold, _, _ = run(cache)
        entries = len(list(Path(cache).iterdir()))
        runs = [run(cache) for _ in range(args.repeat)]
        hits = len(list(Path(cache).iterdir())) == entries
    return {
        "layout": args.layout,
        "cold_ms": 1e3 * cold,
        "warm_ms": 1e3 * statistics.median(r[0] for r in runs),
        "peak_rss_mib": statistics.median(r[1] for r in runs),
        "cache_entries": entries,
        "cache_unchanged": hits,
        "loss": runs[0][2],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    plugin = os.environ.get("SHARDAX_PLUGIN")
    for name, function, repeat in [
        ("trace", trace, 9),
        ("call", call, 500),
        ("step", step, 50),
        ("start", start, 5),
        ("first-loss", first_loss, 1),
    ]:
        sub = what.add_parser(name)
        sub.set_defaults(function=function)
        sub.add_argument("--repeat", type=int, default=repeat)
        sub.add_argument("--plugin", default=plugin)
        if name == "call":
            sub.add_argument("--devices", type=int, default=1)
        if name == "step":
            sub.add_argument("--size", default="tiny", choices=("tiny", "small", "gpt2"))
        if name in ("step", "start", "first-loss"):
            sub.add_argument("--layout", default="1", choices=("1", "data2_model4", "data8_ddp", "data8_fsdp"))
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    result = args.function(args)
    if result is not None:
        print(json.dumps({"bench": args.what, "framework": "jax", "repeat": args.repeat, **result}))


if __name__ == "__main__":
    main()
