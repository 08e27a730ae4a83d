"""Where activations lie while a step is traced for a mesh.

Networks name the axes of what passes through them; whoever traces a step for a mesh says what the names mean:

    with use(layout):                                  # `mesh.layout.Layout`: a mesh and a rule table
        x = constrain(x, "rows", "positions", "width")  # a sharding constraint; without a layout, x itself

The names of activations, beside those of parameters (`mesh.tables.LOGICAL`):

    rows       of the batch                     heads    attention heads       vocab   scores of words
    positions  of the residual stream, its norms and its dropout: split over `model` too under sequence parallelism
    length     of what enters a product or attention: whole for the products of `model`, split over `seq` alone
    keys       and values of attention: whole, or split over `seq` as their queries are, where they go round (a ring)
    width      of the residual stream           hidden   of a feed-forward layer

This lies in `core`, which imports nothing of ours, so that every slot may say it; what a layout is, is `mesh.layout`.
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
    """While it is open, `constrain` obeys the layout; None: nothing is constrained.

    It is no part of the key of `jax.jit`: open it inside of the function that is jitted, as `train.step.Program` does."""
    token = _CURRENT.set(layout)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current() -> Any:
    """The layout in use (`mesh.layout.Layout`), or None."""
    return _CURRENT.get()


def constrain(x: jax.Array, *names: str | None) -> jax.Array:
    """x, laid out as the layout in use has it for axes of these names (None: whole); one name for each dimension.

    The gradient of x is laid out the same way."""
    layout = _CURRENT.get()
    return x if layout is None else layout.constrain(x, names)
