"""XLNet's use of a memory: a part of each row goes into it, and a row may have been read from right to left."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp

from ptm_jax.core.types import Batch, Encoded
from ptm_jax.encoders.xl import TransformerXL


class XLNetEncoder(TransformerXL):
    """Transformer-XL that remembers of a row of L only the first ceil(reuse * L) places (zihangdai/xlnet, `_cache_mem`);
    a whole number `reuse` is that many places.

    The next row begins where they end, so that what is behind them (the text of the next row, a random piece) must not
    be remembered. Rows without a memory to hand on are encoded as by `TransformerXL`.

    `batch["backward"]` [B] is 1 for a row that was laid out from right to left: its memory is the text on its right, and
    distances have the signs that they have in the text, where the stack's scores obey (`nn.directed`). A batch with
    `places` of its own has no directions.

    `alone`: padding sees itself beside the text, as in zihangdai/xlnet, so that its states are those of the published code.
    """

    reuse: float = 0.5
    alone: bool = False

    @property
    def types(self) -> int:
        """Sentence types: the two of a pair and the classifying token's. Only whether two are the same has an effect."""
        return 3

    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        given, carry = batch, batch.get("carry")
        if "backward" in batch and "places" not in batch:
            given = {**batch, "places": 1 - 2 * batch["backward"][:, None]}
        if self.alone and "segment_ids" in batch and "group" not in batch:
            given = {**given, **_alone(batch["segment_ids"])}
        encoded = super().__call__(given, train)
        if not self.memory:
            return encoded
        ids = batch["input_ids"]
        kept = min(self.reuse, ids.shape[1]) if isinstance(self.reuse, int) else math.ceil(ids.shape[1] * self.reuse)
        fields = {
            "layers": jnp.moveaxis(encoded.layers[:-1], 0, 1),
            "segments": batch.get("segment_ids", jnp.ones_like(ids)),
            "types": batch.get("token_type_ids", jnp.zeros_like(ids)),
        }
        past = {name: self._last(name, new, kept, carry) for name, new in fields.items()}
        return dataclasses.replace(encoded, memory=jax.lax.stop_gradient(past))

    def _last(self, name: str, new, kept: int, carry):
        """The last M places of the memory and of the first `kept` of the row, in the order of reading."""
        axis = 2 if name == "layers" else 1
        new = jax.lax.slice_in_dim(new, 0, kept, axis=axis)
        if carry is not None:
            new = jnp.concatenate([carry[name].astype(new.dtype), new], axis)
        return jax.lax.slice_in_dim(new, max(new.shape[axis] - self.memory, 0), new.shape[axis], axis=axis)


def _alone(segments):
    """Fields of a batch in which every place of padding is a token of the first document in a group of its own."""
    slots = jnp.arange(1, segments.shape[1] + 1, dtype=jnp.int32)
    return {"segment_ids": jnp.maximum(segments, 1), "group": jnp.where(segments > 0, 0, slots)}
