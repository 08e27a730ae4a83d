"""Adversarial and virtual adversarial training on word vectors.

Miyato et al. 2017, arXiv 1605.07725; Ju et al. 2019.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import rows_of
from ptm_jax.core.streams import named, row_keys
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Loss, add_losses
from ptm_jax.objectives.base import AroundTask, real_tokens
from ptm_jax.objectives.regularisation.agreement import distributions, divergence, needs_scores


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdversarialLoss(AroundTask):
    """L(x) + `scale` L(x + r) + `virtual` KL(p(x) || p(x + r')) (Miyato et al. 2017).

    x [B, L, `width`] are the word vectors of `tower`.

        r  = eps g / |g|,  g = dL/dx                                  Eqs. 2 and 3
        r' = eps g / |g|,  g = dKL(p(x) || p(x + d))/dd               Eqs. 5 and 6, one iteration
                               at d = xi u / |u|, u drawn

    The norm is over the L D numbers of a row, so rows do not depend on each other. All passes use
    the same dropout; r has no gradient. Virtual training needs a task with one head and no labels;
    it compares the predictions of `agreement.distributions`. Evaluation computes only the task's
    loss.
    """

    width: int
    eps: float = 1.0
    scale: float = 1.0
    virtual: float = 0.0
    xi: float = 0.1
    tower: str = "main"

    def __post_init__(self):
        if min(self.eps, self.xi) <= 0 or min(self.scale, self.virtual) < 0:
            raise ValueError(
                f"eps is {self.eps} and xi {self.xi}; both must be above 0, scale and "
                "virtual not below it"
            )
        if self.virtual:
            needs_scores(self.task, "leave virtual=0, or ")

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        clean = self.task(towers, batch, key)
        if key is None or not towers[self.tower].train:
            return clean
        parts = [(1.0, clean)]
        still = jnp.zeros((*batch["input_ids"].shape, self.width), jnp.float32)
        if self.scale:

            def moved(shift):
                return self.task(towers, {**batch, "perturbation": shift}, key)

            shift = self._step(jax.grad(lambda shift: moved(shift).value())(still))
            perturbed = moved(shift)
            metrics = {f"adversarial_{name}": ratio for name, ratio in perturbed.metrics.items()}
            parts.append((self.scale, dataclasses.replace(perturbed, metrics=metrics, carry=None)))
        if self.virtual:
            parts.append((self.virtual, self._virtual(towers, batch, key, still)))
        # The last part's metrics override earlier ones of the same name.
        return add_losses(*parts[1:], parts[0])

    def initial_carry(self, towers: Mapping[str, Tower], batch: Batch) -> Any:
        """Returns the initial carry of the task."""
        return slots.objective(self.task).initial_carry(towers, batch)

    def _virtual(self, towers, batch, key, still) -> Loss:
        known = jax.lax.stop_gradient(self._predictions(towers, batch, key))

        def draw(key):
            return jax.random.normal(key, still.shape[1:])

        start = _unit(
            jax.vmap(draw)(row_keys(named(key, "virtual"), rows_of(batch)))
            * real_tokens(batch)[..., None]
        )

        def moved(shift):
            return divergence(
                known,
                self._predictions(towers, {**batch, "perturbation": shift}, key),
                batch,
                "virtual",
            )

        return moved(self._step(jax.grad(lambda shift: moved(shift).value())(self.xi * start)))

    def _step(self, gradient):
        return jax.lax.stop_gradient(self.eps * _unit(gradient))

    def _predictions(self, towers, batch, key):
        """Returns the predictions of the task's head."""
        tower = towers[self.task.tower]
        return distributions(self.task, tower, tower(batch, key), {**batch, "noise": key})


def _unit(x):
    """Scales each row of [B, L, D] to norm 1. Rows of zeros stay zero."""
    norm = jnp.sqrt(jnp.square(x).sum((1, 2), keepdims=True))
    return x / jnp.where(norm > 0, norm, 1.0)
