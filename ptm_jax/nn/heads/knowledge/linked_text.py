"""Heads of a language model that chooses an entity for each token and renders its name (KGLM)."""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.constraint import constrain
from ptm_jax.core.precision import Precision
from ptm_jax.nn.heads.vocabulary import Readout
from ptm_jax.nn.initializers import Normal, Zeros
from ptm_jax.nn.layers import Dense, Module
from ptm_jax.nn.recurrent.lstm import LSTM


class Choices(NamedTuple):
    """Logits of each token, float32.

    types       [B, T, 3]   none, new, related
    new         [B, T, E]   new entities
    parents     [B, T, C]   the row's candidates as parents
    relations   [B, T, R]   relations; relation 0 leads from an entity to itself
    """

    types: Any
    new: Any
    parents: Any
    relations: Any


class EntityChoices(slots.Head, Module):
    """The choices of an entity from states [B, T, D] (Logan et al. 2019, arXiv 1906.07241, 3.1).

    A dense layer scores the kind. The other scores are products: of h_p + h_r with the vector of a
    new entity, of h_p with the vector of a parent, of h_r with the vector of a relation. h_p and
    h_r [.., W] are dense layers of the state; the paper splits the state instead. Inputs: the
    states and the candidates [B, C].
    """

    logical_axes = {"entities": ("words", None), "relations": (None, "width")}

    entities: int
    relations: int
    width: int = 256
    initializer: Any = Normal(0.1)
    precision: Precision = Precision()

    @staticmethod
    def example(encoded):
        return encoded.hidden[:, :1], jnp.zeros((len(encoded.hidden), 1), jnp.int32)

    @nn.compact
    def __call__(self, states, candidates, *, table=None, context=None):
        return self._choices(states, candidates)[0]

    def _dense(self, size, name):
        return Dense(size, initializer=self.initializer, precision=self.precision, name=name)

    def _choices(self, states, candidates):
        """Returns (`Choices`, the vectors of entities [E, W])."""
        vectors = self.param("entities", self.initializer, (self.entities, self.width))
        relations = self.param("relations", self.initializer, (self.relations, self.width))
        parent, relation = (
            self._dense(self.width, name)(states).astype(jnp.float32)
            for name in ("parent", "relation")
        )
        choices = Choices(
            types=self._dense(3, "kinds")(states).astype(jnp.float32),
            new=jnp.einsum("btw,ew->bte", parent + relation, constrain(vectors, "words", None)),
            parents=jnp.einsum("btw,bcw->btc", parent, vectors[candidates]),
            relations=jnp.einsum("btw,rw->btr", relation, relations),
        )
        return choices, vectors


class EntityWriter(EntityChoices):
    """`EntityChoices`, and the next token given its entity (section 3.1, "Rendering the entity").

    Word logits are products of h' = W [h; v_e] and the tied table; v_e is 0 without an entity. The
    logit of token j of the entity's name is the product of tanh(U h') and a_j, the state of an LSTM
    over the name. Further inputs: the entities [B, T] and the ids of their names [B, T, A]. Returns
    (`Choices`, `Readout`, logits [B, T, A] float32).

    The published code takes tanh of a_j instead, and h in place of h'.
    """

    logical_axes = {"bias": ("vocab",)}

    vocab: Any = None

    @staticmethod
    def example(encoded):
        one = jnp.zeros((len(encoded.hidden), 1), jnp.int32)
        return encoded.hidden[:, :1], one, one, one[..., None]

    @nn.compact
    def __call__(self, states, candidates, entities, names, *, table, context=None):
        choices, vectors = self._choices(states, candidates)
        beside = jnp.where((entities > 0)[..., None], vectors[entities], 0).astype(states.dtype)
        both = self._dense(table.shape[-1], "condense")(jnp.concatenate([states, beside], -1))
        words = Readout(
            both, table, self.param("bias", Zeros(), (self.vocab.size,)), self.precision
        )
        query = jnp.tanh(self._dense(table.shape[-1], "copy")(both)).astype(jnp.float32)
        flat = names.reshape(-1, names.shape[-1])
        reader = LSTM(
            table.shape[-1],
            forget=0.0,
            initializer=self.initializer,
            precision=self.precision,
            name="alias",
        )
        read, _ = reader(
            constrain(table, "vocab", None)[flat].astype(states.dtype), jnp.ones_like(flat)
        )
        read = read.reshape(*names.shape, -1).astype(jnp.float32)
        return choices, words, jnp.einsum("btd,btad->bta", query, read)
