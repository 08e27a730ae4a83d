"""XLNet's memory: it keeps a part of each row, and rows may be read from right to left."""

from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp

from ptm_jax.core.batch import segments_of
from ptm_jax.core.types import Batch, Encoded
from ptm_jax.encoders.transformer.xl import TransformerXL


class XLNetEncoder(TransformerXL):
    """A Transformer-XL that remembers only the first ceil(reuse * L) places of a row.

    zihangdai/xlnet, `_cache_mem`. An integer `reuse` is the number of places.

    The next row begins where they end, so the places after them (the text of the next row, a random
    piece) are not kept. Without a memory rows are encoded as by `TransformerXL`.

    `batch["backward"]` [B] is 1 for a row laid out from right to left. Its memory is the text on
    its right. Distances have the signs that they have in the text, if the stack's scores support
    this (`nn.attention.directed`). A batch with `places` has no directions.

    `same_length`: as many places as the memory has precede each token that it sees, as in
    Transformers: without a memory it sees itself alone.

    `alone`: a padding token sees itself and the text, as in zihangdai/xlnet, so that its states
    match the published code.
    """

    reuse: float = 0.5
    alone: bool = False

    @property
    def types(self) -> int:
        """Number of sentence types: two for a pair and one for the classifying token.

        Only equality of types has an effect.
        """
        return 3

    def visible_places(self, past: int) -> int:
        return past + 1

    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        fields_in = batch
        if "backward" in batch and "places" not in batch:
            fields_in = {**batch, "places": 1 - 2 * batch["backward"][:, None]}
        if self.alone and "segment_ids" in batch and "group" not in batch:
            fields_in = {**fields_in, **_alone(batch["segment_ids"])}
        encoded = super().__call__(fields_in, train)
        if not self.memory:
            return encoded
        ids = batch["input_ids"]
        length = self.reuse if isinstance(self.reuse, int) else math.ceil(ids.shape[1] * self.reuse)
        fields = {
            "segments": segments_of(batch),
            "types": batch.get("token_type_ids", jnp.zeros_like(ids)),
        }
        fields = {name: field[:, :length] for name, field in fields.items()}
        layers = jnp.moveaxis(encoded.layers[:-1, :, :length], 0, 1)
        return dataclasses.replace(
            encoded, memory=self.remembered(layers, fields, batch.get("carry"))
        )


def _alone(segments):
    """Returns fields of a batch in which every padding token belongs to the first document, in a
    group of its own."""
    slots = jnp.arange(1, segments.shape[1] + 1, dtype=jnp.int32)
    return {"segment_ids": jnp.maximum(segments, 1), "group": jnp.where(segments > 0, 0, slots)}
