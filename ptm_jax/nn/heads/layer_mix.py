"""Readers of an encoder's layers, and the layers that heads read."""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.types import Encoded
from ptm_jax.nn.initializers import Zeros
from ptm_jax.nn.layers import Module


def layers_of(encoded: Encoded):
    """Returns [N+1, B, L, D]: the embeddings and every layer.

    The last one includes the encoder's final norm, if any.
    """
    if encoded.layers is None:
        raise ValueError("this encoder returns its last layer alone; read that one")
    return jnp.concatenate([encoded.layers[:-1], encoded.hidden[None].astype(encoded.layers.dtype)])


def rows_of_states(encoded: Encoded, batch):
    """Returns the batch for the tokens of the states.

    The decoder's inputs if the encoder has a decoder.
    """
    fields = {
        name: batch[f"decoder_{name}"]
        for name in ("input_ids", "segment_ids")
        if f"decoder_{name}" in batch
    }
    if not fields:
        return batch
    return fields | {name: batch[name] for name in ("rows", "step") if name in batch}


def embedded(encoded: Encoded):
    """Returns the embeddings [B, L, E]."""
    extra = encoded.extra or {}
    return extra["embedded"] if "embedded" in extra else layers_of(encoded)[0]


class EmbeddingReader(Module):
    """Returns the embeddings [B, L, E] in place of the last layer.

    From a recurrent encoder-decoder it takes the encoder's embeddings.
    """

    def __call__(self, encoded: Encoded, batch, train: bool = False) -> Encoded:
        return dataclasses.replace(encoded, hidden=embedded(encoded))


class VectorsReader(Module):
    """Concatenates word vectors and states, [B, L, E + D] (CoVe).

    McCann et al. 2017, arXiv 1708.00107, section 4. From an encoder-decoder it reads the encoder's
    word vectors and states.
    """

    def __call__(self, encoded: Encoded, batch, train: bool = False) -> Encoded:
        extra = encoded.extra or {}
        if "source" in extra:
            encoded = dataclasses.replace(
                encoded, hidden=extra["source"], layers=extra.get("source_layers")
            )
        both = jnp.concatenate([embedded(encoded), encoded.hidden], -1)
        return dataclasses.replace(encoded, hidden=both, layers=None)


class LayerMix(Module):
    """r = gamma * sum_l softmax(alpha)_l h_l over the last `top` layers (None: all N) (survey Eq.
    6; Peters et al. 2018, Eq. 1). `normalise` first scales each layer to mean 0 and variance 1 over
    its features. `embeddings`: the embeddings count as a layer, as ELMo's token layer does."""

    logical_axes = {"alpha": (None,), "gamma": ()}

    top: int | None = None
    normalise: bool = False
    embeddings: bool = False

    @nn.compact
    def __call__(self, encoded: Encoded, batch, train: bool = False) -> Encoded:
        layers = layers_of(encoded)[0 if self.embeddings else 1 :]
        layers = layers if self.top is None else layers[-self.top :]
        f = layers.astype(jnp.float32)
        if self.normalise:
            f = f - f.mean(-1, keepdims=True)
            f = f * jax.lax.rsqrt(jnp.square(f).mean(-1, keepdims=True) + 1e-12)
        weights = jax.nn.softmax(self.param("alpha", Zeros(), (len(layers),)))
        gamma = self.param("gamma", nn.initializers.ones, ())
        mixed = gamma * jnp.einsum("n,nbld->bld", weights, f)
        return dataclasses.replace(encoded, hidden=mixed.astype(encoded.hidden.dtype))
