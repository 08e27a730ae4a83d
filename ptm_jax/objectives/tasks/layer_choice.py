"""A task's loss and a penalty on the layers of a dense encoder (LD-Net: Liu et al. 2018)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Loss, Ratio
from ptm_jax.objectives.base import AroundTask


def cut(mask: Array) -> Array:
    """Returns z, the mask cut to [0, 1], with the gradient of the mask itself.

    Also where the mask is 0 or 1.
    """
    return mask + jax.lax.stop_gradient(jnp.clip(mask, 0.0, 1.0) - mask)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selecting(AroundTask):
    """L_task + strength R(z), with the mask z of `encoders.recurrent.dense_recurrent` (Liu et al.
    2018, section 3.3, R_3):

        R(z) = [|z|_0 > limit] |z|_1 + |z (1 - z)|_1

    z covers the layers of both directions; `limit` of them may stay. `limit` = 2 and the default
    `strength` come from the authors' code. The metric `layers` is |z|_0.
    """

    strength: float = 0.05
    limit: int = 2

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        loss = self.task(towers, batch, key)
        z = cut(towers[self.task.tower].params["encoder"]["mask"])
        count = (z > 0).sum()
        penalty = jnp.where(count > self.limit, z.sum(), 0.0) + (z * (1.0 - z)).sum()
        metrics = {**loss.metrics, "layers": Ratio(count.astype(jnp.float32), jnp.ones(()))}
        return dataclasses.replace(
            loss, sum=loss.sum + self.strength * penalty * loss.weight, metrics=metrics
        )

    def initial_carry(self, towers: Mapping[str, Tower], batch: Batch) -> Any:
        """Returns the initial carry of the task."""
        return self.task.initial_carry(towers, batch)
