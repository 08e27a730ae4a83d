"""Common parts of losses that read and update a few rows of large tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ptm_jax.core import slots
from ptm_jax.core.system import System
from ptm_jax.core.types import Array, Batch
from ptm_jax.kernels.updates import Native


class InPlace(slots.Objective):
    """Trait: a kernel can compute the loss's updates on a CPU (`training.updates.in_place`).

    impl    "plain": gradient and optimizer alone; "native": no step without the kernel
    """

    impl: Literal["auto", "plain", "native"] = "auto"

    def native(self, system: System) -> Native | None:
        """Returns the kernel's settings and the paths of the parameters that it updates; None: it
        does not compute this loss."""
        raise NotImplementedError


def with_encoder_rows(
    system: System, tower: str, batch: Batch, selected: Mapping[str, Array]
) -> tuple[Batch, Mapping[str, Array]]:
    """Returns (batch, {path: rows}).

    `selected` and the rows of further tables of the tower's encoder (`slots.Encoder.select`).
    Without `selected` these are the rows of all its tables, for a loss that reads the batch once.
    """
    encoder, path = slots.encoder_of(system, tower), f"{tower}/encoder"
    if encoder is None:
        return batch, selected
    batch, further = encoder.select(batch, selected.get(f"{path}/token"))
    return batch, {**selected, **{f"{path}/{name}": rows for name, rows in further.items()}}
