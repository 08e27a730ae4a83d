"""Vectors that `Embeddings` adds to the token vectors.

The table of a part is in the scope of the embeddings.
"""

from __future__ import annotations

import flax.linen as nn

from ptm_jax.nn.layers import Module
from ptm_jax.nn.parallel import lookup, table_of


class Part(Module):
    """A summand: `part(batch, table, width, initializer)` returns [B, L, width], [width] or 0.

    `table` is the token table.
    """

    size: int


class Types(Part):
    """Sentence types, by `token_type_ids`; type 0 if the batch has none."""

    logical_axes = {"type": (None, "width")}

    @nn.compact
    def __call__(self, batch, table, width, initializer):
        vectors, ids = (
            table_of(self, "type", initializer, (self.size, width)),
            batch.get("token_type_ids"),
        )
        return vectors[0] if ids is None else lookup(vectors, ids)


class WordTypes(Part):
    """Sentence types with the vectors of the words of the same id.

    XLM in the Hugging Face library.
    """

    def __call__(self, batch, table, width, initializer):
        ids = batch.get("token_type_ids")
        return 0.0 if ids is None else lookup(table, ids, "vocab")


class Languages(Part):
    """Languages, by `language_ids`; zero if the batch has none.

    Lample & Conneau 2019, section 3.2.
    """

    logical_axes = {"language": (None, "width")}

    @nn.compact
    def __call__(self, batch, table, width, initializer):
        vectors = self.param("language", initializer, (self.size, width))
        return lookup(vectors, batch["language_ids"]) if "language_ids" in batch else 0.0


class TaskTypes(Part):
    """Pre-training tasks, by `task_type_ids`; task 0 if the batch has none.

    Sun et al. 2020, arXiv 1907.12412.
    """

    logical_axes = {"task": (None, "width")}

    @nn.compact
    def __call__(self, batch, table, width, initializer):
        vectors = self.param("task", initializer, (self.size, width))
        return lookup(vectors, batch["task_type_ids"]) if "task_type_ids" in batch else vectors[0]


class Channel(Module):
    """The scope of a second table of word vectors, `token` [V, D]."""

    logical_axes = {"token": ("vocab", "width")}

    @nn.compact
    def __call__(self, ids, shape, initializer):
        return lookup(self.param("token", initializer, shape), ids, "vocab")


class StaticChannel(Part):
    """A second vector of every word, in `channel/token` (Kim 2014, section 3.1: CNN-multichannel).

    Filters are applied to both channels and added, which equals a filter on the sum. `size` is the
    size of the vocabulary.
    """

    @nn.compact
    def __call__(self, batch, table, width, initializer):
        return Channel(name="channel")(batch["input_ids"], (self.size, width), initializer)


def exchanged(parts: tuple[Part, ...], new: Part) -> tuple[Part, ...]:
    """Returns the parts with `new` in place of the part of its class, or appended."""
    if not any(type(part) is type(new) for part in parts):
        return *parts, new
    return tuple(new if type(part) is type(new) else part for part in parts)
