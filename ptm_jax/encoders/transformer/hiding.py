"""A decoder that reads only the unmasked places of the source (MASS)."""

from __future__ import annotations

from ptm_jax.core.types import Batch, Encoded
from ptm_jax.encoders.transformer.transformer import Transformer


class HidingDecoder(Transformer):
    """A decoder that reads the source where `source_segments` [B, Ls] of the batch is not 0.

    It follows microsoft/MASS, `enc_mask`.

    The encoder still sees the whole row. Without the field this is a `Transformer`.
    """

    writes = False  # it is not trained to continue token by token

    def __call__(
        self,
        batch: Batch,
        train: bool = False,
        cache=None,
        source=None,
        source_segments=None,
        *,
        table=None,
    ) -> Encoded:
        if source is not None:
            source_segments = batch.get("source_segments", source_segments)
        return super().__call__(batch, train, cache, source, source_segments, table=table)
