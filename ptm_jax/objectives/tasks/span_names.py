"""The loss of GLiNER: spans of words and the types that stand in the text.

Zaratiana et al. 2023, arXiv 2311.08526, section 2.4; the weights of its releases.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Encoded, Loss, Ratio
from ptm_jax.objectives.base import OnePass, real_rows, scores_of, token_loss


def possible(words: Array, types: Array, longest: int) -> Array:
    """Returns whether a score is of a span inside the text and of a type, [B, W, K, T] bool."""
    ends = jnp.pad(words > 0, ((0, 0), (0, longest - 1)))
    inside = jnp.stack([ends[:, k : k + words.shape[1]] for k in range(longest)], -1)
    return inside[..., None] & (types > 0)[:, None, None, :]


def targets(batch: Batch, shape: tuple[int, ...]) -> Array:
    """Returns 1 for the spans and types that are entities, [B, W, K, T] float32.

    `span_starts`, `span_sizes` and `span_types` [B, S] number words and types from 1; 0 is none."""
    places = [batch[name] - 1 for name in ("span_starts", "span_sizes", "span_types")]
    rows = jnp.broadcast_to(jnp.arange(shape[0])[:, None], places[0].shape)
    real = batch["span_starts"] > 0
    inside = [jnp.where(real, place, size) for place, size in zip(places, shape[1:], strict=True)]
    return jnp.zeros(shape, jnp.float32).at[(rows, *inside)].set(1.0, mode="drop")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanNames(OnePass):
    """The logistic loss of each span of the text for each type of the row.

    Reads `word_places` [B, W], `type_places` [B, T], the places of words and types from 1, and the
    entities `span_starts`, `span_sizes`, `span_types` [B, S] int32.

    alpha   weight of entities, 1 - alpha of other spans; None: 1 each. The releases have 0.75
    gamma   the loss is multiplied by (1 - p)^gamma of the right answer (Lin et al. 2017, Eq. 5)

    The loss is the sum over spans and types, divided by the number of rows (the releases divide by
    nothing). Divided by the number of spans, some thousands in a row, gradients would lie below the
    epsilon of AdamW. The metric "nll" is the mean over spans and types.
    """

    tower: str = "main"
    head: str = "spans"
    alpha: float | None = None
    gamma: float = 0.0

    def __post_init__(self):
        if not (self.alpha is None or 0 <= self.alpha <= 1) or self.gamma < 0:
            raise ValueError(
                f"alpha is {self.alpha}, gamma {self.gamma}; alpha must be in [0, 1] or None, "
                "gamma at least 0"
            )

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        scores = scores_of(tower, self.head, encoded, batch)
        inside = possible(batch["word_places"], batch["type_places"], scores.shape[2])
        weights = inside * real_rows(batch)[:, None, None, None]
        truth = targets(batch, scores.shape)
        nll = jax.nn.softplus(jnp.where(truth > 0, -scores, scores))
        if self.gamma:
            nll = nll * (-jnp.expm1(-nll)) ** self.gamma
        if self.alpha is not None:
            nll = nll * jnp.where(truth > 0, self.alpha, 1 - self.alpha)
        loss = token_loss(nll, weights, (scores > 0) == (truth > 0), "nll")
        chosen, truth = (scores > 0) * weights, truth * weights
        counted = chosen.sum() + truth.sum()
        f1 = Ratio(2 * (chosen * truth).sum(), counted)
        rows = real_rows(batch).sum()
        return dataclasses.replace(loss, weight=rows, metrics={**loss.metrics, "span_f1": f1})
