"""XLM's masking by counts as released: a number of tokens of the whole batch."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.batch import put, rows_of
from ptm_jax.core.streams import named, row_keys
from ptm_jax.core.types import Array, Batch
from ptm_jax.corruptions.base import draws, maskable, places
from ptm_jax.corruptions.compact import take
from ptm_jax.corruptions.masking.token import CountedMasking


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchCountedMasking(CountedMasking):
    """`CountedMasking` as released (facebookresearch/XLM, trainer.py, mask_out): ceil(rate * B * L)
    tokens of the batch, padding counted, drawn without replacement by counts^-power.

    Words that the training text does not have are never masked, and random words are drawn from
    the whole vocabulary with its special tokens. The systems have `CountedMasking`, as published:
    here a row's draw depends on the other rows of the batch, and P = L. Deviation: the cut to a
    multiple of 8 in half precision is left out.

    Adds `mlm_positions`, `mlm_labels`, `mlm_weights` [B, P].
    """

    def __call__(self, key: Array, batch: Batch) -> Batch:
        (mask_id,) = self.vocab.need("mask")
        ids, rows = batch["input_ids"], rows_of(batch)
        chosen = self._chosen(key, batch)
        positions, weights = places(chosen, ids.shape[1])
        labels, length = take(ids, positions), ids.shape[1]
        fate = draws(named(key, "fate"), rows, length)
        words = jax.vmap(lambda one: jax.random.randint(one, (length,), 0, self.vocab.size))(
            row_keys(named(key, "words"), rows)
        )
        shown = jnp.where(fate < self.mask + self.random, words.astype(jnp.int32), labels)
        hidden = jnp.where(fate < self.mask, mask_id, shown)
        return {
            **batch,
            "input_ids": put(ids, positions, weights, hidden),
            "mlm_positions": positions,
            "mlm_labels": jnp.where(weights > 0, labels, 0),
            "mlm_weights": weights,
        }

    def _chosen(self, key: Array, batch: Batch) -> Array:
        """Returns True for the tokens to predict, [B, L]."""
        ids, counts = batch["input_ids"], np.asarray(self.counts.values)
        allowed = maskable(batch, self.vocab)
        if counts.any():
            allowed &= jnp.asarray(counts > 0)[ids]
        weights = -self.power * np.log(np.maximum(counts, 1.0))
        noise = draws(named(key, "choose"), rows_of(batch), ids.shape[1])
        noise = -jnp.log(-jnp.log(noise + 1e-20) + 1e-20)
        scores = jnp.where(allowed, jnp.asarray(weights, jnp.float32)[ids] + noise, -jnp.inf)
        wanted = math.ceil(self.rate * ids.size - 1e-9)
        # The largest of log w + Gumbel noise are a draw without replacement by the weights w.
        best, where = jax.lax.top_k(scores.reshape(-1), wanted)
        chosen = jnp.zeros(ids.size, bool).at[where].set(best > -jnp.inf)
        return chosen.reshape(ids.shape)
