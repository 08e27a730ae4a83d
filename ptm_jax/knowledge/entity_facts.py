"""Names of entities with facts of a graph.

The entity is the head of its facts (KGLM), or their head or tail (BERT-MK).
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.knowledge.graphs.opening import rows
from ptm_jax.knowledge.mentions import Lexicon

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab


@dataclasses.dataclass(frozen=True, kw_only=True)
class FactsOfNames(Lexicon):
    """Entities with their names and facts.

    The integers of a name are the number of its entity, from 1; the first `width` ids of the name,
    + 1; and `facts` pairs (relation, tail), both from 1. Unused places are 0. The file has lines of
    head, relation and tail with tabs. Entities and relations are numbered in alphabetical order.
    Names are the graph's; longer names are cut.

    entities, relations   number of table rows; row 0 means none
    """

    packaged: ClassVar[str] = "triples.tsv"
    incoming: ClassVar[int] = 0

    entities: int = 256
    relations: int = 64
    width: int = 8
    facts: int = 8

    def __post_init__(self):
        if min(self.width, self.facts) < 1 or min(self.entities, self.relations) < 2:
            raise ValueError(
                "width and facts must be at least 1, entities and relations at least 2"
            )

    def entries(self, tokenizer: Any) -> Mapping[str, Sequence[int]]:
        triples, names = self._triples(), self.names()
        kinds = sorted({relation for _, relation, _ in triples})
        for what, names_or_kinds, limit in (
            ("entities", names, self.entities),
            ("relations", kinds, self.relations),
        ):
            if len(names_or_kinds) >= limit:
                raise UserError(
                    f"{self.path} has {len(names_or_kinds):,} {what}; set {what} to at least "
                    f"{len(names_or_kinds) + 1}"
                )
        number = {name: n for n, name in enumerate(names, 1)}
        kind = {name: n for n, name in enumerate(kinds, 1)}
        linked = self.linked(
            [(number[head], kind[of], number[tail]) for head, of, tail in dict.fromkeys(triples)]
        )
        ids = tokenizer.encode_batch([f" {name}" for name in names])
        rows = zip(names, ids, strict=True)
        return {
            name: [number[name], *_fitted((row + 1).tolist(), self.width), *linked(number[name])]
            for name, row in rows
        }

    def names(self) -> list[str]:
        """Returns the names of the entities 1, 2, ..."""
        return sorted({name for head, _, tail in self._triples() for name in (head, tail)})

    def _triples(self) -> list[tuple[str, ...]]:
        return list(rows(self.path))

    def linked(self, triples: Sequence[tuple[int, int, int]]) -> Callable[[int], list[int]]:
        """Returns a function from an entity to its `facts` pairs of a relation and a tail."""
        pairs = collections.defaultdict(list)
        for head, relation, tail in triples:
            pairs[head] += [relation, tail]
        return lambda entity: _fitted(pairs[entity], 2 * self.facts)

    def by_entity(self) -> np.ndarray:
        """Returns the integers of each entity, [entities, C] int32; zeros for an entity that the
        lexicon lacks."""
        size = int(np.flatnonzero(self.values[:, 0] == -1)[0])
        rows = self.values[size + 1 :, 3:]
        rows = rows[rows[:, 0] > 0]
        out = np.zeros((self.entities, rows.shape[1]), np.int32)
        out[rows[:, 0]] = rows
        return out

    def example(self, number: int, vocab: Vocab) -> Sequence[int]:
        ids = [vocab.size // 3 + number % 50 + n for n in range(1 + number % min(3, self.width))]
        fact = 1 + number % (self.relations - 1), 1 + (number + 1) % (self.entities - 1)
        row = [
            1 + number % (self.entities - 1),
            *(i + 1 for i in ids),
            *[0] * (self.width - len(ids)),
            *fact,
        ]
        return row + [0] * (2 * self.facts - 2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FactsBothWays(FactsOfNames):
    """`FactsOfNames` plus `incoming` (relation, head) pairs: facts with the entity as the tail."""

    facts: int = 4
    incoming: int = 4

    def __post_init__(self):
        super().__post_init__()
        if self.incoming < 1:
            raise ValueError(
                "incoming must be at least 1; use FactsOfNames for facts of heads alone"
            )

    def linked(self, triples: Sequence[tuple[int, int, int]]) -> Callable[[int], list[int]]:
        outgoing, incoming = super().linked(triples), collections.defaultdict(list)
        for head, relation, tail in triples:
            incoming[tail] += [relation, head]
        return lambda entity: outgoing(entity) + _fitted(incoming[entity], 2 * self.incoming)

    def example(self, number: int, vocab: Vocab) -> Sequence[int]:
        fact = 1 + (number + 2) % (self.relations - 1), 1 + (number + 3) % (self.entities - 1)
        return [*super().example(number, vocab), *fact, *[0] * (2 * self.incoming - 2)]


def _fitted(row: Sequence[int], size: int) -> list[int]:
    """Returns the first `size` numbers of a row, padded with zeros."""
    return [*row[:size], *[0] * (size - len(row))]
