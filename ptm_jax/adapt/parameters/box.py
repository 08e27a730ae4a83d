"""Parameters that stay between two bounds."""

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
class Bounded(slots.Wrapper):
    """Clips parameters that match `pattern` to [low, high] after every update.

    This is projected gradient descent. By default it clips the mask of LD-Net's layers (Liu et al.
    2018, arXiv 1804.07827, section 3.3).
    """

    pattern: str = r"/encoder/mask$"
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self):
        if self.low >= self.high:
            raise ValueError(f"low is {self.low} and high {self.high}; high must be above low")

    def on_step(self, params: Params, step: Step) -> Params:
        flat = flatten(params)
        cut = {
            path: jnp.clip(flat[path], self.low, self.high)
            for path in flat
            if re.search(self.pattern, path)
        }
        return unflatten({**flat, **cut})
