"""Chunks of a stream of words with their neighbours: the rows of word2vec.
Mikolov et al. 2013a and b."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.fields import Field, move_with_tokens
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.rows import packing
from ptm_jax.data.rows.examples import COMMON, Fields, Spec
from ptm_jax.statistics.counts import Counts

move_with_tokens("centres")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chunks(slots.Examples):
    """The words of a block in order, each of them a centre once.

    `centres` [R, L] int32 have `window` words on both sides. Adjacent rows therefore share 2 *
    `window` words. Segments are sentences.

    sample      frequent words are left out at random, before windows are formed: a word of relative
                frequency f is kept with the probability min(1, (sqrt(f / sample) + 1) * sample /
                f). This is the rule of word2vec.c and gensim; Mikolov et al. 2013b, Eq. 5 prints
                sqrt(sample / f). None: all words stay
    counts      the frequencies

    Unknown words are left out, as in word2vec.c. Every epoch draws anew, from the generator of the
    group of blocks.
    """

    window: int = 5
    sample: float | None = 1e-3
    counts: Counts = Counts()

    begin = end = None

    def __post_init__(self):
        if self.window < 1:
            raise UserError(f"examples.window is {self.window}; expected at least 1 word")
        if self.sample is not None and not 0 < self.sample <= 1:
            raise UserError(
                f"examples.sample is {self.sample}; expected a frequency in (0, 1], or None "
                "for all words"
            )

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields.
        Raises UserError where the vocabulary has no padding or rows are too short."""
        packing.special(vocab, "pad")
        packing.room(length, 2 * self.window)
        return packing.fields(length, *COMMON) | {"centres": Field((length,))}

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns fields [R, L] in the order of the text."""
        return self._cut(
            block.tokens,
            np.repeat(np.arange(len(block.sentences)), block.sentences),
            length,
            vocab,
            rng,
        )[0]

    def _cut(
        self, words: np.ndarray, sentence: np.ndarray, length: int, vocab, rng
    ) -> tuple[Fields, np.ndarray]:
        """Returns the fields, and the sentence of every place [R, L], from the words and their
        sentences [T]."""
        stay = words != (-1 if vocab.unk is None else vocab.unk)
        if self.sample is not None:
            stay &= rng.random(len(words), np.float32) < self._rates(vocab.unk)[words]
        words, sentence = words[stay], sentence[stay]
        step = length - 2 * self.window
        count = (len(words) > 0) + max(0, -(-(len(words) - length) // step))
        place = np.arange(count)[:, None] * step + np.arange(length)
        real, at = place < len(words), np.minimum(place, max(0, len(words) - 1))
        numbers = sentence[at].astype(np.int32)
        starts = np.diff(numbers, axis=1, prepend=-1) != 0
        first = np.maximum.accumulate(np.where(starts, np.arange(length), 0), axis=1)
        centres = real.copy()
        centres[1:, : self.window] = False
        centres[:-1, length - self.window :] = False
        fields = {
            "input_ids": np.where(real, words[at], vocab.pad),
            "segment_ids": np.where(real, np.cumsum(starts, axis=1), 0),
            "positions": np.where(real, np.arange(length) - first, 0),
            "centres": centres,
        }
        return {name: value.astype(np.int32) for name, value in fields.items()}, numbers

    @functools.lru_cache(maxsize=2)  # noqa: B019  a value has few readers
    def _rates(self, unk: int | None) -> np.ndarray:
        """Returns the probability of every word to stay, [V] float32."""
        return kept(self.counts.values, self.sample, unk)


def kept(counts: np.ndarray, sample: float, unk: int | None = None) -> np.ndarray:
    """Returns min(1, (sqrt(f / sample) + 1) * sample / f) of every word, [V] float32.

    f is relative to known words.
    """
    counts = np.array(counts, np.float64)
    if unk is not None:
        counts[unk] = 0
    ratio = np.maximum(counts, 1e-9) / max(counts.sum(), 1) / sample
    return np.minimum(1, (np.sqrt(ratio) + 1) / ratio).astype(np.float32)
