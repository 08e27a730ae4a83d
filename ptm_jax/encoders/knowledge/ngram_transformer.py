"""A Transformer over tokens beside a Transformer over the n-grams that cover them (ZEN)."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax.numpy as jnp
from flax import linen as nn

from ptm_jax.core.batch import rows_of, segments_of
from ptm_jax.core.types import Batch, Encoded, Visibility
from ptm_jax.corruptions.base import best, draws
from ptm_jax.encoders.context import Stacked, context_of
from ptm_jax.encoders.encoder_traits import GrownTransformer
from ptm_jax.encoders.transformer.spreading import spread
from ptm_jax.knowledge.from_text.ngram_lexicon import NGramLexicon
from ptm_jax.nn.blocks import Block, Stack, with_input
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.initializers import Initializer, TruncatedNormal
from ptm_jax.nn.layers import Context, Dropout, LayerNorm
from ptm_jax.nn.parallel import lookup


class SummedBlock(Block):
    """A `Block` that adds its `cache` [B, L, D] to its output: the states of n-grams."""

    def __call__(self, x, context: Context, cache=None, source=None):
        x, probabilities, _ = super().__call__(x, context, source=source)
        return (x if cache is None else x + cache.astype(x.dtype)), probabilities, None


class NGramTransformer(Stacked, GrownTransformer):
    """A stack over tokens and a stack over n-grams, whose states are added to those of the tokens.

    Diao et al. 2019, arXiv 1911.00720, section 2.2; sinovation/ZEN, modeling.py. The n-grams of a
    row are the names of `lexicon` in its ids, at most `capacity` of them: random ones in
    training where there are more. Their vectors are a table's, with sentence types and no
    positions, and they attend to the n-grams of their document. After layer i of the tokens the
    states of n-gram layer i are added to each token that the n-gram covers (a matrix of 0 and 1,
    not normalised).

    above   what layers above the last n-gram layer get: its states again, as released, or nothing,
            as published

    `extra["ngrams"]` [B, E] are the numbers of the n-grams, 0: none, and `extra["ngram_starts"]`,
    `extra["ngram_sizes"]` their places. A batch's `order` is not obeyed: an n-gram shows its last
    token to its first.
    """

    logical_axes = {"ngrams": ("words", "width"), "ngram_type": (None, "width")}

    embed: Embeddings
    stack: Stack
    ngram_stack: Stack
    lexicon: NGramLexicon = NGramLexicon()
    capacity: int = 128
    above: Literal["last", "none"] = "last"
    norm: nn.Module = LayerNorm(1e-12)
    dropout: float = 0.1
    initializer: Initializer = TruncatedNormal()

    direction = "bidirectional"
    obeys_order = False
    beyond = r"/ngram"

    def of_plain(self, params):
        return spread(params, {"stack": self.stack.layers})

    @property
    def stacks(self):
        return {"stack": self.stack, "ngram_stack": self.ngram_stack}

    @nn.compact
    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        context = context_of(batch, self.direction, train)
        ids, segments = batch["input_ids"], segments_of(batch)
        numbers, starts, sizes = self._found(batch, segments, train)
        x = self.embed(batch, context)
        states = self._states(batch, numbers, starts, context)
        spots = jnp.arange(ids.shape[1])[:, None]
        covers = (starts[:, None] <= spots) & (spots < (starts + sizes)[:, None])
        covers &= (numbers > 0)[:, None]
        added = jnp.einsum("ble,nbed->nbld", covers.astype(states.dtype), states)
        upper = self.stack.layers - len(added)
        if upper < 0:
            raise ValueError(
                f"{len(added)} layers of n-grams are more than the {self.stack.layers} of tokens"
            )
        last = added[-1:] if self.above == "last" else jnp.zeros_like(added[-1:])
        encoded = self.stack(x, context, jnp.concatenate([added, jnp.repeat(last, upper, 0)]))
        layers = None if encoded.layers is None else with_input(x, encoded.layers)
        extra = {"ngrams": numbers, "ngram_starts": starts, "ngram_sizes": sizes}
        return dataclasses.replace(encoded, layers=layers, cache=None, extra=extra)

    def _found(self, batch: Batch, segments, train: bool):
        """Returns number, start and size [B, E] of the n-grams; 0 where there is none."""
        every = self.lexicon.every(batch["input_ids"], segments)
        numbers = jnp.asarray(self.lexicon.values)[every, 3] * (every > 0)
        longest = numbers.shape[-1]
        flat = numbers.reshape(len(numbers), -1)
        order = jnp.arange(flat.shape[1])[::-1] / flat.shape[1]
        order = jnp.broadcast_to(order, flat.shape)
        if train and self.has_rng("dropout"):
            order = draws(self.make_rng("dropout"), rows_of(batch), flat.shape[1])
        limit = min(self.capacity, flat.shape[1])
        count = jnp.minimum((flat > 0).sum(1), limit)
        places, used = best(jnp.where(flat > 0, order, -1.0), count, limit)
        chosen = jnp.take_along_axis(flat, places, 1) * (used > 0)
        real = chosen > 0
        return chosen, jnp.where(real, places // longest, 0), real * (places % longest + 1)

    def _states(self, batch: Batch, numbers, starts, context: Context):
        """Returns the states of all n-gram layers [N, B, E, D]."""
        segments = jnp.take_along_axis(segments_of(batch), starts, 1) * (numbers > 0)
        first = jnp.arange(numbers.shape[1]) == 0
        seen = jnp.where(first, jnp.maximum(segments, 1), segments)
        inner = dataclasses.replace(
            context,
            visibility=Visibility(jnp.maximum(segments, 1), seen),
            positions=jnp.zeros_like(numbers),
            places=None,
            k_places=None,
        )
        width = self.embed.width
        table = self.param("ngrams", self.initializer, (self.lexicon.size, width))
        kinds = self.param("ngram_type", self.initializer, (max(self.types, 1), width))
        types = batch.get("token_type_ids", jnp.zeros_like(batch["input_ids"]))
        x = lookup(table, numbers, "words") + kinds[jnp.take_along_axis(types, starts, 1)]
        x = self.norm(x.astype(jnp.float32))
        x = Dropout(self.dropout)(x.astype(self.embed.precision.dtype), inner)
        return self.ngram_stack(x, inner).layers
