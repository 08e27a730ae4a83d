"""An encoder-decoder whose source words are the states of a language model (row 225).

Edunov et al. 2019, arXiv 1903.09722, section 2: "ELMo augmentation" and "fine-tuning augmentation".
"""

from __future__ import annotations

import dataclasses

import flax.linen as nn

from ptm_jax.core import slots
from ptm_jax.core.types import Batch, Encoded
from ptm_jax.encoders.transformer.seq2seq import EncoderDecoder, PairCache
from ptm_jax.nn.embeddings.model_states import STATES, ModelStates
from ptm_jax.nn.heads.layer_mix import LayerMix
from ptm_jax.nn.layers import Identity

_SOURCE = ("input_ids", "segment_ids", "positions", "token_type_ids", "characters", "rows")
"""Fields of a batch that a language model reads of the source."""


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
            inputs = {name: batch[name] for name in _SOURCE if name in batch}
            encoded = self.words(inputs, train=train and not self.quiet)
            mixed = self.mix(encoded, inputs, train)
            batch = {**batch, STATES: mixed.hidden}
        return super().__call__(batch, train, cache)


def augmented(pair: EncoderDecoder, words: slots.Encoder, *, tuned: bool) -> EncoderDecoder:
    """Returns an encoder-decoder whose source words are the states of `words`; `tuned`: its last
    ones, with its dropout. Raises ValueError for an encoder-decoder of another kind."""
    if type(pair) is not EncoderDecoder:
        raise ValueError(
            "a language model gives the words of an EncoderDecoder of Transformers, and this is a "
            f"{type(pair).__name__}"
        )
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
