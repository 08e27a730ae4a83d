"""A task's loss with an auxiliary language modelling loss of decreasing weight."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from ptm_jax.core.streams import named
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Loss, Step, add_losses
from ptm_jax.objectives.base import AroundTask


@dataclasses.dataclass(frozen=True, kw_only=True)
class FadingLanguage(AroundTask):
    """L = L_task + gamma * L_LM (Chronopoulou et al. 2019, Eq. 1).

    gamma decays exponentially from `first` to `last` over `steps` updates. `corruption` changes the
    rows only for the language modelling loss (for example, masks words)."""

    language: Any
    corruption: Any = None
    first: float = 0.2
    last: float = 0.1
    steps: int = 1

    def __post_init__(self):
        if not 0 < self.last <= self.first or self.steps < 1:
            raise ValueError(
                f"first is {self.first} and last {self.last}; the weight must fall and stay above 0"
            )

    def gamma(self, step: Step) -> Any:
        """Returns first * (last / first)^(step / steps)."""
        return self.first * (self.last / self.first) ** (
            jnp.asarray(step, jnp.float32) / self.steps
        )

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        rows = batch if self.corruption is None else self.corruption(named(key, "words"), batch)
        task = self.task(towers, batch, named(key, "task"))
        language = self.language(towers, rows, named(key, "language"))
        weight = self.gamma(batch.get("step", self.steps))  # an evaluation has no step
        # The last part's metrics override earlier ones of the same name.
        return add_losses((weight, dataclasses.replace(language, carry=None)), (1.0, task))
