"""What is trained when. Counted in levels: 0 embeddings, 1 ... L layers, L + 1 heads (`core.levels`).

Each has stages of `steps` updates, as an epoch has; with `steps=0` the stages take `share` of the run, in equal parts.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Staged:
    """`total` is the number of updates of the run; left at 0, it is that of the system's recipe."""

    steps: int = 0
    share: float = 0.5
    total: int = 0

    def __post_init__(self):
        if min(self.steps, self.total) < 0 or not 0 < self.share <= 1:
            raise ValueError(f"steps is {self.steps} and share {self.share}; steps must not be negative, share in (0, 1]")

    def within(self, system: Any) -> Any:
        return self if self.total else dataclasses.replace(self, total=system.recipe.steps)

    def stage(self, step: Any, stages: int) -> Any:
        """The stage of a step, 0 ... `stages`: the last is what follows the others."""
        each = self.steps or max(1, int(self.total * self.share) // stages)
        return jnp.minimum(step // each, stages)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GradualUnfreezing(_Staged):
    """First the heads alone, then `group` layers more in each stage from the top down, the embeddings last, and from there
    on everything (Howard and Ruder 2018, section 3.3: one group an epoch)."""

    group: int = 1

    def __post_init__(self):
        super().__post_init__()
        if self.group < 1:
            raise ValueError(f"group is {self.group}; at least one layer must be set free at a time")

    def trainable(self, path: Any, step: Any) -> Any:
        if isinstance(path.level, int) and path.level >= path.top:
            return True
        stage = self.stage(step, -(-path.top // self.group))
        return path.level >= path.top - self.group * stage


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChainThaw(_Staged):
    """First the heads alone, then each layer alone from the embeddings up, then everything (Felbo et al. 2017, 3.2)."""

    def trainable(self, path: Any, step: Any) -> Any:
        stage = self.stage(step, path.top + 1)  # 0: heads, 1: embeddings, 2: the first layer, ...
        alone = path.level == jnp.where(stage == 0, path.top, stage - 1)
        return alone | (stage == path.top + 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequentialUnfreezing(_Staged):
    """First the new layers, which are the heads; then the layers of the language model too; then the embeddings too
    (Chronopoulou et al. 2019, section 2.2: from epochs n and k on)."""

    def trainable(self, path: Any, step: Any) -> Any:
        stage = self.stage(step, 2)
        needed = jnp.where(path.level >= path.top, 0, jnp.where(path.level == 0, 2, 1))
        return stage >= needed
