"""Pairs of sentences that are translations, with aligned words: the rows of BiSkip.
Luong et al. 2015."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.fields import Field
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.rows import packing
from ptm_jax.data.rows.examples import COMMON, Fields, Spec
from ptm_jax.data.rows.windows import kept
from ptm_jax.knowledge.languages import WordLanguages
from ptm_jax.statistics.counts import Counts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Translations(slots.Examples):
    """Sentences in order, each a segment, as many as fit in a row.
    The two of a pair stand in one row.

    aligned       [R, L, 2] int32: places in the row of aligned words, the first language's first;
                  -1 after the last. Given alignments, else word i of m is aligned with word i * n
                  // m of n (bivec's rule)
    translation   [R, L] int32: the segment of the sentence's translation, 0 where there is none
    sample        as in `data.rows.windows.Chunks`; None: all words stay
    counts, languages   of the corpus

    A pair that is longer than a row, and sentences of other documents, are text of one language
    without alignment; these are cut. Deviation from bivec: aligned words predict neighbours among
    the words that sampling keeps.
    """

    sample: float | None = 1e-4
    counts: Counts = Counts()
    languages: WordLanguages = WordLanguages()

    begin = end = None

    def __post_init__(self):
        if self.sample is not None and not 0 < self.sample <= 1:
            raise UserError(
                f"examples.sample is {self.sample}; expected a frequency in (0, 1], or None "
                "for all words"
            )

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields.
        Raises UserError where the vocabulary has no padding or rows are too short."""
        packing.special(vocab, "pad")
        packing.room(length, 1)
        return packing.fields(length, *COMMON) | {
            "aligned": Field((length, 2)),
            "translation": Field((length,)),
        }

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns the fields [R, ...] in the order of the text."""
        kinds = self.languages.values[block.tokens]
        known = (block.tokens != (-1 if vocab.unk is None else vocab.unk)) & (kinds >= 0)
        stay = known
        if self.sample is not None:
            stay = known & (
                rng.random(len(kinds), np.float32) < self._rates(vocab.unk)[block.tokens]
            )
        pieces = []
        for first, last in itertools.pairwise(block.document_starts):
            spans = [
                np.arange(a, b)
                for a, b in itertools.pairwise(block.sentence_starts[first : last + 1])
            ]
            pieces += _pieces(spans, kinds, known, stay, length)
        return _packed(pieces, block.tokens, length, vocab.pad)

    @functools.lru_cache(maxsize=2)  # noqa: B019  a value has few readers
    def _rates(self, unk: int | None) -> np.ndarray:
        """Returns the probability of every word to stay, [V] float32."""
        return kept(self.counts.values, self.sample, unk)


def _pieces(
    spans: list[np.ndarray], kinds, known, stay, length: int
) -> list[tuple[list[np.ndarray], np.ndarray]]:
    """Returns ([places of the words of a sentence, or of two], aligned places [n, 2]) of a
    document's sentences."""
    texts = [span for span in spans if len(span) and (kinds[span] >= 0).any()]
    sentences = [span[known[span]] for span in texts]
    words = [span[stay[span]] for span in texts]
    languages = [kinds[span].max() for span in texts]
    pair = len(texts) == 2 and {*languages} == {1, 2} and all(map(len, words))
    if not pair or sum(map(len, words)) > length:
        return [
            ([text[i : i + length]], np.zeros((0, 2), int))
            for text in words
            for i in range(0, len(text), length)
        ]
    links_given = np.concatenate(
        [span for span in spans if len(span) and (kinds[span] < 0).any()] or [np.zeros(0, int)]
    )
    if len(links_given) and len(links_given) % 2 == 0:
        i, j = (-1 - kinds[links_given]).reshape(-1, 2).T
        real = (i >= 0) & (j >= 0) & (i < len(texts[0])) & (j < len(texts[1]))
        links = np.stack([texts[0][i[real]], texts[1][j[real]]], 1)
    else:
        order = np.arange(len(sentences[0]))
        links = np.stack([sentences[0], sentences[1][order * len(sentences[1]) // len(order)]], 1)
    links = links[stay[links].all(1)][:length]
    return [(words, links if languages[0] == 1 else links[:, ::-1])]


def _packed(pieces: list, tokens: np.ndarray, length: int, pad: int) -> Fields:
    """Returns the rows of pieces in order."""
    starts, used = [], length + 1
    for sentences, _ in pieces:
        size = sum(map(len, sentences))
        starts.append(
            (len(starts) and starts[-1][0], used)
            if used + size <= length
            else ((starts[-1][0] + 1 if starts else 0), 0)
        )
        used = starts[-1][1] + size
    count = starts[-1][0] + 1 if starts else 0
    out = packing.empty(count, length, pad, "segment_ids", "positions", "translation")
    out["aligned"] = np.full((count, length, 2), -1, np.int32)
    filled = np.zeros(count, int)
    for (row, column), (sentences, links) in zip(starts, pieces, strict=True):
        number = 0 if not column else out["segment_ids"][row, column - 1]
        at = column
        for n, words in enumerate(sentences, 1):
            cells = (row, slice(at, at + len(words)))
            out["input_ids"][cells], out["segment_ids"][cells] = tokens[words], number + n
            out["positions"][cells] = np.arange(len(words))
            out["translation"][cells] = number + 3 - n if len(sentences) == 2 else 0
            at += len(words)
        if len(links):
            order = np.concatenate(sentences)
            places = column + np.searchsorted(order, links)
            room = places[: length - filled[row]]
            out["aligned"][row, filled[row] : filled[row] + len(room)] = room
            filled[row] += len(room)
    return out
