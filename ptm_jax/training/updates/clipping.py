"""Clipping of gradients by their global norm (Pascanu et al. 2013)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import optax

from ptm_jax.core.recipe import ClipByTower, Recipe
from ptm_jax.training.updates import spikes

if TYPE_CHECKING:
    from ptm_jax.adapt.parameters.levels import ParameterPath
    from ptm_jax.core.types import Array, Params


def norm(recipe: Recipe, grads: Params) -> Array:
    """Returns the global norm of the gradients, for the metrics.

    Without clipping the optimizer does not read it. The barrier keeps the compiler from sharing the
    squares with the second moments: they would be written to memory and read again."""
    if recipe.clip is None:
        grads = jax.lax.optimization_barrier(grads)
    return optax.tree.norm(grads)


def factors(
    recipe: Recipe, grads: Mapping[str, Array], places: Mapping[str, ParameterPath]
) -> dict[str, Array | float]:
    """Returns {path: the factor that clips its gradient}."""
    skips = spikes.settings_of(recipe)
    clip = recipe.clip if skips is None else skips.clip
    if clip is None:
        return dict.fromkeys(grads, 1.0)
    by_tower = isinstance(clip, ClipByTower)
    limit = clip.clip if by_tower else clip
    groups: dict[str, dict[str, Array]] = defaultdict(dict)
    for path, grad in grads.items():
        group = places[path].tower or path.partition("/")[0]
        groups[group if by_tower else ""][path] = grad
    factors: dict[str, Array | float] = {}
    for group in groups.values():
        factor = limit / jnp.maximum(optax.tree.norm(group), limit)
        factors |= dict.fromkeys(group, factor)
    return factors
