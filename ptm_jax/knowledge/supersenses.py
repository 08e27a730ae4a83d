"""The supersenses that the words of a vocabulary allow (SenseBERT)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ptm_jax.core.reading import broken, read_bytes, shown
from ptm_jax.knowledge.english_words import FILE_PARTS, STOP_WORDS, SUPERSENSES, lemmas
from ptm_jax.knowledge.mentions import LARGEST
from ptm_jax.knowledge.vector_files import words_of
from ptm_jax.knowledge.word_classes import PARTS, WordClasses, bits

EXCEPTIONS = {"n": "noun.exc", "v": "verb.exc", "a": "adj.exc", "r": "adv.exc"}
_OF_PART = {
    part: bits(
        [place for place, kind in enumerate(SUPERSENSES) if FILE_PARTS[kind.split(".")[0]] == part]
    )
    for part in EXCEPTIONS
}
"""The bits of the supersenses of a part of speech."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabularySenses(WordClasses):
    """The classes of every piece of the vocabulary that is a word, those of its lemmas together:
    A(w) of SenseBERT (Levine et al. 2020, arXiv 1908.05646, section 3.2). Short words, stop words
    and pieces inside words have none, nor have words of several pieces (section 3.4).

    shortest     characters of a word at least
    exceptions   folder of WordNet's noun.exc, verb.exc, adj.exc and adv.exc; None: lemmas of
                 regular forms alone
    """

    shortest: int = 4
    exceptions: str | None = None

    def entries(self, tokenizer: Any) -> Mapping[str, Sequence[int]]:
        names, irregular, found = super().entries(tokenizer), self._irregular(), {}
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
                found[piece] = *(names.get(word) or rows[0])[:2], low, high
        return found

    def _irregular(self) -> dict[str, dict[str, list[str]]]:
        found: dict[str, dict[str, list[str]]] = {part: {} for part in EXCEPTIONS}
        for part, name in EXCEPTIONS.items() if self.exceptions is not None else ():
            path = Path(self.exceptions).expanduser() / name
            for number, line in enumerate(
                read_bytes(path, LARGEST).decode(errors="replace").splitlines(), 1
            ):
                form, *of = (cell.replace("_", " ") for cell in line.split() or [""])
                if not of:
                    raise broken(
                        path,
                        f"line {number:,} is {shown(line[:80])}; expected a form and its lemmas",
                    )
                found[part].setdefault(form, []).extend(of)
        return found
