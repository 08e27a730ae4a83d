"""A tower: an encoder and its heads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from flax.core import FrozenDict

from ptm_jax.core.types import Batch, Encoded
from ptm_jax.nn.layers import Context


def distinct(value: Any) -> Any:
    """The same value with a module object of its own in every slot.

    Modules are values here, but Flax goes by identity: one object in two slots (two blocks made by `replace` of one, or
    a field's default `LayerNorm()`) would have one set of parameters, silently.
    """
    if isinstance(value, nn.Module):
        names = [f.name for f in dataclasses.fields(value) if f.init and f.name not in ("parent", "name")]
        return value.clone(**{name: distinct(getattr(value, name)) for name in names})
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(distinct(part) for part in value)
    if isinstance(value, Mapping):
        return FrozenDict({name: distinct(part) for name, part in value.items()})
    return value


class Model(nn.Module):
    """An encoder with named heads. Objectives reach it through `core.towers.Tower`.

    The encoder's `table()` [V, D], where it has one, is offered to every head, so that a vocabulary head may be tied.
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
        """One head on its inputs. `rows` [B] are what its dropout is drawn by; without them it has none."""
        head, table, noise = self.heads[name], getattr(self.encoder, "table", None), {}
        if hasattr(head, "dropout") and rows is not None:
            noise = {"context": Context(visibility=None, rows=rows, train=train)}
        return head(*args, table=None if table is None else table(), **noise)

    def read(self, name: str, encoded: Encoded, batch: Batch, train: bool = False):
        """One head on what it reads of an encoded batch."""
        head = self.heads[name]
        if getattr(head, "reads_head", None) in self.heads:
            inputs = (self.read(head.reads_head, encoded, batch, train),)
        else:
            inputs = head.reads(encoded, batch) if hasattr(head, "reads") else (encoded.hidden,)
        rows = batch["rows"] if "rows" in batch else jnp.arange(len(batch["input_ids"]), dtype=jnp.int32)
        return self.head(name, *inputs, train=train, rows=rows)

    def initialise(self, batch: Batch) -> None:
        """Create every parameter of the tower, whatever an objective reads."""
        encoded = self.encode(batch)
        for name, head in self.heads.items():
            self.head(name, *head.example(encoded))
