"""Triples of a graph as texts that replace rows (KG-BERT).

`data.rows.knowledge.graphs` and `data.rows.knowledge.lexical_pairs` add triples to rows instead.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import rows_of, segments_of
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import draws, up_to
from ptm_jax.knowledge.triples import Triples, known

TRIES = 16
"""Draws of a wrong entity, of which one should make a triple that is not in the graph."""


def framed(texts: tuple[Array, ...], vocab: Vocab, room: int, real: Array) -> dict[str, Array]:
    """Returns the fields [.., room] of texts that are framed by [CLS] and [SEP].

    They are `input_ids`, `segment_ids`, `positions` and `token_type_ids` of texts [.., W], ids + 1
    with 0 at the end: [CLS] first [SEP] second [SEP] ..., types 0, 1, 0. Rows that are not `real`
    [..] are padding.
    """
    cls, sep = vocab.need("cls", "sep")
    parts, kinds = [jnp.full((*real.shape, 1), cls + 1)], [0]
    for number, text in enumerate(texts):
        parts += [text, jnp.full((*real.shape, 1), sep + 1)]
        kinds += [number % 2] * (text.shape[-1] + 1)
    coded = jnp.concatenate(parts, -1)
    used = (coded > 0) & real[..., None]
    where = jnp.where(used, jnp.cumsum(used, -1) - 1, room)

    def flat(x):
        return x.reshape(-1, x.shape[-1])

    index = jnp.arange(flat(where).shape[0])[:, None], flat(where)
    pad = 0 if vocab.pad is None else vocab.pad

    def written(values, fill):
        out = (
            jnp.full((index[0].shape[0], room), fill, jnp.int32)
            .at[index]
            .set(flat(values), mode="drop")
        )
        return out.reshape(*real.shape, room)

    types = jnp.broadcast_to(jnp.asarray(kinds, jnp.int32), coded.shape)
    segments = written(used.astype(jnp.int32), 0)
    return {
        "input_ids": written(jnp.where(used, coded - 1, pad), pad),
        "segment_ids": segments,
        "positions": jnp.where(segments > 0, jnp.arange(room), 0),
        "token_type_ids": written(types, 0),
    }


def real_of(batch: Batch) -> Array:
    """Returns whether a row has a token, [B] bool."""
    return (segments_of(batch) > 0).any(1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TripleText(slots.Corruption):
    """Replaces every row by a triple as text: [CLS] head [SEP] relation [SEP] tail [SEP].

    Yao et al. 2019, arXiv 1909.03193, section 3.2. Rows are [B, 3 width + 4], with types 0, 1, 0.
    With probability negatives / (1 + negatives) the head or the tail is replaced by another entity,
    so that the graph does not have the triple (Eq. 2). The first such entity of 16 draws is taken;
    if there is none, the first draw. `triple_label` [B] is 1 for triples of the graph.
    """

    vocab: Vocab
    negatives: int = 1
    graph: Triples = Triples()

    def __post_init__(self):
        if self.negatives < 1:
            raise ValueError(f"negatives is {self.negatives}; each triple needs at least 1")

    def __call__(self, key: Array, batch: Batch) -> Batch:
        (count, size, _), drawn = self.graph.sizes, draws(key, rows_of(batch), 3 + TRIES)
        facts = jnp.asarray(self.graph.triples())
        h, r, t = facts[up_to(drawn[:, 0], count)].T[..., None]
        wrong, head = drawn[:, 1] * (1 + self.negatives) >= 1, drawn[:, 2:3] < 0.5
        others = (jnp.where(head, h, t) + 1 + up_to(drawn[:, 3:], max(1, size - 1))) % size
        false = jnp.stack(
            jnp.broadcast_arrays(jnp.where(head, others, h), r, jnp.where(head, t, others)), -1
        )
        first = known(facts, false).argmin(1)
        false = jnp.take_along_axis(false, first[:, None, None], 1)[:, 0]
        triples = jnp.where(wrong[:, None], false, jnp.concatenate([h, r, t], 1))
        return {
            "rows": rows_of(batch),
            **self.text(triples, real_of(batch)),
            "triple_label": (~wrong).astype(jnp.int32),
        }

    def text(self, triples: Array, real: Array) -> dict[str, Array]:
        """Returns the fields [.., 3 width + 4] of the texts of triples [.., 3]; padding where they
        are not `real` [..]."""
        entities, relations = (
            jnp.asarray(self.graph.entities()),
            jnp.asarray(self.graph.relations()),
        )
        h, r, t = (triples[..., n] for n in range(3))
        return framed(
            (entities[h], relations[r], entities[t]), self.vocab, 3 * self.graph.width + 4, real
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EntityPairs(slots.Corruption):
    """Replaces every row by the entities of a triple: [CLS] head [SEP] tail [SEP].

    Rows are [B, 2 width + 3], with types 0 and 1. `relation_label` [B] is the number of the
    relation (Yao et al. 2019, arXiv 1909.03193, section 3.2: KG-BERT(b)).
    """

    vocab: Vocab
    graph: Triples = Triples()

    def __call__(self, key: Array, batch: Batch) -> Batch:
        drawn = up_to(draws(key, rows_of(batch)), self.graph.sizes[0])
        triples = jnp.asarray(self.graph.triples())[drawn]
        return {
            "rows": rows_of(batch),
            **self.text(triples, real_of(batch)),
            "relation_label": triples[:, 1],
        }

    def text(self, triples: Array, real: Array) -> dict[str, Array]:
        """Returns the fields [.., 2 width + 3] of the entities of triples [.., 3], as
        `TripleText.text`."""
        entities = jnp.asarray(self.graph.entities())
        texts = entities[triples[..., 0]], entities[triples[..., 2]]
        return framed(texts, self.vocab, 2 * self.graph.width + 3, real)
