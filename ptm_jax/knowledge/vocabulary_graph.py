"""The entities and relations of a vocabulary, with names and descriptions.

They are read from a corpus (`data.graphs.folders`).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.facts import CorpusFact

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab


WORD, ENTITY, RELATION = 0, 1, 2


def kinds_of(pieces: Any) -> np.ndarray:
    """Returns [V] int32: the kind of every piece."""
    starts = {"e": ENTITY, "r": RELATION}
    return np.array(
        [starts.get(p[:1], WORD) if p[1:2] == ":" and p[2:] else WORD for p in pieces], np.int32
    )


def triples_in(block: Any, kinds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the triples [N, 3] int32 of a block.

    It also returns which of its documents they are, [documents] bool.
    """
    three = (block.documents == 1) & (np.diff(block.document_tokens) == 3)
    places = block.document_tokens[:-1][three][:, None] + np.arange(3)
    triples = block.tokens[places] if len(places) else np.zeros((0, 3), np.int32)
    complete = (kinds[triples] == [ENTITY, RELATION, ENTITY]).all(1)
    three[np.flatnonzero(three)[~complete]] = False
    return triples[complete], three


@dataclasses.dataclass(frozen=True, kw_only=True)
class KnownTriples(CorpusFact):
    """The triples of the train split without an unknown part, [N, 3] int32."""

    def read(self, corpus: Any) -> np.ndarray:
        kinds, blocks = kinds_of(corpus.tokenizer().pieces), corpus.blocks("train")
        triples = [triples_in(blocks[number], kinds)[0] for number in range(len(blocks))]
        if not sum(map(len, triples)):
            raise UserError(
                "the text has no triples; give --data triples:DIR, a directory with "
                "train.tsv of triples"
            )
        return np.concatenate(triples)

    def stand_in(self, vocab: Vocab) -> np.ndarray:
        return np.full((1, 3), vocab.size - 1, np.int32)

    def shares(self, size: int) -> np.ndarray:
        """Returns [V] float32: of each relation the share of corrupted heads in Bernoulli's way,
        tails per head over the sum of tails per head and heads per tail (Wang et al. 2014, AAAI,
        section "Reducing False Negative Labels")."""
        h, r, t = self.values.T.astype(np.int64)
        each = np.maximum(np.bincount(r, minlength=size), 1)
        heads, tails = (
            np.bincount(np.unique(r * size + x) // size, minlength=size) for x in (h, t)
        )
        per_head, per_tail = each / np.maximum(heads, 1), each / np.maximum(tails, 1)
        return (per_head / (per_head + per_tail)).astype(np.float32)

    def answers(
        self, size: int, entities: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """Returns (keys, ends, places, most): the places among `entities` of the answers to
        queries. The key of a query is ((side * V + relation) * V + entity), sorted; query i has
        places[ends[i - 1] : ends[i]], at most `most`."""
        h, r, t = self.values.T.astype(np.int64)
        keys = np.concatenate([r * size + h, (size + r) * size + t])
        pairs = np.unique(np.stack([keys, np.concatenate([t, h])], 1), axis=0)
        keys, ends = np.unique(pairs[:, 0], return_index=True)
        ends = np.append(ends[1:], len(pairs))
        return (
            keys,
            ends,
            np.searchsorted(entities, pairs[:, 1]),
            int(np.diff(ends, prepend=0).max()),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Graph(CorpusFact):
    """Facts of every piece, [V, 2 + W] int32.

    The columns are the kind (1: an entity `e:...`, 2: a relation `r:...`, 0: another piece), the
    word that is the complete name of the entity (0: none), and the first W words of its
    description, then 0. Names and descriptions come from both splits.

    words   W
    """

    words: int = 48

    def read(self, corpus: Any) -> np.ndarray:
        vocab = corpus.vocab
        table = np.zeros((vocab.size, 2 + self.words), np.int32)
        table[:, 0] = kinds_of(corpus.tokenizer().pieces)
        if not (table[:, 0] == ENTITY).any():
            raise UserError(
                "the text has no entities; give --data graph:DIR, a directory with train.tsv "
                "of triples"
            )
        for split in ("train", "heldout") if self.words else ():
            for number in range(corpus.size(split)["blocks"]):
                block = corpus.blocks(split)[number]
                for first, last in zip(
                    block.document_starts, block.document_starts[1:], strict=False
                ):
                    places = block.sentence_starts[first : last + 1]
                    if (
                        last - first != 3
                        or places[1] - places[0] != 1
                        or table[block.tokens[places[0]], 0] != ENTITY
                    ):
                        continue
                    entity = block.tokens[places[0]]
                    name, text = (
                        block.tokens[a:b] for a, b in zip(places[1:], places[2:], strict=False)
                    )
                    table[entity, 1] = name[0] if len(name) == 1 and name[0] != vocab.unk else 0
                    text = text[text != vocab.unk][: self.words]
                    table[entity, 2 : 2 + len(text)] = text
        return table

    def stand_in(self, vocab: Vocab) -> np.ndarray:
        table = np.zeros((vocab.size, 2 + self.words), np.int32)
        table[vocab.size // 2 :, 0], table[-(vocab.size // 8) :, 0] = ENTITY, RELATION
        return table

    def ids(self, kind: int) -> np.ndarray:
        """Returns the ids of a kind; [0] where there are none."""
        ids = np.flatnonzero(self.values[:, 0] == kind).astype(np.int32)
        return ids if len(ids) else np.zeros(1, np.int32)
