"""Skip-thought: a recurrent sentence encoder, and decoders of both adjacent sentences.

Kiros et al. 2015.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import segments_of
from ptm_jax.core.types import Batch, Encoded
from ptm_jax.encoders.context import Embedded, context_of
from ptm_jax.encoders.transformer.cloze import neighbour
from ptm_jax.nn.initializers import Uniform
from ptm_jax.nn.layers import Dense
from ptm_jax.nn.recurrent.gru import GRU
from ptm_jax.nn.recurrent.recurrence import reads_both
from ptm_jax.objectives.text.text_traits import NeighbourDecoders
from ptm_jax.statistics.sentences import beside, ends_of, take


class SkipThought(Embedded, NeighbourDecoders):
    """A sentence encoder with decoders for the next and the previous sentence.

    `sentence` reads every sentence (a segment) by itself; hidden [B, L, D] are its states (section
    2.1, Eq. 1 to 4). The vector of a sentence is the state of its last token. For a `Bidirectional`
    the state of the left direction at the first token is concatenated.

    The decoders `following` and `preceding` predict a sentence from the vector of the sentence
    before or after it. The vector enters the gates r, z and n as a bias, without b (Eq. 5 to 8).
    `extra["forward"]` and `extra["backward"]` [B, L, H] are the decoders' states; the state at
    token t has read the tokens before t. `extra["vectors"]` [B, L, D] is the vector of each token's
    sentence.
    """

    embed: nn.Module
    sentence: nn.Module
    following: GRU
    preceding: GRU
    initializer: Any = Uniform(0.1)

    gives_vectors = True

    @property
    def direction(self) -> slots.Direction:
        return "bidirectional" if reads_both(self.sentence) else "causal"

    def level_of(self, path: str) -> int:
        part = path.split("/")[1]
        return {"embed": 0, "sentence": 1}.get(part, 2)

    @nn.compact
    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        context, segments = context_of(batch, self.direction, train), segments_of(batch)
        x = self.embed(batch, context)
        hidden = self.sentence(x, segments, context=context)[0]
        first, last = ends_of(segments)
        vectors = take(hidden, last)
        if reads_both(self.sentence):
            size = self.sentence.right.width
            vectors = jnp.concatenate([vectors[..., :size], take(hidden[..., size:], first)], -1)
        read, extra = neighbour(x, segments, -1), {"vectors": vectors}
        decoders = {"forward": (self.following, first - 1), "backward": (self.preceding, last + 1)}
        for (name, (decoder, place)), present in zip(decoders.items(), beside(batch), strict=True):
            sentence_vector = jnp.where(present[..., None], take(vectors, place), 0)
            shape = {"initializer": self.initializer, "precision": decoder.precision}
            condition = Dense(3 * decoder.hidden, bias=False, **shape, name=f"condition_{name}")(
                sentence_vector
            )
            extra[name] = decoder(read, segments, context=context, condition=condition)[0]
        return Encoded(hidden, extra=extra)
