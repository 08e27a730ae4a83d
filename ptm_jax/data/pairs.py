"""Pairs of sentences whose label is their order: ALBERT's, StructBERT's; and XLNet's layout of BERT's pairs."""

from __future__ import annotations

import dataclasses

from ptm_jax.data.examples import PairRows, Range, SentencePairs, Text


@dataclasses.dataclass(frozen=True, kw_only=True)
class OrderedPairs(PairRows):
    """ALBERT's pairs for sentence-order prediction (Lan et al. 2020, section 3.1): [CLS] A [SEP] B [SEP].

    A and B are the two parts of a chunk, half of them swapped: `next_label` is 0 where they are in order, 1 where not.
    A chunk of one sentence is divided inside it, at a random token: the paper's "two consecutive segments from the
    same document" (google-research/albert takes its B from another document there and calls it swapped). A chunk of
    one token, the last of a document, is left out.
    """

    short_probability: float = 0.1

    def pair(self, text: Text, chunk: tuple[int, int, int], target: int, rng) -> tuple[Range, Range, int, int] | None:
        """A, B, label and the next sentence."""
        start, cut, stop = chunk
        low, high = text.tokens(start, stop)
        if high - low < 2:
            return None
        middle = text.at[cut] if cut < stop else int(rng.integers(low + 1, high))
        front, back = (low, middle), (middle, high)
        return (back, front, 1, stop) if rng.random() < 0.5 else (front, back, 0, stop)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThreeWayPairs(PairRows):
    """StructBERT's pairs (Wang et al. 2019, section 2.3): B follows A, goes before it, or is of another document.

    A third of the chunks each: `next_label` 0 (A is the first part of a chunk, B the second), 1 (A is the second), 2 (A
    is the first, B is from elsewhere as in `SentencePairs`, and what was not used is put back). A chunk of one sentence
    is always of the last class, as it is in BERT.
    """

    short_probability: float = 0.1

    def pair(self, text: Text, chunk: tuple[int, int, int], target: int, rng) -> tuple[Range, Range, int, int]:
        """A, B, label and the next sentence."""
        start, cut, stop = chunk
        label = 2 if stop - start == 1 else int(rng.integers(3))
        front = text.tokens(start, cut)
        if label == 2:
            return front, text.elsewhere(target - (front[1] - front[0]), rng), 2, cut
        back = text.tokens(cut, stop)
        return (front, back, 0, stop) if label == 0 else (back, front, 1, stop)


@dataclasses.dataclass(frozen=True, kw_only=True)
class XLNetPairs(SentencePairs):
    """BERT's pairs in XLNet's layout, A [SEP] B [SEP] [CLS] (Yang et al. 2019, section 2.5).

    `token_type_ids` are 0 on A and its [SEP], 1 on B and its own, 2 on [CLS]. XLNet trains no task on `next_label`.
    """

    layout = "xlnet"
