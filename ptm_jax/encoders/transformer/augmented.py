"""Encoder-decoders whose source or target words are the states of a language model (row 225).

Edunov et al. 2019, arXiv 1903.09722, section 2: "ELMo augmentation" and "fine-tuning augmentation".
"""

from __future__ import annotations

import dataclasses

import flax.linen as nn

from ptm_jax.core import slots
from ptm_jax.core.spec import values_of
from ptm_jax.core.types import Batch, Encoded, record
from ptm_jax.encoders.transformer.seq2seq import EncoderDecoder, PairCache
from ptm_jax.encoders.transformer.transformer import Cache, Transformer
from ptm_jax.nn.attention.caches import Joined, KeyValues
from ptm_jax.nn.embeddings.model_states import STATES, ModelStates
from ptm_jax.nn.heads.layer_mix import LayerMix
from ptm_jax.nn.layers import Identity

_FIELDS = ("input_ids", "segment_ids", "positions", "token_type_ids", "characters", "rows")
"""Fields of a batch that a language model reads."""


def _states(network, batch: Batch, train: bool, cache: Cache | None = None):
    """Returns the batch with the states of `network.words`, and the cache of that model."""
    inputs = {name: batch[name] for name in _FIELDS if name in batch}
    options = {} if cache is None else {"cache": cache}
    encoded = network.words(inputs, train=train and not network.quiet, **options)
    return {**batch, STATES: network.mix(encoded, inputs, train).hidden}, encoded.cache


class AugmentedEncoderDecoder(EncoderDecoder):
    """An `EncoderDecoder` whose encoder reads the states of `words` in place of word vectors.

    mix    what it reads of them: `LayerMix`, a trained mean of the layers, each normalised (ELMo);
           `Identity()`, the last states
    quiet  whether the language model has no dropout

    `Experiment.init` may name the part "words" beside those of an `EncoderDecoder`. The token table
    of the encoder remains that of the decoder and of the softmax.
    """

    words: nn.Module | None = None
    mix: nn.Module = LayerMix(normalise=True, embeddings=True)
    quiet: bool = True

    apart = r"/cross/|/embed/"

    @property
    def language_models(self) -> dict[str, dict[str, str]]:
        return {**super().language_models, "words": {"encoder/": "encoder/words/"}}

    def __call__(
        self, batch: Batch, train: bool = False, cache: PairCache | None = None
    ) -> Encoded:
        if cache is None or "decoder_input_ids" in batch:
            batch, _ = _states(self, batch, train)
        return super().__call__(batch, train, cache)


@record
class AugmentedCache:
    """The decoding state of an `AugmentedDecoder`: its own, and that of its language model."""

    decoder: Cache
    words: Joined

    def take(self, rows) -> AugmentedCache:
        """Returns the cache of the given rows [R] of the batch."""
        return AugmentedCache(self.decoder.take(rows), self.words.take(rows))


class AugmentedDecoder(Transformer):
    """A decoder that reads the states of the causal model `words` in place of word vectors.

    `mix` and `quiet` are those of `AugmentedEncoderDecoder`. The language model reads what has been
    written, so it keeps a cache of its own.
    """

    words: nn.Module | None = None
    mix: nn.Module = LayerMix(normalise=True, embeddings=True)
    quiet: bool = True

    def __call__(
        self,
        batch: Batch,
        train: bool = False,
        cache: AugmentedCache | None = None,
        source=None,
        source_segments=None,
        *,
        table=None,
        across: KeyValues | None = None,
    ) -> Encoded:
        inner = (None, None) if cache is None else (cache.decoder, cache.words.cache)
        batch, words = _states(self, batch, train, inner[1])
        options = {"table": table, "across": across}
        decoded = super().__call__(batch, train, inner[0], source, source_segments, **options)
        if cache is None:
            return decoded
        ours, *others = decoded.cache if isinstance(decoded.cache, tuple) else (decoded.cache,)
        ours = AugmentedCache(ours, Joined(words))
        return dataclasses.replace(decoded, cache=(ours, *others) if others else ours)

    def empty_cache(self, batch: int, length: int) -> AugmentedCache:
        """Returns a decoding cache for `length` tokens of `batch` sequences."""
        words = Joined(self.words.empty_cache(batch, length))
        return AugmentedCache(super().empty_cache(batch, length), words)


class TargetAugmentedEncoderDecoder(EncoderDecoder):
    """An `EncoderDecoder` with an `AugmentedDecoder`.

    `Experiment.init` may name the part "target_words" beside those of an `EncoderDecoder`.
    """

    @property
    def language_models(self) -> dict[str, dict[str, str]]:
        moves = {"encoder/": "encoder/decoder/words/"}
        return {**super().language_models, "target_words": moves}


def target_augmented(
    pair: EncoderDecoder, words: slots.Encoder, *, tuned: bool
) -> TargetAugmentedEncoderDecoder:
    """Returns an encoder-decoder whose target words are the states of the causal model `words`.
    Raises ValueError for an encoder-decoder of another kind, and for a model that reads the words
    to come."""
    _check(pair)
    if not isinstance(words, Transformer) or words.direction != "causal":
        raise ValueError(
            "the decoder's language model reads the words to come; give a causal Transformer, as "
            "a run of xlm_clm_mini or gpt_mini"
        )
    plain = pair.decoder
    embed = dataclasses.replace(plain.embed, expand=ModelStates())
    mix = {"mix": Identity()} if tuned else {}
    decoder = AugmentedDecoder(
        **{**values_of(plain), "embed": embed}, words=words, quiet=not tuned, **mix
    )
    return TargetAugmentedEncoderDecoder(encoder=pair.encoder, decoder=decoder, start=pair.start)


def _check(pair: EncoderDecoder) -> None:
    if type(pair) is not EncoderDecoder:
        raise ValueError(
            "a language model gives the words of an EncoderDecoder of Transformers, and this is a "
            f"{type(pair).__name__}"
        )


def augmented(pair: EncoderDecoder, words: slots.Encoder, *, tuned: bool) -> EncoderDecoder:
    """Returns an encoder-decoder whose source words are the states of `words`; `tuned`: its last
    ones, with its dropout. Raises ValueError for an encoder-decoder of another kind."""
    _check(pair)
    embed = dataclasses.replace(pair.encoder.embed, expand=ModelStates())
    mix = {"mix": Identity()} if tuned else {}
    return AugmentedEncoderDecoder(
        encoder=dataclasses.replace(pair.encoder, embed=embed),
        decoder=pair.decoder,
        start=pair.start,
        words=words,
        quiet=not tuned,
        **mix,
    )
