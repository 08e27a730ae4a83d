"""Rows of triples: alone, together with text (Wang et al. 2014), or with entity texts (KEPLER)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.fields import Field
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.corpora.store import Blocks
from ptm_jax.data.rows import packing
from ptm_jax.data.rows.examples import Around, Fields, FullSentences, Spec
from ptm_jax.data.rows.windows import Chunks
from ptm_jax.knowledge.triples import Triples, known
from ptm_jax.knowledge.vocabulary_graph import ENTITY, Graph, kinds_of, triples_in

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab
    from ptm_jax.data.corpora.store import Corpus


@dataclasses.dataclass(frozen=True, kw_only=True)
class WithTriples(Around):
    """The rows of `examples` with triples of the block in each.

    The rows are cut from the text and the descriptions of a block. `triples` [R, T, 3] int32 has
    head, relation and tail, and `triple_weights` [R, T] float32 is 0 for padding. Triples with an
    unknown part are left out. Rows without text hold the triples that are left.

    triples   T, at most, in a row
    """

    examples: Any = Chunks()
    triples: int = 32
    graph: Graph = Graph()

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields. Raises UserError as `examples` do."""
        more = {
            "triples": Field((self.triples, 3)),
            "triple_weights": Field((self.triples,), np.float32),
        }
        return {**self.examples.spec(length, vocab), **more}

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns the fields [R, ...]; triples are in random order, spread evenly."""
        kinds, tokens = self.graph.values[:, 0][block.tokens], block.tokens
        counts, starts = block.documents, block.document_tokens[:-1]
        sizes = np.diff(block.document_tokens)
        triples, graphs = triples_in(block, self.graph.values[:, 0])
        triples = rng.permutation(triples)
        # a document that begins with an entity or a relation in a sentence of one or three is no
        # text; its texts follow
        heads = block.sentences[block.document_starts[:-1]]
        graphs |= (counts == 1) & (sizes == 3) & (kinds[starts] != 0)
        described = (counts == 3) & (heads == 1) & (kinds[starts] == ENTITY)
        stay = np.repeat(~(graphs | described), counts)
        stay[block.document_starts[:-1][described] + 2] = (
            True  # the description; its name stands in `Graph`
        )
        sentences = np.repeat(stay, block.sentences)
        inside = np.array(
            [
                stay[a:b].sum()
                for a, b in zip(block.document_starts, block.document_starts[1:], strict=False)
            ]
        )
        nonempty = inside > 0
        text = Block(
            tokens[sentences],
            block.sentences[stay],
            inside[nonempty].astype(np.int32),
            block.continued[nonempty],
        )
        text = dataclasses.replace(text, words=block.words, spellings=block.spellings)
        out = self.examples.rows(text, length=length, vocab=vocab, rng=rng)
        return self._joined(out, triples, length, vocab)

    def _joined(self, out: Fields, facts: np.ndarray, length: int, vocab: Vocab) -> Fields:
        have = len(out["input_ids"])
        count = max(have, -(-len(facts) // self.triples))
        for name, (shape, dtype) in self.examples.spec(length, vocab).items():
            empty = np.zeros((count - have, *shape), dtype)
            out[name] = np.concatenate(
                [out[name], empty + vocab.pad if name == "input_ids" else empty]
            ).astype(dtype)
        triples, weights = (
            np.zeros((count, self.triples, 3), np.int32),
            np.zeros((count, self.triples), np.float32),
        )
        number = np.arange(len(facts))
        triples[number % max(count, 1), number // max(count, 1)] = facts
        weights[number % max(count, 1), number // max(count, 1)] = 1
        return {**out, "triples": triples, "triple_weights": weights}


@dataclasses.dataclass(frozen=True, kw_only=True)
class WithDescribedTriple(Around):
    """The rows of `examples`, each with a triple of the graph and corrupted ones.

    Wang et al. 2021, arXiv 1911.06136, section 3.2. The corrupted triples have entities that make
    no triple of the graph in place of the head and of the tail. `described_input_ids` and
    `_segment_ids` [R, 2 + 2 negatives, S] int32, S = width + 2, hold the texts of head, tail, wrong
    heads and wrong tails between `begin` and `end`; `relation` [R] is the number of the relation.

    negatives   wrong heads, and wrong tails, of a triple
    texts       of what else: "relations" adds the text of the relation, `relation_input_ids` [R, S]
                (KEPLER-Rel); "conditions" adds `conditioned_input_ids` [R, 2, 2 width + 3], head
                and tail each followed by the text of the relation (KEPLER-Cond)

    The host looks the texts up in the memory-mapped graph, so that a device holds only the texts of
    its rows. A wrong entity is the first of 16 draws that makes no triple of the graph, and
    the last where all do.
    """

    examples: Any = FullSentences()
    graph: Triples = Triples(width=64)
    negatives: int = 1
    texts: Literal["entities", "relations", "conditions"] = "entities"

    def __post_init__(self):
        if self.negatives < 1:
            raise ValueError(f"negatives is {self.negatives}; each triple needs at least 1")

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields. Raises UserError as `examples` do."""
        inner, size, names = (
            self.examples.spec(length, vocab),
            self.graph.width + 2,
            ("input_ids", "segment_ids"),
        )
        views = {"described": (2 + 2 * self.negatives, size)}
        views |= {"relation": (size,)} if self.texts == "relations" else {}
        views |= {"conditioned": (2, 2 * size - 1)} if self.texts == "conditions" else {}
        more = {f"{view}_{name}": Field(shape) for view, shape in views.items() for name in names}
        return {**inner, **more, "relation": Field()}

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns the fields [R, ...]."""
        out = self.examples.rows(block, length=length, vocab=vocab, rng=rng)
        drawn = self.graph.triples()[rng.integers(0, self.graph.sizes[0], len(out["input_ids"]))]
        heads, tails = (self._wrong(drawn, side, rng) for side in (0, 2))
        entities, relations = self.graph.entities(), self.graph.relations()
        ends = drawn[:, [0, 2]]
        views = {"described": (entities[np.concatenate([ends, heads, tails], 1)],)}
        if self.texts == "relations":
            views["relation"] = (relations[drawn[:, 1]],)
        if self.texts == "conditions":
            views["conditioned"] = entities[ends], relations[np.repeat(drawn[:, 1:2], 2, 1)]
        written = {
            f"{view}_{f}": v
            for view, texts in views.items()
            for f, v in self._written(texts, vocab).items()
        }
        return {**out, **written, "relation": drawn[:, 1].copy()}

    def _wrong(self, triples: np.ndarray, side: int, rng: np.random.Generator) -> np.ndarray:
        """Entities [R, negatives] in place of a part of triples [R, 3]."""
        size = self.graph.sizes[1]
        tried = np.repeat(triples[:, None], self.negatives, 1)
        true = tried[..., side].copy()
        again = np.ones(true.shape, bool)
        for _ in range(16):
            others = (true + 1 + rng.integers(0, max(1, size - 1), true.shape)) % size
            tried[..., side] = np.where(again, others, tried[..., side])
            again &= known(self.graph.triples(), tried)
            if not again.any():
                break
        return tried[..., side]

    def _written(self, texts: tuple[np.ndarray, ...], vocab: Vocab) -> Fields:
        """The fields [.., S] of texts [.., W] (ids + 1, 0 at the end), each followed by `end`."""
        ends = np.full((*texts[0].shape[:-1], 1), packing.special(vocab, self.end) + 1)
        first = np.full_like(ends, packing.special(vocab, self.begin) + 1)
        coded = np.concatenate([first, *(part for text in texts for part in (text, ends))], -1)
        used = coded > 0
        order = np.argsort(~used, axis=-1, kind="stable")
        coded, used = (np.take_along_axis(values, order, -1) for values in (coded, used))
        return {
            "input_ids": np.where(used, coded - 1, vocab.pad).astype(np.int32),
            "segment_ids": used.astype(np.int32),
        }


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
    """Rows of `length` / 3 triples in random order.

    `input_ids` [R, L] are head, relation, tail, head, .... Segment 0 is padding. Triples with an
    unknown part are left out.
    """

    begin = end = None

    def blocks(self, corpus: Corpus, split: str) -> TripleBlocks:
        """Returns the triples of a split."""
        kinds, blocks = kinds_of(corpus.tokenizer().pieces), Blocks(corpus, split)
        parts = (triples_in(blocks[number], kinds)[0] for number in range(len(blocks)))
        return TripleBlocks(tuple(part for part in parts if len(part)))

    def spec(self, length: int, vocab: Vocab) -> Spec:
        """Returns the fields.
        Raises UserError where the vocabulary has no padding, or a row no whole triples."""
        packing.special(vocab, "pad")
        if length < 3 or length % 3:
            raise UserError(
                f"rows have {length} places; expected a multiple of 3, for whole triples"
            )
        return {name: Field((length,)) for name in ("input_ids", "segment_ids")}

    def rows(
        self, block: np.ndarray, *, length: int, vocab: Vocab, rng: np.random.Generator
    ) -> Fields:
        """Returns fields [R, L] with every triple once."""
        each = length // 3
        rows = np.full((-(-len(block) // each) * each, 3), vocab.pad, np.int32)
        rows[: len(block)] = rng.permutation(block)
        real = np.repeat(np.arange(len(rows)) < len(block), 3)
        return {
            "input_ids": rows.reshape(-1, length),
            "segment_ids": real.astype(np.int32).reshape(-1, length),
        }
