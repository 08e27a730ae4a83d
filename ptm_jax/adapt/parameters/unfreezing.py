"""Schedules of the trained levels (`adapt.parameters.levels`): 0 embeddings, 1 ... L layers, L + 1
heads.

A stage lasts `steps` updates, for example an epoch. With `steps=0` the stages divide `share` of the
run into equal parts.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from ptm_jax.adapt.parameters.levels import ParameterPath
from ptm_jax.core import slots

if TYPE_CHECKING:
    from ptm_jax.core.system import System
    from ptm_jax.core.types import Step


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Staged(slots.Wrapper):
    """`total` is the number of updates of the run; 0 takes it from the system's recipe."""

    steps: int = 0
    share: float = 0.5
    total: int = 0

    def __post_init__(self):
        if min(self.steps, self.total) < 0 or not 0 < self.share <= 1:
            raise ValueError(
                f"steps is {self.steps} and share {self.share}; steps must not be negative, "
                "share in (0, 1]"
            )

    def within(self, system: System) -> Any:
        return self if self.total else dataclasses.replace(self, total=system.recipe.steps)

    def stage(self, step: Step, stages: int) -> Any:
        """Returns the stage of a step, 0 ... `stages`.

        The last stage continues to the end of the run.
        """
        each = self.steps or max(1, int(self.total * self.share) // stages)
        return jnp.minimum(step // each, stages)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GradualUnfreezing(_Staged):
    """Trains the heads first, then `group` more layers in each stage, from the top down.

    The embeddings come last, and finally everything is trained (Howard and Ruder 2018, section 3.3:
    one group an epoch).
    """

    group: int = 1

    def __post_init__(self):
        super().__post_init__()
        if self.group < 1:
            raise ValueError(
                f"group is {self.group}; at least one layer must be set free at a time"
            )

    def trainable(self, path: ParameterPath, step: Step) -> Any:
        if isinstance(path.level, int) and path.level >= path.top:
            return True
        stage = self.stage(step, -(-path.top // self.group))
        return path.level >= path.top - self.group * stage


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChainThaw(_Staged):
    """Trains the heads first, then one layer at a time from the embeddings up, then everything.

    Felbo et al. 2017, 3.2.
    """

    def trainable(self, path: ParameterPath, step: Step) -> Any:
        stage = self.stage(step, path.top + 1)  # 0: heads, 1: embeddings, 2: the first layer, ...
        alone = path.level == jnp.where(stage == 0, path.top, stage - 1)
        return alone | (stage == path.top + 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequentialUnfreezing(_Staged):
    """Trains only the heads first, then also the layers of the encoder, then also the embeddings.

    Chronopoulou et al. 2019, section 2.2: from epochs n and k on.
    """

    def trainable(self, path: ParameterPath, step: Step) -> Any:
        stage = self.stage(step, 2)
        needed = jnp.where(path.level >= path.top, 0, jnp.where(path.level == 0, 2, 1))
        return stage >= needed


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerByLayer(_Staged):
    """Greedy layer-wise pre-training: trains one layer after another, then everything.

    Hinton et al. 2006; Bengio et al. 2007. `steps` are the steps of the objective
    (`objectives.text.greedy`). Embeddings and heads are trained at the end.
    """

    def trainable(self, path: ParameterPath, step: Step) -> Any:
        stage = self.stage(step, path.top - 1)  # 0: the first layer, ...
        return (path.level == stage + 1) & (stage < path.top - 1) | (stage == path.top - 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderFirst(_Staged):
    """Trains the decoder of an encoder-decoder first, with its encoder frozen, then both.

    For an encoder that begins with a language model (Imamura and Sumita 2019, WNGT, section 3.2),
    where Conneau and Lample 2019 (XLM) train both from the first update.
    The first phase has `steps` updates, or `share` of the run. A token table that both sides share
    is the encoder's.
    """

    def trainable(self, path: ParameterPath, step: Step) -> Any:
        if not re.search(r"/encoder/encoder/", path):
            return True
        return self.stage(step, 1) == 1
