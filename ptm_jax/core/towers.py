"""Towers: Linen modules bound to parameters, which are the input of an objective.

Calling a tower encodes a batch; `head` applies one of its heads. A tower is a pure function of its
parameters, so an objective may differentiate it, scan it, or call it twice.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from ptm_jax.core.streams import named
from ptm_jax.core.types import Array, Batch, Encoded, Params

if TYPE_CHECKING:
    from ptm_jax.core.networks import Network

_PLACE: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("place", default=())


@contextlib.contextmanager
def below(*names: str) -> Iterator[None]:
    """Context manager in which a module that is initialised alone stands below this path."""
    token = _PLACE.set((*_PLACE.get(), *names))
    try:
        yield
    finally:
        _PLACE.reset(token)


def place() -> tuple[str, ...]:
    """Returns the path of the module that is initialised now.

    The tower, and the layers around a nested `init`.
    """
    return _PLACE.get()


@dataclasses.dataclass(frozen=True)
class Tower:
    """A module with its parameters. Dropout needs both `train` and a key."""

    module: Any
    params: Params
    train: bool = False

    def __call__(self, batch: Batch, key: Array | None = None, **options: Any) -> Encoded:
        """Encodes a batch. `options` are passed to the encoder (a `cache`, a `memory`)."""
        return self._apply("encode", batch, key=key, **options)

    def head(self, name: str, *args: Any, key: Array | None = None) -> Any:
        """Applies the head `name`. The error for an unknown name lists all heads."""
        self._need(name)
        return self._apply("head", name, *args, key=key)

    def read(self, name: str, encoded: Encoded, batch: Batch, key: Array | None = None) -> Any:
        """Applies the head `name` to its inputs from a batch and its encoding.

        `key` draws the dropout of a task head.
        """
        self._need(name)
        return self._apply("read", name, encoded, batch, key=key)

    def _need(self, name: str) -> None:
        heads = self.module.heads
        if name not in heads:
            raise KeyError(f"this tower has no head {name!r}; it has {', '.join(sorted(heads))}")

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the network (`width`, `vocab`)."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.module, name)

    def _apply(self, method, *args, key, **options):
        train = self.train and key is not None
        rngs = {"dropout": key} if train else None
        return self.module.apply(
            {"params": self.params}, *args, train=train, method=method, rngs=rngs, **options
        )


def bind(modules: Mapping[str, Any], params: Params, train: bool = False) -> dict[str, Tower]:
    """Binds the towers of a system to parameters {tower: params}."""
    return {name: Tower(module, params.get(name, {}), train) for name, module in modules.items()}


def init(modules: Mapping[str, Any], key: Array, batch: Batch) -> dict[str, Params]:
    """Initialises the parameters of every tower, float32.

    The key of a tower depends only on `key` and its name.
    """
    params = {}
    for name, module in modules.items():
        with below(name):
            made = module.init({"params": named(key, name)}, batch, method="initialise")
        params[name] = made.get("params", {})
    return params


def abstract(modules: Mapping[str, Any], batch: Batch) -> dict[str, Params]:
    """Returns the shapes of `init` without allocating memory."""
    return jax.eval_shape(lambda b: init(modules, jax.random.key(0), b), batch)


@functools.lru_cache(maxsize=64)
def outlined(module: Network) -> Encoded:
    """Returns the shapes of a row of four tokens that a tower has encoded. Nothing is compiled."""
    batch = {"input_ids": jax.ShapeDtypeStruct((1, 4), jnp.int32)}
    return jax.eval_shape(
        lambda fields: module.init_with_output(
            {"params": jax.random.key(0)}, fields, method="encode"
        )[0],
        batch,
    )
