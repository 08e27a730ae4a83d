"""Rows of triples of a graph: alone, beside text (Wang et al. 2014), or with the texts of their entities (KEPLER)."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.fields import Field
from ptm_jax.core.graph import ENTITY, Graph, kinds_of, triples_in
from ptm_jax.core.triples import Triples
from ptm_jax.data.corpora.store import Block, Blocks
from ptm_jax.data.rows import packing
from ptm_jax.data.rows.examples import Around, Fields, FullSentences, Spec
from ptm_jax.data.rows.windows import Chunks


@dataclasses.dataclass(frozen=True, kw_only=True)
class WithTriples(Around):
    """The rows of `examples`, cut from the text and the descriptions of a block, with triples of the block in each:
    `triples` [R, T, 3] int32 of head, relation and tail, and `triple_weights` [R, T] float32, 0 for padding. Triples with
    an unknown part are left out. Rows without text hold the triples that are left.

    triples   T, at most, in a row
    """

    examples: Any = Chunks()
    triples: int = 32
    graph: Graph = Graph()

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields. Raises UserError as `examples` do."""
        more = {"triples": Field((self.triples, 3)), "triple_weights": Field((self.triples,), np.float32)}
        return {**self.examples.spec(length, vocab), **more}

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns the fields [R, ...]; triples are in random order, spread evenly."""
        kinds, tokens = self.graph.values[:, 0][block.tokens], block.tokens
        counts, starts = block.documents, block.document_tokens[:-1]
        sizes = np.diff(block.document_tokens)
        found, graphs = triples_in(block, self.graph.values[:, 0])
        found = rng.permutation(found)
        # a document that begins with an entity or a relation in a sentence of one or three is no text; its texts follow
        heads = block.sentences[block.document_starts[:-1]]
        graphs |= (counts == 1) & (sizes == 3) & (kinds[starts] != 0)
        own = (counts == 3) & (heads == 1) & (kinds[starts] == ENTITY)
        stay = np.repeat(~(graphs | own), counts)
        stay[block.document_starts[:-1][own] + 2] = True  # the description; its name stands in `Graph`
        rest = np.repeat(stay, block.sentences)
        inside = np.array([stay[a:b].sum() for a, b in zip(block.document_starts, block.document_starts[1:], strict=False)])
        kept = inside > 0
        text = Block(tokens[rest], block.sentences[stay], inside[kept].astype(np.int32), block.continued[kept])
        text = dataclasses.replace(text, words=block.words, spellings=block.spellings)
        out = self.examples.rows(text, length=length, vocab=vocab, rng=rng)
        return self._joined(out, found, length, vocab)

    def _joined(self, out: Fields, found: np.ndarray, length: int, vocab: Any) -> Fields:
        have = len(out["input_ids"])
        count = max(have, -(-len(found) // self.triples))
        for name, (shape, dtype) in self.examples.spec(length, vocab).items():
            empty = np.zeros((count - have, *shape), dtype)
            out[name] = np.concatenate([out[name], empty + vocab.pad if name == "input_ids" else empty]).astype(dtype)
        triples, weights = np.zeros((count, self.triples, 3), np.int32), np.zeros((count, self.triples), np.float32)
        number = np.arange(len(found))
        triples[number % max(count, 1), number // max(count, 1)] = found
        weights[number % max(count, 1), number // max(count, 1)] = 1
        return {**out, "triples": triples, "triple_weights": weights}


@dataclasses.dataclass(frozen=True, kw_only=True)
class WithDescribedTriple(Around):
    """The rows of `examples`, each with a triple of the graph and a wrong entity in place of its head or tail (Wang et al.
    2021, arXiv 1911.06136, section 3.2, one negative): the texts of head, tail and wrong entity between `begin` and `end` as
    views, `{head, tail, other}_input_ids` and `_segment_ids` [R, S] int32, S = width + 2, the `relation` [R], and the
    `other_side` [R]: 0 in place of the head, 1 of the tail.

    The host looks the texts up in the memory-mapped graph, so that a device holds those of its rows alone.
    """

    examples: Any = FullSentences()
    graph: Triples = Triples(width=64)

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields. Raises UserError as `examples` do."""
        inner = self.examples.spec(length, vocab)
        views = [f"{name}_{field}" for name in ("head", "tail", "other") for field in ("input_ids", "segment_ids")]
        return {**inner, **packing.fields(self.graph.width + 2, *views), "relation": Field(), "other_side": Field()}

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns the fields [R, ...]."""
        out = self.examples.rows(block, length=length, vocab=vocab, rng=rng)
        rows, (count, size, _) = len(out["input_ids"]), self.graph.sizes
        head, relation, tail = self.graph.triples()[rng.integers(0, count, rows)].T
        side = rng.integers(0, 2, rows, dtype=np.int32)
        other = (np.where(side > 0, tail, head) + 1 + rng.integers(0, max(1, size - 1), rows)) % size
        for name, entities in (("head", head), ("tail", tail), ("other", other)):
            out |= {f"{name}_{field}": value for field, value in self._texts(entities, vocab).items()}
        return {**out, "relation": relation.copy(), "other_side": side}

    def _texts(self, entities: np.ndarray, vocab: Any) -> Fields:
        coded = self.graph.entities()[entities]
        out, sizes = packing.empty(len(coded), coded.shape[1] + 2, vocab.pad, "segment_ids"), (coded > 0).sum(1)
        ids = out["input_ids"]
        ids[:, 0], ids[:, 1:-1] = packing.special(vocab, self.begin), np.where(coded > 0, coded - 1, ids[:, 1:-1])
        ids[np.arange(len(ids)), sizes + 1] = packing.special(vocab, self.end)
        out["segment_ids"][:] = np.arange(ids.shape[1]) < sizes[:, None] + 2
        return out


@dataclasses.dataclass(frozen=True)
class TripleBlocks:
    """The triples of a split, as arrays [N, 3] of its blocks."""

    parts: tuple[np.ndarray, ...]

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, number: int) -> np.ndarray:
        return self.parts[number]

    @property
    def tokens(self) -> int:
        return 3 * sum(map(len, self.parts))

    join = staticmethod(np.concatenate)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TripleRows(slots.Examples):
    """Rows of `length` / 3 triples in random order: `input_ids` [R, L] are head, relation, tail, head, .... Segment 0 is
    padding. Triples with an unknown part are left out."""

    begin = end = None

    def blocks(self, corpus: Any, split: str) -> TripleBlocks:
        """Returns the triples of a split."""
        kinds, blocks = kinds_of(corpus.tokenizer().pieces), Blocks(corpus, split)
        found = (triples_in(blocks[number], kinds)[0] for number in range(len(blocks)))
        return TripleBlocks(tuple(part for part in found if len(part)))

    def spec(self, length: int, vocab: Any) -> Spec:
        """Returns the fields. Raises UserError where the vocabulary has no padding, or a row no whole triples."""
        packing.special(vocab, "pad")
        if length < 3 or length % 3:
            raise UserError(f"rows have {length} places; expected a multiple of 3, for whole triples")
        return {name: Field((length,)) for name in ("input_ids", "segment_ids")}

    def rows(self, block: np.ndarray, *, length: int, vocab: Any, rng: np.random.Generator) -> Fields:
        """Returns fields [R, L] with every triple once."""
        each = length // 3
        found = np.full((-(-len(block) // each) * each, 3), vocab.pad, np.int32)
        found[: len(block)] = rng.permutation(block)
        real = np.repeat(np.arange(len(found)) < len(block), 3)
        return {"input_ids": found.reshape(-1, length), "segment_ids": real.astype(np.int32).reshape(-1, length)}
