"""A tower: an encoder and its heads."""

from __future__ import annotations

from collections.abc import Mapping

import flax.linen as nn
from flax.core import FrozenDict

from ptm_jax.core.types import Batch, Encoded


class Model(nn.Module):
    """An encoder with named heads. Objectives reach it through `core.towers.Tower`.

    The encoder's `table()` [V, D], where it has one, is offered to every head, so that a vocabulary head may be tied.
    """

    encoder: nn.Module
    heads: Mapping[str, nn.Module]

    def __post_init__(self):
        self.heads = FrozenDict(self.heads)  # a tower is a hashable value
        super().__post_init__()

    def encode(self, batch: Batch, train: bool = False, **options) -> Encoded:
        return self.encoder(batch, train=train, **options)

    def head(self, name: str, *args, train: bool = False):
        del train
        table = getattr(self.encoder, "table", None)
        return self.heads[name](*args, table=None if table is None else table())

    def initialise(self, batch: Batch) -> None:
        """Create every parameter of the tower, whatever an objective reads."""
        encoded = self.encode(batch)
        for name, head in self.heads.items():
            self.head(name, *head.example(encoded))
