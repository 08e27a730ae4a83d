"""Recurrent encoder-decoders with attention.

RNNsearch (Bahdanau et al. 2015) and the variants of Luong et al. 2015.

The decoder is one scan over the target. The products of its inputs are computed before the scan,
and the products of its outputs after it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import segments_of
from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Batch, Encoded, record
from ptm_jax.encoders.context import Embedded, context_of
from ptm_jax.encoders.recurrent.recurrent import LSTMEncoder
from ptm_jax.encoders.transformer.seq2seq import EncoderDecoder
from ptm_jax.nn.attention.soft import Keys, SoftAttention, Source
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layers import Context, Dense, Dropout
from ptm_jax.nn.recurrent.gru import GRUCell
from ptm_jax.nn.recurrent.lstm import LSTMCell


@record
class AttentiveCache:
    """Decoding state: the decoder's state, leaves [B, ...], and the source that it reads."""

    state: Any
    source: Source

    def take(self, rows) -> AttentiveCache:
        """Returns the cache of the given rows [R] of the batch."""
        return jax.tree.map(lambda leaf: leaf[rows], self)


class AttentiveDecoder(Embedded):
    """Base of decoders that read a `Source` at every token: `hidden` is [B, T, `features`].

    A document of a packed row begins with a state of its own (`begun`) and reads the source tokens
    of its own segment.

    ends    whether `begun` reads the encoder's states after each document
            (`nn.recurrent.recurrence.State`)
    """

    logical_axes = {"state*": ("width", None)}

    embed: nn.Module
    hidden: int
    attention: SoftAttention
    dropout: float = 0.0
    initializer: Any = Normal(0.01)
    state_initializer: Any = None
    precision: Precision = Precision()

    direction = "causal"
    ends = False

    def dense(self, width: int, bias: bool = True) -> Dense:
        return Dense(width, bias=bias, initializer=self.initializer, precision=self.precision)

    def kernel(self, name: str, shape: tuple[int, int]):
        """Returns a kernel of the state."""
        return self.param(name, self.state_initializer or self.initializer, shape)

    def below(self, y, segments, state: Any, context: Context) -> tuple[Any, Any]:
        """Returns the features of the target's vectors [B, T, E] that the steps and `readout` read
        in their place, and the state of what computes them."""
        return y, None

    def inputs(self, y):
        """Returns the inputs of a step from the target's vectors [B, T, E]."""
        raise NotImplementedError

    def begun(self, source: Source, take: Any) -> Any:
        """Returns the state before the first token of each token's document, leaves [B, T, ...].

        `take(x)` is the row of x [B, S, ...] at the first source token of that document, or zeros
        [B, T, ...].
        """
        raise NotImplementedError

    def step(self, state: Any, read: Any, attend: Any, context: Context) -> tuple[Any, Any]:
        """Returns the state after a token, and the inputs of `readout`.

        `attend(query)` returns (context, weights).
        """
        raise NotImplementedError

    def readout(self, y, stored: Any, context: Context):
        """Returns the features [B, T, D] of all tokens from their vectors and the step results."""
        raise NotImplementedError

    def __call__(self, batch: Batch, train: bool, source: Source, state: Any = None) -> Encoded:
        context, segments = context_of(batch, "causal", train), jnp.maximum(segments_of(batch), 1)
        first = state is None
        bottom, state = self.empty_state(len(segments)) if first else state
        y, bottom = self.below(self.embed(batch, context), segments, bottom, context)
        new = jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0)), constant_values=True)
        begun = self.begun(source, first_of(source, segments)) if first else None

        def step(decoder, state, token):
            read, segment, new, begun, t = token
            if first:
                state = jax.tree.map(lambda x, y: jnp.where(new[:, None], x, y), begun, state)

            def attend(query):
                return decoder.attention(query, source, segment, t)

            return decoder.step(state, read, attend, context)

        scan = nn.scan(
            step, variable_broadcast="params", split_rngs={"params": False, "dropout": True}
        )
        tokens = (
            self.inputs(y),
            segments,
            new,
            begun,
            jnp.broadcast_to(context.positions, segments.shape),
        )
        state, (stored, weights) = scan(
            self, state, jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), tokens)
        )
        stored = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), stored)
        extra = {"cross_attention": jnp.moveaxis(weights, 0, 1)[None, :, None], "below": y}
        return Encoded(
            self.readout(y, stored, context),
            cache=AttentiveCache((bottom, state), dataclasses.replace(source, states=None)),
            extra=extra,
        )


class BahdanauDecoder(AttentiveDecoder):
    """A GRU that attends with the state before, and a maxout layer.

    Bahdanau et al. 2015, appendix A.2.2:

        c_i = attention(s_(i-1))
        s_i = GRU(y_(i-1), c_i, s_(i-1))
        t_i = maxout(U s_i + V y_(i-1) + C c_i)

    A document begins with tanh(W_s h), h the backward state of its source's first token. Deviation:
    the paper prints s_(i-1) in t_i, which its p(y_i | s_i, ...) contradicts.
    """

    features: int = 500

    def setup(self):
        self.gates, self.reading = (
            self.dense(3 * self.hidden),
            self.dense(3 * self.hidden, bias=False),
        )
        self.start = self.dense(self.hidden)
        self.state = self.kernel("state", (self.hidden, 3 * self.hidden))
        self.of_state, self.of_word, self.of_context = (
            self.dense(2 * self.features, bias=n == 0) for n in range(3)
        )
        self.drop = Dropout(self.dropout)

    def inputs(self, y):
        return self.gates(y)

    def empty_state(self, batch: int):
        return None, jnp.zeros((batch, self.hidden))

    def begun(self, source, take):
        return jnp.tanh(
            self.start(take(source.values[..., source.values.shape[-1] // 2 :])).astype(jnp.float32)
        )

    def step(self, s, read, attend, context):
        c, weights = attend(s)
        read = (read + self.reading(c)).astype(jnp.float32)
        parts = {"gates": slice(None, 2 * self.hidden), "candidate": slice(2 * self.hidden, None)}

        def product(name, x):
            return (
                self.precision.dense(x, self.state[:, parts[name]], out=jnp.float32)
                + read[:, parts[name]]
            )

        s = GRUCell("before")(product, {}, s, None)[0]
        return s, ((s, c), weights)

    def readout(self, y, stored, context):
        s, c = stored
        t = self.of_state(s) + self.of_word(y) + self.of_context(c)
        return self.drop(t.reshape(*t.shape[:-1], self.features, 2).max(-1), context)


class LuongDecoder(AttentiveDecoder):
    """Layers of LSTM, and attention with the top state (Luong et al. 2015, section 3).

    The features are tanh(W [c_t; h_t]).

    feeds    whether the features are part of the next token's input (section 3.3)

    A document begins with the states of the encoder, which has as many layers of LSTM of this
    width, after it has read the document's source.
    """

    layers: int = 4
    feeds: bool = True

    ends = True

    def setup(self):
        self.dense_inputs = [self.dense(4 * self.hidden) for _ in range(self.layers)]
        self.states = [
            self.kernel(f"state{n}", (self.hidden, 4 * self.hidden)) for n in range(self.layers)
        ]
        self.feeding = self.dense(4 * self.hidden, bias=False)
        self.out = self.dense(self.hidden, bias=False)
        self.drop = Dropout(self.dropout)

    def inputs(self, y):
        return self.dense_inputs[0](y)

    def empty_state(self, batch: int):
        zeros = jnp.zeros((batch, self.hidden))
        return None, (((zeros, zeros),) * self.layers, zeros)

    def begun(self, source, take):
        layers = tuple(
            (take(state.h), take(state.c)) for state in source.states.layers[-self.layers :]
        )
        return layers, jnp.zeros_like(layers[0][0])

    def step(self, state, read, attend, context):
        layers, fed = state
        new, x = [], None
        read = read + self.feeding(fed) if self.feeds else read
        for n, (h, c) in enumerate(layers):
            read = read if n == 0 else self.dense_inputs[n](x)

            def product(name, x, layer=self.states[n], read=read):
                return self.precision.dense(x, layer, out=jnp.float32) + read

            h, c = LSTMCell()(product, {}, h, c)
            new.append((h, c))
            x = self.drop(h, context)
        c, weights = attend(x)
        fed = jnp.tanh(self.out(jnp.concatenate([c, x], -1)).astype(jnp.float32))
        return (tuple(new), fed), (fed, weights)

    def readout(self, y, stored, context):
        return self.drop(stored, context)


def first_of(source: Source, segments):
    """Returns `take` of `AttentiveDecoder.begun` for the target's segments [B, T]."""
    same_document = (segments[:, :, None] == source.segments[:, None]) & (source.segments > 0)[
        :, None
    ]
    place, present = same_document.argmax(-1)[..., None], same_document.any(-1)[..., None]
    return lambda x: jnp.where(present, jnp.take_along_axis(x, place, 1), 0.0)


class AttentiveEncoderDecoder(EncoderDecoder):
    """An `LSTMEncoder` over `input_ids` and an `AttentiveDecoder` over `decoder_input_ids`.

    It decodes, and reads texts without decoder inputs, as `EncoderDecoder`. `extra` has

        source            [B, L, C]         the encoder's states
        embedded          [B, L, E]         its word vectors
        first             [B, L, C1]        the states of its first layer
        below             [B, T, E]         the features of the target that the steps read
        cross_attention   [1, B, 1, T, L]   the weights of the attention
    """

    encoder: LSTMEncoder
    decoder: AttentiveDecoder

    direction = "decoder"
    writes = True
    stacks = slots.Encoder.stacks

    def setup(self):
        self.keys = Keys(self.decoder.attention, self.decoder.hidden)

    def level_of(self, path: str) -> int:
        part, below = path.removeprefix("encoder/").split("/", 1)
        if part == "encoder":
            return self.encoder.level_of(f"encoder/{below}")
        return 0 if below.startswith("embed") else len(self.encoder.layers) + 1

    def __call__(
        self, batch: Batch, train: bool = False, cache: AttentiveCache | None = None
    ) -> Encoded:
        if cache is not None and "decoder_input_ids" not in batch:
            return self.decoder(batch, train, cache.source, cache.state)
        encoded = self.encoder(batch, train, ends=self.decoder.ends)
        source = Source(
            self.keys(encoded.hidden),
            self.values(encoded),
            segments_of(batch),
            encoded.extra["states"],
        )
        decoded = self.decoder(self.decoded(batch), train, source)
        extra = {
            "source": encoded.hidden,
            "embedded": encoded.extra["embedded"],
            "first": encoded.extra["first"],
        }
        return dataclasses.replace(decoded, extra={**decoded.extra, **extra})

    def values(self, encoded: Encoded):
        """Returns the states [B, L, `values_width`] of which the decoder reads means."""
        return encoded.hidden

    @property
    def values_width(self) -> int:
        return self.encoder.width

    def table(self):
        return self.decoder.table()

    def empty_cache(self, batch: int, length: int, source: int) -> AttentiveCache:
        del length
        keys = self.decoder.attention.width_of_keys(self.encoder.width, self.decoder.hidden)
        zeros = jnp.zeros((batch, source, self.values_width))
        empty = Source(
            jnp.zeros((batch, source, keys)), zeros, jnp.zeros((batch, source), jnp.int32)
        )
        return AttentiveCache(self.decoder.empty_state(batch), empty)
