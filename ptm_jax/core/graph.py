"""The entities and relations of a vocabulary, with names and descriptions, read from a corpus (`data.graphs.folders`)."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.facts import CorpusFact

WORD, ENTITY, RELATION = 0, 1, 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Graph(CorpusFact):
    """Facts of every piece, [V, 2 + W] int32: 1 for an entity `e:...`, 2 for a relation `r:...`, else 0; the word that is an
    entity's whole name, or 0; the first W words of its description, then 0. Both splits give names and descriptions.

    words   W
    """

    words: int = 48

    def read(self, corpus: Any) -> np.ndarray:
        vocab, pieces = corpus.vocab, corpus.tokenizer().pieces
        table = np.zeros((vocab.size, 2 + self.words), np.int32)
        starts = {"e": ENTITY, "r": RELATION}
        table[:, 0] = [starts.get(piece[:1], WORD) if piece[1:2] == ":" and piece[2:] else WORD for piece in pieces]
        if not (table[:, 0] == ENTITY).any():
            raise UserError("the text has no entities; give --data graph:DIR, a directory with train.tsv of triples")
        for split in ("train", "heldout"):
            for number in range(corpus.size(split)["blocks"]):
                block = corpus.blocks(split)[number]
                for first, last in zip(block.document_starts, block.document_starts[1:], strict=False):
                    places = block.sentence_starts[first : last + 1]
                    if last - first != 3 or places[1] - places[0] != 1 or table[block.tokens[places[0]], 0] != ENTITY:
                        continue
                    entity = block.tokens[places[0]]
                    name, text = (block.tokens[a:b] for a, b in zip(places[1:], places[2:], strict=False))
                    table[entity, 1] = name[0] if len(name) == 1 and name[0] != vocab.unk else 0
                    text = text[text != vocab.unk][: self.words]
                    table[entity, 2 : 2 + len(text)] = text
        return table

    def stand_in(self, vocab: Any) -> np.ndarray:
        table = np.zeros((vocab.size, 2 + self.words), np.int32)
        table[vocab.size // 2 :, 0], table[-(vocab.size // 8) :, 0] = ENTITY, RELATION
        return table

    def ids(self, kind: int) -> np.ndarray:
        """Returns the ids of a kind; [0] where there are none."""
        found = np.flatnonzero(self.values[:, 0] == kind).astype(np.int32)
        return found if len(found) else np.zeros(1, np.int32)
