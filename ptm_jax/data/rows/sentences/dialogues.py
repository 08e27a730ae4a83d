"""Rows of dialogues: turns of two speakers, real or with a turn of another dialogue (ERNIE 1.0)."""

from __future__ import annotations

import dataclasses

import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.fields import Field
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.rows import packing
from ptm_jax.data.rows.examples import COMMON, Fields, Spec, one_segment


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dialogues(slots.Examples):
    """ERNIE 1.0's dialogues: [CLS] turn [SEP] turn [SEP] turn [SEP].
    Sun et al. 2019, arXiv 1904.09223, section 3.3 (Dialogue Language Model).

    A document is a dialogue and a sentence a turn; the speakers take turns. `token_type_ids` are
    the dialogue embedding, in place of the sentence's: 0 for the first speaker of the document
    (query), 1 for the other one (response); [CLS] has 0. A row has the next `turns` turns, fewer at
    the end of a dialogue. With `fake_probability` one of its turns is replaced by a random one of
    another dialogue (here: of the same block); `next_label` is 0 for a real row and 1 for a fake
    one. Where the turns do not fit, the longest ones lose their ends.

    Deviation: the paper's threads QRR and QQR, where a speaker goes on, have no form in plain text;
    such a turn is one line.
    """

    turns: int = 3
    fake_probability: float = 0.5

    def __post_init__(self):
        if self.turns < 2 or not 0 <= self.fake_probability <= 1:
            raise UserError(
                f"turns is {self.turns} and fake_probability {self.fake_probability}; expected at "
                "least 2, and a probability"
            )

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields.
        Raises UserError where the vocabulary lacks [CLS] or [SEP] or rows are too short."""
        packing.special(vocab, "cls"), packing.special(vocab, "sep")
        packing.room(length, 1 + 2 * self.turns)
        return packing.fields(length, *COMMON, "token_type_ids") | {"next_label": Field()}

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns fields [R, L] and `next_label` [R] in the order of the text."""
        cls, sep = packing.special(vocab, "cls"), packing.special(vocab, "sep")
        drawn = list(self._drawn(block, rng))
        out = packing.empty(
            len(drawn), length, vocab.pad, "segment_ids", "positions", "token_type_ids"
        )
        sizes = np.zeros(len(drawn), np.int64)
        for r, (sentences, first, _) in enumerate(drawn):
            texts = [
                block.tokens[block.sentence_starts[s] : block.sentence_starts[s + 1]]
                for s in sentences
            ]
            room, at = _room([len(text) for text in texts], length - 1 - len(texts)), 1
            out["input_ids"][r, 0] = cls
            for turn, text in enumerate(texts):
                text = text[:room]
                out["input_ids"][r, at : at + len(text) + 1] = [*text, sep]
                out["token_type_ids"][r, at : at + len(text) + 1] = (first + turn) % 2
                at += len(text) + 1
            sizes[r] = at
        labels = np.array([fake for _, _, fake in drawn], np.int32)
        return one_segment(out, sizes) | {"next_label": labels}

    def _drawn(self, block: Block, rng: np.random.Generator):
        """Yields (sentences of a row, place of the first in its dialogue, label)."""
        bounds, count = block.document_starts.tolist(), len(block.sentences)
        for start, stop in zip(bounds, bounds[1:], strict=False):
            others = count - (stop - start)
            for first in range(start, stop, self.turns):
                sentences = [*range(first, min(first + self.turns, stop))]
                fake = others > 0 and rng.random() < self.fake_probability
                if fake:
                    other = int(rng.integers(others))
                    other += (stop - start) * (other >= start)
                    sentences[int(rng.integers(len(sentences)))] = other
                yield sentences, first - start, int(fake)


def _room(sizes: list[int], room: int) -> int:
    """Returns the greatest size to which texts may be cut so that they fit into `room` tokens."""
    high = max(sizes)
    while sum(min(size, high) for size in sizes) > room:
        high -= 1
    return high
