"""The loss of a dependency parser (Dozat and Manning 2017, section 3)."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Batch, Encoded, Loss, add_losses
from ptm_jax.objectives.base import OnePass, nll_of, real_tokens, token_loss
from ptm_jax.objectives.tasks.downstream import scores_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parsing(OnePass):
    """The cross-entropy of every word's head plus the cross-entropy of its label.

    The head is one of the words of the row, or the root at place 0. The label is predicted given
    the true head.

    Reads `heads`, `token_labels` [B, L] int32 and `token_weights` [B, L], 1 at the first piece of a
    word (default: all tokens). The head returns (arcs [B, L, L], labels [B, L, L, C])
    (`nn.heads.biaffine`).
    """

    tower: str = "main"
    head: str = "parse"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        arcs, labels = scores_of(tower, self.head, encoded, batch)
        heads, truth = batch["heads"], batch["token_labels"]
        weights = batch["token_weights"] if "token_weights" in batch else real_tokens(batch)
        place = jnp.arange(arcs.shape[-1])
        possible = ((weights > 0) | (place == 0))[:, None, :] & (place[:, None] != place)
        arcs = jnp.where(possible, arcs, -1e9)
        of_head = jnp.take_along_axis(labels, jnp.clip(heads, 0)[:, :, None, None], 2)[:, :, 0]
        first = token_loss(
            nll_of(arcs, jnp.clip(heads, 0)), weights, arcs.argmax(-1) == heads, "arc_nll"
        )
        second = token_loss(nll_of(of_head, truth), weights, name="label_nll")
        return add_losses((1.0, first), (1.0, second))
