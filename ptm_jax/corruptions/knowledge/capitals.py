"""The capital letters that a task of ERNIE 2.0 restores."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import maskable
from ptm_jax.statistics.lower_case import LowerCase


@dataclasses.dataclass(frozen=True, kw_only=True)
class Capitals(slots.Corruption):
    """Writes a row in lower case; `capitals` [B, L] int32 is 1 where a piece had a capital letter.

    Sun et al. 2020, arXiv 1907.12412, section 3.2.2 (capitalization prediction). The vocabulary is
    a cased one; a piece whose lower-case form it lacks stays as it is, and counts as none.
    """

    vocab: Vocab
    lower: LowerCase = LowerCase()

    def __call__(self, key: Array, batch: Batch) -> Batch:
        ids = batch["input_ids"]
        new = jnp.asarray(self.lower.values)[ids]
        changed = (new != ids) & maskable(batch, self.vocab)
        capitals = changed.astype(jnp.int32)
        return {**batch, "input_ids": jnp.where(changed, new, ids), "capitals": capitals}
