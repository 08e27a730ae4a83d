"""Lexicons of names: branches of a sentence tree, candidate entities, and entities with types."""

from __future__ import annotations

import collections
import dataclasses
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import jax.numpy as jnp
import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Array
from ptm_jax.knowledge.graphs.opening import rows
from ptm_jax.knowledge.mentions import Lexicon

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab


@dataclasses.dataclass(frozen=True, kw_only=True)
class Branches(Lexicon):
    """The first `count` triples of every head, as tokens of relation and tail.

    The integers of a name are 1, then for each triple at most `width` ids + 1, with 0 at the end.
    The file has lines of head, relation and tail with tabs (K-BERT's .spo).
    """

    packaged: ClassVar[str] = "triples.tsv"

    count: int = 2
    width: int = 8

    def __post_init__(self):
        if self.count < 1 or self.width < 1:
            raise ValueError(
                f"count is {self.count} and width {self.width}; both must be at least 1"
            )

    def entries(self, tokenizer: Any) -> Mapping[str, Sequence[int]]:
        texts = collections.defaultdict(list)
        for head, relation, tail in rows(self.path):
            texts[head].append(f" {relation} {tail}")
        branches = {}
        for head, several in texts.items():
            row = [1]
            for ids in tokenizer.encode_batch(several[: self.count]):
                ids = (ids + 1).tolist()[: self.width]
                row += ids + [0] * (self.width - len(ids))
            branches[head] = row + [0] * (1 + self.count * self.width - len(row))
        return branches

    def example(self, number: int, vocab: Vocab) -> Sequence[int]:
        row = [1] + [0] * (self.count * self.width)
        for branch in range(1 + number % self.count):
            size = 1 + number % min(3, self.width)
            start = 1 + branch * self.width
            row[start : start + size] = [
                vocab.size // 3 + (number + n) % (vocab.size // 8) + 1 for n in range(size)
            ]
        return row


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entities(Lexicon):
    """The candidate entities of a name, from 1, and their priors in millionths.

    A name has `candidates` of each, the likeliest first, with 0 at the end. The file has lines of
    name, entity and prior with tabs. Entities are numbered in alphabetical order. In a file of
    triples (`triples.tsv` in the package) every head and tail is a name of itself.

    entities   number of rows of the entity table; row 0 means none
    fill       whether a name with fewer candidates gets further ones, drawn by its hash; all
               candidates then have the same prior
    """

    packaged: ClassVar[str] = "triples.tsv"

    entities: int = 256
    candidates: int = 1
    fill: bool = False

    def __post_init__(self):
        if self.candidates < 1 or self.entities < 2:
            raise ValueError(
                f"candidates is {self.candidates} and entities {self.entities}; at least 1 "
                "and 2 are needed"
            )

    def entries(self, tokenizer: Any) -> Mapping[str, Sequence[int]]:
        named = self._named()
        numbers = {entity: n for n, entity in enumerate(_entities(named), 1)}
        if len(numbers) >= self.entities:
            raise UserError(
                f"{self.path} has {len(numbers):,} entities; set entities to at least "
                f"{len(numbers) + 1}"
            )
        rows = {}
        for name, some in named.items():
            best = sorted(some.items(), key=lambda one: (-one[1], one[0]))[: self.candidates]
            row, priors = [numbers[entity] for entity, _ in best], [round(1e6 * p) for _, p in best]
            missing = self.candidates - len(best)
            if self.fill:
                draw = np.random.default_rng(zlib.crc32(name.encode()))
                row += draw.choice(
                    sorted({*numbers.values()} - {*row}), missing, replace=False
                ).tolist()
                priors, missing = [round(1e6 / self.candidates)] * self.candidates, 0
            rows[name] = row + [0] * missing + priors + [0] * missing
        return rows

    def names(self) -> list[str]:
        """Returns the identifiers of the entities 1, 2, ..."""
        return _entities(self._named())

    def _named(self) -> dict[str, dict[str, float]]:
        """{name: {entity: prior}}."""
        named: dict[str, dict[str, float]] = collections.defaultdict(dict)
        for name, other, prior in rows(self.path, "aliases"):
            if is_number(prior):
                named[name][other] = float(prior)
            else:
                named[name][name] = named[prior][prior] = 1.0
        return named

    def example(self, number: int, vocab: Vocab) -> Sequence[int]:
        some = [1 + (number + n) % (self.entities - 1) for n in range(self.candidates)]
        return [*some, *([round(1e6 / self.candidates)] * self.candidates)]


def _entities(named: Mapping[str, Mapping[str, float]]) -> list[str]:
    return sorted({entity for some in named.values() for entity in some})


def is_number(cell: str) -> bool:
    """Whether a cell is a number."""
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class TypedNames(Lexicon):
    """Entities with a type.

    The integers of a name are the numbers of its entity and of the entity's type, both from 1, and
    the first `width` ids of the name, + 1, with 0 at the end. The file has lines of name, entity
    and type with tabs, or triples. In triples the tail of the relation `relation` is the type of
    its head, and all other entities have one type.
    """

    packaged: ClassVar[str] = "triples.tsv"

    width: int = 8
    relation: str = "is a"

    def entries(self, tokenizer: Any) -> Mapping[str, Sequence[int]]:
        lines = list(rows(self.path, "types"))
        kinds = {head: tail for head, relation, tail in lines if relation == self.relation}
        if kinds:
            names = {name: name for head, _, tail in lines for name in (head, tail)}
            kinds = {name: kinds.get(name, "") for name in names}
        else:
            names, kinds = (
                {name: entity for name, entity, _ in lines},
                {entity: kind for _, entity, kind in lines},
            )
        entity = {name: n for n, name in enumerate(sorted({*names.values()}), 1)}
        kind = {name: n for n, name in enumerate(sorted({*kinds.values()}), 1)}
        ids = tokenizer.encode_batch([f" {name}" for name in names])

        def fit(row):
            return [*(row[: self.width] + 1).tolist(), *[0] * (self.width - len(row))]

        pairs = zip(names.items(), ids, strict=True)
        return {
            name: [entity[one], kind[kinds[one]], *fit(row)]
            for (name, one), row in pairs
            if len(row) <= self.width
        }

    def example(self, number: int, vocab: Vocab) -> Sequence[int]:
        ids = [vocab.size // 3 + number % 50 + n for n in range(1 + number % 3)]
        return [1 + number, 1 + number % 4, *(i + 1 for i in ids), *[0] * (self.width - len(ids))]

    def other(self, entities: Array, kinds: Array, drawn: Array) -> tuple[Array, Array]:
        """Returns names [.., W] of other entities of the same types, uniform by `drawn` [..] in [0,
        1), and whether the entity is another one: a type may have a single entity."""
        rows = self.values[self.values[:, 3] > 0]
        rows = rows[np.unique(rows[:, 3], return_index=True)[1]][:, 3:]
        rows = rows[np.argsort(rows[:, 1], kind="stable")]
        count = np.bincount(rows[:, 1], minlength=rows[:, 1].max() + 1)
        start = np.concatenate([[0], np.cumsum(count)[:-1]])
        size = jnp.asarray(count)[kinds]
        picked = jnp.asarray(start)[kinds] + jnp.clip(
            (drawn * size).astype(jnp.int32), 0, jnp.maximum(size - 1, 0)
        )
        chosen = jnp.asarray(rows)[picked]
        return chosen[..., 2:], (chosen[..., 0] != entities) & (size > 0)
