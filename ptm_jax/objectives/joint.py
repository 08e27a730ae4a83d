"""Several objectives at once: over one forward pass (`Joint`), or one of them at each step (`TaskMixing`)."""

from __future__ import annotations

import dataclasses
from typing import Any

from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Batch, Encoded, Loss, add_losses
from ptm_jax.objectives.base import OnePass


@dataclasses.dataclass(frozen=True, kw_only=True)
class Joint(OnePass):
    """The scaled means of `parts` (scale, objective), added, over one forward pass of `tower`.

    BERT is MLM and NSP (Devlin et al. 2019, appendix A.2). A part has `of(tower, encoded, batch)`; its own `tower` is
    not asked for. Parts' metrics should have names of their own: of two of one name the last stays.
    """

    parts: tuple[tuple[float, Any], ...]
    tower: str = "main"

    def __post_init__(self):
        for _, part in self.parts:
            if not hasattr(part, "of"):
                name = getattr(part, "__name__", type(part).__name__)
                raise ValueError(f"{name} makes its own forward passes; only objectives with `of` share one")

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        return add_losses(*((scale, part.of(tower, encoded, batch)) for scale, part in self.parts))

    def refusal(self, system: Any) -> str | None:
        """The first of its parts' reasons."""
        reasons = (getattr(part, "refusal", lambda _: None)(system) for _, part in self.parts)
        return next((reason for reason in reasons if reason), None)
