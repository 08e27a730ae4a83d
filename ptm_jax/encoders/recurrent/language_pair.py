"""A recurrent encoder-decoder that begins with two language models.

Ramachandran et al. 2017, arXiv 1611.02683.
"""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core.types import Encoded
from ptm_jax.encoders.recurrent.attentive import AttentiveEncoderDecoder, LuongDecoder
from ptm_jax.nn.recurrent.lstm import LSTM
from ptm_jax.objectives.text.text_traits import SideModels


class ResidualDecoder(LuongDecoder):
    """A `LuongDecoder` on top of a language model, with a residual connection to the softmax.

    The language model is `embed` and `first`. Its states h^1 [B, T, P] are the inputs of the
    decoder's layers. A token's features are h^1 + W [c; h] (section 2.3, Figure 2a). P is the input
    width of the language model's softmax.

    The initial state of a document is zero in `first`, as in its language model, and the encoder's
    state in the layers above. Deviation: the paper does not say how c enters the decoder; here it
    is part of the input of the layer above `first`.
    """

    first: nn.Module = LSTM(1024)

    def setup(self):
        super().setup()
        self.lift = self.dense(self.first.width, bias=False)

    def empty_state(self, batch: int):
        return self.first.empty_state(batch), super().empty_state(batch)[1]

    def below(self, y, segments, state, context):
        h, state = self.first(self.drop(y, context), segments, state, context)
        return self.drop(h, context), state

    def readout(self, y, stored, context):
        return y + self.lift(super().readout(y, stored, context)).astype(y.dtype)


class LanguagePair(AttentiveEncoderDecoder, SideModels):
    """Joins a recurrent encoder and decoder that begin with two language models.

    The decoder attends with the states of the encoder's last layer, and reads the means of its
    first and its last layer, [h^1; h^N] (section 2.3, Figure 2b).

    `Experiment.init` may name the parts "encoder" and "decoder": each begins with the embeddings
    and the layer of a language model of one layer, and the heads "source" and "lm" with its
    softmax.
    """

    language_models = {
        part: {
            "encoder/embed/": f"encoder/{part}/embed/",
            "encoder/layers_0/": f"encoder/{part}/{layer}/",
            "heads_lm/": head,
        }
        for part, layer, head in (
            ("encoder", "layers_0", "heads_source/"),
            ("decoder", "first", "heads_lm/"),
        )
    }

    def values(self, encoded: Encoded):
        return jnp.concatenate([encoded.extra["first"], encoded.hidden], -1)

    @property
    def values_width(self) -> int:
        return self.encoder.layers[0].width + self.encoder.width
