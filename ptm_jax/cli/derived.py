"""JSON values that follow from the files of the package alone, stored in the folder of caches.

`ptm list` builds 362 systems, and `ptm show` traces a network, for an answer that changes only with
the package. The key is a hash of the content of every file of the package and of the versions of
Python and of the libraries that build the values, so that an edit makes a new entry.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ptm_jax.core import cache

PACKAGE = Path(__file__).parents[1]
LIBRARIES = ("jax", "jaxlib", "flax", "numpy")
STATES = 8
"""States of the package whose values are stored. A newer one replaces the oldest."""


def derived(name: str, make: Callable[[], Any], depends: str = "") -> Any:
    """Returns the JSON value of `make()`, from the cache if it was made before.

    name     names the value among those of the package
    depends  a fact outside of the package that the value depends on

    A process that has loaded JAX makes the value itself: its code may have changed the catalogue.
    """
    if "jax" in sys.modules or (place := folder()) is None:
        return _plain(make())
    key = hashlib.sha256(json.dumps([name, depends]).encode()).hexdigest()[:16]
    path = place / f"{key}.json.gz"
    if (entry := cache.read_document(path)) is not None:
        return entry["value"]
    value = _plain(make())
    if made_folder() is not None:
        cache.write_document(path, {"value": value})
    return value


def made_folder() -> Path | None:
    """Returns `folder()` after it is made, and removes the oldest states of the package.
    None without a cache, or if it cannot be made."""
    if (place := folder()) is None:
        return None
    try:
        for one in (place.parent, place):
            cache.make_private(one)
    except OSError:
        return None
    _forget(place)
    return place


def use_programs() -> None:
    """Reads and writes compiled programs in the folders of caches. A process that has loaded JAX
    may have other code than the package's files; it uses JAX's own cache alone."""
    place = None if "jax" in sys.modules else made_folder()
    from ptm_jax.kernels import program_cache, stored_programs

    program_cache.use()
    stored_programs.use(place)


def folder() -> Path | None:
    """Returns the folder of the values of this state of the package, or None without a cache.
    A folder that another user may have written is not read."""
    if (home := cache.home()) is None:
        return None
    place = home / "derived" / _state()
    return place if cache.trusted(place.parent) and cache.trusted(place) else None


@functools.cache
def _state() -> str:
    """Returns the hash of the files of the package and of the versions of the libraries."""
    versions = [sys.version, *map(_version, LIBRARIES)]
    digest = hashlib.sha256("\n".join(versions).encode())
    for root, folders, files in os.walk(PACKAGE):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            path = os.path.join(root, name)
            with open(path, "rb") as file:
                content = file.read()
            head = f"{os.path.relpath(path, PACKAGE)}\0{len(content)}\0"
            digest.update(head.encode() + content)
    return digest.hexdigest()[:16]


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return ""


def _plain(value: object) -> Any:
    """Returns the value as JSON holds it, so that it is equal with and without the cache."""
    return json.loads(json.dumps(value))


def _forget(place: Path) -> None:
    """Removes the oldest states of the package beyond `STATES`."""
    with contextlib.suppress(OSError):
        states = sorted(place.parent.iterdir(), key=lambda one: one.stat().st_mtime)
        for state in states[:-STATES]:
            if state != place:
                shutil.rmtree(state, ignore_errors=True)
