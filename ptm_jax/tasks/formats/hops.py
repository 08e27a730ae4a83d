"""Questions over several documents, and the names in their sentences."""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ptm_jax.knowledge.english_words import GRAMMATICAL
from ptm_jax.tasks.formats.taskrows import Record

if TYPE_CHECKING:
    pass


_NAME = re.compile(r"(?:[A-Z][\w'’-]*|\d[\d,.]*\d|\d)(?: (?:[A-Z][\w'’-]*|\d+))*")


class Hop(NamedTuple):
    """A question, its documents (title, sentences), the answer, its kind, the facts.
    A supporting fact is (title, sentence)."""

    question: str
    documents: tuple[tuple[str, tuple[str, ...]], ...]
    answer: str
    place: str
    index: str
    kind: str = ""
    facts: tuple[tuple[str, int], ...] = ()

    def text(self, document: int) -> str:
        """Returns a document as text: its title and its sentences."""
        title, sentences = self.documents[document]
        return f"{title} {''.join(sentences)}"

    @property
    def gold(self) -> tuple[int, ...]:
        """The numbers of the documents of its facts."""
        titles = {title for title, _ in self.facts}
        return tuple(number for number, (title, _) in enumerate(self.documents) if title in titles)


def names_in(text: str) -> set[str]:
    """Returns the names in a text: runs of capitalised words and numbers, lower-cased.
    Initial function words are left out."""
    names = set()
    for match in _NAME.finditer(text):
        words = match.group().lower().split()
        while words and words[0] in GRAMMATICAL:
            words = words[1:]
        if words:
            names.add(" ".join(words))
    return names


def named(hop: Hop) -> dict[str, np.ndarray]:
    """Returns hashes of the names in sentences, and of those in the question.

    A name in a sentence has its document and sentence.
    """

    def sign(name):
        return zlib.crc32(name.encode()) & 0x7FFFFFFF

    rows = [
        (sign(name), number, n)
        for number, (_, sentences) in enumerate(hop.documents)
        for n, sentence in enumerate(sentences, 1)
        for name in sorted(names_in(sentence))
    ]
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    asked = np.array(sorted(map(sign, names_in(hop.question))), np.int64)
    return {
        "name": columns[0],
        "name_document": columns[1],
        "name_sentence": columns[2],
        "asked": asked,
    }


def names_of(record: Record, known: set[tuple[int, int]]) -> dict[tuple[int, int], set[int]]:
    """{(document, sentence): its names}."""
    names_of_sentence: dict[tuple[int, int], set[int]] = {}
    columns = (record[name].tolist() for name in ("name", "name_document", "name_sentence"))
    for name, document, sentence in zip(*columns, strict=True):
        if (document, sentence) in known:
            names_of_sentence.setdefault((document, sentence), set()).add(name)
    return names_of_sentence
