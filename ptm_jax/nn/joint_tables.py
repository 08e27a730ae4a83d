"""A token table for the pieces of a second vocabulary, alone or below the first, the vocabulary
head of each part, and the matrices between the parameters of two networks."""

from __future__ import annotations

from typing import Any, Literal

import flax.linen as nn

from ptm_jax.core.types import Batch
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.heads.vocabulary import MLMHead, Readout
from ptm_jax.nn.initializers import Zeros
from ptm_jax.nn.layers import Context, Dense, Dropout, LayerNorm, Module, activate
from ptm_jax.nn.parallel import table_of

Words = Literal["both", "second"]


class JointEmbeddings(Embeddings):
    """`Embeddings` with `second` further rows for a second vocabulary.

    The table is [V + second, D], or of the second vocabulary alone, [second, D].
    """

    second: int = 4928
    words: Words = "both"

    def setup(self):
        first = self.vocab.size if self.words == "both" else 0
        self.token = table_of(self, "token", self.initializer, (first + self.second, self.width))
        for part in self.parts:
            nn.share_scope(self, part)
        self.drop = Dropout(self.dropout)


class JointHead(MLMHead):
    """An `MLMHead` that scores a part of the rows of a tied table.

    The part is all but the last `second` rows, or these (`part`).
    """

    second: int = 4928
    part: Literal["first", "second"] = "second"

    @nn.compact
    def __call__(self, hidden, *, table, context: Context | None = None):
        cut = table.shape[0] - self.second
        table = table[:cut] if self.part == "first" else table[cut:]
        h = Dense(
            table.shape[-1], initializer=self.initializer, precision=self.precision, name="dense"
        )(hidden)
        h = LayerNorm(self.eps, name="norm")(activate(self.activation, h))
        return Readout(
            h, table, self.param("bias", Zeros(), (table.shape[0],)), self.precision, self.impl
        )


class SharedMatrices(Module):
    """The matrices between a wide and a narrow network.

    For each pair (wide, narrow) of `sizes` they are `down_wide` [narrow, wide] and `up_wide` [wide,
    narrow].
    """

    logical_axes = {"down_*": (None, "width"), "up_*": ("width", None)}

    sizes: tuple[tuple[int, int], ...]

    def initialise(self, batch: Batch) -> None:
        self()

    @nn.compact
    def __call__(self) -> dict[str, Any]:
        draw = nn.initializers.orthogonal()
        made = {f"down_{wide}": (narrow, wide) for wide, narrow in self.sizes}
        made |= {f"up_{wide}": (wide, narrow) for wide, narrow in self.sizes}
        return {name: self.param(name, draw, shape) for name, shape in made.items()}
