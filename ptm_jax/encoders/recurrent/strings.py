"""Vectors of words from language models of characters (Akbik et al. 2018, COLING, section 2.2)."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import segments_of
from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Batch, Encoded
from ptm_jax.encoders.context import context_of
from ptm_jax.nn.initializers import Uniform
from ptm_jax.nn.layers import Module
from ptm_jax.nn.recurrent.recurrence import Recurrent


class Strings(slots.Encoder, Module):
    """Contextual string embeddings: `hidden` [B, L, 2 H] from `characters` [B, L, C].

    The vector of word i is w_i = [forward state after the blank that follows it; backward state at
    the blank before it] (Eq. 4 to 6; Figure 2).

    A document is read as its words with blanks between them. The forward model reads `delimiter`
    before the first word and a blank after the last. The backward model reads from the end, with
    `delimiter` after the last word and a blank before the first. Tokens without characters, such as
    [CLS], are not read; their vectors are 0.

    alphabet    number of codes; code 0 ends a word (`data.rows.spelled.Spelled`)
    blank       code of the blank
    delimiter   code at the ends of a document
    tables      number of character tables: 1, or 2 if each direction has its own
    room        slots of the character stream per word, blank included. If the words of a row exceed
                this on average by more than one word's C, the last words get the states at the end
                of the stream
    """

    logical_axes = {"characters": (None, None, None)}

    alphabet: int
    width: int
    right: Recurrent
    left: Recurrent
    blank: int = ord(" ") + 1
    delimiter: int = 0
    tables: int = 1
    room: int = 16
    initializer: Any = Uniform(0.1)

    def refusal(self, system) -> str | None:
        alphabet = system.examples.alphabet
        if alphabet is None:
            return "Strings reads characters, which these rows lack; wrap the examples in Spelled"
        if alphabet != self.alphabet:
            return (
                f"these rows have {alphabet} characters and Strings {self.alphabet}; set "
                "Spelled.style or alphabet"
            )
        return None

    def level_of(self, path: str) -> int:
        return int(path.split("/")[1] in ("right", "left"))

    @nn.compact
    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        if "characters" not in batch:
            raise UserError(
                "Strings reads batch['characters'], which this batch lacks; cut rows by Spelled"
            )
        context = context_of(batch, "bidirectional", train)
        ahead, behind, places, before, after = stream(batch, self.blank, self.delimiter, self.room)
        table = self.param("characters", self.initializer, (self.tables, self.alphabet, self.width))
        table = table.astype(self.right.precision.dtype)

        def at(states, slot):
            return jnp.take_along_axis(states, slot[..., None], 1)

        directions = [
            at(layer(vectors[codes], places, None, context)[0], slot)
            for layer, vectors, codes, slot in (
                (self.right, table[0], ahead, after),
                (self.left, table[-1], behind, before),
            )
        ]
        real = (segments_of(batch) > 0) & (batch["characters"] > 0).any(-1)
        hidden = jnp.where(real[..., None], jnp.concatenate(directions, -1), 0.0)
        return Encoded(hidden, hidden[None])


def stream(batch: Batch, blank: int, delimiter: int, room: int) -> tuple[Any, ...]:
    """Returns the characters that the forward and the backward model read [B, S].

    It also returns the document of each [B, S] (0: none), and the slots before and after every word
    [B, L].
    """
    segments, characters = segments_of(batch), batch["characters"]
    rows, length, longest = characters.shape
    size = length * min(longest + 2, room) + longest + 2
    letters, place = (characters > 0).sum(-1), jnp.arange(length)
    real = (segments > 0) & (letters > 0)
    behind_it = jax.lax.cummax(jnp.where(real, place, -1), 1)[:, :-1]
    ahead_of_it = jax.lax.cummin(jnp.where(real, place, length), 1, reverse=True)[:, 1:]

    def beside(near):
        return jnp.where(
            (near >= 0) & (near < length),
            jnp.take_along_axis(segments, jnp.clip(near, 0, length - 1), 1),
            0,
        )

    first = segments != jnp.pad(beside(behind_it), ((0, 0), (1, 0)))
    last = segments != jnp.pad(beside(ahead_of_it), ((0, 0), (0, 1)))
    after = jnp.cumsum(jnp.where(real, letters + 1 + first, 0), 1) - 1
    before = after - letters - 1
    row, empty = jnp.arange(rows)[:, None], jnp.zeros((rows, size), jnp.int32)

    def put(array, slot, on, value):
        return array.at[row, jnp.where(on, slot, size)].set(value, mode="drop")

    inner = (before[..., None] + 1 + jnp.arange(longest)).reshape(rows, -1)
    on = (real[..., None] & (jnp.arange(longest) < letters[..., None])).reshape(rows, -1)
    text = put(empty, inner, on, characters.reshape(rows, -1))
    ahead = put(put(text, after, real, blank), before, real & first, delimiter)
    behind = put(put(text, before, real, blank), after, real & last, delimiter)
    documents = put(empty, inner, on, jnp.repeat(segments, longest, 1))
    for slot in (before, after):
        documents = put(documents, slot, real, segments)

    def inside(slot):
        return jnp.clip(slot, 0, size - 1)

    return ahead, behind, documents, inside(before), inside(after)
