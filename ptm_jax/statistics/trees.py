"""Encoding of trees of words in a corpus: pieces that spell heads and labels, and the label sets.

A tree is a document of two sentences: its n nodes, and 4 n marks "⟦0⟧" to "⟦31⟧". The first two
marks of a node spell, in base 32, 1 + the place of its head (0: the root). The other two spell the
number of its label in `LABELS`. A node without a word is "⟦⟧".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ptm_jax.core.facts import CorpusFact

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab


BASE, PHRASE = 32, "⟦⟧"
MOST = BASE * BASE - 1
"""Nodes of a tree at most."""
UNIVERSAL = tuple(
    "acl advcl advmod amod appos aux case cc ccomp clf compound conj cop csubj dep det "
    "discourse dislocated expl fixed flat "
    "goeswith iobj list mark nmod nsubj nummod obj obl orphan parataxis punct reparandum "
    "root vocative xcomp".split()
)
"""The relations of Universal Dependencies 2, without subtypes."""
PENN = tuple(
    "ADJP ADVP CONJP FRAG INTJ LST NAC NP NX PP PRN PRT QP RRC S SBAR SBARQ SINV SQ UCP VP "
    "WHADJP WHADVP WHNP WHPP X".split()
)
"""The phrases of the Penn Treebank."""
SENTIMENT = ("0", "1", "2", "3", "4")
"""The classes of the Stanford Sentiment Treebank, very negative to very positive."""
LABELS = ("", *UNIVERSAL, *PENN, *SENTIMENT)
_NUMBERS = {label: number for number, label in enumerate(LABELS)}


def number_of(label: str) -> int:
    """Returns the number of a label without its subtype or function (nsubj:pass, NP-SBJ).

    0 for one of no inventory.
    """
    return _NUMBERS.get(label, _NUMBERS.get(label.split(":")[0].split("-")[0], 0))


def marks(numbers: Sequence[int]) -> str:
    """Returns the marks of numbers in 0 ... MOST, two for each."""
    return " ".join(f"⟦{digit}⟧" for number in numbers for digit in divmod(number, BASE))


def digits(pieces: Sequence[str]) -> np.ndarray:
    """Returns the digit of every piece, [V] int32; -1 for words, -2 for a node without a word."""
    digit_of = {f"⟦{digit}⟧": digit for digit in range(BASE)} | {PHRASE: -2}
    return np.array([digit_of.get(piece, -1) for piece in pieces], np.int32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TreeMarks(CorpusFact):
    """`digits` of a vocabulary."""

    def of_tokenizer(self, tokenizer: Any) -> np.ndarray:
        return digits(tokenizer.pieces)

    def stand_in(self, vocab: Vocab) -> np.ndarray:
        return np.full(vocab.size, -1, np.int32)
