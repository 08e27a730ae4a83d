"""A bound on the norm of weight vectors (Hinton et al. 2012, arXiv 1207.0580, section 2)."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.types import Params

if TYPE_CHECKING:
    from ptm_jax.core.types import Step


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaxNorm(slots.Wrapper):
    """Rescales longer weight vectors of units to norm `limit` after every update.

    It applies to kernels [.., F] that match `pattern`, by default the last layer of a classifier
    (Kim 2014, section 2.1: 3).
    """

    limit: float = 3.0
    pattern: str = r"/heads_\w+/classes/kernel$"

    def __post_init__(self):
        if self.limit <= 0:
            raise ValueError(f"limit is {self.limit}; it must be above 0")

    def on_step(self, params: Params, step: Step) -> Params:
        flat = flatten(params)
        for path, kernel in flat.items():
            if re.search(self.pattern, path):
                norm = jnp.sqrt(
                    jnp.square(kernel).sum(tuple(range(kernel.ndim - 1)), keepdims=True)
                )
                flat[path] = kernel * jnp.minimum(1.0, self.limit / jnp.maximum(norm, 1e-12))
        return unflatten(flat)
