"""DeBERTa's enhanced mask decoder (He et al. 2021, arXiv 2006.03654, section 3.2)."""

from __future__ import annotations

import dataclasses

import flax.linen as nn

from ptm_jax.core.types import Batch, Encoded
from ptm_jax.encoders.context import context_of
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.nn.embeddings.summed import LearnedPositions


class MaskDecoder(Transformer):
    """A `Transformer` whose vocabulary head reads states that know absolute positions.

    The last layer is applied `times` times more. Its queries begin as H_{N-1} + `places`, keys and
    values are H_{N-1}, as in the released code. The result is `extra["words"]`; `hidden` and
    `layers` are those of the encoder without it. The stack is a `DisentangledStack`.
    """

    places: nn.Module = LearnedPositions(512)
    times: int = 2

    def __call__(self, batch: Batch, train: bool = False, **options) -> Encoded:
        encoded = super().__call__(batch, train, **options)
        context = context_of(batch, self.direction, train)
        source = encoded.layers[-2]
        queries = source + self.places(context.positions, source.shape[-1]).astype(source.dtype)
        for _ in range(self.times):
            queries = self.stack.last(queries, context, source)
        return dataclasses.replace(encoded, extra={**(encoded.extra or {}), "words": queries})


def decodes_masks(encoder: object) -> bool:
    """Returns whether the encoder has an enhanced mask decoder."""
    return isinstance(encoder, MaskDecoder)
