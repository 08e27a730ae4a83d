"""Students that are no Transformers. They read the teacher's tokens, so all words agree.

A recurrent one (Tang et al. 2019, arXiv 1903.12136) and a convolutional one (BlendCNN: Chia et al.
2019, arXiv 1909.03508).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.compress.students.from_teacher import Student
from ptm_jax.core import slots
from ptm_jax.core.batch import segments_of
from ptm_jax.core.networks import Network
from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Batch, Encoded
from ptm_jax.encoders.context import Embedded, context_of
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.recurrent.recurrent import LSTMEncoder
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.task_heads import SequenceHead, text_classes
from ptm_jax.nn.initializers import Normal, TruncatedNormal
from ptm_jax.nn.layers import Dense, activate
from ptm_jax.nn.recurrent.lstm import LSTM
from ptm_jax.nn.recurrent.recurrence import Bidirectional
from ptm_jax.statistics.windows import shifted


class LastStates(LSTMEncoder):
    """An `LSTMEncoder` that returns the last states of both directions, [B, L, P].

    A token has the last states of its document.
    """

    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        encoded = super().__call__(batch, train, ends=True)
        return Encoded(encoded.extra["states"].layers[-1].h)


class Convolutions(Embedded):
    """Returns the concatenated features of all layers, [B, L, layers * filters].

    Each of the `layers` is a convolution of `filters` with a ReLU over the layer below. No window
    reaches into another document.
    """

    embed: nn.Module
    layers: int = 8
    filters: int = 100
    window: int = 5
    initializer: Any = TruncatedNormal(0.05)
    precision: Precision = Precision()

    def level_of(self, path: str) -> int:
        return 1 + int(path.split("_")[1].split("/")[0]) if path.startswith("encoder/layer_") else 0

    @nn.compact
    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        context, segments = context_of(batch, self.direction, train), segments_of(batch)
        x, maps, reach = self.embed(batch, context), [], self.window // 2
        for layer in range(self.layers):
            near = [
                shifted(x, by)
                * ((shifted(segments, by) == segments) & (segments > 0))[..., None].astype(x.dtype)
                for by in range(-reach, self.window - reach)
            ]
            dense = Dense(
                self.filters,
                initializer=self.initializer,
                precision=self.precision,
                name=f"layer_{layer}",
            )
            x = activate("relu", dense(jnp.concatenate(near, -1)))
            maps.append(x)
        return Encoded(jnp.concatenate(maps, -1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Light(Student):
    """A randomly initialised network with the teacher's vocabulary and classes.

    width    width of the word vectors
    """

    width: int = 300
    dropout: float = 0.1

    def tower(self, teacher: Network) -> Any:
        encoder = slots.encoder_in(teacher)
        head = teacher.heads.get("classify") if isinstance(teacher, slots.Network) else None
        classes = text_classes(head)
        if encoder is None or encoder.embeddings is None or classes is None:
            raise ValueError(
                f"{type(self).__name__} classifies texts; its teacher has no such head"
            )
        embed = Embeddings(
            vocab=encoder.embeddings.vocab, width=self.width, initializer=Normal(0.1)
        )
        return self.network(embed, classes)

    def network(self, embed: Embeddings, classes: int) -> Any:
        """Returns the network on these embeddings."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class BiLSTM(_Light):
    """A student of one bidirectional LSTM layer.

    The last states of both directions, a dense layer with ReLU, and the classes (section 3.1: 150
    and 200 units in the authors' program for SST-2, 300 and 400 in its larger one; word vectors of
    300).
    """

    hidden: int = 150
    dense: int = 200

    def network(self, embed: Embeddings, classes: int) -> Any:
        both = Bidirectional(LSTM(self.hidden), LSTM(self.hidden, backward=True))
        encoder = LastStates(embed=embed, layers=(both,), stateful=False)
        summary = Summary("relu", width=self.dense)
        return Model(
            encoder=encoder,
            heads={"classify": SequenceHead(classes, summary, dropout=self.dropout)},
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlendCNN(_Light):
    """A student of eight (or three) convolutions of 100 filters over 5 words.

    The maxima over the text of every layer, a dense layer with ReLU, and the classes follow.
    """

    width: int = 100
    layers: int = 8
    filters: int = 100
    window: int = 5
    dense: int = 100

    def network(self, embed: Embeddings, classes: int) -> Any:
        encoder = Convolutions(
            embed=embed, layers=self.layers, filters=self.filters, window=self.window
        )
        summary = Summary("relu", at="max", width=self.dense)
        return Model(
            encoder=encoder,
            heads={"classify": SequenceHead(classes, summary, dropout=self.dropout)},
        )
