"""The supersenses that the words of a vocabulary allow (SenseBERT)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ptm_jax.knowledge.english_words import FILE_PARTS, STOP_WORDS, SUPERSENSES, lemmas
from ptm_jax.knowledge.graphs.wordnet import exceptions
from ptm_jax.knowledge.vector_files import words_of
from ptm_jax.knowledge.word_classes import PARTS, WordClasses, bits

_OF_PART = {
    part: bits(
        [place for place, kind in enumerate(SUPERSENSES) if FILE_PARTS[kind.split(".")[0]] == part]
    )
    for part in PARTS[:4]
}
"""The bits of the supersenses of a part of speech."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabularySenses(WordClasses):
    """The supersenses of every vocabulary piece that is a word, A(w) of SenseBERT.

    Levine et al. 2020, arXiv 1908.05646, section 3.2. A word has the union over its lemmas. Short
    words, stop words, pieces inside words, and words of several pieces have none (section 3.4).

    shortest     minimal number of characters of a word
    exceptions   folder of WordNet's noun.exc, verb.exc, adj.exc and adv.exc; None: lemmas of
                 regular forms alone
    """

    shortest: int = 4
    exceptions: str | None = None

    def entries(self, tokenizer: Any) -> Mapping[str, Sequence[int]]:
        names, classes = super().entries(tokenizer), {}
        irregular = {part: {} for part in PARTS}
        if self.exceptions is not None:
            irregular = exceptions(Path(self.exceptions).expanduser())
        for piece in words_of(tokenizer).values():
            word = piece.lower()
            if len(word) < self.shortest or word in STOP_WORDS:
                continue
            low = high = 0
            rows = []
            for part in PARTS[:4]:
                for lemma in lemmas(word, part, names, irregular[part]):
                    mine = [
                        names[lemma][2] & _OF_PART[part][0],
                        names[lemma][3] & _OF_PART[part][1],
                    ]
                    low, high = low | mine[0], high | mine[1]
                    rows += [names[lemma]] if any(mine) else []
            if rows:
                classes[piece] = *(names.get(word) or rows[0])[:2], low, high
        return classes
