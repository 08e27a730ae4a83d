"""Sharding of activations while a step is traced for a mesh.

Networks name the axes of their activations; the code that traces a step for a mesh maps the names
to mesh axes:

    with use(layout):                                   # `mesh.layout.Layout`: mesh and rules
        x = constrain(x, "rows", "positions", "width")  # without a layout: x itself

The axis names of activations (`mesh.axes` lists the axis names of parameters):

    rows       batch rows
    positions  length of the residual stream, norms and dropout: also split over `model` under
               sequence parallelism
    length     length of the inputs of products and attention: split over `seq` only
    keys       length of attention keys and values: not split, or split over `seq` like the queries
               (ring attention)
    width      width of the residual stream
    hidden     width of the feed-forward layer
    heads      attention heads
    vocab      vocabulary logits

Layouts are defined in `mesh.layout`.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import jax

_CURRENT: contextvars.ContextVar[Any] = contextvars.ContextVar("layout", default=None)


@contextlib.contextmanager
def use(layout: Any) -> Iterator[None]:
    """Context manager in which `constrain` applies the layout. None disables constraints.

    The layout is not part of the cache key of `jax.jit`: open the context inside the jitted
    function."""
    token = _CURRENT.set(layout)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current() -> Any:
    """Returns the layout in use (`mesh.layout.Layout`), or None."""
    return _CURRENT.get()


def constrain(x: jax.Array, *names: str | None) -> jax.Array:
    """Shards x by the layout in use.

    `names` has an axis name for each dimension (None: not sharded).

    The gradient of x gets the same sharding.
    """
    layout = _CURRENT.get()
    return x if layout is None else layout.constrain(x, names)
