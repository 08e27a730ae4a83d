"""Pruning of single weights by magnitude."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.compress.base import Compression
from ptm_jax.core.paths import flatten, matrix_of, unflatten
from ptm_jax.core.streams import stream
from ptm_jax.core.types import Params

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ptm_jax.core.system import System
    from ptm_jax.core.types import Batch, Step


PLACE = "magnitude"
"""First part of the paths of the masks: `magnitude/main/.../kernel`."""
INFINITY = 0x7F800000
"""The bits of infinity in float32."""


def share_at(step: Step, share: float, first: int, last: int, initial: float = 0.0) -> Any:
    """Returns the share of zeros at a step.

    s_f + (s_i - s_f) (1 - (t - t_0) / (t_n - t_0))^3 between the steps t_0 = `first` and t_n =
    `last`, s_i before and s_f after (Zhu & Gupta 2017, arXiv 1710.01878, Eq. 1).
    """
    remaining = 1 - jnp.clip((step - first) / max(1, last - first), 0, 1)
    return share + (initial - share) * remaining**3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Magnitude(Compression):
    """Sets the weights of smallest magnitude to zero, a share of each matrix.

    Zhu & Gupta 2017; of BERT: Gordon et al. 2020, arXiv 2002.08307.

    share    final fraction of zeros in each matrix of each layer, 0 <= share < 1
    when     "during": the fraction rises from 0 to `share` by the cubic schedule (`share_at`),
             every `every` updates between the fractions `begin` and `end` of the run; zeros stay
             zero. It works in pre-training and fine-tuning. "before": all at once in the initial
             model. "after": all at once, without training
    restore  for "before": initial values of the pruned weights, which are then trained. "zero":
             information deletion; "random": normal, with the deviation of the matrix; "initial":
             their values in the initial model, the control. None: they stay zero
    targets  path pattern of the matrices; default: all kernels and the word table. Gordon et al.
             also exclude the tables of positions and segments and the heads
    """

    share: float = 0.5
    when: Literal["during", "before", "after"] = "during"
    begin: float = 0.0
    end: float = 0.5
    every: int = 50
    restore: Literal["zero", "random", "initial"] | None = None
    targets: str = r"/encoder/.*(/kernel|/embed/token)$"
    seed: int = 0
    towers: tuple[str, ...] = ("main",)
    total: int | None = None

    owns = rf"^{PLACE}/"

    def __post_init__(self):
        if not 0 <= self.share < 1:
            raise ValueError(f"share is {self.share}; it must be at least 0 and below 1")
        if not 0 <= self.begin <= self.end <= 1 or self.every < 1:
            raise ValueError(
                f"begin {self.begin}, end {self.end}, every {self.every}; need 0 <= begin <= "
                "end <= 1 <= every"
            )
        if self.restore is not None and self.when != "before":
            raise ValueError(
                f"restore is {self.restore!r} with when={self.when!r}; it is for when='before'"
            )

    @property
    def trains(self) -> bool:
        return self.when != "after"

    @property
    def masked(self) -> bool:
        """Whether a run stores masks outside of the towers."""
        return self.trains and self.restore is None

    def within(self, system: System) -> Magnitude:
        return (
            self if self.total is not None else dataclasses.replace(self, total=system.recipe.steps)
        )

    def pruned(self, params: Params) -> dict[str, Any]:
        """Returns {path: weights} of the matrices to prune. Raises ValueError if there are none."""
        inside = {
            path: leaf
            for path, leaf in flatten(params).items()
            if path.partition("/")[0] in self.towers
        }
        matrices = {path: leaf for path, leaf in inside.items() if re.search(self.targets, path)}
        if not matrices:
            raise ValueError(
                f"magnitude's targets {self.targets!r} find no weight; name some of the "
                "model's, as '/up/kernel$'"
            )
        return matrices

    def init(self, params: Params, source: Params | None) -> Params:
        weights = self.pruned(params)
        if not self.masked:
            return params if source is None or not self.trains else self._restored(params, weights)
        at_once = self.when == "before"
        masks = {
            path: mask_of(path, leaf, self.share) if at_once else jnp.ones_like(leaf)
            for path, leaf in weights.items()
        }
        return {**params, PLACE: unflatten(masks)}

    def _restored(self, params: Params, weights: dict[str, Any]) -> Params:
        """Returns the initial model with other values in the place of the pruned weights."""
        flat = flatten(params)
        for path, leaf in weights.items():
            drawn = jnp.std(leaf) * jax.random.normal(
                stream(self.seed, path), leaf.shape, leaf.dtype
            )
            value = {"zero": jnp.zeros_like(leaf), "random": drawn, "initial": leaf}[self.restore]
            flat[path] = jnp.where(mask_of(path, leaf, self.share) > 0, leaf, value)
        return unflatten(flat)

    def trainable(self, path: str, step: Step) -> bool:
        return not path.startswith(f"{PLACE}/")

    def effective(self, params: Params, train: bool) -> Params:
        if PLACE not in params:
            return params
        flat = flatten({name: tree for name, tree in params.items() if name != PLACE})
        for path, mask in flatten(params[PLACE]).items():
            flat[path] = flat[path] * mask
        return unflatten(flat)

    def on_step(self, params: Params, step: Step) -> Params:
        if not (self.masked and self.when == "during"):
            return params
        first, last, done = round(self.begin * self.total), round(self.end * self.total), step + 1
        due = (
            (done >= first) & (done <= last) & (((done - first) % self.every == 0) | (done == last))
        )
        share = share_at(done, self.share, first, last)

        def prune(masks):
            flat = flatten(params)
            return {
                path: mask * mask_of(path, flat[path] * mask, share) for path, mask in masks.items()
            }

        masks = jax.lax.cond(due, prune, lambda masks: masks, flatten(params[PLACE]))
        return {**params, PLACE: unflatten(masks)}

    def finish(self, params: Params) -> Params:
        """Returns the parameters with zeros, without the masks."""
        return self.effective(params, False)

    def smaller(
        self, system: System, params: Params, batches: Iterable[Batch]
    ) -> tuple[Any, Params]:
        if self.trains:
            return system, params
        flat = flatten(params)
        for path, leaf in self.pruned(params).items():
            flat[path] = np.asarray(leaf * mask_of(path, jnp.asarray(leaf), self.share))
        return system, unflatten(flat)


def mask_of(path: str, weights: Any, share: Any) -> Any:
    """Returns zeros for the weights of smallest magnitude in each matrix, ones for the others.

    The number of zeros is `share` of the matrix, rounded to the nearest; all weights of the largest
    magnitude among them are zero.

    The threshold is found by bisection on the bits of float32, which are in the order of the
    magnitudes: 31 counts.
    """
    *layers, rows, columns = matrix_of(path, weights.shape)
    bits = jax.lax.bitcast_convert_type(jnp.abs(weights.astype(jnp.float32)), jnp.int32).reshape(
        *layers, rows * columns
    )
    count = jnp.round(share * (rows * columns))

    def halve(_, bounds):
        low, high = bounds  # low has too few weights at or below it, high enough
        middle = low + (high - low) // 2
        enough = (bits <= middle[..., None]).sum(-1) >= count
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    bounds = jnp.full(tuple(layers), -1), jnp.full(tuple(layers), INFINITY)
    threshold = jnp.where(count > 0, jax.lax.fori_loop(0, 32, halve, bounds)[1], -1)
    return (bits > threshold[..., None]).reshape(weights.shape).astype(weights.dtype)
