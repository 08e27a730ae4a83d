"""Convolutions over words: TextCNN (Kim 2014) and the encoder-decoder ConvS2S (Gehring et al.
2017)."""

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
from ptm_jax.encoders.transformer.seq2seq import EncoderDecoder
from ptm_jax.nn.conv.filters import Filters
from ptm_jax.nn.conv.normed import GatedConvolution, NormedDense
from ptm_jax.nn.conv.taps import Past, empty_past
from ptm_jax.nn.initializers import FanIn, Uniform
from ptm_jax.nn.layers import Activation, Dropout, Module, activate

HALF = 0.5**0.5
"""Keeps the variance of a sum of two branches (Gehring et al. 2017, section 3.5)."""


class TextCNN(Embedded):
    """Applies filters of several widths over the embeddings.

    Kim 2014, arXiv 1408.5882, Eq. 2. The result is [B, L, widths * filters].

    A token's feature is the largest value of a filter on the windows that hold it. The maximum over
    a text (`Summary(at="max")`) is therefore over all windows that hold a word of it, places
    outside being 0, as in Kim's code, which pads each text; a window of padding alone does not
    count.
    """

    embed: nn.Module
    widths: tuple[int, ...] = (3, 4, 5)
    filters: int = 100
    activation: Activation = "relu"
    initializer: Any = Uniform(0.01)
    precision: Precision = Precision()

    def level_of(self, path: str) -> int:
        return 0 if path.startswith("encoder/embed/") else 1

    @nn.compact
    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        context, segments = context_of(batch, self.direction, train), segments_of(batch)
        x, maps = self.embed(batch, context), []
        for width in self.widths:
            filters = Filters(
                self.filters, width, self.initializer, self.precision, name=f"filter{width}"
            )
            maps.append(filters(x, segments))
        return Encoded(activate(self.activation, jnp.concatenate(maps, -1)))


def scaled_gradient(x, scale: float):
    """Returns x; its gradient is multiplied by `scale`."""
    return x * scale + jax.lax.stop_gradient(x * (1 - scale))


class GatedEncoder(Embedded):
    """Layers of gated convolutions with residual branches, [B, L, D].

    Gehring et al. 2017, section 3.2; fairseq's fconv.

        x_l = (GLU(conv(dropout(x_{l-1}))) + x_{l-1}) sqrt(1/2);   hidden = (x + e) sqrt(1/2)

    convolutions   (channels, width) of every layer, from the input up
    readers        attention layers that read the states; their gradient is divided by twice this
                   number (section 3.5). 0: none, the gradient is whole

    `extra["keys"]` are x, the states before the embeddings e are added.
    """

    logical_axes = {
        "outputs/scale": ("width",),
        "outputs/bias": ("width",),
        "residual*/scale": ("width",),
        "residual*/bias": ("width",),
    }

    embed: nn.Module
    convolutions: tuple[tuple[int, int], ...]
    dropout: float = 0.0
    readers: int = 0
    precision: Precision = Precision()

    def level_of(self, path: str) -> int:
        return _level(path.removeprefix("encoder/"), len(self.convolutions))

    @nn.compact
    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        context, segments = context_of(batch, "bidirectional", train), segments_of(batch)
        real, drop = (segments > 0)[..., None], Dropout(self.dropout)
        e = self.embed(batch, context)

        def dense(width, name):
            return NormedDense(
                width, initializer=FanIn(1 - self.dropout), precision=self.precision, name=name
            )

        x = jnp.where(real, dense(self.convolutions[0][0], "inputs")(e), 0)
        for number, (channels, width) in enumerate(self.convolutions):
            residual = x if x.shape[-1] == channels else dense(channels, f"residual{number}")(x)
            init = FanIn(4 * (1 - self.dropout))
            layer = GatedConvolution(
                channels, width, initializer=init, precision=self.precision, name=f"layer{number}"
            )
            x = jnp.where(real, layer(drop(x, context), segments)[0] + residual, 0) * HALF
        x = dense(e.shape[-1], "outputs")(x)
        x = scaled_gradient(x, 1 / (2 * self.readers)) if self.readers else x
        return Encoded((x + e) * HALF, extra={"keys": x})


def _level(path: str, layers: int) -> int:
    """Returns the level of a parameter of gated layers: the output projection belongs to the
    last."""
    for name in ("layer", "residual", "attention"):
        if path.startswith(name):
            return 1 + int(path.removeprefix(name).split("/")[0])
    return layers if path.startswith("outputs") else 0


@record
class GatedCache:
    """Decoding state: each layer's inputs from earlier tokens, and the source.

    The source has keys and values [B, Ls, D], and segments.
    """

    pasts: tuple[Past, ...]
    keys: Any
    values: Any
    segments: Any

    def take(self, rows) -> GatedCache:
        """Returns the cache of the given rows [R] of the batch."""
        return jax.tree.map(lambda leaf: leaf[rows], self)


class StepAttention(Module):
    """Attention of one decoder layer to the source.

    Section 3.3, Eq. 1 and 2: x [B, T, C], e [B, T, D] -> [B, T, C].

    Keys are the encoder's outputs, values these with the embeddings. The sum is scaled by the
    square root of the number of source tokens.
    """

    logical_axes = {"outputs/scale": ("width",), "outputs/bias": ("width",)}

    precision: Precision = Precision()

    @nn.compact
    def __call__(self, x, e, keys, values, *, segments, source_segments):
        def dense(width, name):
            return NormedDense(width, precision=self.precision, name=name)

        query = (dense(e.shape[-1], "inputs")(x) + e) * HALF
        seen = (segments[:, :, None] == source_segments[:, None, :]) & (source_segments > 0)[
            :, None, :
        ]
        scores = self.precision.einsum("btd,bld->btl", query, keys, jnp.float32)
        weights = jax.nn.softmax(jnp.where(seen, scores, -1e30), -1)
        weights = weights * jnp.sqrt(seen.sum(-1, keepdims=True).astype(jnp.float32))
        read = self.precision.einsum("btl,bld->btd", weights, values, jnp.float32).astype(x.dtype)
        return (dense(x.shape[-1], "outputs")(read) + x) * HALF


class GatedDecoder(Embedded):
    """Causal gated convolutions with an attention in every layer, [B, T, features].

    Gehring et al. 2017, section 3.3.
    """

    logical_axes = {
        "outputs/scale": ("width",),
        "outputs/bias": ("width",),
        "residual*/scale": ("width",),
        "residual*/bias": ("width",),
    }

    embed: nn.Module
    convolutions: tuple[tuple[int, int], ...]
    features: int
    dropout: float = 0.0
    precision: Precision = Precision()

    direction = "causal"

    @nn.compact
    def __call__(self, batch: Batch, train: bool, cache: GatedCache, continues: bool) -> Encoded:
        context, segments = context_of(batch, "causal", train), jnp.maximum(segments_of(batch), 1)
        e, pasts, drop = self.embed(batch, context), [], Dropout(self.dropout)

        def dense(width, name):
            return NormedDense(
                width, initializer=FanIn(1 - self.dropout), precision=self.precision, name=name
            )

        x = dense(self.convolutions[0][0], "inputs")(e)
        for number, (channels, width) in enumerate(self.convolutions):
            residual = x if x.shape[-1] == channels else dense(channels, f"residual{number}")(x)
            init, past = FanIn(4 * (1 - self.dropout)), cache.pasts[number] if continues else None
            layer = GatedConvolution(
                channels, width, "causal", init, self.precision, name=f"layer{number}"
            )
            x, past = layer(drop(x, context), segments, past)
            pasts.append(past)
            attention = StepAttention(self.precision, name=f"attention{number}")
            read = attention(
                x, e, cache.keys, cache.values, segments=segments, source_segments=cache.segments
            )
            x = (read + residual) * HALF
        x = drop(dense(self.features, "outputs")(x), context)
        return Encoded(x, cache=dataclasses.replace(cache, pasts=tuple(pasts)))

    def empty_pasts(self, batch: int) -> tuple[Past, ...]:
        """Returns the inputs of the layers before the first token."""
        inputs = [self.convolutions[0][0], *(channels for channels, _ in self.convolutions[:-1])]
        layers = zip(inputs, self.convolutions, strict=True)
        return tuple(empty_past(batch, width - 1, channels) for channels, (_, width) in layers)


class GatedEncoderDecoder(EncoderDecoder):
    """ConvS2S: a `GatedEncoder` over `input_ids` and a `GatedDecoder` over `decoder_input_ids`.

    The decoder reads the encoder in every layer. Fields, decoding and the treatment of texts
    without decoder inputs are as in `EncoderDecoder`. `extra["source"]` are the encoder's states.
    """

    encoder: GatedEncoder
    decoder: GatedDecoder

    direction = "decoder"
    writes = True
    stacks = slots.Encoder.stacks

    def level_of(self, path: str) -> int:
        part, below_part = path.removeprefix("encoder/").split("/", 1)
        below = len(self.encoder.convolutions)
        if part == "encoder":
            return _level(below_part, below)
        level = _level(below_part, len(self.decoder.convolutions))
        return below + level if level else 0

    def __call__(
        self, batch: Batch, train: bool = False, cache: GatedCache | None = None
    ) -> Encoded:
        continues = cache is not None
        if continues and "decoder_input_ids" not in batch:
            return self.decoder(batch, train, cache, continues)
        source, segments = self.encoder(batch, train), segments_of(batch)
        read = {"keys": source.extra["keys"], "values": source.hidden, "segments": segments}
        begun = GatedCache(pasts=cache.pasts if continues else (), **read)
        decoded = self.decoder(self.decoded(batch), train, begun, continues)
        return dataclasses.replace(
            decoded, cache=decoded.cache if continues else None, extra={"source": source.hidden}
        )

    def table(self):
        return self.decoder.table()

    def empty_cache(self, batch: int, length: int, source: int) -> GatedCache:
        zeros = jnp.zeros((batch, source, self.encoder.embed.width))
        return GatedCache(
            self.decoder.empty_pasts(batch), zeros, zeros, jnp.zeros((batch, source), jnp.int32)
        )
