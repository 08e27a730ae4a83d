"""Which parameters a step may move, and how fast: what the adaptations of a system say, put together.

An adaptation says `trainable(path, step)` and `rate(path)`, of a path that knows its level (`core.levels.Place`). An
answer of True or False holds for the whole run; one made of the step, which is traced, may change; either may be a vector
[N] over the layers of a stacked parameter. A parameter that is frozen for good has no moments and no gradient. One that is
frozen at a step stays as it is, bit for bit, its moments too, and it counts its own updates, as if it came to be when it
was first set free.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core import levels, paths
from ptm_jax.core.levels import Place


@dataclasses.dataclass(frozen=True)
class Freedom:
    """The answers of `wrappers`; without any, everything is trained at the recipe's rate. `shared` are patterns of what the
    layers of a stack share (`core.levels.shared_in`)."""

    wrappers: tuple[Any, ...] = ()
    shared: tuple[str, ...] = ()
    _told: dict[tuple[int, str], Any] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    def places(self, params: Any) -> dict[str, Place]:
        """{path: Place} of parameters."""
        return levels.places(params, self.shared)

    def stacked(self, params: Any) -> dict[str, bool]:
        """{path: whether axis 0 counts layers} of parameters."""
        return levels.layers_stacked(params, self.shared)

    def trains(self, path: str) -> bool:
        """Whether any part of a parameter may move at some step."""
        masks = [answer for answer in self._answers(path) if not isinstance(answer, _Varying)]
        rate = self.rate(path)
        return all(np.any(mask) for mask in masks) and bool(np.any(np.asarray(rate) != 0))

    def rate(self, path: str) -> Any:
        """The multiplier of its learning rate: a number, or [N] by layer."""
        found = 1.0
        for wrapper in self.wrappers:
            if callable(getattr(wrapper, "rate", None)):
                found = found * wrapper.rate(path)
        return found

    def varies(self, path: str) -> bool:
        """Whether a parameter is frozen at some steps and not at others."""
        return any(isinstance(answer, _Varying) for answer in self._answers(path))

    def live(self, path: str, step: Any) -> Any:
        """Booleans, scalar or [N]: what of a parameter moves at this step; None where all of it does."""
        rate, masks = np.asarray(self.rate(path)), []
        for answer, wrapper in zip(self._answers(path), self._filters, strict=True):
            if isinstance(answer, _Varying):
                masks.append(jnp.asarray(wrapper.trainable(path, step)))
            elif not np.all(answer):
                masks.append(jnp.asarray(answer))
        if not np.all(rate != 0):
            masks.append(jnp.asarray(rate != 0))
        found = masks[0] if masks else None
        for mask in masks[1:]:
            found = found & mask
        return found

    @property
    def _filters(self) -> list[Any]:
        return [wrapper for wrapper in self.wrappers if hasattr(wrapper, "trainable")]

    def _answers(self, path: str) -> list[Any]:
        return [self._answer(number, wrapper, path) for number, wrapper in enumerate(self._filters)]

    def _answer(self, number: int, wrapper: Any, path: str) -> Any:
        """True, False or [N] of them where they hold for the whole run, else `_Varying`."""
        level = np.asarray(getattr(path, "level", -1))
        key = number, f"{path} {level.tolist()}"
        if key not in self._told:
            kept = []
            jax.eval_shape(lambda step: kept.append(wrapper.trainable(path, step)), jax.ShapeDtypeStruct((), jnp.int32))
            self._told[key] = _Varying() if isinstance(kept[0], jax.core.Tracer) else np.asarray(kept[0], bool)
        return self._told[key]


class _Varying:
    """The answer depends on the step."""


def along(values: Any, leaf: Any) -> Any:
    """A scalar or a vector [N] as an array that broadcasts against a parameter [N, ...]."""
    values = jnp.asarray(values)
    if values.ndim and values.shape[0] != leaf.shape[0]:
        raise ValueError(f"{values.shape[0]} values for the {leaf.shape[0]} layers of a parameter {leaf.shape}")
    return values.reshape(values.shape + (1,) * (leaf.ndim - values.ndim))


def held(grads: Any, freedom: Freedom, step: Any, places: Mapping[str, Place] | None = None) -> Any:
    """Gradients with zeros in the place of what does not move at this step."""
    if not freedom.wrappers:
        return grads
    places = freedom.places(grads) if places is None else places

    def one(path, grad):
        mask = freedom.live(places[path], step)
        return grad if mask is None else jnp.where(along(mask, grad), grad, 0)

    return paths.map_with_path(one, grads)
