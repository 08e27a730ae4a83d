"""Cache of compiled programs: JAX's persistent cache, and statistics of programs compiled for other
machines, in the folder of `core.cache`.

A folder set by JAX_COMPILATION_CACHE_DIR is not changed. JAX's key contains the versions of JAX and
the compiler. The name of the folder contains the type of processor, because machines with different
processors may share a home. A damaged entry is compiled again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
from pathlib import Path
from typing import Any

import jax

from ptm_jax.core import cache
from ptm_jax.core.cache import home, make_private, trusted

LIMIT = "jax_persistent_cache_min_compile_time_secs"
SHORTEST = 0.1
"""Seconds of compilation from which a program is stored. JAX's default is 1: each command would
compile the programs of a small model."""


def folder() -> Path | None:
    """Returns the folder of compiled programs, or None if the cache is disabled.

    Programs are code: a folder that another user may have written is not read, but a folder of this
    user next to it."""
    if home() is None:
        return None
    name = f"{platform.machine()}-{_processor()}"
    places = (home() / name, home() / f"{name}-{os.geteuid()}")
    return next(filter(trusted, places), None)


def use(place: Path | None = None) -> None:
    """Enables the cache in this process, in a folder (default: `folder()`)."""
    general = folder()
    place = place or general
    if place is None or jax.config.jax_compilation_cache_dir:
        return
    try:
        make_private(general)
        make_private(place)
    except OSError:
        return  # the folder is not writable: every run compiles
    jax.config.update("jax_compilation_cache_dir", str(place))
    if LIMIT.upper() not in os.environ:
        jax.config.update(LIMIT, SHORTEST)


def read(name: str) -> Any:
    """Returns the JSON document `name` of the cache, or None if it is absent or damaged."""
    place = folder()
    if place is None:
        return None
    return cache.read_document(place / "figures" / f"{name}.json.gz")


def write(name: str, document: Any) -> None:
    """Writes a JSON document atomically. Does nothing if the folder is not writable."""
    place = folder()
    if place is None:
        return
    path = place / "figures" / f"{name}.json.gz"
    try:
        make_private(place)
        path.parent.mkdir(exist_ok=True)
    except OSError:
        return
    cache.write_document(path, document)


def remove(name: str) -> None:
    """Removes the document `name`, if it is there."""
    place = folder()
    if place is not None:
        with contextlib.suppress(OSError):
            (place / "figures" / f"{name}.json.gz").unlink()


def _processor() -> str:
    """Returns a name for the instruction sets of this processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf8").splitlines()
    except OSError:
        lines = [platform.processor()]
    facts = [line for line in lines if line.startswith(("flags", "Features", "model name"))][
        :2
    ] or lines[:1]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]
