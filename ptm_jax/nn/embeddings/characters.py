"""Word vectors from characters: convolutions of several widths, the maximum of each, a highway
network, a projection (Kim et al. 2016, sections 2.1 and 2.2; Jozefowicz et al. 2016, section
3.2)."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.precision import Precision, add_bias
from ptm_jax.core.types import Vocab
from ptm_jax.nn.initializers import FanIn, Normal
from ptm_jax.nn.layers import Activation, Context, Dense, Dropout, Identity, Module, activate


@dataclasses.dataclass(frozen=True)
class Carrying:
    """Initial bias of a highway: 0 for the transform, `gate` for the gate."""

    gate: float

    def __call__(self, key, shape, dtype=jnp.float32):
        return jnp.repeat(jnp.asarray([0.0, self.gate], dtype), shape[0] // 2)


class Highway(Module):
    """g x + (1 - g) relu(W x + b) with g = sigmoid(W' x + b'): [.., D] -> [.., D].

    Srivastava et al. 2015, Eq. 3.

    W and W' are one kernel [D, 2 D]. `carry` is the initial b': 1 in fairseq and ELMo, 2 in Kim et
    al. 2016.
    """

    logical_axes = {"kernel": ("width", None), "bias": (None,)}

    carry: float = 1.0
    initializer: Any = FanIn()
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, x):
        width = x.shape[-1]
        kernel = self.param("kernel", self.initializer, (width, 2 * width))
        bias = self.param("bias", Carrying(self.carry), (2 * width,))
        new, gate = jnp.split(add_bias(self.precision.dense(x, kernel), bias), 2, -1)
        gate = jax.nn.sigmoid(gate.astype(jnp.float32)).astype(x.dtype)
        return gate * x + (1 - gate) * activate("relu", new)


class CharacterCNN(slots.Embedding, Module):
    """Maps `characters` [B, L, C] to [B, L, D].

    Replaces `Embeddings`; `data.rows.spelled.Spelled` makes the rows.

    filters     (width, number) of each convolution, with the maximum over its C - width + 1
                results, then `activation`
    size        width of a character's vector
    alphabet    number of characters; character 0 is no character, its vector is 0
    highway     number of `Highway` layers before the projection to D
    project     whether there is a projection; without one D is the number of all filters (Kim et
                al. 2016)
    symbols     special tokens of the vocabulary with their own vectors, as they have no spelling;
                padding has 0

    `position`, `norm`, `dropout` and `scale` are as in `Embeddings`. There is no table for a head
    to share.
    """

    logical_axes = {
        "characters": (None, None),
        "symbols": (None, None),
        "filter*/kernel": (None, None, "width"),
        "project/kernel": (None, "width"),
    }

    vocab: Vocab
    width: int
    filters: tuple[tuple[int, int], ...] = (
        (1, 64),
        (2, 128),
        (3, 192),
        (4, 256),
        (5, 256),
        (6, 256),
        (7, 256),
    )
    size: int = 128
    alphabet: int = 257
    highway: int = 2
    project: bool = True
    carry: float = 1.0
    activation: Activation = "relu"
    symbols: tuple[str, ...] = ("eos", "unk")
    position: nn.Module | None = None
    norm: nn.Module = Identity()
    dropout: float = 0.0
    scale: float = 1.0
    initializer: Any = FanIn()
    character_init: Any = Normal(0.1)
    precision: Precision = Precision()

    def refusal(self, system) -> str | None:
        """Refuses rows without characters or with another alphabet, and heads that share a table of
        words."""
        total = sum(number for _, number in self.filters)
        if not self.project and total != self.width:
            return (
                f"CharacterCNN has {total} filters, no projection and the width {self.width}; "
                f"set width={total}"
            )
        alphabet = system.examples.alphabet
        if alphabet is None:
            return (
                "CharacterCNN reads characters, which these rows lack; wrap the examples in Spelled"
            )
        if alphabet != self.alphabet:
            return (
                f"these rows have {alphabet} characters and CharacterCNN {self.alphabet}; set "
                "Spelled.style or alphabet"
            )
        tied = [name for name, head in slots.heads_of(system).items() if head.shares_table]
        if tied:
            return (
                f"the head {tied[0]!r} reads a table of words, and CharacterCNN has none; set "
                "tied=False"
            )
        return None

    def table(self) -> None:
        """Returns None: there is no table of words."""
        return None

    @nn.compact
    def __call__(self, batch, context: Context, table=None):
        del table
        if "characters" not in batch:
            raise UserError(
                "CharacterCNN reads batch['characters'], which this batch lacks; cut rows by "
                "Spelled"
            )
        ids, characters = batch["input_ids"], batch["characters"]
        x = self._words(characters.reshape(-1, characters.shape[-1])).reshape(
            *ids.shape, self.width
        )
        x = self._symbols(ids, x.astype(jnp.float32)) * self.scale
        if self.position is not None:
            x = x + self.position(context.positions, self.width)
        x = self.norm(x)
        return Dropout(self.dropout)(x.astype(self.precision.dtype), context)

    def _words(self, characters):
        """Maps the characters of words [W, C] to vectors [W, D]."""
        longest = max(width for width, _ in self.filters)
        characters = jnp.pad(characters, ((0, 0), (0, max(0, longest - characters.shape[1]))))
        vectors = self.param("characters", self.character_init, (self.alphabet, self.size))
        x = jnp.where(characters[..., None] > 0, vectors[characters], 0.0).astype(
            self.precision.dtype
        )
        dense = {"initializer": self.initializer, "precision": self.precision}
        maxima = []
        for i, (width, number) in enumerate(self.filters):
            count = x.shape[1] - width + 1
            windows = jnp.stack([x[:, k : k + count] for k in range(width)], 2)
            maxima.append(Dense(number, axes=2, name=f"filter{i}", **dense)(windows).max(1))
        x = activate(self.activation, jnp.concatenate(maxima, -1))
        for i in range(self.highway):
            x = Highway(self.carry, name=f"highway{i}", **dense)(x)
        return Dense(self.width, name="project", **dense)(x) if self.project else x

    def _symbols(self, ids, x):
        """Returns x with the vectors of special tokens in their places and zeros on padding."""
        if self.symbols:
            vectors = self.param("symbols", self.initializer, (len(self.symbols), self.width))
            for i, name in enumerate(self.symbols):
                if (index := self.vocab.id(name)) is not None:
                    x = jnp.where((ids == index)[..., None], vectors[i], x)
        if self.vocab.pad is not None:
            x = jnp.where((ids == self.vocab.pad)[..., None], 0.0, x)
        return x
