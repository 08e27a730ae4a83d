"""C++ kernels for CPUs, compiled on first use and called through XLA's foreign functions."""

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

from ptm_jax.kernels import program_cache

FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-pthread", "-w")


@functools.cache
def library(source: Path) -> ctypes.CDLL | str:
    """Returns the library of a source file, compiled on its first use, or why it cannot be used
    here."""
    compiler = next(
        filter(None, map(shutil.which, (os.environ.get("CXX", ""), "c++", "g++", "clang++"))), None
    )
    if compiler is None:
        return "there is no C++ compiler (c++, g++, clang++ or $CXX)"
    try:
        return ctypes.CDLL(str(_compiled(compiler, source)))
    except (OSError, subprocess.SubprocessError) as error:
        return f"its compilation failed ({str(error)[:120]})"


@functools.cache
def refusal(source: Path, target: str) -> str | None:
    """Registers the foreign function `target` of a source; returns why it cannot be used here, or
    None."""
    if jax.default_backend() != "cpu":
        return "its device is no CPU"
    loaded = library(source)
    if isinstance(loaded, str):
        return loaded
    jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(loaded[target]), platform="cpu")
    return None


def _compiled(compiler: str, source: Path) -> Path:
    """Returns the shared library of a source, the compiler, the processor and jaxlib's headers;
    compiled once."""
    flags = [
        line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")
    ][:1]
    texts = [
        path.read_text()
        for path in (
            source,
            *sorted([*source.parent.glob("*.h"), *source.parent.parent.glob("*.h")]),
        )
    ]
    facts = [*texts, compiler, *FLAGS, *flags, jax.__version__]
    folder = (program_cache.folder() or Path(tempfile.mkdtemp())) / "native"
    path = (
        folder / f"{source.stem}-{hashlib.sha256(chr(0).join(facts).encode()).hexdigest()[:20]}.so"
    )
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / path.name
            command = [compiler, *FLAGS, f"-I{jax.ffi.include_dir()}", str(source), "-o", str(made)]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
            os.replace(made, path)
    return path
