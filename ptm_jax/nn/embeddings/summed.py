"""Token, position and sentence embeddings, summed (Devlin et al. 2019, Figure 2)."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from ptm_jax.core import slots, spec
from ptm_jax.core.precision import Precision
from ptm_jax.core.streams import keep_mask
from ptm_jax.core.types import Vocab
from ptm_jax.nn.attention.relative import sinusoids
from ptm_jax.nn.embeddings.parts import Languages, Part, TaskTypes, Types, WordTypes
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.nn.layers import Context, Dropout, Identity, Module
from ptm_jax.nn.parallel import Rounded, lookup, table_of


class Positions(Module):
    """Vectors of positions: `positions(places [B, L], width) -> [B, L, width]`.

    longest         maximum length of a row in tokens (None: no limit)
    counts_tokens   whether positions count only real tokens and not the slots of the row
    """

    longest = None
    counts_tokens = False


def length_limits(value: Any, path: str = "") -> dict[str, int]:
    """Returns {path: maximum length of a row in tokens} of positions.

    They are the positions inside a value that have one.
    """
    return {
        place: part.longest
        for place, part in spec.walk(value, path)
        if isinstance(part, Positions) and part.longest is not None
    }


class LearnedPositions(Positions):
    """A learned table of positions.

    RoBERTa's begins at `offset` 2 (padding_idx + 1): its 514 rows hold 512 positions.
    """

    logical_axes = {"table": (None, "width")}

    size: int
    offset: int = 0
    initializer: Any = TruncatedNormal()

    @property
    def longest(self) -> int:
        return self.size - self.offset

    @property
    def counts_tokens(self) -> bool:
        return self.offset > 0

    @nn.compact
    def __call__(self, positions, width):
        table = table_of(self, "table", self.initializer, (self.size, width))
        return lookup(table, positions + self.offset)


class SlotPositions(LearnedPositions):
    """A table with an offset and positions that count all slots of the row (BART).

    Padding is included. RoBERTa counts tokens.
    """

    counts_tokens = False


class RotaryPositions(Positions):
    """No vectors: positions enter by the attention (`nn.attention.rotary`). `limit` is the maximum
    length of a row."""

    limit: int

    @property
    def longest(self) -> int:
        return self.limit

    def __call__(self, positions, width):
        return jnp.zeros((), jnp.float32)


class RelativePositions(RotaryPositions):
    """No vectors: distances enter by the attention (`nn.attention.disentangled`)."""


class Sinusoids(Positions):
    """Fixed positions of any length: sines and cosines (Vaswani et al. 2017, section 3.5)."""

    interleave: bool = False

    def __call__(self, positions, width):
        return sinusoids(positions, width, self.interleave)


class SinusoidTable(Positions):
    """The `Sinusoids` of `limit` positions, computed in float64 and rounded once.

    PEGASUS's published checkpoints. Angles computed in float32 are off by 1e-4 at position 1000.
    """

    limit: int

    @property
    def longest(self) -> int:
        return self.limit

    def waves(self, width):
        """Returns the table [limit, D] float32."""
        angles = np.arange(self.limit)[:, None] / 10000.0 ** (np.arange(0, width, 2) / width)
        return np.concatenate([np.sin(angles), np.cos(angles)], -1)[:, :width].astype(np.float32)

    def __call__(self, positions, width):
        return jnp.asarray(self.waves(width))[positions]


class TokenSinusoids(SinusoidTable):
    """The fixed positions of fairseq (M2M100): the rates are 10000^(-i / (D/2 - 1)).

    Tokens are counted from the row `offset` on, and the row before it, of padding, has zeros. All
    of it is computed in float32, as there.
    """

    offset: int = 2
    counts_tokens = True

    def waves(self, width):
        """Returns the table [limit + offset, D] float32; the last column is 0 if D is odd."""
        half = width // 2
        step = np.float32(np.log(10000.0) / (half - 1))
        rates = np.exp(np.arange(half, dtype=np.float32) * -step)
        angles = np.arange(self.limit + self.offset, dtype=np.float32)[:, None] * rates
        table = np.concatenate([np.sin(angles), np.cos(angles)], -1)
        table[self.offset - 1] = 0
        return np.pad(table, ((0, 0), (0, width % 2)))

    def __call__(self, positions, width):
        return super().__call__(positions + self.offset, width)


class Embeddings(slots.Embedding, Module):
    """Maps ids [B, L] to the sum [B, L, D] of token vectors, positions and `parts`.

    `nn.embeddings.parts` has the parts.

    `table()` is the token table [V, D], which vocabulary heads may share. With `given` the table is
    an argument of the call (a decoder that shares its encoder's). `scale` multiplies the token
    vectors (sqrt(D): the Transformer, CTRL). `expand(x, batch)` maps the token vectors to its
    `width` before the others are added (MobileBERT's trigrams). `project` comes last: a `Dense`
    there gives the stack another width than the table's (ALBERT, ELECTRA).
    """

    logical_axes = {"token": ("vocab", "width"), "project/kernel": (None, "width")}

    vocab: Vocab
    width: int
    position: nn.Module | None = None
    parts: tuple[Part, ...] = ()
    norm: nn.Module = Identity()
    dropout: float = 0.0
    scale: float = 1.0
    given: bool = False
    expand: nn.Module = Identity()
    project: nn.Module = Identity()
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @property
    def summed_width(self) -> int:
        """Width of the token vectors after `expand`."""
        return self.expand.width or self.width

    @property
    def reads_neighbours(self) -> bool:
        return self.expand.reads_neighbours

    @property
    def types(self) -> int:
        return self._size(Types, WordTypes)

    @property
    def word_types(self) -> bool:
        return self._size(WordTypes) > 0

    @property
    def languages(self) -> int:
        return self._size(Languages)

    @property
    def tasks(self) -> int:
        """Number of pre-training task vectors (0: none)."""
        return self._size(TaskTypes)

    def without_types(self) -> Embeddings:
        """Returns the embeddings without vectors of sentence types."""
        parts = tuple(part for part in self.parts if not isinstance(part, Types))
        return self.clone(parts=parts)

    def _size(self, *kinds: type) -> int:
        return sum(part.size for part in self.parts if isinstance(part, kinds))

    def setup(self):
        if not self.given:
            self.token = table_of(self, "token", self.initializer, (self.vocab.size, self.width))
        for part in self.parts:
            nn.share_scope(self, part)
        self.drop = Dropout(self.dropout)

    def table(self):
        return self.token.real() if isinstance(self.token, Rounded) else self.token

    def __call__(self, batch, context: Context, table=None):
        table = self.token if table is None else table
        x = self.expand(lookup(table, batch["input_ids"], "vocab") * self.scale, batch)
        if self.position is not None:
            x = x + self.position(context.positions, x.shape[-1])
        for part in self.parts:
            x = x + part(batch, table, x.shape[-1], self.initializer)
        x = self.norm(x.astype(jnp.float32))
        return self.project(self.drop(x.astype(self.precision.dtype), context))


def word_width(embed: slots.Embedding | None) -> int | None:
    """Returns the width of the token vectors before positions are added.

    None if the words are not the rows of a table.
    """
    return embed.summed_width if isinstance(embed, Embeddings) else None


def adds_positions(embed: slots.Embedding) -> bool:
    """Returns whether a table of positions is added to the words."""
    return isinstance(embed, Embeddings) and isinstance(embed.position, LearnedPositions)


def has_free_width(embed: slots.Embedding) -> bool:
    """Returns whether the width of embeddings is the stack's, without a projection."""
    return isinstance(embed, Embeddings) and isinstance(embed.project, Identity)


def types_of(embed: object) -> int:
    """Returns the number of sentence types of embeddings (0: none)."""
    return embed.types if isinstance(embed, Embeddings) else 0


def languages_of(embed: object) -> int:
    """Returns the number of language vectors of embeddings (0: none)."""
    return embed.languages if isinstance(embed, Embeddings) else 0


def types_are_words(embed: object) -> bool:
    """Returns whether type vectors are rows of the token table (XLM in Transformers)."""
    return isinstance(embed, Embeddings) and embed.word_types


def borrows_table(embed: object) -> bool:
    """Returns whether the token table is an argument of the call, the table of another module."""
    return isinstance(embed, Embeddings) and embed.given


def reads_neighbours(embed: object) -> bool:
    """Returns whether a token's vector depends on the neighbouring tokens (MobileBERT).

    Batches of inference then have `in_row` [B, L]: 1 for the caller's tokens, 0 for padding of the
    bucket.
    """
    return isinstance(embed, Embeddings) and embed.reads_neighbours


class DroppedWords(Embeddings):
    """`Embeddings` that lose whole words in training.

    All tokens of a batch with the same id keep or lose their vector, with probability `words` (Gal
    and Ghahramani 2016; Merity et al. 2018, section 4.3). A head reads the whole table.
    """

    words: float = 0.1

    def __call__(self, batch, context: Context, table=None):
        table = self.token if table is None else table
        if context.train and self.words:
            keep = keep_mask(
                self.make_rng("dropout"), jnp.zeros((1,), jnp.int32), (len(table), 1), self.words
            )[0]
            table = jnp.where(keep, table / (1.0 - self.words), 0.0)
        return super().__call__(batch, context, table)
