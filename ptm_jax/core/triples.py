"""A graph as texts: triples, and the tokens of every entity and relation."""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.facts import CorpusFact
from ptm_jax.core.graph_folder import LINES, is_graph
from ptm_jax.core.mentions import lines
from ptm_jax.core.reading import broken, shown

SKETCH = 16
"""Numbers that describe the spelling of an entity's name (`sketch`)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Triples(CorpusFact):
    """Triples of numbers of head, relation and tail, and the first `width` tokens of their texts: [1 + N + E + R, C] int32
    with N, E and R in the first row.

    file    lines of head, relation and tail with tabs; None: the small graph of the package
    texts   lines of entity or relation and its text with tabs (entity2text.txt, relation2text.txt, Wikidata5m's
            descriptions), several files with commas between; a name without a line is its own text
    """

    file: str | None = None
    texts: str | None = None
    width: int = 24

    def __post_init__(self):
        if self.width < 1:
            raise ValueError(f"width is {self.width}; a text has at least 1 token")

    @property
    def path(self) -> Path:
        packaged = Path(str(importlib.resources.files("ptm_jax") / "data" / "graphs" / "english" / "triples.tsv"))
        return packaged if self.file is None else Path(self.file).expanduser()

    def of_tokenizer(self, tokenizer: Any) -> np.ndarray:
        found = [cells for _, cells in lines(self.path, (3,))]
        if not found:
            raise UserError(f"{self.path} has no triples; expected lines of head, relation and tail with tabs")
        entities = sorted({name for head, _, tail in found for name in (head, tail)})
        relations = sorted({relation for _, relation, _ in found})
        texts = self._texts({*entities, *relations})
        written = [texts.get(name, name) for name in (*entities, *relations)]
        number = {name: n for n, name in enumerate(entities)}, {name: n for n, name in enumerate(relations)}
        triples = [[number[0][head], number[1][relation], number[0][tail]] for head, relation, tail in found]
        rows = tokenizer.encode_batch([f" {text}" for text in written])
        marks = [sketch(text) for text in written]
        return self._table(np.array(triples), rows, marks, len(entities))

    def _texts(self, names: set[str]) -> dict[str, str]:
        found = dict(LINES["texts"](self.path)) if self.texts is None and is_graph(self.path) else {}
        for file in (self.texts or "").split(",") if self.texts else ():
            path = Path(file).expanduser()
            for number, (name, text) in lines(path, (2,)):
                if not text:
                    raise broken(path, f"line {number:,} is {shown(name)}; expected a name, a tab and its text")
                if name in names:
                    found.setdefault(name, text)
        return found

    def _table(self, triples: np.ndarray, rows: list[np.ndarray], marks: list[np.ndarray], entities: int) -> np.ndarray:
        table = np.zeros((1 + len(triples) + len(rows), max(3, SKETCH + self.width)), np.int32)
        table[0, :3] = len(triples), entities, len(rows) - entities
        table[1 : 1 + len(triples), :3] = triples
        for row, ids, mark in zip(table[1 + len(triples) :], rows, marks, strict=True):
            row[:SKETCH] = mark
            row[SKETCH : SKETCH + len(ids)] = ids[: self.width] + 1
        return table

    def stand_in(self, vocab: Any) -> np.ndarray:
        entities, relations, draw = 24, 4, np.random.default_rng(0)
        some = [i for i in range(vocab.size) if i not in vocab.specials][:400]
        rows = [draw.choice(some, 1 + n % min(4, self.width)) for n in range(entities + relations)]
        triples = np.stack([draw.integers(0, size, 40) for size in (entities, relations, entities)], 1)
        return self._table(triples, rows, [sketch(str(n)) for n in range(len(rows))], entities)

    @functools.cached_property
    def sizes(self) -> tuple[int, int, int]:
        """The numbers of triples, entities and relations."""
        return tuple(int(n) for n in self.values[0, :3])

    def triples(self) -> np.ndarray:
        """Returns [N, 3] int32: numbers of head, relation and tail, each from 0."""
        return self.values[1 : 1 + self.sizes[0], :3]

    def entities(self) -> np.ndarray:
        """Returns [E, W] int32: the ids of an entity's text + 1, 0 at the end."""
        start = 1 + self.sizes[0]
        return self.values[start : start + self.sizes[1], SKETCH:]

    def relations(self) -> np.ndarray:
        """Returns [R, W] int32 as `entities`."""
        return self.values[1 + sum(self.sizes[:2]) :, SKETCH:]

    def sketches(self) -> np.ndarray:
        """Returns [E, 16] int32, the `sketch` of every entity."""
        start = 1 + self.sizes[0]
        return self.values[start : start + self.sizes[1], :SKETCH]


def sketch(text: str) -> np.ndarray:
    """Returns hashed counts of the 3-grams of a word in thousandths of their length, [16] int32: words that share spellings
    have large products, as subword vectors without training have."""
    counts, marked = np.zeros(SKETCH), f"<{text.split(',')[0].lower()}>"
    for start in range(max(1, len(marked) - 2)):
        code = zlib.crc32(marked[start : start + 3].encode())
        counts[code % SKETCH] += 1 if code & 1 << 20 else -1
    return np.rint(1000 * counts / max(np.linalg.norm(counts), 1e-9)).astype(np.int32)
