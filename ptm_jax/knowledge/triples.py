"""A graph as texts: triples, and the tokens of every entity and relation."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.resources
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.facts import CorpusFact
from ptm_jax.core.reading import broken, reading, shown
from ptm_jax.knowledge.graphs.graph_folder import LINES, is_graph
from ptm_jax.knowledge.graphs.graph_store import hashed, open_graph
from ptm_jax.knowledge.mentions import lines

CHUNK = 1 << 16
"""Texts that are encoded together."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Triples(CorpusFact):
    """Triples of numbers of head, relation and tail, and the first `width` tokens of their texts,
    in one array [X] int32: N, E and R, then what `triples`, `entities` and `relations` return. It
    is kept in the corpus, memory-mapped. Entities and relations are numbered in alphabetical order.

    file    lines of head, relation and tail with tabs, or a compiled graph; None: the small graph
            of the package
    texts   lines of entity or relation and its text with tabs (entity2text.txt, relation2text.txt,
            Wikidata5m's descriptions), several files with commas between; a name without a line is
            its own text
    """

    kind: ClassVar[str] = "triples"
    """The lines that a compiled graph gives (`knowledge.graphs.graph_folder.LINES`)."""

    file: str | None = None
    texts: str | None = None
    width: int = 24

    def __post_init__(self):
        if self.width < 1:
            raise ValueError(f"width is {self.width}; a text has at least 1 token")

    @property
    def path(self) -> Path:
        packaged = Path(
            str(importlib.resources.files("ptm_jax") / "knowledge" / "english" / "triples.tsv")
        )
        return packaged if self.file is None else Path(self.file).expanduser()

    def files(self) -> list[Path]:
        """Returns the files that the array depends on."""
        return [
            self.path,
            *(Path(file).expanduser() for file in (self.texts or "").split(",") if file),
        ]

    def read(self, corpus: Any) -> np.ndarray:
        parts = self.kind, self.width, "sorted", [*map(_digest, self.files())]
        name = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
        return corpus.kept(
            f"triples-{name}.npy",
            lambda draft: np.save(draft, self.of_tokenizer(corpus.tokenizer())),
        )

    def names(self) -> tuple[list[str], list[str]]:
        """Returns the names of the entities and of the relations, in the order of their numbers.
        Reads the file."""
        return self._names(self._found())

    def _found(self) -> list[Sequence[str]]:
        found = [cells for _, cells in lines(self.path, (3,), self.kind)]
        if not found:
            raise UserError(
                f"{self.path} has no triples; expected lines of head, relation and tail with tabs"
            )
        return found

    @staticmethod
    def _names(found: Iterable[Sequence[str]]) -> tuple[list[str], list[str]]:
        entities = sorted({name for head, _, tail in found for name in (head, tail)})
        return entities, sorted({relation for _, relation, _ in found})

    def of_tokenizer(self, tokenizer: Any) -> np.ndarray:
        found = self._found()
        entities, relations = self._names(found)
        texts = self._texts({*entities, *relations})
        written = [texts.get(name, name) for name in (*entities, *relations)]
        number = (
            {name: n for n, name in enumerate(entities)},
            {name: n for n, name in enumerate(relations)},
        )
        triples = [
            [number[0][head], number[1][relation], number[0][tail]]
            for head, relation, tail in found
        ]
        parts = (written[start : start + CHUNK] for start in range(0, len(written), CHUNK))
        rows = (
            row for part in parts for row in tokenizer.encode_batch([f" {text}" for text in part])
        )
        return self._table(triples, rows, written[: len(entities)], len(relations))

    def beside(self, texts: Sequence[str]) -> np.ndarray:
        """Returns further numbers of the entities, which stand behind the others in the array,
        int32."""
        return np.zeros(0, np.int32)

    def _texts(self, names: set[str]) -> dict[str, str]:
        found = (
            dict(LINES["texts"](self.path)) if self.texts is None and is_graph(self.path) else {}
        )
        for file in (self.texts or "").split(",") if self.texts else ():
            path = Path(file).expanduser()
            for number, (name, text) in lines(path, (2,)):
                if not text:
                    raise broken(
                        path,
                        f"line {number:,} is {shown(name)}; expected a name, a tab and its text",
                    )
                if name in names:
                    found.setdefault(name, text)
        return found

    def _table(
        self, triples: Any, rows: Iterable[np.ndarray], entities: Sequence[str], relations: int
    ) -> np.ndarray:
        texts = np.zeros((len(entities) + relations, self.width), np.int32)
        for text, ids in zip(texts, rows, strict=True):
            text[: len(ids)] = ids[: self.width] + 1
        triples = np.asarray(triples, np.int32)
        triples = triples[np.lexsort(triples.T[::-1])]  # `known` seeks by bisection
        parts = [len(triples), len(entities), relations], triples, texts, self.beside(entities)
        return np.concatenate([np.asarray(part, np.int32).ravel() for part in parts])

    def stand_in(self, vocab: Any) -> np.ndarray:
        entities, relations, draw = 24, 4, np.random.default_rng(0)
        some = [i for i in range(vocab.size) if i not in vocab.specials][:400]
        rows = [draw.choice(some, 1 + n % min(4, self.width)) for n in range(entities + relations)]
        triples = np.stack(
            [draw.integers(0, size, 40) for size in (entities, relations, entities)], 1
        )
        return self._table(triples, rows, [str(n) for n in range(entities)], relations)

    @functools.cached_property
    def sizes(self) -> tuple[int, int, int]:
        """The numbers of triples, entities and relations."""
        return tuple(int(n) for n in self.values[:3])

    @functools.cached_property
    def _parts(self) -> tuple[np.ndarray, ...]:
        count, entities, relations = self.sizes
        shapes = (count, 3), (entities, self.width), (relations, self.width)
        ends = np.cumsum([3, *(a * b for a, b in shapes)]).tolist()
        spans = zip(ends, ends[1:], shapes, strict=False)
        return *(self.values[start:end].reshape(shape) for start, end, shape in spans), self.values[
            ends[-1] :
        ]

    def triples(self) -> np.ndarray:
        """Returns [N, 3] int32: numbers of head, relation and tail, each from 0, in their order."""
        return self._parts[0]

    def entities(self) -> np.ndarray:
        """Returns [E, W] int32: the ids of an entity's text + 1, 0 at the end."""
        return self._parts[1]

    def relations(self) -> np.ndarray:
        """Returns [R, W] int32 as `entities`."""
        return self._parts[2]

    def behind(self) -> np.ndarray:
        """Returns what `beside` gave, [M] int32."""
        return self._parts[3]


def _digest(path: Path) -> str:
    if is_graph(path):
        return open_graph(path).digest
    with reading(path):
        return hashed(path)


def known(facts: Any, triples: Any) -> Any:
    """Returns whether triples [.., 3] are among `facts` [N, 3], which are in their order, bool
    [..]; both of numpy, or of JAX."""
    xp = np if isinstance(triples, np.ndarray) else jnp
    low, high = xp.zeros(triples.shape[:-1], int), xp.full(triples.shape[:-1], len(facts))
    for _ in range(len(facts).bit_length()):
        middle = (low + high) // 2
        row, same, less = facts[xp.minimum(middle, len(facts) - 1)], True, False
        for part in range(3):
            less = less | (same & (row[..., part] < triples[..., part]))
            same = same & (row[..., part] == triples[..., part])
        inside = low < high
        low, high = xp.where(inside & less, middle + 1, low), xp.where(inside & ~less, middle, high)
    return (facts[xp.minimum(low, len(facts) - 1)] == triples).all(-1)
