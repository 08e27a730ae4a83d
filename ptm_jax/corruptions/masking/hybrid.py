"""GPT-BERT's rows: most are masked, the others are read from left to right."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import put, rows_of
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.masking.orders import disobeys
from ptm_jax.corruptions.masking.token import LinearRate, ScheduledMasking, TokenMasking

if TYPE_CHECKING:
    from ptm_jax.core.system import System


@dataclasses.dataclass(frozen=True, kw_only=True)
class HybridMasking(slots.Corruption):
    """Masks most rows and leaves the share `causal` of the rows as they are, with a causal mask.

    Charpentier & Samuel 2024, arXiv 2410.24159, section 3. Row i is causal if floor((i + 1) c)
    exceeds floor(i c) for the share c, so a batch of 16 rows has exactly one causal row at 1/16.
    The other rows are masked as by `TokenMasking`.

    Deviation: the paper divides the GPUs in this way, not the rows of a batch.

    training_rate   the masking rate in training, as of `ScheduledMasking`; None: `rate`

    Writes `mlm_positions`, `mlm_labels`, `mlm_weights` [B, P] (weight 0 in causal rows), `causal`
    [B] int32 and `order` [B, L]: the position in causal rows, else 0.
    """

    vocab: Vocab
    causal: float = 1 / 16
    rate: float = 0.15
    mask: float = 0.8
    random: float = 0.1
    training_rate: float | LinearRate | None = None

    def __post_init__(self):
        self._masking()
        if not 0 <= self.causal <= 1:
            raise ValueError(f"causal is {self.causal}; it must be a share of the rows in [0, 1]")

    def _masking(self) -> TokenMasking:
        names = ("vocab", "rate", "mask", "random")
        fields = {name: vars(self)[name] for name in names}
        if self.training_rate is None:
            return TokenMasking(**fields)
        return ScheduledMasking(training_rate=self.training_rate, **fields)

    def refusal(self, system: System) -> str | None:
        return disobeys(system, "HybridMasking")

    def __call__(self, key: Array, batch: Batch) -> Batch:
        masked = self._masking()(key, batch)
        rows = rows_of(batch).astype(jnp.float32)
        causal = jnp.floor((rows + 1) * self.causal) > jnp.floor(rows * self.causal)
        positions, weights = masked["mlm_positions"], masked["mlm_weights"]
        plain = put(masked["input_ids"], positions, weights, masked["mlm_labels"])
        places = jnp.arange(plain.shape[1], dtype=jnp.int32)
        return {
            **masked,
            "input_ids": jnp.where(causal[:, None], plain, masked["input_ids"]),
            "mlm_positions": jnp.where(causal[:, None], 0, positions),
            "mlm_weights": jnp.where(causal[:, None], 0.0, weights),
            "causal": causal.astype(jnp.int32),
            "order": jnp.where(causal[:, None], places, 0),
        }
