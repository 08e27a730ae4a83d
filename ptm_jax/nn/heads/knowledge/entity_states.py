"""Heads on the states of entities, which the encoder reads in addition to words (LUKE)."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.precision import Precision
from ptm_jax.nn.heads.task_heads import TaskHead
from ptm_jax.nn.heads.vocabulary import Readout, transformed
from ptm_jax.nn.initializers import Normal, Zeros
from ptm_jax.nn.layers import Activation, Module


class EntityWords(slots.Head, Module):
    """Predicts entities from states [.., D] (Yamada et al. 2020, Eq. 8).

    A dense layer to the width of the table, activation and norm, then the products with the
    encoder's table of entities [E', W] and a bias.
    """

    logical_axes = {"bias": ("vocab",)}

    size: int
    activation: Activation = "gelu"
    eps: float = 1e-12
    initializer: Any = Normal()
    precision: Precision = Precision()

    def reads(self, encoded, batch):
        return encoded.extra["entities"], encoded.extra["entity_table"]

    @staticmethod
    def example(encoded):
        return encoded.hidden[:, :1], encoded.extra["entity_table"]

    @nn.compact
    def __call__(self, hidden, entities, *, table=None, context=None):
        h = transformed(self, hidden, entities.shape[-1])
        return Readout(h, entities, self.param("bias", Zeros(), (self.size,)), self.precision)


class EntityClasses(slots.ClassHead, TaskHead):
    """Returns the logits [B, C] float32 of the first `count` entities of a row, concatenated.

    They are the type of one entity, or the relation of two (Yamada et al. 2020, sections 4.1 and
    4.2).
    """

    classes: int
    count: int = 1
    bias: bool = True

    def reads(self, encoded, batch):
        return (jnp.concatenate([encoded.extra["entities"][:, n] for n in range(self.count)], -1),)

    def example(self, encoded):
        return (jnp.concatenate([encoded.hidden[:, 0]] * self.count, -1),)

    @nn.compact
    def __call__(self, states, *, table=None, context=None):
        return self.scores(states, context, self.classes, "classes", bias=self.bias)


class MentionClasses(slots.ClassHead, TaskHead):
    """Returns the logits [B, E, C] float32 of every entity, for names in a text.

    It reads the states of the mention's first and last word and of the entity (Yamada et al. 2020,
    section 4.3), by `mention_starts`, `mention_ends` [B, E].
    """

    classes: int

    def reads(self, encoded, batch):
        def at(name):
            return jnp.take_along_axis(encoded.hidden, batch[name][..., None], 1)

        return (
            jnp.concatenate(
                [at("mention_starts"), at("mention_ends"), encoded.extra["entities"]], -1
            ),
        )

    @staticmethod
    def example(encoded):
        return (jnp.concatenate([encoded.hidden[:, :1]] * 3, -1),)

    @nn.compact
    def __call__(self, states, *, table=None, context=None):
        return self.scores(states, context, self.classes, "classes")
