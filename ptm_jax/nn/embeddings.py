"""Token, position and sentence embeddings, summed (Devlin et al. 2019, Figure 2)."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Vocab
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.nn.layers import Context, Dropout, Identity
from ptm_jax.nn.parallel import lookup
from ptm_jax.nn.relative import sinusoids


def table_of(module: nn.Module, name: str, init: Any, shape: tuple[int, ...]):
    """A parameter table. A step that reads a few rows may give the module those rows alone (`train.rows`), which
    `self.param` would refuse for their number."""
    if module.has_variable("params", name):
        return module.get_variable("params", name)
    return module.param(name, init, shape)


class LearnedPositions(nn.Module):
    """A table of positions. RoBERTa's begins at `offset` 2 (padding_idx + 1): its 514 rows carry 512 positions."""

    size: int
    offset: int = 0
    initializer: Any = TruncatedNormal()

    @property
    def limit(self) -> int:
        """The longest sequence the table can position."""
        return self.size - self.offset

    @nn.compact
    def __call__(self, positions, width):
        table = self.param("table", self.initializer, (self.size, width))
        return lookup(table, positions + self.offset)


class SlotPositions(LearnedPositions):
    """A table with an offset whose positions are slots of the row, padding counted too (BART), where RoBERTa's count
    tokens."""

    counts_padding = True


class Sinusoids(nn.Module):
    """Fixed positions: sines and cosines (Vaswani et al. 2017, section 3.5); any length."""

    interleave: bool = False

    def __call__(self, positions, width):
        return sinusoids(positions, width, self.interleave)


class SinusoidTable(nn.Module):
    """The waves of `Sinusoids` for `limit` positions, computed in float64 and rounded once (PEGASUS's published checkpoints:
    at position 1000, angles made of float32 are off by 1e-4)."""

    limit: int

    def waves(self, width):
        """[limit, D] float32."""
        angles = np.arange(self.limit)[:, None] / 10000.0 ** (np.arange(0, width, 2) / width)
        return np.concatenate([np.sin(angles), np.cos(angles)], -1)[:, :width].astype(np.float32)

    def __call__(self, positions, width):
        return jnp.asarray(self.waves(width))[positions]


class Embeddings(nn.Module):
    """[B, L] ids -> [B, L, D]; `types` is the number of sentence types (0: none).

    `table()` is the token table [V, D], which vocabulary heads may share; `given` means that it is another module's,
    handed in at the call (a decoder that shares its encoder's). `scale` multiplies the token vectors (sqrt(D): the
    Transformer, CTRL). `project` stands last: a `Dense` there gives the stack another width than the table's (ALBERT,
    ELECTRA). `expand(x, batch)` makes token vectors as wide as its `width` before the others, of that width, are added
    (MobileBERT's trigrams).

    `languages` rows tell languages apart (Lample & Conneau 2019, section 3.2), where the batch has `language_ids`;
    `word_types`: a type is the word of that id, where the batch has types (XLM in the Hugging Face library). `tasks` rows
    tell pre-training tasks apart by `task_type_ids` (Sun et al. 2020, arXiv 1907.12412): the first, where there are none.
    """

    vocab: Vocab
    width: int
    position: nn.Module | None = None
    types: int = 0
    word_types: bool = False
    languages: int = 0
    tasks: int = 0
    norm: nn.Module = Identity()
    dropout: float = 0.0
    scale: float = 1.0
    given: bool = False
    expand: nn.Module = Identity()
    project: nn.Module = Identity()
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    def setup(self):
        if not self.given:
            self.token = table_of(self, "token", self.initializer, (self.vocab.size, self.width))
        width = getattr(self.expand, "width", self.width)
        if self.types and not self.word_types:
            self.type = self.param("type", self.initializer, (self.types, width))
        if self.languages:
            self.language = self.param("language", self.initializer, (self.languages, width))
        if self.tasks:
            self.task = self.param("task", self.initializer, (self.tasks, width))
        self.drop = Dropout(self.dropout)

    def table(self):
        return self.token

    def __call__(self, batch, context: Context, table=None):
        table = self.token if table is None else table
        x = self.expand(lookup(table, batch["input_ids"], "vocab") * self.scale, batch)
        if self.position is not None:
            x = x + self.position(context.positions, x.shape[-1])
        if self.types:
            x = x + self._type(batch.get("token_type_ids"), table)
        if self.languages and "language_ids" in batch:
            x = x + lookup(self.language, batch["language_ids"])
        if self.tasks:
            x = x + (lookup(self.task, batch["task_type_ids"]) if "task_type_ids" in batch else self.task[0])
        x = self.norm(x.astype(jnp.float32))
        return self.project(self.drop(x.astype(self.precision.dtype), context))

    def _type(self, types, table):
        """Vectors of the types [B, L]; where there are none, of the first, or of no word."""
        if self.word_types:
            return 0.0 if types is None else lookup(table, types, "vocab")
        return self.type[0] if types is None else lookup(self.type, types)
