"""Compiles sources of graphs into a folder (`graph_store`), once."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.knowledge.graphs import graph_store
from ptm_jax.knowledge.graphs.builder import MOST, Builder
from ptm_jax.knowledge.graphs.graph_store import GraphStore


@dataclasses.dataclass(frozen=True)
class Source:
    """A source of a graph.

    name      KIND:PATH, or PATH
    kind      kind of its files (`formats.KINDS`)
    files     the files that it reads
    read      reads them into a builder
    closed    whether it has a list of its entities
    """

    name: str
    kind: str
    files: tuple[Path, ...]
    read: Callable[[Builder], None]
    closed: bool = False


def compile_graph(
    sources: Iterable[Source], out: str | Path, per_alias: int = MOST, strict: bool = False
) -> GraphStore:
    """Returns the graph of sources, in the folder `out`.

    A graph of the same sources in this folder is not compiled again.

    Raises UserError for a file that cannot be read, with its line, where `out` holds another graph,
    and, if `strict`, for the first fault."""
    if per_alias < 1:
        raise UserError(f"an alias must keep at least 1 entity; {per_alias} were asked for")
    out, sources = Path(out).expanduser(), tuple(sources)
    named = [
        {"name": s.name, "files": {path.name: graph_store.hashed(path) for path in s.files}}
        for s in sources
    ]
    asked = {"sources": named, "most": per_alias}
    if out.exists() and any(out.iterdir()):
        graph = graph_store.open_graph(out)
        if {name: graph.manifest.get(name) for name in asked} == asked:
            return graph
        raise UserError(
            f"{out} holds the graph of other sources or settings; remove it, or give another --out"
        )
    builder = Builder()
    for source in sources:
        builder.closed = source.closed
        source.read(builder)
    arrays, counts = builder.arrays(per_alias)
    if strict and builder.faults:
        kind, fault = next(iter(builder.faults.items()))
        raise UserError(
            f"{fault['first']} ({fault['count']:,} x {kind}); mend the file, or leave --strict out"
        )
    draft = out.with_name(f"{out.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    for name, value in arrays.items():
        np.save(draft / f"{name}.npy", value)
    manifest = _manifest(asked, counts, builder, arrays, draft)
    (draft / graph_store.MANIFEST).write_text(json.dumps(manifest, indent=1))
    shutil.rmtree(out, ignore_errors=True)
    draft.rename(out)
    return graph_store.open_graph(out)


def _manifest(
    asked: Mapping[str, Any], counts: Mapping[str, int], builder: Builder, arrays: Any, draft: Path
) -> dict:
    manifest = {
        "format": graph_store.FORMAT,
        **asked,
        "counts": counts,
        "splits": {
            name.removeprefix("triples-"): len(arrays[name])
            for name in arrays
            if name.startswith("triples-")
        },
        "values": sorted(builder.values),
        "faults": builder.faults,
        "arrays": {f"{name}.npy": graph_store.hashed(draft / f"{name}.npy") for name in arrays},
    }
    return {**manifest, "digest": graph_store.digest(manifest)}
