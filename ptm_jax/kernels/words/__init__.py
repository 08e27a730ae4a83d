"""Skip-gram with negative sampling on a CPU: `sampling.cc`, compiled on its first use by the host's C++ compiler.

XLA's CPU backend scatters rows one by one and computes small products on one core. The kernel makes an update's products,
sigmoids and additions in the cache, on all cores, in place. Its definition is `objectives.windows.NegativeSampling` under
SGD; results do not depend on the number of threads.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core import cache
from ptm_jax.core.types import Array, Batch

SOURCE = Path(__file__).with_name("sampling.cc")
FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-pthread", "-w")
TARGET = "ptm_words_descend"


@functools.cache
def refusal() -> str | None:
    """Compiles and registers the kernel; returns why it cannot be used here, or None."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", ""), "c++", "g++", "clang++"))), None)
    if jax.default_backend() != "cpu":
        return "its device is no CPU"
    if compiler is None:
        return "there is no C++ compiler (c++, g++, clang++ or $CXX)"
    try:
        library = ctypes.CDLL(str(_compiled(compiler)))
    except (OSError, subprocess.SubprocessError) as error:
        return f"its compilation failed ({str(error)[:120]})"
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(library[TARGET]), platform="cpu")
    return None


def _compiled(compiler: str) -> Path:
    """Returns the shared library of the source, the compiler, the processor and jaxlib's headers; compiled once."""
    flags = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")][:1]
    facts = [SOURCE.read_text(), compiler, *FLAGS, *flags, jax.__version__]
    folder = (cache.folder() or Path(tempfile.mkdtemp())) / "native"
    path = folder / f"sampling-{hashlib.sha256(chr(0).join(facts).encode()).hexdigest()[:20]}.so"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / path.name
            command = [compiler, *FLAGS, f"-I{jax.ffi.include_dir()}", str(SOURCE), "-o", str(made)]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
            os.replace(made, path)
    return path


def descend(tables: tuple[Array, Array], batch: Batch, rate: Array, *, updates: int, window: int, k: int, threads: int = 0):
    """Returns (input table, output table, [loss, centres, pairs]) after `updates` of the rows m, m + updates, ... each.

    tables   input and output vectors, [V, D] float32; both are donated
    batch    `input_ids`, `segment_ids`, `windows` [B, L], `noise_ids` [B, K]
    rate     the learning rate of the mean over the centres of an update
    threads  0: the cores of this process
    """
    fields = [batch[name].astype(jnp.int32) for name in ("input_ids", "segment_ids", "windows", "noise_ids")]
    shapes = [jax.ShapeDtypeStruct(table.shape, jnp.float32) for table in tables]
    call = jax.ffi.ffi_call(TARGET, (*shapes, jax.ShapeDtypeStruct((3,), jnp.float32)), input_output_aliases={0: 0, 1: 1})
    numbers = {"updates": np.int64(updates), "window": np.int64(window), "k": np.float32(k), "threads": np.int64(threads)}
    return call(*tables, *fields, jnp.reshape(rate, (1,)).astype(jnp.float32), **numbers)
