"""A tower whose heads read what is made of the encoding: a mixture of its layers, a network beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from flax.core import FrozenDict

from ptm_jax.core.types import Batch, Encoded
from ptm_jax.encoders.model import Model, distinct
from ptm_jax.nn.representation import layers_of


class Reading(Model):
    """A `Model` with `readers`, called one after the other: reader(encoded, batch, train=...) -> Encoded. Encoder and heads
    keep the paths of their parameters. `quiet`: the encoder has no dropout."""

    readers: Mapping[str, nn.Module] = FrozenDict()
    quiet: bool = False

    def __post_init__(self):
        self.readers = FrozenDict(self.readers)
        if self.encoder.parent is None:
            self.readers = distinct(self.readers)
        super().__post_init__()

    def encode(self, batch: Batch, train: bool = False, **options) -> Encoded:
        if "features" in batch:  # what `states` gave for these rows
            layers = jnp.moveaxis(batch["features"], 1, 0)
            encoded = Encoded(layers[-1], layers=layers if self.readers else None)
        else:
            encoded = self.encoder(batch, train=train and not self.quiet, **options)
        for name in self.readers:
            encoded = self.readers[name](encoded, batch, train=train)
        return encoded

    def states(self, batch: Batch):
        """What a frozen encoder gives of a batch, for `batch["features"]`: its last layer [B, 1, L, D], or all of them,
        [B, N+1, L, D], where a reader may want them."""
        encoded = self.encoder(batch, train=False)
        return jnp.moveaxis(layers_of(encoded) if self.readers else encoded.hidden[None], 0, 1)


def reading(model: Model, readers: Mapping[str, Any] | None = None, quiet: bool = False) -> Reading:
    """The model with more readers after those that it has."""
    there = getattr(model, "readers", {})
    return Reading(
        encoder=model.encoder,
        heads=model.heads,
        readers={**there, **(readers or {})},
        quiet=quiet or getattr(model, "quiet", False),
    )
