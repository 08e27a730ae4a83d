"""Cells of the co-occurrence matrix as rows: GloVe's training data (Pennington et al. 2014)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.fields import Field, move_with_tokens
from ptm_jax.data.rows import packing
from ptm_jax.data.rows.examples import Fields, Spec
from ptm_jax.statistics import cooccurrences

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab
    from ptm_jax.data.corpora.store import Corpus


move_with_tokens("context_ids", "cooccurrences")

BLOCK = 8192
"""Cells that are read and shuffled together."""


@dataclasses.dataclass(frozen=True)
class Matrix:
    """The cells of a split, in blocks of `BLOCK`."""

    cells: np.ndarray

    def __len__(self) -> int:
        return -(-len(self.cells) // BLOCK)

    def __getitem__(self, number: int) -> np.ndarray:
        return np.array(self.cells[number * BLOCK : (number + 1) * BLOCK])

    @property
    def tokens(self) -> int:
        """Places in rows: a cell and its mirror image."""
        return 2 * len(self.cells)

    join = staticmethod(np.concatenate)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cells(slots.Examples):
    """Rows of cells (i, j, X_ij) of the train split's matrix in random order.

    A row has `length` cells: `input_ids` i, `context_ids` j and `cooccurrences` X [R, L]. A cell
    and its mirror image come once an epoch. Segment 0 is padding.

    window      words to either side; a word at distance d counts 1 / d. The paper's 10; 15 in
                Stanford's code

    The cells of the held-out split are a random share of the matrix, equal to the share of held-out
    documents, and are not trained: the counts of the held-out documents themselves are on another
    scale, which the loss would measure.
    """

    window: int = 10

    begin = end = None

    def __post_init__(self):
        cooccurrences.check(self.window)

    def blocks(self, corpus: Corpus, split: str) -> Matrix:
        """Returns the cells of a split; they are counted if the corpus has none of this window."""
        cells, train = corpus.cooccurrence(self.window), corpus.size("train")["tokens"]
        held = round(
            len(cells)
            * corpus.size("heldout")["tokens"]
            / max(1, train + corpus.size("heldout")["tokens"])
        )
        return Matrix(cells[:held] if split == "heldout" else cells[held:])

    def spec(self, length: int, vocab: Vocab) -> Spec:
        """Returns the fields. Raises UserError where the vocabulary has no padding."""
        packing.special(vocab, "pad")
        if length < 1:
            raise UserError(f"rows have {length} cells; expected at least 1")
        names = ("input_ids", "context_ids", "segment_ids")
        return {name: Field((length,)) for name in names} | {
            "cooccurrences": Field((length,), np.float32)
        }

    def rows(
        self, block: np.ndarray, *, length: int, vocab: Vocab, rng: np.random.Generator
    ) -> Fields:
        """Returns fields [R, L] of both directions of the cells."""
        cells = cooccurrences.both(block)
        drawn = np.zeros(-(-len(cells) // length) * length, cooccurrences.PAIR)
        drawn[: len(cells)] = cells[rng.permutation(len(cells))]
        real = np.arange(len(drawn)) < len(cells)
        columns = {
            "input_ids": np.where(real, drawn["row"], vocab.pad).astype(np.int32),
            "context_ids": np.where(real, drawn["column"], vocab.pad).astype(np.int32),
            "segment_ids": real.astype(np.int32),
            "cooccurrences": drawn["weight"].astype(np.float32),
        }
        return {name: column.reshape(-1, length) for name, column in columns.items()}
