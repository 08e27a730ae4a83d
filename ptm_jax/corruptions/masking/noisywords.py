"""Two self-supervised tasks for disfluency detection.

Wang et al. 2020, arXiv:1908.05378; survey 3.1.5.

Both edit a text at one to three positions. An edit repeats one to six words, inserts as many random
words, or, in the second task only, deletes as many words.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from ptm_jax.core import fields, slots
from ptm_jax.core.batch import rows_of, segments_of
from ptm_jax.core.streams import named
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import choose, draw_words, draws, maskable, up_to
from ptm_jax.corruptions.compact import layout, moved, pad_of, take, without


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Edits(slots.Corruption):
    """Edits at one to `places` words, of one to `words` words each."""

    vocab: Vocab
    places: int = 3
    words: int = 6

    def __post_init__(self):
        if self.places < 1 or self.words < 1:
            raise ValueError(f"places {self.places} and words {self.words} must be positive")


def _word_bounds(batch: Batch, vocab: Vocab) -> tuple[Array, Array]:
    """Returns (True on the first token of a word; word number from 0, -1 outside words), both [B,
    L].

    A special token or document boundary ends a word. Without `word_starts` each token is a word.
    """
    inside, segments = maskable(batch, vocab), segments_of(batch)
    follows = inside & jnp.pad(inside, ((0, 0), (1, 0)))[:, :-1]
    follows &= segments == jnp.pad(segments, ((0, 0), (1, 0)))[:, :-1]
    starts = inside & ((batch["word_starts"] > 0) | ~follows if "word_starts" in batch else True)
    return starts, jnp.where(inside, jnp.cumsum(starts, 1, dtype=jnp.int32) - 1, -1)


def _disturb(key: Array, batch: Batch, edits: _Edits, kinds: int) -> tuple[Array, Array, Array]:
    """Returns the edits at each token: (number inserted before it [B, L], their ids [B, L, words],
    deleted [B, L] bool).

    `kinds` is 2 for repetition and insertion, 3 to include deletion. Ids of -1 repeat the row's
    tokens from here on.
    """
    rows, segments = rows_of(batch), segments_of(batch)
    vocab, places, words = edits.vocab, edits.places, edits.words
    starts, number = _word_bounds(batch, vocab)
    length = starts.shape[1]
    count = 1 + up_to(draws(named(key, "count"), rows), jnp.int32(places))
    count = jnp.minimum(count, starts.sum(1))
    where, used = choose(named(key, "places"), rows, starts, count, min(places, length))
    drawn = draws(named(key, "events"), rows, 2, where.shape[1])
    kind, size = up_to(drawn[:, 0], jnp.int32(kinds)), 1 + up_to(drawn[:, 1], jnp.int32(words))
    # Tokens of the words k..k+size-1, up to the next special token or the document's end.
    first, document, place = (
        take(number, where),
        take(segments, where),
        jnp.arange(length, dtype=jnp.int32),
    )
    skipped = place - jnp.cumsum(number >= 0, 1, dtype=jnp.int32)
    within = (number[:, None, :] >= first[..., None]) & (
        number[:, None, :] < (first + size)[..., None]
    )
    within &= (segments[:, None, :] == document[..., None]) & (
        skipped[:, None, :] == take(skipped, where)[..., None]
    )
    within &= (used > 0)[..., None]
    at = (where[..., None] == place) & (used > 0)[..., None]
    tokens = jnp.where(kind == 0, within.sum(-1, dtype=jnp.int32), jnp.where(kind == 1, size, 0))
    added = (at * tokens[..., None]).sum(1, dtype=jnp.int32)
    new = draw_words(named(key, "words"), rows, (where.shape[1], words), vocab)
    again = (at & (kind == 0)[..., None]).any(1)
    fresh = jnp.einsum("bql,bqw->blw", at.astype(jnp.int32), new)
    fresh = jnp.where(again[..., None], -1, fresh)
    return added, fresh, (within & (kind == 2)[..., None]).any(1)


def _apply(
    batch: Batch, added: Array, fresh: Array, gone: Array, length: int
) -> tuple[Array, Array, Array, Array]:
    """Applies the edits. Returns (ids, source, inserted, real), all [B, length]."""
    ids = batch["input_ids"]
    keep = (segments_of(batch) > 0) & ~gone
    source, offset, real = layout(added + keep, length)
    inserted = real & (offset < take(added, source))
    word = jnp.minimum(offset, fresh.shape[2] - 1)
    new = jnp.take_along_axis(fresh.reshape(len(ids), -1), source * fresh.shape[2] + word, 1)
    again = take(ids, jnp.minimum(source + offset, ids.shape[1] - 1))
    return (
        jnp.where(inserted, jnp.where(new < 0, again, new), take(ids, source)),
        source,
        inserted,
        real,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisyWords(_Edits):
    """Task 1: adds words to a row and labels each token as added or original.

    Draws one to `places` words of a row uniformly. At each, repeats one to `words` words (from that
    word up to the next special token) or inserts as many random tokens before it, with equal
    probability. If the row is full, its last words are dropped; special tokens stay. Rows are
    sentences in the paper.

    Writes `noise_labels` [B, L] int32, 1 on added tokens, and `noise_weights` [B, L] float32, 1 on
    words. The first copy of repeated words counts as added, like an annotated reparandum.
    Deviation: random words are uniform over the vocabulary; the paper takes n-grams of its corpus,
    which a corruption cannot see.
    """

    def __call__(self, key: Array, batch: Batch) -> Batch:
        length = batch["input_ids"].shape[1]
        added, fresh, gone = _disturb(key, batch, self, 2)
        words = maskable(batch, self.vocab)
        added = jnp.where(words, added, 0)
        # Drop the last words of a full row, with their insertions.
        widths = jnp.where(words, added + 1, 0)
        room = length - ((segments_of(batch) > 0) & ~words).sum(1, keepdims=True)
        gone = words & (jnp.cumsum(widths, 1) > room)
        added = jnp.where(gone, 0, added)
        ids, source, inserted, real = _apply(batch, added, fresh, gone, length)
        out = moved(batch, ids, source, real, self.vocab)
        return {
            **out,
            "noise_labels": inserted.astype(jnp.int32),
            "noise_weights": (real & (inserted | take(words, source))).astype(jnp.float32),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisyPairs(_Edits):
    """Task 2: builds [CLS] a [SEP] b [SEP] from a text and an edited copy.

    The model predicts which one is the original.

    The text is the words of the first document, cut so that both copies fit with room for
    min(`places` * `words`, a third of the row) additional tokens. The edited copy is cut to the
    text's limit plus that room. At one to `places` words, one to `words` words are repeated,
    inserted or deleted, with equal probability. A deletion may cover a later edit.

    Writes `pair_label` [B] int32: 0 if a is the original, 1 if b is; and `token_type_ids`: 0 on
    [CLS] a [SEP], 1 on b [SEP]. A row of padding stays padding.
    """

    def __call__(self, key: Array, batch: Batch) -> Batch:
        cls, sep = self.vocab.need("cls", "sep")
        rows, length = rows_of(batch), batch["input_ids"].shape[1]
        spare = min(self.places * self.words, (length - 3) // 3)
        room = (length - 3 - spare) // 2
        if room < 2:
            raise ValueError(f"rows have {length} tokens; a pair needs at least 9")
        first = maskable(batch, self.vocab) & (segments_of(batch) == 1)
        source, _, real = layout(first, room)
        text = moved(
            {"input_ids": batch["input_ids"]},
            take(batch["input_ids"], source),
            source,
            real,
            self.vocab,
        )
        text |= {"rows": rows, "segment_ids": real.astype(jnp.int32)}
        if "word_starts" in batch:
            text["word_starts"] = jnp.where(real, take(batch["word_starts"], source), 0)
        added, fresh, gone = _disturb(key, text, self, 3)
        # Keep the first word if the edits would delete the whole text.
        gone &= ~(
            (gone == real).all(1, keepdims=True)
            & (jnp.arange(room) == 0)
            & (added.sum(1, keepdims=True) == 0)
        )
        noisy, _, _, noisy_real = _apply(text, jnp.where(real, added, 0), fresh, gone, room + spare)
        label = (draws(named(key, "side"), rows) < 0.5).astype(jnp.int32)
        swap = (label == 1)[:, None]
        sizes = [real.sum(1, keepdims=True), noisy_real.sum(1, keepdims=True)]
        size_a, size_b = jnp.where(swap, sizes[1], sizes[0]), jnp.where(swap, sizes[0], sizes[1])
        plain = jnp.pad(text["input_ids"], ((0, 0), (0, spare)))
        a, b = jnp.where(swap, noisy, plain), jnp.where(swap, plain, noisy)
        place = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (len(rows), length))
        from_a = take(a, jnp.clip(place - 1, 0, room + spare - 1))
        from_b = take(b, jnp.clip(place - 2 - size_a, 0, room + spare - 1))
        ids = jnp.where(place <= size_a, from_a, from_b)
        ids = jnp.where(place == 0, cls, ids)
        ids = jnp.where((place == size_a + 1) | (place == size_a + size_b + 2), sep, ids)
        present = (place < size_a + size_b + 3) & real.any(1, keepdims=True)
        return {
            **without(batch, fields.moving(batch)),
            "input_ids": jnp.where(present, ids, pad_of(self.vocab)).astype(jnp.int32),
            "segment_ids": present.astype(jnp.int32),
            "positions": jnp.where(present, place, 0),
            "token_type_ids": (present & (place > size_a + 1)).astype(jnp.int32),
            "pair_label": label,
        }
