"""Distillation of one layer after another.

MobileBERT: Sun et al. 2020, arXiv 2004.02984, section 3.5.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from ptm_jax.compress.matches.attending import AttentionMaps
from ptm_jax.compress.matches.base import Match
from ptm_jax.compress.matches.states import Hidden
from ptm_jax.compress.students.distillation import Distillation

if TYPE_CHECKING:
    from ptm_jax.core.system import System
    from ptm_jax.core.types import Step


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progressive(Distillation):
    """Progressive knowledge transfer: one layer after another, then the complete student.

    For the fraction `transfer` of the run, stage l matches the feature map and the attention of
    layer l alone (Eqs. 1 and 2) and trains this layer; the first stage also trains the embeddings.
    Lower layers are frozen. Afterwards `matches` and the task's loss train the complete student.

    layers  number of layers of student and teacher, which must be equal, as must be the widths of
            their states and the numbers of heads
    """

    layers: int = 24
    transfer: float = 0.5
    total: int = 0

    def __post_init__(self):
        super().__post_init__()
        if self.layers < 1 or not 0 < self.transfer < 1:
            raise ValueError(
                f"layers is {self.layers} and transfer {self.transfer}; from 1, and a share "
                "in (0, 1)"
            )

    def within(self, system: System) -> Progressive:
        return dataclasses.replace(self, total=system.recipe.steps)

    @property
    def terms(self) -> tuple[Match, ...]:
        """Two matches of each layer in its stage, and the others after the stages."""
        matches = []
        for layer in range(1, self.layers + 1):
            span = tuple(self.transfer * part / self.layers for part in (layer - 1, layer))
            fields = {"layers": ((layer, layer),), "span": span}
            matches += [Hidden(**fields), AttentionMaps(**fields)]
        return (
            *matches,
            *(dataclasses.replace(match, span=(self.transfer, 1.0)) for match in super().terms),
        )

    @property
    def hard_from(self) -> float:
        return self.transfer

    def stage(self, step: Step) -> Any:
        """Returns the layer that trains at a step, from 1; more than `layers` after the stages."""
        share = (jnp.asarray(step, jnp.float32) + 0.5) / max(1, self.total)
        return jnp.where(
            share < self.transfer,
            jnp.floor(share / self.transfer * self.layers) + 1,
            self.layers + 1,
        )

    def trainable(self, path: Any, step: Step) -> Any:
        if not path.startswith(f"{self.tower}/"):
            return True
        level, stage = np.maximum(path.level, 1), self.stage(step)
        return (level == stage) | (stage > self.layers)
