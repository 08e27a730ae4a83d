"""Combines the adaptations of a system: trainable parameters and their learning rates.

An adaptation has `trainable(path, step)` and `rate(path)`, for a path with its level
(`adapt.parameters.levels.ParameterPath`). A value of True or False holds for the whole run. A value
computed from the step, which is traced, may change. Either may be a vector [N] over the layers of a
stacked parameter. A parameter that is always frozen has no moments and no gradient. A parameter
that is frozen at some steps keeps its value and moments there, and counts its own updates.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.adapt.parameters import levels
from ptm_jax.adapt.parameters.levels import ParameterPath
from ptm_jax.core import paths, slots
from ptm_jax.core.types import Step

if TYPE_CHECKING:
    from ptm_jax.core.types import Params


@dataclasses.dataclass(frozen=True)
class Freedom:
    """Which parameters a step may update.
    Without `wrappers` and `fixed`, all of them, at the recipe's rate.

    wrappers  adaptations and compressions that restrict training
    towers    {name: network}, for the levels of parameters (`adapt.parameters.levels`)
    fixed     towers that are never trained
    """

    wrappers: tuple[Any, ...] = ()
    towers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fixed: tuple[str, ...] = ()
    _known: dict[tuple[int, str], Any] = dataclasses.field(
        default_factory=dict, repr=False, compare=False
    )

    def __post_init__(self):
        moves = ("trainable", "rate")
        asked = tuple(
            w
            for w in self.wrappers
            if w.observes or any(slots.overrides(w, name) for name in moves)
        )
        object.__setattr__(self, "wrappers", asked)

    @property
    def restricts(self) -> bool:
        """Whether any parameter may be frozen."""
        return bool(self.wrappers or self.fixed)

    def places(self, params: Params) -> dict[str, ParameterPath]:
        """Returns {path: ParameterPath} of parameters."""
        return levels.parameter_paths(params, self.towers)

    def stacked(self, params: Params) -> dict[str, bool]:
        """Returns {path: whether axis 0 is the layers} of parameters."""
        return levels.stacked(params, self.towers)

    def trains(self, path: str) -> bool:
        """Whether any part of a parameter is updated at some step."""
        if path.partition("/")[0] in self.fixed or self.observed(path):
            return False
        masks = [answer for answer in self._answers(path) if not isinstance(answer, _Varying)]
        rate = self.rate(path)
        return all(np.any(mask) for mask in masks) and bool(np.any(np.asarray(rate) != 0))

    def observed(self, path: str) -> bool:
        """Whether the gradient of a parameter is an observation (`slots.Wrapper.observes`)."""
        return any(
            wrapper.observes and re.search(wrapper.observes, path) for wrapper in self.wrappers
        )

    def parted(self, grads: Any) -> tuple[Any, dict[str, Any]]:
        """Returns (gradients without observations, {path: observation})."""
        seen = {path: leaf for path, leaf in paths.flatten(grads).items() if self.observed(path)}
        return paths.map_with_path(
            lambda path, leaf: jnp.zeros_like(leaf) if path in seen else leaf, grads
        ), seen

    def rate(self, path: str) -> Any:
        """Returns the learning-rate multiplier of a parameter: a number, or [N] by layer."""
        multiplier = 1.0
        for wrapper in self.wrappers:
            multiplier = multiplier * wrapper.rate(path)
        return multiplier

    def varies(self, path: str) -> bool:
        """Whether a parameter is frozen at some steps only."""
        return any(isinstance(answer, _Varying) for answer in self._answers(path))

    def live(self, path: str, step: Step) -> Any:
        """Returns which layers of a parameter are updated at this step.
        The value is a boolean, booleans [N], or None for all."""
        masks = [np.asarray(self.rate(path)) != 0]
        for answer, wrapper in zip(self._answers(path), self._filters, strict=True):
            varies = isinstance(answer, _Varying)
            masks.append(jnp.asarray(wrapper.trainable(path, step)) if varies else answer)
        masks = [mask for mask in masks if isinstance(mask, jax.Array) or not mask.all()]
        return functools.reduce(jnp.logical_and, map(jnp.asarray, masks)) if masks else None

    @property
    def _filters(self) -> list[Any]:
        return [wrapper for wrapper in self.wrappers if slots.overrides(wrapper, "trainable")]

    def _answers(self, path: str) -> list[Any]:
        return [self._answer(number, wrapper, path) for number, wrapper in enumerate(self._filters)]

    def _answer(self, number: int, wrapper: Any, path: str) -> Any:
        """Returns True, False or [N] booleans if they hold for the whole run, else `_Varying`."""
        key = number, f"{path} {levels.known_level(path)}"
        if key not in self._known:
            answers = []
            jax.eval_shape(
                lambda step: answers.append(wrapper.trainable(path, step)),
                jax.ShapeDtypeStruct((), jnp.int32),
            )
            self._known[key] = (
                _Varying()
                if isinstance(answers[0], jax.core.Tracer)
                else np.asarray(answers[0], bool)
            )
        return self._known[key]


class _Varying:
    """Marks an answer that depends on the step."""


def along(values: Any, leaf: Any) -> Any:
    """Reshapes a scalar or a vector [N] to broadcast against a parameter [N, ...]."""
    values = jnp.asarray(values)
    if values.ndim and values.shape[0] != leaf.shape[0]:
        raise ValueError(
            f"{values.shape[0]} values for the {leaf.shape[0]} layers of a parameter {leaf.shape}"
        )
    return values.reshape(values.shape + (1,) * (leaf.ndim - values.ndim))


def held(
    grads: Any, freedom: Freedom, step: Step, places: Mapping[str, ParameterPath] | None = None
) -> Any:
    """Sets the gradients of all parameters that are frozen at this step to zero."""
    if not freedom.wrappers:
        return grads
    places = freedom.places(grads) if places is None else places

    def one(path, grad):
        mask = freedom.live(places[path], step)
        return grad if mask is None else jnp.where(along(mask, grad), grad, 0)

    return paths.map_with_path(one, grads)
