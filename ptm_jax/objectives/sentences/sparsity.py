"""The FLOPS regulariser of sparse vectors (SPLADE)."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import jax.numpy as jnp

from ptm_jax.core.types import Array, Batch, Loss, Ratio, Step, add_losses
from ptm_jax.objectives.base import token_loss
from ptm_jax.objectives.sentences.base import AroundTexts, Groups, Vectors


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sparse(AroundTexts):
    """The loss of `task` plus `queries` times FLOPS of the anchors and `documents` times FLOPS of
    the other texts.

    FLOPS is the sum over features of the square of the mean over texts (Paria et al. 2020, arXiv
    2004.05665, Eq. 4). Both weights grow as the square of the step in the first `warmup` steps
    (Formal et al. 2021, arXiv 2107.05720, section 4.1), and are constant after them; an evaluation
    has the final ones.
    """

    level: ClassVar[int] = 0

    queries: float = 5e-5
    documents: float = 3e-5
    warmup: int = 1000

    def __post_init__(self):
        super().__post_init__()
        if not all(0 <= weight < math.inf for weight in (self.queries, self.documents)):
            raise ValueError(
                f"queries is {self.queries} and documents {self.documents}; weights of the "
                "regulariser are finite and at least 0"
            )
        if self.warmup < 0:
            raise ValueError(f"warmup is {self.warmup}; it must be at least 0")

    def share(self, step: Step) -> Array:
        """Returns the share of the weights at a step, [] float32."""
        return jnp.square(jnp.minimum(1.0, jnp.asarray(step, jnp.float32) / max(self.warmup, 1)))

    def judged(self, vectors: Vectors, batch: Batch) -> Loss:
        groups = Groups.of(vectors, batch)
        loss = self.task.judged(vectors, batch)
        share = self.share(batch["step"]) if "step" in batch and self.warmup else 1.0
        terms = [(1.0, loss)]
        counts: dict[str, Ratio] = {}
        for name, weight, part in (
            ("queries", self.queries, slice(0, 1)),
            ("documents", self.documents, slice(1, None)),
        ):
            texts, real = jnp.stack(groups.texts[part]), groups.real[part]
            # The loss of the task is a mean over groups; so is this one, the same for each group.
            flops = token_loss(_flops(texts, real), groups.weights, name=f"flops_{name}")
            terms.append((share * weight, flops))
            words = ((texts > 0).sum(-1) * real).sum()
            counts[f"words_{name}"] = Ratio(words.astype(jnp.float32), real.sum())
        total = add_losses(*terms)
        return dataclasses.replace(total, metrics={**total.metrics, **counts})


def _flops(vectors: Array, real: Array) -> Array:
    """Returns the regulariser [] of vectors [K, G, V] of the texts that are `real` [K, G]."""
    total = jnp.einsum("kgv,kg->v", vectors, real)
    return jnp.square(total / jnp.maximum(real.sum(), 1.0)).sum()
