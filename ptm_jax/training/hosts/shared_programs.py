"""Compiled programs that hosts share through an object store.

    URL/PROCESSOR/NAME      the entries of JAX's compilation cache

A host fetches the entries before it compiles, so that neither another host nor the next start
compiles them again. Process 0, the only one whose programs JAX caches, writes new ones. URL is
WORKDIR/programs of a workdir in a store, or what PTM_CACHE names. A store that refuses costs one
line: the run compiles. Programs are code: whoever writes there runs code on the hosts.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
from collections.abc import Callable
from pathlib import Path

import jax

from ptm_jax.core import cache
from ptm_jax.core.errors import UserError
from ptm_jax.data.stores import objects, working
from ptm_jax.kernels import program_cache

FOLDER = "programs"
ENTRY = "-cache"
"""Ending of the name of an entry of JAX's cache."""
_AT_ONCE = 8  # objects that are fetched at the same time


class Programs:
    """The entries of a URL, and the folder of this machine that has them."""

    def __init__(self, url: str, folder: Path):
        self.url, self.folder = url, folder
        self.stored: set[str] = set()

    def fetch(self) -> int:
        """Copies the entries that this machine lacks, and returns their number. Raises UserError
        and OSError."""
        self.stored = {name for name in objects.listed(self.url) if name.endswith(ENTRY)}
        with (
            cache.locked(self.folder / ".fetching", wait=True),
            concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool,
        ):
            absent = [name for name in self.stored if not (self.folder / name).exists()]
            copies = [
                pool.submit(objects.fetch, objects.joined(self.url, name), self.folder / name)
                for name in absent
            ]
            for copy in copies:
                copy.result()
        return len(absent)

    def push(self) -> None:
        """Writes the entries that the store lacks. Raises UserError."""
        for path in sorted(self.folder.glob(f"*{ENTRY}")):
            if path.name not in self.stored:
                objects.put(path, objects.joined(self.url, path.name))
                self.stored.add(path.name)


_shared: Programs | None = None


def use(workdir: str | Path, say: Callable[[str], object]) -> None:
    """Enables the cache of compiled programs in this process, shared if a URL is given for it.

    A folder that JAX_COMPILATION_CACHE_DIR names is not changed, and not shared."""
    global _shared
    url, place = _url_of(workdir), program_cache.folder()
    _shared = None
    if url is None or place is None or jax.config.jax_compilation_cache_dir:
        program_cache.use()
        return
    folder = place / f"shared-{hashlib.sha256(url.encode()).hexdigest()[:16]}"
    program_cache.use(folder)
    # XLA's own caches put the name of the folder into JAX's keys: no other machine would have them.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    programs = Programs(objects.joined(url, place.name), folder)
    try:
        number = programs.fetch()
    except (UserError, OSError) as error:
        say(f"compiled programs are not shared: {error}")
        return
    _shared = programs
    if number:
        say(f"{number} compiled program{'s' * (number > 1)} of {programs.url}")


def push(say: Callable[[str], object]) -> None:
    """Writes new programs into the store, in process 0 of a run that shares them."""
    global _shared
    if _shared is None or jax.process_index():
        return
    try:
        _shared.push()
    except (UserError, OSError) as error:
        _shared = None
        say(f"compiled programs are not shared: {error}")


def _url_of(workdir: str | Path) -> str | None:
    url = working.url_of(workdir)
    return cache.shared() or (None if url is None else objects.joined(url, FOLDER))
