"""Towers: networks bound to parameters, as an objective sees them.

A System's towers are Linen modules, which are values; an Objective receives them bound: calling a tower encodes a
batch, `head` applies one of its heads. A tower is a pure function of its parameters, so that an objective may
differentiate it, scan it, or call it twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from ptm_jax.core.streams import named
from ptm_jax.core.types import Array, Batch, Encoded, Params


@dataclasses.dataclass(frozen=True)
class Tower:
    """A module with its parameters. `train` switches dropout on; without a key there is none either."""

    module: Any
    params: Params
    train: bool = False

    def __call__(self, batch: Batch, key: Array | None = None, **options: Any) -> Encoded:
        """Encode a batch. `options` go to the encoder (a `cache`, a `memory`)."""
        return self._apply("encode", batch, key=key, **options)

    def head(self, name: str, *args: Any, key: Array | None = None) -> Any:
        """Apply the head `name`; an unknown name is an error that lists the heads there are."""
        self._need(name)
        return self._apply("head", name, *args, key=key)

    def read(self, name: str, encoded: Encoded, batch: Batch, key: Array | None = None) -> Any:
        """Apply the head `name` to what it reads of a batch and its encoding; a task head's dropout is by `key`."""
        self._need(name)
        return self._apply("read", name, encoded, batch, key=key)

    def _need(self, name: str) -> None:
        heads = self.module.heads
        if name not in heads:
            raise KeyError(f"this tower has no head {name!r}; it has {', '.join(sorted(heads))}")

    def __getattr__(self, name: str) -> Any:
        """Facts of the network the heads or objectives ask for (`width`, `vocab`)."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.module, name)

    def _apply(self, method, *args, key, **options):
        train = self.train and key is not None
        rngs = {"dropout": key} if train else None
        return self.module.apply({"params": self.params}, *args, train=train, method=method, rngs=rngs, **options)


def bind(modules: Mapping[str, Any], params: Params, train: bool = False) -> dict[str, Tower]:
    """The towers of a system over its parameters {tower: params}."""
    return {name: Tower(module, params.get(name, {}), train) for name, module in modules.items()}


def init(modules: Mapping[str, Any], key: Array, batch: Batch) -> dict[str, Params]:
    """Parameters of every tower, float32. Each tower's draw depends on its name only."""
    return {
        name: module.init({"params": named(key, name)}, batch, method="initialise").get("params", {})
        for name, module in modules.items()
    }


def abstract(modules: Mapping[str, Any], batch: Batch) -> dict[str, Params]:
    """Shapes of `init` without computing anything: any size, on any machine."""
    return jax.eval_shape(lambda b: init(modules, jax.random.key(0), b), batch)
