"""The objective of masked diffusion language models: MDLM and LLaDA."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Encoded, Loss, Ratio, Vocab
from ptm_jax.objectives.base import OnePass, gather, token_loss

NEVER = -1e9
"""The score of a token that is not predicted."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Diffusion(OnePass):
    """A bound of -log p(x): the sum of -s log p(x_i | noisy x) over hidden tokens, per token.

    Sahoo et al. 2024, arXiv 2406.07524, Eq. 11 (MDLM); Nie et al. 2025, arXiv 2502.09992, Eq. 3
    (LLaDA, which divides by B L). The sum is divided by the number of tokens that the noise could
    hide. [MASK] of `vocab` has probability 0 (MDLM's SUBS parameterisation). The network does not
    get the time.

    Reads `mlm_positions`, `mlm_labels`, `mlm_weights` [B, P], the factor s in `diffusion_scale` [B]
    and `diffusion_weights` [B, L] (`corruptions.masking.diffusion`). MLM has one
    share of masks and no factor.
    """

    baseline = "diffusion_nll"

    vocab: Vocab
    tower: str = "main"
    head: str = "mlm"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        readout = tower.head(self.head, gather(encoded.hidden, batch["mlm_positions"]))
        bias = self._bias(readout.bias, readout.table.shape[0])
        judged = dataclasses.replace(readout, bias=bias).judge(batch["mlm_labels"])
        weights = batch["mlm_weights"]
        masked = token_loss(judged.nll, weights, judged.right, "mlm_nll")
        scaled = judged.nll * weights * batch["diffusion_scale"][:, None]
        bound = Ratio(scaled.sum(), batch["diffusion_weights"].sum())
        return Loss(bound.sum, bound.weight, {"diffusion_nll": bound, **masked.metrics})

    def predictions(
        self, tower: Tower, encoded: Encoded, batch: Batch
    ) -> dict[str, tuple[Array, Array]]:
        readout = tower.head(self.head, gather(encoded.hidden, batch["mlm_positions"]))
        bias = self._bias(readout.bias, readout.table.shape[0])
        return {"mlm": (dataclasses.replace(readout, bias=bias).logits(), batch["mlm_weights"])}

    def _bias(self, bias: Array | None, words: int) -> Array:
        """Returns the bias [V] of a readout with which it never predicts [MASK]."""
        (mask,) = self.vocab.need("mask")
        return (jnp.zeros(words) if bias is None else bias).at[mask].set(NEVER)


def unmasks(objective: slots.Objective) -> bool:
    """Returns whether a model of this objective writes text by replacing its masks."""
    return isinstance(objective, Diffusion)
