"""Corruptions that derive a second text from each row: a copy, two crops, an n-gram, a replaced
word.

They add `{name}_input_ids` and `{name}_segment_ids`, which objectives encode in addition to the
row.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import put, rows_of, segments_of
from ptm_jax.core.streams import named, row_keys
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import draw_words, draws, maskable, up_to
from ptm_jax.corruptions.compact import pad_of

# Fields that stay valid when all tokens of a row are replaced.
_ROW_FIELDS = ("rows", "step", "carry")


def _compact(allowed: Array) -> Array:
    """Returns the positions of the allowed tokens in order, followed by the others, [B, L]."""
    return jnp.argsort(~allowed, axis=1, stable=True).astype(jnp.int32)


def _one_document(key: Array, rows: Array, batch: Batch, vocab: Vocab) -> Array:
    """Returns True on the words of one document of the row, [B, L]: the document of a uniformly
    drawn word."""
    allowed, segments = maskable(batch, vocab), segments_of(batch)
    at = jnp.take_along_axis(_compact(allowed), up_to(draws(key, rows), allowed.sum(1))[:, None], 1)
    return allowed & (segments == jnp.take_along_axis(segments, at, 1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SameText(slots.Corruption):
    """Gives each row itself as its second text, so that only dropout makes the two differ.

    Gao et al. 2021, arXiv 2104.08821, section 3 (SimCSE).

    Writes `pair_input_ids` and `pair_segment_ids` [B, L].
    """

    def __call__(self, key: Array, batch: Batch) -> Batch:
        return {
            **batch,
            "pair_input_ids": batch["input_ids"],
            "pair_segment_ids": segments_of(batch),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwoCrops(slots.Corruption):
    """Draws two independent crops of one document: the row and `pair_` (survey 3.1.4, CTL).

    A crop is a run of `share` of the document's words (rounded, at least one), between [CLS] and
    [SEP] if the vocabulary has them. Other per-token fields (`token_type_ids`, labels, ...) are
    dropped.

    Writes `input_ids`, `segment_ids`, `positions`, `pair_input_ids`, `pair_segment_ids`, all [B,
    L].
    """

    vocab: Vocab
    share: float = 0.5

    def __post_init__(self):
        if not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share}; it must be in (0, 1]")

    def __call__(self, key: Array, batch: Batch) -> Batch:
        rows, ids = rows_of(batch), batch["input_ids"]
        words = _one_document(named(key, "document"), rows, batch, self.vocab)
        first, second = (
            self._crop(named(key, name), rows, ids, words) for name in ("first", "second")
        )
        fields = {name: batch[name] for name in _ROW_FIELDS if name in batch}
        slots = jnp.broadcast_to(jnp.arange(ids.shape[1], dtype=jnp.int32), ids.shape)
        made = {"input_ids": first[0], "segment_ids": first[1], "positions": slots}
        return fields | made | {"pair_input_ids": second[0], "pair_segment_ids": second[1]}

    def _crop(self, key, rows, ids, words):
        length, before = ids.shape[1], self.vocab.cls is not None
        after = self.vocab.sep is not None
        count = words.sum(1)
        size = jnp.clip(
            jnp.floor(count * self.share + 0.5).astype(jnp.int32), 1, length - before - after
        )
        size = jnp.minimum(size, count)
        start = up_to(draws(key, rows), count - size + 1)
        slots = jnp.arange(length)[None] - before
        at = jnp.clip(start[:, None] + slots, 0, length - 1)
        new = jnp.take_along_axis(ids, jnp.take_along_axis(_compact(words), at, 1), 1)
        if before:
            new = jnp.where(slots < 0, self.vocab.cls, new)
        real = slots < size[:, None]
        if after:
            new = jnp.where(slots == size[:, None], self.vocab.sep, new)
            real = slots <= size[:, None]
        real &= count[:, None] > 0
        return jnp.where(real, new, pad_of(self.vocab)).astype(jnp.int32), real.astype(jnp.int32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NGramView(slots.Corruption):
    """Masks one n-gram of the row and returns it as a second text.

    InfoWord; Kong et al. 2020, arXiv 1910.08350, section 4.

    The first word is drawn uniformly. The length is N(mean, std^2), rounded and clipped to 1 ..
    `longest`. The n-gram ends early at a special token or a document boundary. Every token of it
    becomes [MASK], so a `TokenMasking` after it in a `Chain` chooses other tokens.

    Writes `input_ids`, `ngram_input_ids` and `ngram_segment_ids` [B, S], S = min(longest, L).
    """

    vocab: Vocab
    mean: float = 5.0
    std: float = 1.0
    longest: int = 10

    def __post_init__(self):
        if self.longest < 1:
            raise ValueError(f"longest is {self.longest}; it must be at least 1")

    def __call__(self, key: Array, batch: Batch) -> Batch:
        (mask_id,) = self.vocab.need("mask")
        ids, rows, segments = batch["input_ids"], rows_of(batch), segments_of(batch)
        length, longest = ids.shape[1], min(self.longest, ids.shape[1])
        words = maskable(batch, self.vocab)
        drawn = (
            jax.vmap(jax.random.normal)(row_keys(named(key, "length"), rows)) * self.std + self.mean
        )
        wanted = jnp.clip(jnp.round(drawn), 1, longest).astype(jnp.int32)
        count = words.sum(1)
        start = jnp.take_along_axis(
            _compact(words), up_to(draws(named(key, "start"), rows), count)[:, None], 1
        )
        slots = jnp.arange(longest)[None]
        at = jnp.minimum(start + slots, length - 1)
        same = jnp.take_along_axis(segments, at, 1) == jnp.take_along_axis(segments, start, 1)
        inside = (
            jnp.take_along_axis(words, at, 1)
            & same
            & (start + slots < length)
            & (slots < wanted[:, None])
        )
        inside = jnp.cumprod(inside, axis=1) > 0  # the run ends at the first False
        ngram = jnp.where(inside, jnp.take_along_axis(ids, at, 1), pad_of(self.vocab))
        hidden = put(ids, at, inside, mask_id)
        views = {
            "ngram_input_ids": ngram.astype(jnp.int32),
            "ngram_segment_ids": inside.astype(jnp.int32),
        }
        return {**batch, "input_ids": hidden, **views}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplacedWord(slots.Corruption):
    """Copies the row with its middle word replaced by a random one.

    Collobert et al. 2011, section 4.2.

    The middle word has index n // 2 of n words: the sixth in a window of eleven. Special tokens and
    padding are not counted. The draw may return the same word, as in the paper's sum over the
    dictionary.

    Writes `negative_input_ids` and `negative_segment_ids` [B, L].
    """

    vocab: Vocab

    def __call__(self, key: Array, batch: Batch) -> Batch:
        ids, rows = batch["input_ids"], rows_of(batch)
        words = maskable(batch, self.vocab)
        count = words.sum(1, keepdims=True)
        at = jnp.take_along_axis(_compact(words), jnp.minimum(count // 2, ids.shape[1] - 1), 1)
        new = draw_words(named(key, "words"), rows, (1,), self.vocab)
        here = (jnp.arange(ids.shape[1])[None] == at) & (count > 0)
        return {
            **batch,
            "negative_input_ids": jnp.where(here, new, ids),
            "negative_segment_ids": segments_of(batch),
        }
