"""PEGASUS' gap sentence generation (Zhang et al. 2020, section 3.1; survey 3.1.3)."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal, get_args

import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import rows_of, segments_of
from ptm_jax.core.streams import named
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import draws, maskable, table
from ptm_jax.corruptions.compact import decoder, layout, moved, take
from ptm_jax.corruptions.masking.noise import sentences_of
from ptm_jax.corruptions.masking.token import TokenMasking

Selection = Literal["ind_orig", "ind_uniq", "seq_orig", "seq_uniq", "random", "lead"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GapSentences(slots.Corruption):
    """Replaces some sentences of a row by one mask each.

    The decoder generates them in order, then eos.

    Hides round(rate * n) of n sentences, at least one and never all. A row of one sentence has no
    predictions.

    select      the sentences to hide. "ind": highest ROUGE-1 F against the rest of the row, each
                scored separately; "seq": the same, added greedily (algorithm 1); "_orig" counts
                every occurrence of a word, "_uniq" each word once; "random": uniform; "lead": the
                first ones. The earlier sentence wins a tie
    mask_rate   above 0, also masks words of the input and adds `mlm_` fields (the paper's ablation,
                not in its final model)
    width       number of decoder tokens T; None: L / 2, as the published 256 of 512. Longer targets
                are cut
    limit       only the first `limit` sentences of a row may be hidden
    gap         id of the sentence mask; None: the vocabulary's mask (the published vocabularies
                have [MASK1])

    Reads `sentences`. Sentences are compared over the whole row, so a row should hold one document.
    The decoder starts with pad. Deviation: ROUGE compares token ids, not stemmed words.
    """

    start: ClassVar[str] = "pad"

    vocab: Vocab
    rate: float = 0.3
    select: Selection = "ind_orig"
    mask_rate: float = 0.0
    width: int | None = None
    limit: int = 64
    gap: int | None = None

    def __post_init__(self):
        if not 0 < self.rate < 1 or not 0 <= self.mask_rate < 1:
            raise ValueError(
                f"rate {self.rate} must be in (0, 1), mask_rate {self.mask_rate} in [0, 1)"
            )
        if self.select not in get_args(Selection):
            raise ValueError(
                f"select is {self.select!r}; it must be one of {', '.join(get_args(Selection))}"
            )
        if self.gap is not None and self.gap not in self.vocab.specials:
            raise ValueError(
                f"gap is id {self.gap}, a word of this vocabulary; list it in `Vocab.extra`"
            )
        if self.limit < 2 or (self.width is not None and self.width < 1):
            raise ValueError(
                f"limit {self.limit} must be at least 2, width {self.width} at least 1"
            )

    def __call__(self, key: Array, batch: Batch) -> Batch:
        pad, eos = self.vocab.need("pad", "eos")
        gap = self.vocab.need("mask")[0] if self.gap is None else self.gap
        ids, segments = batch["input_ids"], segments_of(batch)
        length = ids.shape[1]
        words = maskable(batch, self.vocab) & (sentences_of(batch) > 0)
        sentence = jnp.where(words, sentences_of(batch), 0)
        chosen = self.chosen(key, batch, sentence)
        hidden = (
            words
            & take(chosen, jnp.minimum(sentence, chosen.shape[1] - 1))
            & (sentence < chosen.shape[1])
        )
        before = jnp.pad(jnp.where(hidden, sentence, 0), ((0, 0), (1, 0)))[:, :-1]
        begins = hidden & (sentence != before)
        source, _, real = layout((segments > 0) & ~hidden | begins, length)
        inputs = jnp.where(take(begins, source), gap, take(ids, source))
        out = moved(batch, inputs, source, real, self.vocab)
        # The last hidden token gets a second position, for eos.
        last = hidden & (jnp.cumsum(hidden, 1) == hidden.sum(1, keepdims=True))
        source, offset, real = layout(
            hidden + last.astype(jnp.int32), self.width or -(-length // 2)
        )
        labels = jnp.where(offset > 0, eos, take(ids, source))
        out |= decoder(labels, jnp.where(real, take(segments, source), 0), pad, self.vocab)
        if self.mask_rate:
            return TokenMasking(vocab=self.vocab, rate=self.mask_rate)(named(key, "mlm"), out)
        return out

    def chosen(self, key: Array, batch: Batch, sentence: Array) -> Array:
        """Returns True for the numbers of hidden sentences, [B, S+1].

        `sentence` [B, L] is 0 where there is no word.
        """
        size = min(self.limit, sentence.shape[1])
        number = jnp.arange(size + 1, dtype=jnp.int32)
        present = (sentence[..., None] == number).any(1) & (number > 0)
        wanted = table(
            lambda n: min(max(1, math.floor(n * self.rate + 0.5)), n - 1) if n else 0, size
        )[present.sum(1)]
        if self.select in ("random", "lead"):
            drawn = draws(named(key, "sentences"), rows_of(batch), size + 1)
            return _best(
                drawn if self.select == "random" else -number + 0.0 * drawn, present, wanted
            )
        counts, total = _counts(batch["input_ids"], sentence, number)
        unique = self.select.endswith("uniq")
        if self.select.startswith("ind"):
            return _best(_rouge(counts, total[:, None] - counts, unique), present, wanted)
        steps = max(1, min(math.floor(size * self.rate + 0.5), size - 1))
        return _greedy(counts, total, present, wanted, steps, unique=unique)


def _counts(ids: Array, sentence: Array, number: Array) -> tuple[Array, Array]:
    """Counts words per sentence [B, S+1, L] and per row [B, L]. Column l is the word that first
    occurs at position l. Counts are exact in float32."""
    words = sentence > 0
    same = (ids[:, :, None] == ids[:, None, :]) & words[:, :, None] & words[:, None, :]
    first = same.argmax(2)
    kinds = (first[..., None] == jnp.arange(ids.shape[1])) & words[..., None]
    members = (sentence[..., None] == number) & words[..., None]
    counts = jnp.einsum("bls,blv->bsv", members.astype(jnp.float32), kinds.astype(jnp.float32))
    return counts, kinds.sum(1, dtype=jnp.float32)


def _rouge(summary: Array, remainder: Array, unique: bool) -> Array:
    """Returns ROUGE-1 F [...] of two word counts [..., V]: twice the overlap, divided by the sum of
    the sizes."""
    if unique:
        summary, remainder = jnp.minimum(summary, 1), jnp.minimum(remainder, 1)
    overlap = jnp.minimum(summary, remainder).sum(-1)
    return 2 * overlap / jnp.maximum(summary.sum(-1) + remainder.sum(-1), 1)


def _best(scores: Array, present: Array, wanted: Array) -> Array:
    """Returns True for the `wanted` [B] highest scores among the sentences `there`, [B, S+1]. Ties
    go to the first."""
    order = jnp.argsort(jnp.where(present, -scores, jnp.inf), axis=1, stable=True)
    rank = jnp.argsort(order, axis=1)
    return (rank < wanted[:, None]) & present


def _greedy(
    counts: Array, total: Array, present: Array, wanted: Array, steps: int, *, unique: bool
) -> Array:
    """Returns True for greedily chosen sentences, [B, S+1]. Each step adds the sentence that gives
    the highest ROUGE."""
    number = jnp.arange(present.shape[1])

    def add(step, chosen):
        so_far = (counts * chosen[..., None]).sum(1, keepdims=True) + counts
        scores = jnp.where(present & ~chosen, _rouge(so_far, total[:, None] - so_far, unique), -1.0)
        new = (number == scores.argmax(1)[:, None]) & (step < wanted)[:, None]
        return chosen | new

    return jax.lax.fori_loop(0, steps, add, jnp.zeros_like(present))
