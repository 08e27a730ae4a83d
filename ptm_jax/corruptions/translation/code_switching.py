"""Words in the language of a dictionary."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import rows_of, segments_of
from ptm_jax.core.streams import named
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import draws, maskable
from ptm_jax.corruptions.compact import layout, moved, take
from ptm_jax.knowledge.from_text.dictionaries import BilingualDictionary


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodeSwitching(slots.Corruption):
    """Writes each word that the dictionary has as its translation, with probability `rate`.

    Qin et al. 2020, arXiv 2006.06402 (CoSDA-ML), section 2.2, for every step anew. Apply it before
    the masking. Names of several words are one; the longest counts. Tokens of a translation have
    the other fields of the word (`language_ids` too: its sentence has one language), and positions
    go on from where they begin at 0. A full row loses its last words, and keeps its specials.
    Deviations: there, sentences and words are drawn by two rates, and one of several translations.
    """

    vocab: Vocab
    dictionary: BilingualDictionary = BilingualDictionary()
    rate: float = 0.3

    def __post_init__(self):
        if not 0 <= self.rate <= 1:
            raise ValueError(f"rate is {self.rate}; expected a probability in [0, 1]")

    def __call__(self, key: Array, batch: Batch) -> Batch:
        ids, segments = batch["input_ids"], segments_of(batch)
        length, real = ids.shape[1], segments > 0
        mentions = self.dictionary.find(ids, segments)
        drawn = take(
            draws(named(key, "words"), rows_of(batch), length), jnp.maximum(mentions.first, 0)
        )
        switched = (mentions.first >= 0) & (drawn < self.rate)
        widths = jnp.where(switched, mentions.starts * mentions.values[..., 0], real)
        words = maskable(batch, self.vocab)
        room = length - (real & ~words).sum(1, keepdims=True)
        beyond = words & (jnp.cumsum(jnp.where(words, widths, 0), 1) > room)
        source, offset, real = layout(jnp.where(beyond, 0, widths), length)
        translation = take(mentions.values, source)[..., 1:]
        token = jnp.minimum(offset, self.dictionary.width - 1)[..., None]
        new = jnp.take_along_axis(translation, token, 2)[..., 0]
        new = jnp.where(take(switched, source), new, take(ids, source))
        out, inside = moved(batch, new, source, real, self.vocab), offset > 0
        if "word_starts" in out:
            out["word_starts"] = jnp.where(inside, 0, out["word_starts"])
        if "positions" in out:
            begins = real & ~inside & (take(batch["positions"], source) == 0)
            places = jnp.arange(length, dtype=jnp.int32)
            first = jax.lax.cummax(jnp.where(begins, places, 0), axis=1)
            out["positions"] = jnp.where(real, places - first, 0)
        return out
