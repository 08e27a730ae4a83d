"""Knowledge attention and recontextualisation, between two layers of a Transformer (KnowBERT)."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.constraint import constrain
from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Visibility
from ptm_jax.nn.blocks import Block, Stack
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.nn.layers import Context, Dense, Dropout, LayerNorm, Module


class Spans(NamedTuple):
    """Mentions of a batch with candidate entities.

    first, last   [B, S] int32     places of the first and the last token
    segments      [B, S] int32     documents of the mentions, 0 for unused places
    candidates    [B, S, C] int32  entities, 0 for none
    priors        [B, S, C] float32
    """

    first: Any
    last: Any
    segments: Any
    candidates: Any
    priors: Any


class KAR(Module):
    """Adds knowledge about the mentions to the states of all words.

    Peters et al. 2019, arXiv 1909.04164, section 3.3; allenai/kb, kb/knowbert.py:

    1. project the states to the width W of the entities
    2. pool each mention by attention over its tokens
    3. let mentions attend to each other (`spans`)
    4. score the candidates by a network of the dot product and the prior (Eq. 2)
    5. add the mean of the candidates' vectors, weighted by the softmax of their scores (Eq. 5)
    6. let words attend to mentions (`words`), and project back

    Candidates with scores below `threshold` have no weight. A mention without other candidates gets
    the entity vector `null`. Returns (states [B, L, D], scores [B, S, C], -1e4 for none).
    """

    spans: Stack | None
    words: Block
    width: int = 200
    hidden: int = 100
    threshold: float | None = None
    null: int = 0
    dropout: float = 0.1
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, states, spans: Spans, entities, context: Context):
        def dense(size, name):
            return Dense(size, initializer=self.initializer, precision=self.precision, name=name)

        def norm(name):
            return LayerNorm(1e-5, name=name)

        words = dense(self.width, "project")(states)
        place = jnp.arange(states.shape[1])
        inside = (
            (place >= spans.first[..., None])
            & (place <= spans.last[..., None])
            & (spans.segments > 0)[..., None]
        )
        logits = dense(1, "pool")(words)[..., 0].astype(jnp.float32)
        share = jnp.where(
            inside, jax.nn.softmax(jnp.where(inside, logits[:, None], -1e30), -1), 0.0
        )
        mentions = norm("span_norm")(
            jnp.einsum("bsl,bld->bsd", share, words.astype(jnp.float32)).astype(words.dtype)
        )
        span_context = dataclasses.replace(
            context,
            visibility=Visibility(jnp.maximum(spans.segments, 1), spans.segments),
            positions=None,
            places=None,
        )
        if self.spans is not None:
            mentions = self.spans(mentions, span_context).hidden
        vectors = norm("entity_norm")(
            constrain(entities, "words", None)[spans.candidates].astype(words.dtype)
        ).astype(jnp.float32)
        product = (
            jnp.einsum("bsd,bscd->bsc", mentions.astype(jnp.float32), vectors) / self.width**0.5
        )
        both = jnp.stack([product, spans.priors], -1)
        scores = dense(1, "score")(jax.nn.relu(dense(self.hidden, "match")(both)))[..., 0].astype(
            jnp.float32
        )
        scores = jnp.where(spans.candidates > 0, scores, -1e4)
        weighed, none = scores, jnp.zeros(scores.shape[:2], bool)
        if self.threshold is not None:
            below = scores < self.threshold
            weighed, none = jnp.where(below, -1e4, scores), below.all(-1)
        entity = jnp.einsum("bsc,bscd->bsd", jax.nn.softmax(weighed, -1), vectors)
        entity = jnp.where(
            none[..., None], entities[self.null].astype(entity.dtype), entity
        ).astype(words.dtype)
        drop = Dropout(self.dropout)
        known = norm("mention_norm")(mentions + drop(entity, context))
        across = Visibility(context.visibility.q_segments, spans.segments)
        attended, _, _ = self.words(
            words, dataclasses.replace(context, visibility=across), source=known
        )
        out = norm("out_norm")(states + drop(dense(states.shape[-1], "back")(attended), context))
        # a document without a mention has nothing to attend to, and keeps its states
        mentioned = (context.visibility.k_segments[..., None] == spans.segments[:, None, :]) & (
            spans.segments > 0
        )[:, None]
        return jnp.where(mentioned.any(-1, keepdims=True), out, states), scores
