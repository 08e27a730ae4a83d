"""Opens graphs for lexicons, triples and tasks.

Published files are compiled into the cache at first use, so all readers see one form of a graph
(`graph_store`).
"""

from __future__ import annotations

import functools
import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ptm_jax.core import cache
from ptm_jax.knowledge.graphs import formats, graph_store
from ptm_jax.knowledge.graphs.compiling import Source, compile_graph
from ptm_jax.knowledge.graphs.graph_folder import LINES
from ptm_jax.knowledge.graphs.graph_store import GraphStore, open_graph

VERSION = 1
"""Version of the compiled form; it rises when a reader of sources changes its output."""
ALL = 1 << 30
"""Entities of an alias that a graph in the cache keeps."""


def opened(path: Path, kind: str) -> GraphStore:
    """Returns the compiled graph in a folder, or the graph of a file of a kind (`formats.KINDS`).

    Raises UserError.
    """
    return open_graph(path) if path.is_dir() else compiled([formats.source(f"{kind}:{path}")])


def rows(path: Path, of: str = "triples") -> Iterator[tuple[str, ...]]:
    """Yields the lines `of` a compiled graph, or the three cells of each line of a file.

    `graph_folder.LINES` has the lines. Raises UserError with file and line.
    """
    return LINES[of if path.is_dir() else "triples"](opened(path, "triples"))


def compiled(sources: Sequence[Source]) -> GraphStore:
    """Returns the graph of sources from the cache, compiled at first use."""
    files = [[source.kind, *(_hashed(path) for path in source.files)] for source in sources]
    name = hashlib.sha256(repr([VERSION, graph_store.FORMAT, files]).encode()).hexdigest()[:24]
    folder = _folder() / name
    with cache.alone(folder.with_name(f"{name}.lock"), folder.is_dir()):
        if not folder.is_dir():
            compile_graph(sources, folder, per_alias=ALL)
    return open_graph(folder)


def _hashed(path: Path) -> str:
    state = path.stat()
    return _digest(path, state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=256)
def _digest(path: Path, changed: int, size: int) -> str:
    """Returns the hash of a file. The time of its last change and its size are the cache's key."""
    return graph_store.hashed(path)


def _folder() -> Path:
    """Returns the cache of graphs; a folder of this process if that cannot be written."""
    home = cache.home()
    if home is not None:
        folder = home / "graphs"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            pass
    return Path(_temporary().name)


@functools.cache
def _temporary() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="ptm-graphs-")
