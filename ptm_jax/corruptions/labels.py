"""The label of a text in the place of its sentence types (conditional BERT)."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from ptm_jax.core.types import Array, Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelTypes:
    """`token_type_ids` are the class `label` [B] of their row, so that the vectors of sentence types become those of labels
    and a masked word is told from its context and its label (Wu et al. 2019, arXiv 1812.06705, section 3.3)."""

    def __call__(self, key: Array, batch: Batch) -> Batch:
        del key
        label = jnp.broadcast_to(batch["label"][:, None].astype(jnp.int32), batch["input_ids"].shape)
        real = batch["segment_ids"] > 0 if "segment_ids" in batch else True
        return {**batch, "token_type_ids": jnp.where(real, label, 0)}
