"""Words and entities in one sequence: input vectors and self-attention by kind of token (LUKE)."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core.constraint import constrain, current
from ptm_jax.core.precision import Precision
from ptm_jax.kernels.attention import attend
from ptm_jax.nn.attention.multihead import Attention, ring_of
from ptm_jax.nn.blocks import Block
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layers import Context, Dense, Dropout, LayerNorm, Module
from ptm_jax.nn.parallel import gathered, joined, lookup, stream


class Mentions(NamedTuple):
    """The entities of a batch.

    ids       [B, E] int32      rows of a table of entities
    places    [B, E, M] int32   places of the mention's tokens, -1 for none
    segments  [B, E] int32      document of the mention, 0 for unused entries
    types     [B, E] int32      sentence A or B
    """

    ids: Any
    places: Any
    segments: Any
    types: Any


class EntityEmbeddings(Module):
    """Returns the vectors [B, E, D] of mentions, and the table.

    A vector is the row of `entities` [E', W], mapped to the width D of the words (where W differs),
    plus the mean of the position vectors of the mention's tokens, plus the type (Yamada et al.
    2020, arXiv 2010.01057, section 3.1). The positions have a table of their own, in which the
    first token has row 0.
    """

    logical_axes = {"entities": ("words", None), "type": (None, "width")}

    size: int
    width: int
    words: int
    position: LearnedPositions
    types: int = 2
    norm: nn.Module = LayerNorm()
    dropout: float = 0.0
    initializer: Any = Normal()
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, mentions: Mentions, context: Context):
        table = self.param("entities", self.initializer, (self.size, self.width))
        x = lookup(table, mentions.ids, "words")
        if self.width != self.words:
            dense = Dense(
                self.words,
                bias=False,
                initializer=self.initializer,
                precision=self.precision,
                name="project",
            )
            x = dense(x.astype(self.precision.dtype))
        # the mean as a product: one row of the table for each place, not one copy for each token of
        # each mention
        rows = self.position(jnp.arange(self.position.size)[None], self.words)[0]
        at_position = mentions.places[..., None] == jnp.arange(self.position.size)
        share = at_position.sum(2) / jnp.maximum((mentions.places >= 0).sum(-1), 1)[..., None]
        x = x + jnp.einsum("bep,pd->bed", share.astype(jnp.float32), rows)
        x = x + lookup(
            self.param("type", self.initializer, (self.types, self.words)), mentions.types
        )
        x = self.norm(x.astype(jnp.float32))
        return Dropout(self.dropout)(x.astype(self.precision.dtype), context), table


class EntityAwareAttention(Attention):
    """Self-attention over words and entities, with a query matrix for each pair of kinds.

    Yamada et al. 2020, Eq. 2 to 5. The input x [B, L + E, D] has the words first, then the
    entities: `query` is for words to words, `w2e_query` for words to entities, `e2w_query` and
    `e2e_query` for entities to words and to entities. `context.source` are the entities [B, E, D].
    Words and entities share the key and value matrices.

    One product computes all four kinds of scores: a query has a half for each kind of key, and a
    key has zeros in the half of the other kind. Without entities it is `Attention`.
    """

    logical_axes = {"*_query/kernel": ("width", "heads", "head"), "*_query/bias": ("heads", "head")}

    @nn.compact
    def __call__(self, x, context: Context, source=None, cache=None, values=None):
        if ring_of(current()) is not None:
            self._refuse()
            raise ValueError(
                "entities stand behind the words, so rows cannot be split; take rules without _ring"
            )
        for name in ("rotary", "local", "key_heads", "qk_norm", "cap"):
            if vars(self)[name] is not None:
                raise ValueError(f"attention among words and entities has no {name}; leave it None")
        x, several = gathered(x), context.source.shape[1]
        length = x.shape[1] - several
        words, entities = x[:, :length], x[:, length:]
        options = {"bias": self.bias, "precision": self.precision}

        def layer(name):
            return Dense(self.each, initializer=self.initializer, name=name, **options)

        k, v = joined(x, layer("key"), layer("value"))
        word_queries = jnp.concatenate([layer("query")(words), layer("e2w_query")(entities)], 1)
        other = jnp.concatenate([layer("w2e_query")(words), layer("e2e_query")(entities)], 1)
        q, scale = word_queries, self.each[1] ** -0.5 if self.scale is None else self.scale
        if several:
            kind = (jnp.arange(x.shape[1]) >= length)[:, None, None]
            q = jnp.concatenate([word_queries, other], -1)
            k = jnp.concatenate([jnp.where(kind, 0, k), jnp.where(kind, k, 0)], -1)
            v = jnp.concatenate([v, jnp.zeros_like(v)], -1)  # kernels want values as wide as keys
        q = constrain(q, "rows", "length", "heads", None)
        k, v = (constrain(x, "rows", "keys", "heads", None) for x in (k, v))
        noisy = context.train and self.dropout > 0.0
        heads, probabilities = attend(
            q,
            k,
            v,
            visibility=context.visibility,
            scale=scale,
            scores=context.scores,
            dropout=self.dropout if noisy else 0.0,
            key=self.make_rng("dropout") if noisy else None,
            rows=context.rows,
            precision=self.precision,
            impl=self.impl,
        )
        heads = constrain(heads[..., : self.each[1]], "rows", "length", "heads", None)
        out = Dense(
            self.width, axes=2, initializer=self.out_init or self.initializer, name="out", **options
        )
        return stream(out(heads)), probabilities, None


class MixedBlock(Block):
    """A block over a pair of words [B, L, D] and entities [B, E, D], which are one sequence in it.

    Its attention finds the entities in `context.source`; plain `Attention` takes all tokens for one
    kind.
    """

    def __call__(self, x, context: Context, cache=None, source=None):
        words, entities = x
        context = dataclasses.replace(context, source=entities)
        x, probabilities, cache = super().__call__(jnp.concatenate(x, 1), context, cache)
        return (x[:, : words.shape[1]], x[:, words.shape[1] :]), probabilities, cache


def mixed(block: Block, kind: type[Attention] = EntityAwareAttention) -> MixedBlock:
    """Returns a `Block` as a block of words and entities.

    It has attention of another `kind` and the same fields.
    """
    return MixedBlock(**{**_fields(block), "attention": kind(**_fields(block.attention))})


def _fields(module: Any) -> dict[str, Any]:
    names = (field.name for field in dataclasses.fields(module))
    return {name: vars(module)[name] for name in names if name not in ("parent", "name")}
