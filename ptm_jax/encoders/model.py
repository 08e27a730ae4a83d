"""A tower: an encoder and its heads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
from flax.core import FrozenDict

from ptm_jax.core import slots
from ptm_jax.core.batch import rows_of
from ptm_jax.core.spec.walk import children
from ptm_jax.core.types import Batch, Encoded
from ptm_jax.nn.layers import Context, Module


def distinct(value: Any) -> Any:
    """Returns the same value with a separate module object in every slot.

    Modules are values here, but Flax identifies them by object. One object in two slots (two blocks
    made by `replace` of one, or a field's default `LayerNorm()`) would silently have one set of
    parameters.
    """
    if isinstance(value, nn.Module):
        return value.clone(**{name: distinct(part) for name, part in children(value).items()})
    if type(value) is tuple:
        return tuple(distinct(part) for part in value)
    if isinstance(value, Mapping):
        return FrozenDict({name: distinct(part) for name, part in value.items()})
    return value


class Model(slots.Network, Module):
    """An encoder with named heads. Objectives use it through `core.towers.Tower`.

    Every head receives the encoder's `table()` [V, D], if there is one, so that a vocabulary head
    can be tied.
    """

    encoder: nn.Module
    heads: Mapping[str, nn.Module]

    def __post_init__(self):
        self.heads = FrozenDict(self.heads)  # a tower is a hashable value
        if self.encoder.parent is None:
            self.encoder, self.heads = distinct(self.encoder), distinct(self.heads)
        super().__post_init__()

    def encode(self, batch: Batch, train: bool = False, **options) -> Encoded:
        return self.encoder(batch, train=train, **options)

    def head(self, name: str, *args, train: bool = False, rows=None):
        """Applies one head to its inputs.

        `rows` [B] determine its dropout; without them it has none.
        """
        context = None if rows is None else Context(visibility=None, rows=rows, train=train)
        return self.heads[name](*args, table=self.encoder.table(), context=context)

    def read(self, name: str, encoded: Encoded, batch: Batch, train: bool = False):
        """Applies one head to the part of an encoded batch that it reads."""
        head = self.heads[name]
        if head.reads_head in self.heads:
            output = self.read(head.reads_head, encoded, batch, train)
            encoded = dataclasses.replace(encoded, hidden=output)
        inputs = head.reads(encoded, batch)
        return self.head(name, *inputs, train=train, rows=rows_of(batch))

    def initialise(self, batch: Batch) -> None:
        """Creates every parameter of the tower, including those that no objective reads."""
        encoded = self.encode(batch)
        for name, head in self.heads.items():
            self.head(name, *head.example(encoded))
