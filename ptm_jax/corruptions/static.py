"""Static masking: a row has a fixed number of corruptions, whatever the step (survey 3.1.2; Liu et al. 2019, 4.1)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from ptm_jax.core.streams import named, uniform_bits
from ptm_jax.core.types import Array, Batch
from ptm_jax.corruptions.base import draws, rows_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Static:
    """One of `copies` fixed draws of another corruption for each row, as google-research/bert's `dupe_factor` 10.

    The corruption draws by (`seed`, the row's tokens, a copy number); only the copy number depends on the step. Rows of
    the same tokens share their draws. Deviation: BERT's copies are visited in turn, these at random.
    """

    corruption: Any
    copies: int = 10
    seed: int = 0

    def __post_init__(self):
        if self.copies < 1:
            raise ValueError(f"copies is {self.copies}; it must be at least 1")

    def refusal(self, system: Any) -> str | None:
        return getattr(self.corruption, "refusal", lambda _: None)(system)

    def __call__(self, key: Array, batch: Batch) -> Batch:
        rows, fixed = rows_of(batch), jax.random.key(self.seed)
        copy = jnp.floor(draws(named(key, "copy"), rows) * self.copies).astype(jnp.uint32)
        # Corruptions draw by the row's number: the row's content and the copy stand in for it.
        number = uniform_bits(named(fixed, "copies"), digest(batch["input_ids"]) ^ copy * jnp.uint32(0x9E3779B9), ())
        number = jax.lax.bitcast_convert_type(number, jnp.int32)
        out = self.corruption(named(fixed, "static"), {**batch, "rows": number})
        out = {name: value for name, value in out.items() if name != "rows"}
        return {**out, "rows": batch["rows"]} if "rows" in batch else out


def digest(ids: Array) -> Array:
    """uint32 [B]: the same for the same row [B, L] everywhere, another with probability 1 - 2**-32 for another."""
    key = jax.random.key(0)
    bits = uniform_bits(named(key, "ids"), ids.reshape(-1), ()).reshape(ids.shape)
    places = uniform_bits(named(key, "places"), jnp.zeros(1, jnp.int32), ids.shape[1:]) | jnp.uint32(1)
    return (bits * places).sum(1, dtype=jnp.uint32)
