"""Readers that add word vectors to the states of a frozen language model: stacked, and TagLM."""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.batch import segments_of
from ptm_jax.core.types import Array, Encoded
from ptm_jax.nn.initializers import Normal, Zeros
from ptm_jax.nn.layers import Dropout, Module, outside
from ptm_jax.nn.recurrent.gru import GRU
from ptm_jax.nn.recurrent.recurrence import Bidirectional


class WordsReader(Module):
    """Replaces the states [B, L, D] by [vectors of the words; states], [B, L, E + D].

    Where `states` is off, it returns the vectors alone.

    size    number N of rows of the table `token` [N, E], initially zero; a word with an id of N or
            more has the vector 0
    """

    logical_axes = {"token": ("vocab", "width")}

    size: int
    width: int
    states: bool = True

    @nn.compact
    def __call__(self, encoded: Encoded, batch, train: bool = False) -> Encoded:
        ids = batch["input_ids"]
        table = self.param("token", Zeros(), (self.size, self.width))
        x = jnp.where((ids < self.size)[..., None], table[jnp.minimum(ids, self.size - 1)], 0.0)
        x = jnp.concatenate([x, encoded.hidden], -1) if self.states else x
        return dataclasses.replace(encoded, hidden=x, layers=None)


@jax.custom_vjp
def remembered(memory: Array, ids: Array, rows: Array) -> Array:
    """Returns the rows [.., E] of a memory [N, E] at `ids`.

    In place of a gradient the memory gets the sum of `rows` [.., E] over the occurrences of each
    id. This sum does not depend on the scale of the loss.
    """
    del rows
    return memory[ids]


def _remembered(memory, ids, rows):
    return memory[ids], (jnp.zeros_like(memory), ids, rows)


def _remember(residuals, g):
    empty, ids, rows = residuals
    return (
        empty.at[ids].add(rows.astype(empty.dtype)),
        np.zeros(ids.shape, jax.dtypes.float0),
        jnp.zeros_like(rows),
    )


remembered.defvjp(_remembered, _remember)


class PooledReader(Module):
    """Replaces the states [B, L, D] by [mean of the word's states so far; states], [B, L, 2 D].

    Akbik et al. 2019, Algorithm 1. The mean is over the occurrences in `memory` [N, D + 1], their
    sum and their number, and this one.

    size    N, the words that are remembered; one with an id of N or more has the mean of this
            occurrence alone
    """

    logical_axes = {"memory": (None, None)}

    size: int

    @nn.compact
    def __call__(self, encoded: Encoded, batch, train: bool = False) -> Encoded:
        x, ids = encoded.hidden, batch["input_ids"]
        memory = self.param("memory", Zeros(), (self.size, x.shape[-1] + 1))
        known = ((ids < self.size) & (segments_of(batch) > 0))[..., None]
        counted = jnp.concatenate(
            [x.astype(memory.dtype), jnp.ones((*ids.shape, 1), memory.dtype)], -1
        )
        stored = jax.lax.stop_gradient(jnp.where(known, counted, 0.0))
        total = counted + jnp.where(
            known, remembered(memory, jnp.minimum(ids, self.size - 1), stored), 0.0
        )
        pooled = (total[..., :-1] / total[..., -1:]).astype(x.dtype)
        return dataclasses.replace(encoded, hidden=jnp.concatenate([pooled, x], -1), layers=None)


class TagLMReader(Module):
    """The two recurrent layers of TagLM, [B, L, 2 hidden].

    Peters et al. 2017, arXiv 1705.00108, Eq. 1 to 6 and Figure 2.

        x   = [last states of a bidirectional GRU over the characters of a word; its vector]
        h_1 = BiGRU(x)
        h_2 = BiGRU([h_1; states of the language model])

    `states=False` leaves out the language model, `letters=0` the characters. `dropout` applies to
    the input of each layer of tokens. `size` and `width` are as in `WordsReader`.
    """

    logical_axes = {"characters": (None, None)}

    size: int
    width: int
    hidden: int
    letters: int
    letter_width: int
    alphabet: int
    states: bool = True
    dropout: float = 0.25

    @nn.compact
    def __call__(self, encoded: Encoded, batch, train: bool = False) -> Encoded:
        segments, context = segments_of(batch), outside(batch, encoded.hidden, train)

        def both(width, name):
            return Bidirectional(
                GRU(width, reset="after", parent=None),
                GRU(width, reset="after", backward=True, parent=None),
                name=name,
            )

        x = WordsReader(self.size, self.width, False, name="words")(encoded, batch).hidden
        if self.letters:
            characters = batch["characters"]
            codes = characters.reshape(-1, characters.shape[-1])
            table = self.param("characters", Normal(0.1), (self.alphabet, self.letter_width))
            spelled = both(self.letters, "spelling")(table[codes], (codes > 0).astype(jnp.int32))[
                1
            ].h
            x = jnp.concatenate([spelled.reshape(*characters.shape[:2], -1), x], -1)
        x = Dropout(self.dropout)(x, context)
        x, _ = both(self.hidden, "first")(x, segments)
        x = jnp.concatenate([x, encoded.hidden.astype(x.dtype)], -1) if self.states else x
        x, _ = both(self.hidden, "second")(Dropout(self.dropout)(x, context), segments)
        return dataclasses.replace(encoded, hidden=x, layers=None)
