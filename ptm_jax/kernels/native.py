"""C++ kernels for CPUs, compiled on first use and called through XLA's foreign functions."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import jax

from ptm_jax.core import cache
from ptm_jax.kernels import program_cache

ROOM = Path(__file__).parent
FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-pthread", "-w")


@functools.cache
def library(source: Path) -> ctypes.CDLL | str:
    """Returns the library of a source file, or why it cannot be used here.

    It is compiled on its first use.
    """
    compiler = next(
        filter(None, map(shutil.which, (os.environ.get("CXX", ""), "c++", "g++", "clang++"))), None
    )
    if compiler is None:
        return "there is no C++ compiler (c++, g++, clang++ or $CXX)"
    try:
        return _loaded(compiler, source)
    except (OSError, subprocess.SubprocessError) as error:
        return f"its compilation failed ({str(error)[:120]})"


_registering = threading.Lock()
_ready: set[tuple[str, str]] = set()


def refusal(source: Path, target: str) -> str | None:
    """Registers the foreign function `target` of a source.

    Returns why it cannot be used here, or None. Threads that trace programs at the same time
    register it once.
    """
    with _registering:
        return _registered(source, target)


@functools.cache
def _registered(source: Path, target: str) -> str | None:
    if jax.default_backend() != "cpu":
        return "its device is no CPU"
    loaded = library(source)
    if isinstance(loaded, str):
        return loaded
    jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(loaded[target]), platform="cpu")
    if ROOM in source.parents:
        _ready.add((str(source.relative_to(ROOM)), target))
    return None


def registered() -> list[tuple[str, str]]:
    """Returns (source relative to this folder, target) of each foreign function of the package
    that this process has registered."""
    return sorted(_ready)


def _loaded(compiler: str, source: Path) -> ctypes.CDLL:
    """Returns the library of a source, the compiler, the processor and jaxlib's headers.

    It is compiled once for all processes of this user; in each process if the cache is disabled or
    cannot be written. A file of the cache that is damaged, or that others may have written, is
    compiled again. Raises OSError and SubprocessError."""
    folder, name = program_cache.folder(), f"{source.stem}-{_key(compiler, source)}.so"
    try:
        if folder is not None:
            cache.make_private(folder)
            cache.make_private(folder / "native")
        place = None if folder is None else folder / "native" / name
        if place is not None and (handle := _intact(place)) is not None:
            return _opened(handle)
        scratch = tempfile.TemporaryDirectory(dir=place and place.parent)
    except OSError:  # the folder cannot be written
        place, scratch = None, tempfile.TemporaryDirectory()
    with scratch:
        made = Path(scratch.name) / name
        command = [compiler, *FLAGS, f"-I{jax.ffi.include_dir()}", str(source), "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        made.chmod(0o700)
        hashed = _hash_of(made)
        hashed.write_text(hashlib.sha256(made.read_bytes()).hexdigest())
        hashed.chmod(0o600)
        handle = _intact(made)
        if place is not None:
            for path in (hashed, made):
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                os.replace(path, place.with_name(path.name))
        if handle is None:
            raise OSError(f"{made} was changed")
        return _opened(handle)


def _key(compiler: str, source: Path) -> str:
    flags = [
        line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")
    ][:1]
    headers = sorted([*source.parent.glob("*.h"), *source.parent.parent.glob("*.h")])
    texts = [path.read_text() for path in (source, *headers)]
    facts = [*texts, compiler, *FLAGS, *flags, jax.__version__]
    return hashlib.sha256(chr(0).join(facts).encode()).hexdigest()[:20]


def _hash_of(library: Path) -> Path:
    return library.with_suffix(".sha256")


def _intact(library: Path) -> int | None:
    """Returns the descriptor of a library that has the hash next to it, or None.
    Both files must belong to this user, and no other may write them."""
    handles: list[int] = []
    try:
        for path in (library, _hash_of(library)):
            handles.append(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))
            status = os.fstat(handles[-1])
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                return None
        content, expected = (_content(handle) for handle in handles)
        if hashlib.sha256(content).hexdigest().encode() != expected:
            return None
        return os.dup(handles[0])
    except OSError:
        return None
    finally:
        for handle in handles:
            os.close(handle)


def _content(handle: int) -> bytes:
    with os.fdopen(os.dup(handle), "rb") as file:
        return file.read()


def _opened(handle: int) -> ctypes.CDLL:
    """Loads the file that was checked, whatever its name is now. The descriptor stays open: the
    loader takes a second file of the same name for the first."""
    return ctypes.CDLL(f"/proc/self/fd/{handle}")
