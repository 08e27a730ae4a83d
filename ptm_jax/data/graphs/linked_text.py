"""The mentions of a text's sentences, in files next to a compiled graph.
The command is `ptm prepare --graph SOURCE --link TEXT`.

mentions.jsonl    a sentence a line: its text, and [start, end, entities, priors] of every mention,
                  by falling prior
mentions.json     the graph's digest, the sources of the text, the linker's counts, bytes and
                  seconds
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptm_jax.core.errors import UserError
from ptm_jax.data.graphs.linking import Linker
from ptm_jax.data.text import sources
from ptm_jax.knowledge.graphs.graph_store import GraphStore

COUNTS = ("texts", "words", "mentions", "linked", "ambiguous", "cut")
TOGETHER = 4096
"""Sentences that are linked and written at once."""


def link_text(
    graph: GraphStore, names: Sequence[str], out: str | Path, least: float = 0.0
) -> dict[str, Any]:
    """Links the sentences of sources of text and writes both files into `out`.
    Returns the content of mentions.json.

    `least` is the least prior of an entity; mentions without any are counted and not linked. Raises
    UserError for sources that cannot be read, and where `out` has the mentions of another graph or
    text."""
    folder, began = Path(out).expanduser(), time.monotonic()
    path = folder / "mentions.json"
    asked = {"graph": graph.digest, "text": sources.fingerprints(names), "least": least}
    if path.is_file():
        report = json.loads(path.read_text(encoding="utf8"))
        if {name: report.get(name) for name in asked} == asked:
            return report
        raise UserError(f"{path} is of another graph or text; remove it, or give another --out")
    linker, size = Linker.of(graph, least=least), 0
    sentences = (
        sentence for document in sources.documents(names) for sentence in document.sentences
    )
    with (folder / "mentions.jsonl.draft").open("w", encoding="utf8") as file:
        while some := list(itertools.islice(sentences, TOGETHER)):
            size += sum(len(text.encode()) for text in some)
            for linked in linker(some):
                mentions = [
                    [m.start, m.end, list(m.entities), [round(p, 6) for p in m.priors]]
                    for m in linked.mentions
                ]
                file.write(json.dumps({"text": linked.text, "mentions": mentions}) + "\n")
    (folder / "mentions.jsonl.draft").rename(folder / "mentions.jsonl")
    counts = {name: linker.counts[name] for name in COUNTS}
    report = {
        **asked,
        "counts": counts,
        "bytes": size,
        "seconds": round(time.monotonic() - began, 2),
    }
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf8")
    return report
