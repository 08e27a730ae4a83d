"""Recurrent language models: layers of LSTM or GRU over embeddings (Zaremba et al. 2014, arXiv 1409.2329)."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.types import Batch, Encoded, record
from ptm_jax.encoders.context import Embedded, context_of
from ptm_jax.nn.layers import Dropout
from ptm_jax.nn.recurrent.recurrence import Bidirectional


@record
class States:
    """The `State` of every layer, carried from row to row of a stream and from step to step of decoding."""

    layers: tuple[Any, ...]

    def take(self, rows) -> States:
        """Returns the states of the given rows [R] of the batch."""
        return jax.tree.map(lambda leaf: leaf[rows], self)


class LSTMEncoder(Embedded):
    """Embeddings and `layers` of `nn.recurrent`: all of one direction, or `Bidirectional`.

    Each document of a packed row begins with a state of zeros. The first document of a row continues from `batch["carry"]`
    if both have the same segment number (truncated back-propagation through time); `stateful=False` turns this off.
    `dropout` applies to the embeddings and to the states of each layer, not to the recurrent products. `locked`: all tokens
    of a row lose the same units (Gal and Ghahramani 2016). `extra` has the layers' last `States`,
    `states`, and the word vectors, `embedded` [B, L, E].
    """

    embed: nn.Module
    layers: tuple[nn.Module, ...]
    dropout: float = 0.0
    stateful: bool = True
    locked: bool = False

    @property
    def direction(self) -> slots.Direction:
        if any(isinstance(layer, Bidirectional) for layer in self.layers):
            return "bidirectional"
        return "backward" if self.layers[0].backward else "causal"

    def level_of(self, path: str) -> int | None:
        part = path.split("/")[1]
        return 1 + int(part.removeprefix("layers_")) if part.startswith("layers_") else 0

    @property
    def width(self) -> int:
        """Width of the states."""
        return self.layers[-1].width

    @property
    def writes(self) -> bool:
        return self.direction == "causal"

    def empty_memory(self, batch: int) -> States | None:
        return self.empty_cache(batch, 0) if self.stateful and self.writes else None

    def empty_cache(self, batch: int, length: int, source: int = 0) -> States:
        del length, source
        return States(tuple(layer.empty_state(batch) for layer in self.layers))

    def without_memory(self) -> LSTMEncoder:
        return dataclasses.replace(self, stateful=False)

    @nn.compact
    def __call__(self, batch: Batch, train: bool = False, cache: States | None = None) -> Encoded:
        context, drop = context_of(batch, self.direction, train), Dropout(self.dropout, self.locked)
        before = batch.get("carry") if cache is None and self.stateful else cache
        before = States((None,) * len(self.layers)) if before is None else before
        x, last = drop(self.embed(batch, context), context), []
        found = [x]
        for layer, state in zip(self.layers, before.layers, strict=True):
            x, state = layer(x, context.visibility.k_segments, state, context)
            x = drop(x, context)
            found.append(x)
            last.append(state)
        alike = all(states.shape == x.shape for states in found)
        last = States(tuple(last))
        cache, memory = (last if on else None for on in (self.writes, self.writes and self.stateful))
        return Encoded(x, jnp.stack(found) if alike else None, None, memory, cache, {"states": last, "embedded": found[0]})
