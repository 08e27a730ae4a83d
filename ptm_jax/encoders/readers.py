"""A tower with readers between encoder and heads, such as a mixture of layers or a side network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from flax.core import FrozenDict

from ptm_jax.core.types import Batch, Encoded
from ptm_jax.encoders.model import Model, distinct
from ptm_jax.nn.heads.layer_mix import layers_of


class Reading(Model):
    """A `Model` that applies `readers` in order: reader(encoded, batch, train=...) -> Encoded.

    The parameter paths of encoder and heads do not change. `quiet` turns the encoder's dropout off.
    """

    readers: Mapping[str, nn.Module] = FrozenDict()
    quiet: bool = False

    def __post_init__(self):
        self.readers = FrozenDict(self.readers)
        if self.encoder.parent is None:
            self.readers = distinct(self.readers)
        super().__post_init__()

    def encode(self, batch: Batch, train: bool = False, **options) -> Encoded:
        if "features" in batch:  # the result of `states` for these rows
            layers = jnp.moveaxis(batch["features"], 1, 0)
            encoded = Encoded(layers[-1], layers=layers if self.readers else None)
        else:
            encoded = self.encoder(batch, train=train and not self.quiet, **options)
        for name in self.readers:
            encoded = self.readers[name](encoded, batch, train=train)
        return encoded

    def states(self, batch: Batch):
        """Returns the states of a frozen encoder for `batch["features"]`: [B, 1, L, D] of the last
        layer, or [B, N+1, L, D] of all layers if there are readers."""
        encoded = self.encoder(batch, train=False)
        return jnp.moveaxis(layers_of(encoded) if self.readers else encoded.hidden[None], 0, 1)


def readers_of(module: nn.Module) -> Mapping[str, nn.Module]:
    """Returns the readers between encoder and heads."""
    return module.readers if isinstance(module, Reading) else {}


def reading(model: Model, readers: Mapping[str, Any] | None = None, quiet: bool = False) -> Reading:
    """Returns the model with more readers after its own."""
    before = readers_of(model)
    return Reading(
        encoder=model.encoder,
        heads=model.heads,
        readers={**before, **(readers or {})},
        quiet=quiet or (isinstance(model, Reading) and model.quiet),
    )
