"""Class labels as token types (conditional BERT)."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import segments_of
from ptm_jax.core.types import Array, Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelTypes(slots.Corruption):
    """Sets `token_type_ids` to the class `label` [B] of the row, 0 on padding.

    The type embeddings then embed labels: a masked word is predicted from its context and its label
    (Wu et al. 2019, arXiv 1812.06705, section 3.3)."""

    def __call__(self, key: Array, batch: Batch) -> Batch:
        label = jnp.broadcast_to(
            batch["label"][:, None].astype(jnp.int32), batch["input_ids"].shape
        )
        return {**batch, "token_type_ids": jnp.where(segments_of(batch) > 0, label, 0)}
