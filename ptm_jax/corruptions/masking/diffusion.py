"""The absorbing noise of masked diffusion: each token becomes [MASK] with the row's probability."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import rows_of, segments_of
from ptm_jax.core.streams import named, row_keys
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import draws, maskable, places
from ptm_jax.corruptions.compact import moved


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiffusionMasking(slots.Corruption):
    """Draws a time t for each row, and hides each of its tokens with the probability p(t).

    noise           "loglinear" is MDLM's (Sahoo et al. 2024, arXiv 2406.07524, appendix E.1 and
                    kuleshov-group/mdlm): t = (1 - eps) u + eps and p = (1 - eps) t, and the loss
                    has the factor 1 / t, which is sigma'(t) / (exp(sigma(t)) - 1) of sigma =
                    -log(1 - (1 - eps) t). "linear" is LLaDA's (Nie et al. 2025, arXiv 2502.09992,
                    Algorithm 1): p = (1 - eps) u + eps and the factor 1 / p
    strata          row i draws u from the stratum i mod n of [0, 1), as MDLM's antithetic sampler
                    does with n rows a batch; 1: independent draws
    random_length   share of the batches whose rows are cut to one random length (LLaDA: 0.01)

    Deviation: special tokens stay, as in all corruptions here.

    Writes `mlm_positions`, `mlm_labels`, `mlm_weights` [B, L] of the hidden tokens,
    `diffusion_scale` [B] float32, the factor of the loss, and `diffusion_weights` [B, L], 1 for
    each token that could be hidden.
    """

    vocab: Vocab
    noise: Literal["loglinear", "linear"] = "loglinear"
    eps: float = 1e-3
    strata: int = 1
    random_length: float = 0.0

    def __post_init__(self):
        if self.noise not in ("loglinear", "linear"):
            raise ValueError(f"noise is {self.noise!r}; it must be 'loglinear' or 'linear'")
        if not 0 < self.eps < 1:
            raise ValueError(f"eps is {self.eps}; it must be in (0, 1)")
        if self.strata < 1:
            raise ValueError(f"strata is {self.strata}; it must be at least 1")
        if not 0 <= self.random_length <= 1:
            raise ValueError(f"random_length is {self.random_length}; it must be in [0, 1]")

    def __call__(self, key: Array, batch: Batch) -> Batch:
        (mask,) = self.vocab.need("mask")
        if self.random_length:
            batch = self._shortened(named(key, "length"), batch)
        rows, ids = rows_of(batch), batch["input_ids"]
        drawn = jax.vmap(jax.random.uniform)(row_keys(named(key, "time"), rows))
        share, scale = self.levels((drawn + rows % self.strata) / self.strata)
        allowed = maskable(batch, self.vocab)
        hidden = allowed & (draws(named(key, "hide"), rows, ids.shape[1]) < share[:, None])
        positions, weights = places(hidden, ids.shape[1])
        return {
            **batch,
            "input_ids": jnp.where(hidden, mask, ids),
            "mlm_positions": positions,
            "mlm_labels": jnp.take_along_axis(ids, positions, 1),
            "mlm_weights": weights,
            "diffusion_scale": scale,
            "diffusion_weights": allowed.astype(jnp.float32),
        }

    def levels(self, uniform: Array) -> tuple[Array, Array]:
        """Returns (probability of [MASK], factor of the loss) of uniform numbers in [0, 1)."""
        time = (1 - self.eps) * uniform + self.eps
        share = (1 - self.eps) * time if self.noise == "loglinear" else time
        return share, 1 / time

    def _shortened(self, key: Array, batch: Batch) -> Batch:
        """Returns the batch, in a share `random_length` of the steps cut to its first n tokens."""
        length = batch["input_ids"].shape[1]
        shorter = jax.random.randint(named(key, "size"), (), 1, length + 1)
        cut = jax.random.uniform(named(key, "cut")) < self.random_length
        slots_of_row = jnp.broadcast_to(jnp.arange(length), batch["input_ids"].shape)
        real = (segments_of(batch) > 0) & (slots_of_row < jnp.where(cut, shorter, length))
        return moved(batch, batch["input_ids"], slots_of_row, real, self.vocab)
