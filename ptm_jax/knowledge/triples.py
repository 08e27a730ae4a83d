"""A graph as texts: triples, and the tokens of every entity and relation."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.resources
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import jax.numpy as jnp
import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.facts import CorpusFact
from ptm_jax.core.reading import reading
from ptm_jax.knowledge.graphs.graph_folder import LINES
from ptm_jax.knowledge.graphs.graph_store import hashed, open_graph
from ptm_jax.knowledge.graphs.opening import rows
from ptm_jax.knowledge.graphs.tables import cells

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab


CHUNK = 1 << 16
"""Texts that are encoded together."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Triples(CorpusFact):
    """Triples as numbers of head, relation and tail, and the first `width` tokens of their texts.

    The arrays are int32 and lie in the corpus, memory-mapped. Entities and relations are numbered
    in alphabetical order.

    sizes              [3]: N, E and R
    triples            [N, 3]: numbers of head, relation and tail, each from 0, sorted
    entity_tokens      [E, W]: the ids of an entity's text + 1, 0 at the end
    relation_tokens    [R, W]

    file    lines of head, relation and tail with tabs, or a compiled graph; None: the small graph
            of the package
    texts   lines of entity or relation and its text with tabs (entity2text.txt, relation2text.txt,
            Wikidata5m's descriptions), several files with commas between; a name without a line is
            its own text
    """

    array_names: ClassVar[tuple[str, ...]] = (
        "sizes",
        "triples",
        "entity_tokens",
        "relation_tokens",
    )
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
        """Returns the files that the arrays depend on."""
        return [self.path, *self._text_files()]

    def _text_files(self) -> list[Path]:
        return [Path(file).expanduser() for file in (self.texts or "").split(",") if file]

    def read(self, corpus: Any) -> dict[str, np.ndarray]:
        parts = self.kind, self.width, "sorted", [*map(_digest, self.files())]
        name = f"triples-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"
        if (packed := corpus.written(f"{name}.npy")) is not None:
            return self.unpacked(packed)
        return corpus.kept_arrays(name, lambda: self.of_tokenizer(corpus.tokenizer()))

    def unpacked(self, packed: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the arrays of a corpus of version 0.1, which has them in one, [X] int32."""
        count, entities, relations = (int(size) for size in packed[:3])
        shapes = (3,), (count, 3), (entities, self.width), (relations, self.width)
        ends = np.cumsum([0, *map(math.prod, shapes)]).tolist()
        spans = zip(Triples.array_names, ends, ends[1:], shapes, strict=False)
        return {name: packed[start:end].reshape(shape) for name, start, end, shape in spans}

    def names(self) -> tuple[list[str], list[str]]:
        """Returns the names of the entities and of the relations, in the order of their numbers.

        Reads the file.
        """
        return self._names(self._found())

    def _found(self) -> list[Sequence[str]]:
        lines = list(rows(self.path, self.kind))
        if not lines:
            raise UserError(
                f"{self.path} has no triples; expected lines of head, relation and tail with tabs"
            )
        return lines

    @staticmethod
    def _names(lines: Iterable[Sequence[str]]) -> tuple[list[str], list[str]]:
        entities = sorted({name for head, _, tail in lines for name in (head, tail)})
        return entities, sorted({relation for _, relation, _ in lines})

    def of_tokenizer(self, tokenizer: Any) -> dict[str, np.ndarray]:
        lines = self._found()
        entities, relations = self._names(lines)
        texts = self._texts({*entities, *relations})
        written = [texts.get(name, name) for name in (*entities, *relations)]
        number = (
            {name: n for n, name in enumerate(entities)},
            {name: n for n, name in enumerate(relations)},
        )
        triples = [
            [number[0][head], number[1][relation], number[0][tail]]
            for head, relation, tail in lines
        ]
        parts = (written[start : start + CHUNK] for start in range(0, len(written), CHUNK))
        rows = (
            row for part in parts for row in tokenizer.encode_batch([f" {text}" for text in part])
        )
        return self.packed(triples, rows, written[: len(entities)], len(relations))

    def of_entities(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """Returns further arrays by the entities' texts."""
        return {}

    def _texts(self, names: set[str]) -> dict[str, str]:
        compiled = self.texts is None and self.path.is_dir()
        texts = dict(LINES["texts"](open_graph(self.path))) if compiled else {}
        for path in self._text_files():
            for _, (name, text) in cells(path, 2, comments=True):
                if name in names:
                    texts.setdefault(name, text)
        return texts

    def packed(
        self, triples: Any, rows: Iterable[np.ndarray], entities: Sequence[str], relations: int
    ) -> dict[str, np.ndarray]:
        """Returns the arrays of triples, and of the token ids of the texts of entities and
        relations."""
        texts = np.zeros((len(entities) + relations, self.width), np.int32)
        for text, ids in zip(texts, rows, strict=True):
            text[: len(ids)] = ids[: self.width] + 1
        triples = np.asarray(triples, np.int32)
        return {
            "sizes": np.array([len(triples), len(entities), relations], np.int32),
            "triples": triples[np.lexsort(triples.T[::-1])],  # `known` seeks by bisection
            "entity_tokens": texts[: len(entities)],
            "relation_tokens": texts[len(entities) :],
            **self.of_entities(entities),
        }

    def stand_in(self, vocab: Vocab) -> dict[str, np.ndarray]:
        entities, relations, draw = 24, 4, np.random.default_rng(0)
        some = [i for i in range(vocab.size) if i not in vocab.specials][:400]
        rows = [draw.choice(some, 1 + n % min(4, self.width)) for n in range(entities + relations)]
        triples = np.stack(
            [draw.integers(0, size, 40) for size in (entities, relations, entities)], 1
        )
        return self.packed(triples, rows, [str(n) for n in range(entities)], relations)

    @functools.cached_property
    def sizes(self) -> tuple[int, int, int]:
        """The numbers of triples, entities and relations."""
        return tuple(int(size) for size in self.arrays["sizes"])

    def triples(self) -> np.ndarray:
        """Returns [N, 3] int32: numbers of head, relation and tail, each from 0, in their order."""
        return self.arrays["triples"]

    def entities(self) -> np.ndarray:
        """Returns [E, W] int32: the ids of an entity's text + 1, 0 at the end."""
        return self.arrays["entity_tokens"]

    def relations(self) -> np.ndarray:
        """Returns [R, W] int32 as `entities`."""
        return self.arrays["relation_tokens"]


def _digest(path: Path) -> str:
    if path.is_dir():
        return open_graph(path).digest
    with reading(path):
        return hashed(path)


def known(facts: Any, triples: Any) -> Any:
    """Returns whether triples [.., 3] are among `facts` [N, 3], bool [..].

    The facts are in their order; both are arrays of numpy, or of JAX.
    """
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
