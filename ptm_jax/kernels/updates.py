"""Kernels that make the updates of a loss themselves, in place of gradient and optimizer
(`training.updates.in_place`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ptm_jax.core.types import Array, Ratio

Arrays = Mapping[str, Array]


class Step(NamedTuple):
    """A kernel in the trainer.

    makes(recipe)   whether it makes the updates of a recipe
    refusal()       why it cannot be used here, or None
    run(system, tables, moments, batch, rates, count) -> (tables, moments, metrics)
                    tables and rates by path, moments by name and path, `count` updates before this step
    """

    makes: Callable[[Any], bool]
    refusal: Callable[[], str | None]
    run: Callable[..., tuple[Arrays, Mapping[str, Arrays], dict[str, Ratio]]]
