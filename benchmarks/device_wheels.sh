#!/usr/bin/env bash
# Collects the wheels that `python -m benchmarks.device` needs on a machine without a network that
# has jax, flax, optax, orbax, torch and transformers (5 MB). Usage:
#
#     bash benchmarks/device_wheels.sh FOLDER [PYTHON_VERSION]
#     python3 -m pip install --no-index --no-deps --target SITE FOLDER/*.whl      # on that machine
set -euo pipefail
folder=$1 python=${2:-3.12}
platforms=(manylinux_2_28_x86_64 manylinux_2_27_x86_64 manylinux_2_17_x86_64 manylinux2014_x86_64)
names=(array_record docstring_parser etils grain portpicker shtab tensorboardX typeguard tyro)
python3 -m pip download --no-deps --only-binary=:all: --python-version "$python" \
    --implementation cp "${platforms[@]/#/--platform=}" --dest "$folder" "${names[@]}"
