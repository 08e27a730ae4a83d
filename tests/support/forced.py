"""Runs a function in a process of its own on eight forced devices of the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def on_eight_devices(function):
    """What a function of a test file returns there; JSON can hold it."""
    here = Path(function.__code__.co_filename)
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    path = os.pathsep.join(map(str, (here.parent, TESTS, TESTS.parent)))
    code = f"import json, {here.stem} as it; print(json.dumps(it.{function.__name__}()))"
    env = {**os.environ, "PYTHONPATH": path, "XLA_FLAGS": flags}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
