"""PEGASUS' gap sentences (Zhang et al. 2020, section 3.1; survey 3.1.3): whole sentences are hidden and generated."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import jax
import jax.numpy as jnp

from ptm_jax.core.streams import named
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import maskable, rows_of, segments_of
from ptm_jax.corruptions.compact import decoder, layout, moved, table, take, uniforms
from ptm_jax.corruptions.noise import sentences_of
from ptm_jax.corruptions.token import TokenMasking

Selection = Literal["ind_orig", "ind_uniq", "seq_orig", "seq_uniq", "random", "lead"]
SELECTIONS = ("ind_orig", "ind_uniq", "seq_orig", "seq_uniq", "random", "lead")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GapSentences:
    """A share of a row's sentences is replaced by one mask each; the decoder generates them, in order, then eos.

    round(rate * n) of n sentences, at least one and never all (a row of one sentence predicts nothing). `select`: those
    whose ROUGE-1 F against the rest of the row is highest, scored each by itself (`ind`) or added one by one to what was
    chosen before (`seq`, algorithm 1); words counted as often as they occur (`orig`) or once (`uniq`); or at `random`, or
    the first ones (`lead`). The earlier sentence wins a tie. `mask_rate` above 0 masks words of the input as well and adds
    `mlm_` fields, the paper's ablation (left out of the final model).

    Rows hold one document: sentences are compared over the row. Reads `sentences`, of which the first `most` may be
    chosen. T = `width`, or half of L, as the published 256 of 512; what does not fit is cut. The decoder starts with pad.
    Deviation: ROUGE is over token ids, not over stemmed words. `gap` is the mask's id where it is not the vocabulary's
    (the published vocabularies have [MASK1] for sentences).
    """

    vocab: Vocab
    rate: float = 0.3
    select: Selection = "ind_orig"
    mask_rate: float = 0.0
    width: int | None = None
    most: int = 64
    gap: int | None = None

    def __post_init__(self):
        if not 0 < self.rate < 1 or not 0 <= self.mask_rate < 1:
            raise ValueError(f"rate {self.rate} must be in (0, 1), mask_rate {self.mask_rate} in [0, 1)")
        if self.select not in SELECTIONS:
            raise ValueError(f"select is {self.select!r}; it must be one of {', '.join(SELECTIONS)}")
        if self.gap is not None and self.gap not in self.vocab.specials:
            raise ValueError(f"gap is id {self.gap}, a word of this vocabulary; list it in `Vocab.extra`")
        if self.most < 2 or (self.width is not None and self.width < 1):
            raise ValueError(f"most {self.most} must be at least 2, width {self.width} at least 1")

    def __call__(self, key: Array, batch: Batch) -> Batch:
        pad, eos = self.vocab.need("pad", "eos")
        gap = self.vocab.need("mask")[0] if self.gap is None else self.gap
        ids, segments = batch["input_ids"], segments_of(batch)
        length = ids.shape[1]
        words = maskable(batch, self.vocab) & (sentences_of(batch) > 0)
        sentence = jnp.where(words, sentences_of(batch), 0)
        chosen = self.chosen(key, batch, sentence)
        hidden = words & take(chosen, jnp.minimum(sentence, chosen.shape[1] - 1)) & (sentence < chosen.shape[1])
        before = jnp.pad(jnp.where(hidden, sentence, 0), ((0, 0), (1, 0)))[:, :-1]
        begins = hidden & (sentence != before)
        source, _, real = layout((segments > 0) & ~hidden | begins, length)
        inputs = jnp.where(take(begins, source), gap, take(ids, source))
        out = moved(batch, inputs, source, real, self.vocab)
        # The eos takes a second place behind the last hidden token.
        last = hidden & (jnp.cumsum(hidden, 1) == hidden.sum(1, keepdims=True))
        source, offset, real = layout(hidden + last.astype(jnp.int32), self.width or -(-length // 2))
        labels = jnp.where(offset > 0, eos, take(ids, source))
        out |= decoder(labels, jnp.where(real, take(segments, source), 0), pad, self.vocab)
        if self.mask_rate:
            return TokenMasking(vocab=self.vocab, rate=self.mask_rate)(named(key, "mlm"), out)
        return out

    def chosen(self, key: Array, batch: Batch, sentence: Array) -> Array:
        """[B, S+1] True for the numbers of the sentences that are hidden; `sentence` [B, L] is 0 on all but words."""
        size = min(self.most, sentence.shape[1])
        number = jnp.arange(size + 1, dtype=jnp.int32)
        there = (sentence[..., None] == number).any(1) & (number > 0)
        wanted = table(lambda n: min(max(1, math.floor(n * self.rate + 0.5)), n - 1) if n else 0, size)[there.sum(1)]
        if self.select in ("random", "lead"):
            draws = uniforms(named(key, "sentences"), rows_of(batch), (size + 1,))
            return _best(draws if self.select == "random" else -number + 0.0 * draws, there, wanted)
        counts, rest = _counts(batch["input_ids"], sentence, number)
        unique = self.select.endswith("uniq")
        if self.select.startswith("ind"):
            return _best(_rouge(counts, rest[:, None] - counts, unique), there, wanted)
        steps = max(1, min(math.floor(size * self.rate + 0.5), size - 1))
        return _greedy(counts, rest, there, wanted, steps, unique)


def _counts(ids: Array, sentence: Array, number: Array) -> tuple[Array, Array]:
    """(occurrences [B, S+1, L] of each word in each sentence, in the row [B, L]); column l is the word that first
    occurs at place l. Exact in float32."""
    words = sentence > 0
    same = (ids[:, :, None] == ids[:, None, :]) & words[:, :, None] & words[:, None, :]
    first = same.argmax(2)
    kinds = (first[..., None] == jnp.arange(ids.shape[1])) & words[..., None]
    members = (sentence[..., None] == number) & words[..., None]
    counts = jnp.einsum("bls,blv->bsv", members.astype(jnp.float32), kinds.astype(jnp.float32))
    return counts, kinds.sum(1, dtype=jnp.float32)


def _rouge(summary: Array, rest: Array, unique: bool) -> Array:
    """ROUGE-1 F [...] of word counts [..., V] against others: twice the overlap over the sum of the sizes."""
    if unique:
        summary, rest = jnp.minimum(summary, 1), jnp.minimum(rest, 1)
    overlap = jnp.minimum(summary, rest).sum(-1)
    return 2 * overlap / jnp.maximum(summary.sum(-1) + rest.sum(-1), 1)


def _best(scores: Array, there: Array, wanted: Array) -> Array:
    """[B, S+1] True on the `wanted` [B] best of those that are there; the first of equals."""
    order = jnp.argsort(jnp.where(there, -scores, jnp.inf), axis=1, stable=True)
    rank = jnp.argsort(order, axis=1)
    return (rank < wanted[:, None]) & there


def _greedy(counts: Array, rest: Array, there: Array, wanted: Array, steps: int, unique: bool) -> Array:
    """[B, S+1] True on sentences added one by one, each time the one that makes all chosen ones most like the rest."""
    number = jnp.arange(there.shape[1])

    def add(step, chosen):
        so_far = (counts * chosen[..., None]).sum(1, keepdims=True) + counts
        scores = jnp.where(there & ~chosen, _rouge(so_far, rest[:, None] - so_far, unique), -1.0)
        new = (number == scores.argmax(1)[:, None]) & (step < wanted)[:, None]
        return chosen | new

    return jax.lax.fori_loop(0, steps, add, jnp.zeros_like(there))
