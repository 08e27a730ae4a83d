"""Heads of entities and relations: rows of a table, and scores of candidate entities."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.constraint import constrain
from ptm_jax.core.precision import Precision
from ptm_jax.nn.heads.vocabulary import transformed
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.nn.layers import Activation, Dense, Module


class Relations(slots.Head, Module):
    """Returns the vectors of relations by their numbers (KEPLER).

    Numbers are [..]; `relations` [R, D] are as wide as states [.., D].
    """

    logical_axes = {"relations": (None, "width")}

    size: int
    initializer: Any = TruncatedNormal()

    def reads(self, encoded, batch):
        return batch["relation"], encoded.hidden[:, 0]

    @staticmethod
    def example(encoded):
        return jnp.zeros(encoded.hidden.shape[:1], jnp.int32), encoded.hidden[:, 0]

    @nn.compact
    def __call__(self, ids, states, *, table=None, context=None):
        vectors = self.param("relations", self.initializer, (self.size, states.shape[-1]))
        return vectors[jnp.minimum(ids, self.size - 1)]


class EntityScores(slots.Head, Module):
    """Returns the scores [.., C] of candidate entities [.., C] for states [.., D].

    A dense layer to the width of the entities, activation and norm, then the products with their
    vectors `entities` [E, W] (thunlp/ERNIE, BertEntPredictionHead).
    """

    logical_axes = {"entities": ("words", None)}

    size: int
    width: int
    activation: Activation = "gelu"
    eps: float = 1e-12
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @staticmethod
    def example(encoded):
        return encoded.hidden[:, :1], jnp.zeros((*encoded.hidden.shape[:1], 1, 1), jnp.int32)

    @nn.compact
    def __call__(self, hidden, candidates, *, table=None, context=None):
        h = transformed(self, hidden, self.width).astype(jnp.float32)
        vectors = self.param("entities", self.initializer, (self.size, self.width))
        return jnp.einsum("...d,...cd->...c", h, constrain(vectors, "words", None)[candidates])


class BesideMentions(slots.Head, Module):
    """A score [.., 1] from the states before and after a mention, [.., 2 D] (WKLM)."""

    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    def reads(self, encoded, batch):
        places = [batch[f"erd_{side}"][..., None] for side in ("before", "after")]
        return (
            jnp.concatenate(
                [jnp.take_along_axis(encoded.hidden, place, 1) for place in places], -1
            ),
        )

    @staticmethod
    def example(encoded):
        return (jnp.concatenate([encoded.hidden[:, :1]] * 2, -1),)

    @nn.compact
    def __call__(self, both, *, table=None, context=None):
        dense = Dense(1, initializer=self.initializer, precision=self.precision, name="dense")
        return dense(both).astype(jnp.float32)
