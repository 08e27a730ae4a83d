"""Compiled programs are kept between runs: JAX's persistent cache, and what compilers told of programs for other machines.

PTM_CACHE is the folder (unless given: `ptm_jax` in XDG_CACHE_HOME or ~/.cache); PTM_CACHE=off keeps nothing, and a folder
that JAX was told already (JAX_COMPILATION_CACHE_DIR) stays. Programs of another JAX, another compiler or another kind of
processor are never taken: JAX's key has the first two, the folder's name the last (a home may be shared by machines whose
processors differ). A damaged entry is compiled anew. Entries may be deleted at any time.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import platform
from pathlib import Path
from typing import Any

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


def read(name: str) -> Any:
    """The JSON document of that name beside the programs, or None where there is none."""
    place = folder()
    try:
        return json.loads(gzip.decompress((place / "told" / f"{name}.json.gz").read_bytes())) if place else None
    except (OSError, EOFError, ValueError):  # none, or damaged
        return None


def write(name: str, document: Any) -> None:
    """Keep a document, whole or not at all; a place that cannot be written keeps none."""
    place = folder()
    if place is None:
        return
    path = place / "told" / f"{name}.json.gz"
    draft = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(gzip.compress(json.dumps(document).encode()))
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)


def _processor() -> str:
    """A name for what this processor can do."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf8").splitlines()
    except OSError:
        lines = [platform.processor()]
    told = [line for line in lines if line.startswith(("flags", "Features", "model name"))][:2] or lines[:1]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:12]
