"""An encoder-decoder whose layers also attend to the output of a frozen BERT (row 227).

Zhu et al. 2020, arXiv 2002.06823, section 4; released: bert-nmt/bert-nmt.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax

from ptm_jax.core import slots
from ptm_jax.core.batch import segments_of
from ptm_jax.core.spec import values_of
from ptm_jax.core.types import Batch, Encoded, record
from ptm_jax.encoders.transformer.seq2seq import EncoderDecoder, PairCache
from ptm_jax.nn.attention.fused_attention import FusedAttention
from ptm_jax.nn.attention.multihead import Attention


@record
class FusedCache:
    """The `PairCache` of a decoding, and what BERT returned for each source: states [B, Lb, Db],
    segments [B, Lb].

    The keys and values of these states are computed again for each token.
    """

    pair: PairCache
    states: Any = None
    segments: Any = None

    def take(self, rows) -> FusedCache:
        """Returns the cache of the rows [R] of the batch, as `PairCache.take`."""
        return dataclasses.replace(self, pair=self.pair.take(rows))


class FusedEncoderDecoder(EncoderDecoder):
    """An `EncoderDecoder` of blocks with `FusedAttention`, over the last states of `bert`.

    BERT reads its own tokenisation of the source, `bert_input_ids` and `bert_segment_ids` [B, Lb];
    without them the row itself. It has no dropout and gets no gradient.

    `Experiment.init` may name the part "bert" beside those of an `EncoderDecoder`.
    """

    bert: nn.Module | None = None

    apart = r"/cross/|/embed/|/other/"

    @property
    def language_models(self) -> dict[str, dict[str, str]]:
        return {**super().language_models, "bert": {"encoder/": "encoder/bert/"}}

    def __call__(
        self, batch: Batch, train: bool = False, cache: FusedCache | None = None
    ) -> Encoded:
        if cache is None:
            return super().__call__(self._read_by_bert(batch), train)
        if "decoder_input_ids" in batch:
            batch = self._read_by_bert(batch)
            cache = FusedCache(cache.pair, batch["beside_states"], batch["beside_segments"])
        else:
            batch = {**batch, "beside_states": cache.states, "beside_segments": cache.segments}
        encoded = super().__call__(batch, train, cache.pair)
        return dataclasses.replace(encoded, cache=dataclasses.replace(cache, pair=encoded.cache))

    def _read_by_bert(self, batch: Batch) -> Batch:
        """Returns the batch with `beside_states` and `beside_segments`."""
        start = "bert_" if "bert_input_ids" in batch else ""
        fields = "input_ids", "segment_ids", "positions", "token_type_ids"
        inputs = {name: batch[f"{start}{name}"] for name in fields if f"{start}{name}" in batch}
        states = jax.lax.stop_gradient(self.bert(inputs, train=False).hidden)
        return {**batch, "beside_states": states, "beside_segments": segments_of(inputs)}

    def empty_cache(self, batch: int, length: int, source: int) -> FusedCache:
        """Returns `EncoderDecoder.empty_cache`, without the states of BERT."""
        return FusedCache(super().empty_cache(batch, length, source))


def fused(
    pair: EncoderDecoder,
    bert: slots.Encoder,
    *,
    weights: tuple[float, float] = (0.5, 0.5),
    drop_net: float = 1.0,
) -> FusedEncoderDecoder:
    """Returns an encoder-decoder whose layers attend to `bert`, with the parameters of `pair` at
    their paths. Raises ValueError for an encoder-decoder of another kind."""
    if type(pair) is not EncoderDecoder:
        raise ValueError(
            f"BERT is fused into an EncoderDecoder of Transformers, and this is a "
            f"{type(pair).__name__}"
        )

    def joined(attention: Attention) -> FusedAttention:
        if type(attention) is not Attention:
            raise ValueError(
                f"BERT is fused into plain attention, and this is {type(attention).__name__}"
            )
        other = dataclasses.replace(attention, relative=None, rotary=None, local=None)
        values = values_of(attention)
        return FusedAttention(**values, other=other, weights=weights, drop_net=drop_net)

    block, decoder = pair.encoder.stack.block, pair.decoder.stack.block
    block = dataclasses.replace(block, attention=joined(block.attention))
    cross = dataclasses.replace(decoder.cross, attention=joined(decoder.cross.attention))
    replace = dataclasses.replace
    return FusedEncoderDecoder(
        encoder=replace(pair.encoder, stack=replace(pair.encoder.stack, block=block)),
        decoder=replace(
            pair.decoder, stack=replace(pair.decoder.stack, block=replace(decoder, cross=cross))
        ),
        start=pair.start,
        bert=bert,
    )
