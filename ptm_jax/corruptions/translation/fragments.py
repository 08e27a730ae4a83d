"""MASS as microsoft/MASS reads sentences, for several languages (Song et al. 2019, sections 3.2 and
4.2). Rows hold one sentence each, between its </s>."""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple

import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import rows_of, segments_of
from ptm_jax.core.streams import named
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import (
    capacity,
    check_shares,
    draw_words,
    draws,
    table,
    up_to,
)
from ptm_jax.corruptions.compact import decoder, in_document, layout, moved, take

LANGUAGES = "language_ids"


class FragmentDraws(NamedTuple):
    """What a fragment is drawn from.

    place            [B] in [0, 1): from 1 - ends on it is at the start, below it to 1 - 2 ends at
                     the end
    order            [B, L] in [0, 1): the order of pieces and other tokens; of `SentenceFragment`
                     the first column places the fragment
    fate, words      [B, L]: what becomes of a hidden token, and the random id
    seen, others     [B, L]: the same for a token of the decoder's input
    """

    place: Array
    order: Array
    fate: Array
    words: Array
    seen: Array
    others: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Fragments(slots.Corruption):
    """Base of corruptions that hide parts of a row's text, and let a decoder predict them.

    rate          share of the tokens, both </s> included, that is predicted
    mask, random  shares of hidden tokens that become [MASK], or a random one
    ends          the probability of a fragment at the start, and of one at the end
    """

    vocab: Vocab
    rate: float = 0.5
    mask: float = 0.8
    random: float = 0.1
    ends: float = 0.2

    def __post_init__(self):
        check_shares(self.rate, self.mask, self.random)
        if not 0 <= self.ends <= 0.5:
            raise ValueError(
                f"ends is {self.ends}; both ends have this share, so it must be in [0, 0.5]"
            )

    def __call__(self, key: Array, batch: Batch) -> Batch:
        rows, length = rows_of(batch), batch["input_ids"].shape[1]

        def drawn(name: str, *shape: int) -> Array:
            return draws(named(key, name), rows, *shape)

        words = (self.words(named(key, name), rows, length) for name in ("words", "others"))
        numbers = drawn("place"), drawn("order", length), drawn("fate", length)
        return self.apply(
            FragmentDraws(*numbers, next(words), drawn("seen", length), *words), batch
        )

    def words(self, key: Array, rows: Array, length: int) -> Array:
        """Returns random ids [B, L]."""
        return draw_words(key, rows, (length,), self.vocab)

    def apply(self, drawn: FragmentDraws, batch: Batch) -> Batch:
        """Returns the batch with the fragments of these draws."""
        raise NotImplementedError

    def hidden(self, ids: Array, fate: Array, words: Array) -> Array:
        """Returns what hidden tokens become, [B, L]: [MASK], a random token or themselves."""
        (mask,) = self.vocab.need("mask")
        return jnp.where(
            fate < self.mask, mask, jnp.where(fate < self.mask + self.random, words, ids)
        )

    def target(self, batch: Batch, predicted: Array, inputs: Array) -> dict[str, Array]:
        """Returns the decoder's fields for the tokens `predicted` [B, L]. Each is predicted from
        the one of `inputs` [B, L] before it, at that one's position."""
        place, _, real = layout(predicted, capacity(predicted.shape[1], self.rate))
        before = jnp.maximum(place - 1, 0)
        positions = batch["positions"] if "positions" in batch else in_document(segments_of(batch))
        documents = jnp.where(real, 1, 0).astype(jnp.int32)
        ids, seen = batch["input_ids"], jnp.where(real, take(positions, before), 0)
        out = decoder(take(ids, place), documents, 0, self.vocab, seen)
        shown = jnp.where(real, take(inputs, before), out["decoder_input_ids"])
        out["decoder_input_ids"] = shown.astype(jnp.int32)
        if LANGUAGES in batch:
            out[f"decoder_{LANGUAGES}"] = take(batch[LANGUAGES], place) * real
        return out


@dataclasses.dataclass(frozen=True, kw_only=True)
class PiecedFragment(_Fragments):
    """Unsupervised MASS as released: microsoft/MASS, MASS-unsupNMT, `restricted_mask_sent`.

    Of a sentence of n tokens with both </s>, round(rate n) are predicted, halves to the even number
    (Python's rounding); the first </s> never, the last one maybe. They are one fragment, or pieces
    of `span` tokens and one of the others, in random places. With the probability `ends` a piece is
    the start of the sentence, with the same probability one is its end. Random tokens are of the
    whole vocabulary, specials included. `source_segments` [B, L] are 0 on [MASK], which the decoder
    does not read (`encoders.transformer.hiding`).

    Deviation: the number is that of each sentence; the code takes the longest one of a batch of
    nearly equal lengths. `corruptions.masking.spans.MASSSpan` is the paper's form.
    """

    span: int | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.span is not None and self.span < 1:
            raise ValueError(f"span is {self.span}; it must be at least 1, or None for one piece")

    def words(self, key: Array, rows: Array, length: int) -> Array:
        return draw_words(key, rows, (length,), Vocab(size=self.vocab.size))

    def apply(self, drawn: FragmentDraws, batch: Batch) -> Batch:
        (mask,) = self.vocab.need("mask")
        ids, segments = batch["input_ids"], segments_of(batch)
        inside = self._inside(drawn, (segments > 0).sum(1), ids.shape[1])
        seen = jnp.where(inside, self.hidden(ids, drawn.fate, drawn.words), ids)
        return {
            **batch,
            "input_ids": seen.astype(jnp.int32),
            "source_segments": jnp.where(seen == mask, 0, segments),
            **self.target(batch, inside, ids),
        }

    def _inside(self, drawn: FragmentDraws, count: Array, length: int) -> Array:
        """Returns True on the tokens to predict, [B, L], of rows of `count` [B] tokens."""
        size = table(lambda n: round(self.rate * n), length)[count][:, None]
        span = length if self.span is None else self.span
        pieces = -(-size // span)
        items = pieces + jnp.maximum(count[:, None] - size - 1, 0)
        item = jnp.arange(length)
        first = (item == 0) & (drawn.place >= 1 - self.ends)[:, None]
        last = (item == pieces - 1) & (drawn.place < 1 - self.ends)[:, None]
        last &= (drawn.place >= 1 - 2 * self.ends)[:, None]
        rank = jnp.where(first, -1.0, jnp.where(last, 2.0, drawn.order))
        order = jnp.argsort(jnp.where(item < items, rank, 3.0), axis=1)
        width = jnp.where(item == pieces - 1, size - span * (pieces - 1), span)
        is_piece = item < pieces
        width = jnp.where(is_piece, width, jnp.where(item < items, 1, 0))
        source, _, real = layout(take(width, order), length - 1)
        return jnp.pad(take(take(is_piece, order), source) & real, ((0, 0), (1, 0)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceFragment(_Fragments):
    """Supervised MASS on text of one language: microsoft/MASS, MASS-supNMT,
    `MaskedLanguagePairDataset`.

    Of a sentence of n tokens with both </s>, a fragment of max(1, round(rate n)) is predicted; the
    encoder does not read the first </s>.

    form   "published" (the default): the encoder's tokens that are predicted are hidden, and the
           decoder reads the true ones before them (Song et al. 2019, section 3.2)
           "released": the list is shifted by one place before it is masked, so that the fragment is
           hidden one place later, and one token more, and the first predicted one stands in the
           encoder's row; of the decoder's inputs `decoder_mask` become [MASK] and `decoder_random`
           a random token; the decoder counts its positions from 0
    """

    form: Literal["published", "released"] = "published"
    decoder_mask: float = 0.1
    decoder_random: float = 0.1

    def __post_init__(self):
        super().__post_init__()
        check_shares(self.rate, self.decoder_mask, self.decoder_random)
        if self.form not in ("published", "released"):
            raise ValueError(f"form is {self.form!r}; expected published or released")

    def apply(self, drawn: FragmentDraws, batch: Batch) -> Batch:
        ids, segments = batch["input_ids"], segments_of(batch)
        count, here = (segments > 0).sum(1)[:, None], jnp.arange(ids.shape[1])
        sizes = table(lambda n: max(1, round(self.rate * n)), ids.shape[1])
        size = jnp.where(count > 1, sizes[count], 0)
        start = self._start(drawn, count - size)
        predicted = (here >= start) & (here < start + size) & (here < count)
        released = self.form == "released"
        inside = (here > start) & (here <= start + size + 1) if released else predicted
        inside &= (segments > 0) & (size > 0)
        seen = jnp.where(inside, self.hidden(ids, drawn.fate, drawn.words), ids)
        source, _, real = layout((segments > 0) & (here > 0), ids.shape[1])
        target = self.target(batch, predicted, self._inputs(drawn, ids) if released else ids)
        if released:
            target["decoder_positions"] = in_document(target["decoder_segment_ids"])
        return {**moved(batch, take(seen, source), source, real, self.vocab), **target}

    def _start(self, drawn: FragmentDraws, end: Array) -> Array:
        """Returns the first place of the fragment [B, 1]: 1, `end`, or one before `end`."""
        place = drawn.place[:, None]
        inner = 1 + up_to(drawn.order[:, :1], end - 1)
        last = jnp.where(place >= 1 - 2 * self.ends, end, inner)
        return jnp.where(place >= 1 - self.ends, 1, last)

    def _inputs(self, drawn: FragmentDraws, ids: Array) -> Array:
        """Returns the tokens that the decoder reads, as released."""
        form = dataclasses.replace(self, mask=self.decoder_mask, random=self.decoder_random)
        return form.hidden(ids, drawn.seen, drawn.others)
