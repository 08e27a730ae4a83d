"""Compiled programs are kept between runs: JAX's persistent cache, where users of this machine expect one.

PTM_CACHE is the folder (unless given: `ptm_jax` in XDG_CACHE_HOME or ~/.cache); PTM_CACHE=off keeps nothing, and a folder
that JAX was told already (JAX_COMPILATION_CACHE_DIR) stays. Programs of another JAX, another compiler or another kind of
processor are never taken: JAX's key has the first two, the folder's name the last (a home may be shared by machines whose
processors differ). A damaged entry is compiled anew. Entries may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

import jax


def folder() -> Path | None:
    """Where programs are kept, or None where nothing is."""
    named = os.environ.get("PTM_CACHE")
    if named == "off":
        return None
    home = named or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "ptm_jax")
    return Path(home) / f"{platform.machine()}-{_processor()}"


def use() -> None:
    """Keep the programs that this process compiles, and take those that are there."""
    place = folder()
    if place is None or jax.config.jax_compilation_cache_dir:
        return
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # a home that cannot be written: every run compiles
    jax.config.update("jax_compilation_cache_dir", str(place))


def _processor() -> str:
    """A name for what this processor can do."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf8").splitlines()
    except OSError:
        lines = [platform.processor()]
    told = [line for line in lines if line.startswith(("flags", "Features", "model name"))][:2] or lines[:1]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:12]
