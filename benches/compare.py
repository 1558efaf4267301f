"""Runs the Shardax and the JAX half of the benchmarks in turn, on the same plugin, and prints medians and ratios.

    python3 benches/compare.py [--rounds N] [--only WHAT ...] [--jax PYTHON] [--json FILE]

Without `--jax` a virtual environment is made by `benches/jax/setup.sh`. The plugin is the one that Shardax finds
($SHARDAX_PLUGIN, else the CPU plugin in its cache folder) or fetches. Each round runs Shardax, then JAX, so that both see the same machine; a ratio is the median of the
rounds' ratios. Times on a busy machine are noise, ratios less so: run it on a quiet one.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAYOUTS = ("1", "data2_model4", "data8_fsdp")


def build() -> str:
    """The path of the compiled Shardax half."""
    command = ["cargo", "bench", "--bench", "against_jax", "--no-run", "--message-format=json"]
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    messages = (json.loads(line) for line in output.splitlines())
    executables = [m["executable"] for m in messages if m.get("target", {}).get("name") == "against_jax"]
    return next(path for path in executables if path)


def python_with_jax() -> str:
    setup = subprocess.run(["bash", ROOT / "benches/jax/setup.sh"], check=True, stdout=subprocess.PIPE, text=True)
    return setup.stdout.strip().splitlines()[-1]


def run(command: list, environment: dict) -> dict:
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{done.stderr}\n{' '.join(map(str, command))} ended with code {done.returncode}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def start(shardax: str, layout: str, environment: dict, repeat: int = 5) -> dict:
    """Process start to first loss with a warm cache, and peak memory, seen from outside."""
    with tempfile.TemporaryDirectory() as cache:
        environment = environment | {"SHARDAX_CACHE": cache}

        def once():
            begin = time.perf_counter()
            child = subprocess.Popen(
                [shardax, "first-loss", "--layout", layout],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
            )
            line = child.stdout.readline()
            elapsed = time.perf_counter() - begin
            child.stdout.close()
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            if child.returncode != 0 or not line:
                sys.exit("the measured process failed")
            return elapsed, usage.ru_maxrss / 1024

        once()
        runs = [once() for _ in range(repeat)]
    return {
        "warm_ms": 1e3 * statistics.median(r[0] for r in runs),
        "peak_rss_mib": statistics.median(r[1] for r in runs),
    }


def cases(shardax: str, jax: list, environment: dict):
    """Each: what, arguments, the figures compared, and the two functions that measure them."""

    def both(*arguments):
        arguments = list(map(str, arguments))
        return (
            lambda: run([shardax, *arguments], environment),
            lambda: run([*jax, *arguments], environment),
        )

    yield "trace", "trace + lower", ("small_ms", "unrolled32_ms"), both("trace")
    for devices in (1, 8):
        yield "call", f"call, {devices} device(s)", ("host_us", "execute_us", "windowed_us"), both("call", "--devices", devices)
    for size, repeat in (("tiny", 100), ("small", 10)):
        for layout in LAYOUTS:
            arguments = ("step", "--size", size, "--layout", layout, "--repeat", repeat)
            yield "step", f"step {size}, {layout}", ("blocking_ms", "windowed_ms"), both(*arguments)
    for layout in ("1", "data2_model4"):
        yield (
            "start",
            f"start, {layout}",
            ("warm_ms", "peak_rss_mib"),
            (
                lambda layout=layout: start(shardax, layout, environment),
                lambda layout=layout: run([*jax, "start", "--layout", layout], environment),
            ),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=["trace", "call", "step", "start"])
    parser.add_argument("--jax", help="a Python with jax 0.10.2")
    parser.add_argument("--json", type=Path, help="also writes every round's figures there")
    args = parser.parse_args()
    shardax, python = build(), args.jax or python_with_jax()
    # The same library for both: the one that Shardax finds, or fetches.
    plugin = run([shardax, "plugin"], os.environ)["plugin"]
    environment = os.environ | {"SHARDAX_PLUGIN": plugin, "TF_CPP_MIN_LOG_LEVEL": "2"}
    jax = [python, str(ROOT / "benches/jax/bench.py")]
    everything = []
    print("| what | figure | Shardax | JAX | ratio |\n|---|---|---|---|---|")
    for kind, what, figures, (ours, theirs) in cases(shardax, jax, environment):
        if kind not in args.only:
            continue
        rounds = [(ours(), theirs()) for _ in range(args.rounds)]
        everything.append({"what": what, "rounds": rounds})
        for figure in figures:
            pairs = [(a[figure], b[figure]) for a, b in rounds]
            mine, other = (statistics.median(column) for column in zip(*pairs))
            ratio = statistics.median(a / b for a, b in pairs)
            print(f"| {what} | {figure} | {mine:.4g} | {other:.4g} | {ratio:.3f} |", flush=True)
        if kind == "call":
            # Beyond what the runtime's own Execute takes, as Shardax measures it: the same for both halves.
            pairs = [(a["host_us"] - a["execute_us"], b["host_us"] - a["execute_us"]) for a, b in rounds]
            mine, other = (statistics.median(column) for column in zip(*pairs))
            print(f"| {what} | host_us beyond execute | {mine:.4g} | {other:.4g} | {mine / other:.3f} |", flush=True)
    if args.json:
        args.json.write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
