"""Noise on the entities of a text: denoising (ERNIE of THU) and replacement (WKLM)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import put, rows_of, segments_of
from ptm_jax.core.fields import gold_of, move_with_tokens, moving
from ptm_jax.core.streams import named
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import (
    budget,
    capacity,
    check_shares,
    choose,
    draws,
    hide,
    maskable,
    places,
    up_to,
)
from ptm_jax.knowledge.lexicons import Entities, TypedNames

move_with_tokens("entities")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EntityNoise(slots.Corruption):
    """Replaces or drops entities of mentions (Zhang et al. 2019, arXiv 1905.07129, section 3.5).

    The entity of a mention is replaced by a random one with probability `wrong`, dropped with
    probability `dropped`, and otherwise kept. Apply it before the masking of words.

    Writes `entities` [B, L], the entities that a network reads, at the first token of each mention.
    Writes the true entities to predict as `entity_positions`, `entity_labels`, `entity_weights`
    [B, P], P = ceil(share * L). Further mentions are kept and not predicted.
    """

    lexicon: Entities = Entities()
    wrong: float = 0.05
    dropped: float = 0.15
    share: float = 0.25

    def __post_init__(self):
        check_shares(self.share, self.dropped, self.wrong)

    def __call__(self, key: Array, batch: Batch) -> Batch:
        ids, rows = batch["input_ids"], rows_of(batch)
        mentions = self.lexicon.find(ids, segments_of(batch))
        true = jnp.where(mentions.starts, mentions.values[..., 0], 0)
        positions, weights = places(mentions.starts, capacity(ids.shape[1], self.share))
        labels = jnp.where(weights > 0, jnp.take_along_axis(true, positions, 1), 0)
        fate, other = jnp.moveaxis(draws(named(key, "fate"), rows, *positions.shape[1:], 2), -1, 0)
        other = 1 + up_to(other, self.lexicon.entities - 1)
        seen = jnp.where(
            fate < self.wrong, other, jnp.where(fate < self.wrong + self.dropped, 0, labels)
        )
        entities = put(true, positions, weights, seen)
        fields = {"entity_positions": positions, "entity_labels": labels, "entity_weights": weights}
        return {**batch, "entities": entities, **fields}


@dataclasses.dataclass(frozen=True, kw_only=True)
class GoldEntities(slots.Corruption):
    """Writes the likeliest entity of every name at its first token, `gold_of(source)` [B, L].

    Other tokens have 0. Apply it before the masking. These labels train a linker without annotated
    text: `Entities.fill` adds candidates to names that have only one. `source` is the number of the
    encoder's linker that has this lexicon.
    """

    lexicon: Entities = Entities()
    source: int = 0

    def __call__(self, key: Array, batch: Batch) -> Batch:
        mentions = self.lexicon.find(batch["input_ids"], segments_of(batch))
        return {
            **batch,
            gold_of(self.source): jnp.where(mentions.starts, mentions.values[..., 0], 0),
        }


def gold_writers(corruptions: Iterable[slots.Corruption], source: int) -> tuple[GoldEntities, ...]:
    """Returns the corruptions that write the true entities for linker number `source`."""
    return tuple(
        each for each in corruptions if isinstance(each, GoldEntities) and each.source == source
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphOfText(slots.Corruption):
    """Writes the spans of a text that a relation could generate, and the row's graph (LRLM).

    Hayashi et al. 2020, arXiv 1908.07690, section 2. Writes `span_entities` [B, L, N], the entity
    of the name of n tokens that begins at a token (0: none), and `graph_entities` [B, C], the
    distinct entities of a row's graph: the entities that the text names, and random others up to C.

    Deviation: the paper's graph is Wikidata's graph of the article's topic.
    """

    lexicon: Entities = Entities()
    candidates: int = 32

    def __post_init__(self):
        if self.candidates < 1:
            raise ValueError(f"candidates is {self.candidates}; a graph has at least 1 entity")

    def __call__(self, key: Array, batch: Batch) -> Batch:
        every = self.lexicon.every(batch["input_ids"], segments_of(batch))
        spans = jnp.asarray(self.lexicon.values[:, 3])[every] * (every > 0)
        drawn = draws(named(key, "others"), rows_of(batch), self.candidates)
        others = 1 + up_to(drawn, self.lexicon.entities - 1)
        some = -jnp.sort(-spans.reshape(len(spans), -1), axis=1)
        first = (some > 0) & (jnp.diff(some, axis=1, prepend=0) != 0)
        positions, used = places(first, min(self.candidates, some.shape[1]))
        of_text = jnp.take_along_axis(some, positions, 1) * (used > 0).astype(some.dtype)
        of_text = jnp.pad(of_text, ((0, 0), (0, self.candidates - of_text.shape[1])))
        graph = jnp.where(of_text > 0, of_text, others)
        slot = jnp.arange(self.candidates)
        again = ((graph[:, :, None] == graph[:, None, :]) & (slot[:, None] > slot)).any(-1)
        real = (segments_of(batch) > 0).any(1, keepdims=True)
        return {
            **batch,
            "span_entities": spans,
            "graph_entities": jnp.where(again | ~real, 0, graph),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class EntityReplacement(slots.Corruption):
    """Replaces names of entities by names of other entities of the same type.

    Xiong et al. 2019, arXiv 1912.09637, section 3. Adjacent mentions are never both replaced. 5% of
    the tokens outside of mentions are masked.

    Each mention has a draw in [0, 1). It is replaced if the draw is below `rate` and below the
    draws of the adjacent mentions. The new name may have another length: the following tokens move,
    and tokens that move past the end of the row are cut.

    Writes `erd_before` and `erd_after`, the places before and after each mention, `erd_labels`
    (1 = replaced) and `erd_weights` [B, P], P = ceil(share * L). A mention counts if its document
    has a token on both sides of it. Also writes the `mlm_*` fields.
    """

    vocab: Vocab
    names: TypedNames = TypedNames()
    rate: float = 0.5
    masking: float = 0.05
    share: float = 0.25

    def __post_init__(self):
        check_shares(self.rate)
        check_shares(self.masking)
        check_shares(self.share)

    def __call__(self, key: Array, batch: Batch) -> Batch:
        ids, rows, segments = batch["input_ids"], rows_of(batch), segments_of(batch)
        mentions, limit = self.names.find(ids, segments), capacity(ids.shape[1], self.share)
        starts, used = places(mentions.starts, limit)
        draw, pick = jnp.moveaxis(draws(named(key, "replace"), rows, limit, 2), -1, 0)
        draw = jnp.where(used > 0, draw, 1.0)
        beside = jnp.minimum(
            jnp.pad(draw[:, 1:], ((0, 0), (0, 1)), constant_values=1.0),
            jnp.pad(draw[:, :-1], ((0, 0), (1, 0)), constant_values=1.0),
        )
        kinds = jnp.take_along_axis(mentions.values[..., 1], starts, 1)
        name, different = self.names.other(
            jnp.take_along_axis(mentions.values[..., 0], starts, 1), kinds, pick
        )
        changed = (draw < self.rate) & (draw < beside) & (used > 0) & different
        out, bounds = _rewritten(batch, mentions.first, starts, changed, name, vocab=self.vocab)
        return self._labelled(key, out, bounds, starts, used=used, changed=changed)

    def _labelled(
        self,
        key: Array,
        out: Batch,
        bounds: tuple[Array, Array],
        starts: Array,
        *,
        used: Array,
        changed: Array,
    ) -> Batch:
        """Returns the fields of the mentions, whose first and last places `kept` [B, P] are, and
        masks other tokens."""
        first, last = bounds
        length, segments = out["input_ids"].shape[1], segments_of(out)
        before, after = first - 1, last + 1

        def at(x):
            return jnp.take_along_axis(segments, jnp.clip(x, 0, length - 1), 1)

        inside = (
            (used > 0)
            & (before >= 0)
            & (after < length)
            & (at(before) == at(first))
            & (at(after) == at(first))
        )
        weights = inside.astype(jnp.float32)
        fields = {"erd_before": before, "erd_after": after, "erd_labels": changed}
        fields = {
            name: jnp.where(inside, value, 0).astype(jnp.int32) for name, value in fields.items()
        }
        slot = jnp.arange(length)
        mention = (
            (slot >= first[..., None]) & (slot <= last[..., None]) & (used > 0)[..., None]
        ).any(1)
        allowed = maskable(out, self.vocab) & ~mention
        limit = capacity(length, self.masking)
        positions, chosen = choose(
            named(key, "choose"),
            rows_of(out),
            allowed,
            budget(allowed.sum(1), self.masking, limit),
            limit,
        )
        out = hide(named(key, "hide"), out, positions, chosen, self.vocab, shares=(0.8, 0.1))
        return {**out, **fields, "erd_weights": weights}


def _rewritten(
    batch: Batch, owner: Array, starts: Array, changed: Array, name: Array, *, vocab: Vocab
) -> tuple[Batch, tuple]:
    """Returns the rows with new names, and the first and last places of all mentions [B, P].

    `name` [B, P, W] (ids + 1, 0 at the end) replaces each `changed` mention. Places may lie beyond
    the end of the row.
    """
    ids, length, width = batch["input_ids"], batch["input_ids"].shape[1], name.shape[-1]
    slot, rows = jnp.arange(length), jnp.arange(len(ids))[:, None]
    sizes = (name > 0).sum(-1)
    at = jnp.where(changed, starts, length)
    gone = jnp.zeros((len(ids), length + 1), bool).at[rows, at].set(True)
    gone = jnp.take_along_axis(gone, jnp.where(owner >= 0, owner, length), 1) & (owner >= 0)
    new = jnp.zeros((len(ids), length + 1), jnp.int32).at[rows, at].set(sizes)[:, :length]
    take = jnp.where(gone, 0, 1) + new
    hard = jnp.cumsum(take, 1) - take
    target = jnp.where(gone, length, hard)
    place = jnp.take_along_axis(hard, starts, 1)
    names = jnp.where(changed[..., None] & (name > 0), place[..., None] + jnp.arange(width), length)

    def write(out, where, value):
        return out.at[rows, jnp.minimum(where, length)].set(value)[:, :length]

    def moved(field, fill, inside):
        out = (
            jnp.full((len(ids), length + 1, *field.shape[2:]), fill, field.dtype)
            .at[rows, target]
            .set(field)
        )
        wide = jnp.broadcast_to(inside, (*names.shape, *field.shape[2:])).reshape(
            len(ids), -1, *field.shape[2:]
        )
        return write(out, names.reshape(len(ids), -1), wide.astype(field.dtype))

    def pick(field):
        return jnp.take_along_axis(
            field, starts.reshape(*starts.shape, *(1,) * (field.ndim - 2)), 1
        )[:, :, None]

    out = {**batch, "input_ids": moved(ids, vocab.pad or 0, jnp.maximum(name - 1, 0))}
    for field in ("segment_ids", *moving(batch)):
        if field in batch:
            out[field] = moved(batch[field], 0, pick(batch[field]))
    segments = segments_of(out)
    edge = jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    begin = jax.lax.cummax(jnp.where(edge, slot, 0), axis=1)
    out["positions"] = jnp.where(segments > 0, slot - begin, 0)
    length_of_mention = (owner[:, None, :] == starts[..., None]).sum(-1)
    return out, (place, place + jnp.where(changed, sizes, length_of_mention) - 1)
