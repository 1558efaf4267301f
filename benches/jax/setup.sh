#!/bin/sh
# Makes a virtual environment with the JAX that the benchmarks compare with, and prints its Python.
#   benches/jax/setup.sh [FOLDER]      (default: target/jax-venv)
set -eu
folder=${1:-"$(dirname "$0")/../../target/jax-venv"}
if ! "$folder/bin/python" -c 'import jax, sys; sys.exit(jax.__version__ != "0.10.2")' 2>/dev/null; then
    python3 -m venv "$folder" >&2
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check jax==0.10.2 >&2
fi
echo "$folder/bin/python"
