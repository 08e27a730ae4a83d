"""Entities of tokens: aliases of a compiled graph, found in the tokens of rows."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.facts import CorpusFact
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.rows.columns import Column, WithColumns
from ptm_jax.knowledge.graphs.graph_store import open_graph
from ptm_jax.knowledge.tries import Trie

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer


EDGE = np.dtype([("node", "<i4"), ("token", "<i4"), ("entity", "<i4"), ("prior", "<f4")])


@dataclasses.dataclass(frozen=True, kw_only=True)
class AliasTokens(CorpusFact):
    """The aliases of a graph as tokens of the corpus, [N] of (node, token, entity, prior).

    They are the edges of a trie by depth, and where an alias ends its likeliest entity plus 1 (0:
    none) with its prior. Aliases with an unknown piece are left out.

    graph     folder of a compiled graph
    digest    its hash, or None: any. Another graph in the folder is refused
    least     least prior of an entity
    shortest  least characters of an alias
    """

    graph: str = ""
    digest: str | None = None
    least: float = 0.0
    shortest: int = 3

    def of_tokenizer(self, tokenizer: Tokenizer) -> np.ndarray:
        if not self.graph:
            raise UserError(
                "the aliases of no graph are named; set graph to a folder of ptm prepare --graph"
            )
        graph = open_graph(self.graph, self.digest)
        texts = [
            (place, text)
            for place, text in enumerate(graph.alias_texts)
            if len(text) >= self.shortest
        ]
        rows = tokenizer.encode_batch([text for _, text in texts])
        unknown = tokenizer.vocab.unk
        aliases = [
            (place, ids)
            for (place, _), ids in zip(texts, rows, strict=True)
            if len(ids) and unknown not in ids
        ]
        trie = Trie.of([ids for _, ids in aliases], tokenizer.vocab.size)
        out = np.zeros(len(trie.keys), EDGE)
        out["node"], out["token"] = trie.keys // trie.size, trie.keys % trie.size
        for edge in np.flatnonzero(trie.accepts[1:] >= 0).tolist():
            place = aliases[trie.accepts[edge + 1]][0]
            prior = graph.alias_priors[place][0]
            if prior >= self.least:
                out[edge] = (*out[edge].tolist()[:2], graph.alias_entities[place][0] + 1, prior)
        return out

    def stand_in(self, vocab: Vocab) -> np.ndarray:
        return np.zeros(1, EDGE)

    def trie(self, size: int) -> Trie:
        """Returns the trie for ids below `size`; a sequence is the edge where it ends."""
        edges = self.values
        ends = np.where(edges["entity"] > 0, np.arange(len(edges)), -1)
        return Trie(
            edges["node"].astype(np.int64) * size + edges["token"],
            np.append(-1, ends).astype(np.int32),
            size,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EntityIds(Column):
    """The field `entity_ids` [B, L] int32 of the entities of mentions.

    On every token of a mention it is the likeliest entity of the longest alias plus 1, else 0. A
    mention begins at a token that begins a word, ends before another, and lies in one sentence. The
    field moves with its tokens, so that it survives packing, cut rows and corruptions.

    first   whether only the first token of a mention has the entity (ERNIE: Zhang et al. 2019,
            section 3.1)
    """

    name: ClassVar[str] = "entity_ids"

    aliases: AliasTokens = AliasTokens()
    first: bool = False

    def values(self, block: Block) -> np.ndarray:
        if block.words is None:
            raise UserError(
                "EntityIds needs the beginnings of words; put it around examples with needs_words"
            )
        begins = block.words[block.tokens].copy()
        begins[block.sentence_starts[:-1]] = True
        ends = np.append(begins[1:], True)
        trie = self.aliases.trie(len(block.words))
        numbers, stops = block.tokens.astype(np.int64), np.zeros(len(block.tokens), bool)
        stops[block.sentence_starts[1:] - 1] = True
        out = np.zeros(len(numbers), np.int32)
        for start, end, edge in zip(
            *(x.tolist() for x in trie.longest(numbers, begins, ends, stops)), strict=True
        ):
            out[start : start + 1 if self.first else end] = self.aliases.values["entity"][edge]
        return out


@dataclasses.dataclass(frozen=True, kw_only=True)
class WithEntities(WithColumns):
    """The rows of `examples` with `entity_ids`, and other columns."""

    columns: tuple[Column, ...] = (EntityIds(),)
    needs_words = True
