"""A function of a test file in a process of its own, where its devices are other than those of this
one."""

import json
import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def call(function, *arguments, env):
    """What the function returns there; `env` is its environment, arguments and result are what JSON
    can hold."""
    here = Path(function.__code__.co_filename)
    paths = here.parent, TESTS, TESTS.parent, env.get("PYTHONPATH", "")
    env = {**env, "PYTHONPATH": os.pathsep.join(filter(None, map(str, paths)))}
    loops = "from ptm_jax.nn import blocks; blocks.UNROLLED = 0"  # as in conftest
    code = (
        f"import json, {here.stem} as it; {loops}; "
        f"print(json.dumps(it.{function.__name__}(*{arguments!r})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def on_devices(count, function, *arguments):
    """What the function returns where there are so many CPU devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    return call(function, *arguments, env={**os.environ, "XLA_FLAGS": flags})
