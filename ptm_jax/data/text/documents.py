"""Documents, and how a paragraph is split into sentences."""

from __future__ import annotations

import dataclasses
import itertools
import re

from ptm_jax.knowledge.english_words import ABBREVIATIONS

LONGEST = 2000
"""Characters after which a sentence is cut at a space: text8 is one line of 100 MB."""

# The word before a stop is no part of the pattern: searching a word of n letters for its end took
# n^2 steps. The pattern begins with a set of characters, so that the search skips all others.
_END = re.compile(
    r"""(?P<stop>[.!?。！？])(?:"""
    r"""(?<=[.!?])(?<![.!?].)[.!?]*['")\]’”]*\s+(?=["'(\[‘“`]*\s*[A-Z0-9À-ÖØ-Þ\u0391-\u042f])"""
    r"""|(?<=[。！？])[。！？]*[」』”’]*)"""
)


@dataclasses.dataclass(frozen=True)
class Document:
    """The sentences of a document in order, without line breaks and without spaces at their ends.

    `lines` are the numbers of sentences in the lines of the source, for rules that judge lines;
    empty where unknown.
    """

    sentences: tuple[str, ...]
    lines: tuple[int, ...] = dataclasses.field(default=(), compare=False)


def split_sentences(line: str) -> list[str]:
    """Returns the sentences of one line or paragraph.

    A sentence ends at `.`, `!` or `?` (with closing quotes or brackets) before a space and an
    upper-case letter or digit, unless the word before the stop is a single letter or a common
    abbreviation; and at Chinese and Japanese stops. Sentences longer than `LONGEST` characters are
    cut at a space. Runs of spaces become one.
    """
    line = " ".join(line.split())
    if not line:
        return []
    sentences, start, last = [], 0, 0
    for match in _END.finditer(line):
        begin, last = last, match.end()
        if match["stop"] == ".":
            begin = max(begin, line.rfind(" ", begin, match.start()) + 1)
            bare = line[begin : match.start()].lstrip("\"'([‘“`").lower()
            if bare in ABBREVIATIONS or (len(bare) == 1 and bare.isalpha()):
                continue
        sentences.append(line[start : match.end()].strip())
        start = match.end()
    if not sentences:
        return _wrap(line)
    sentences.append(line[start:].strip())
    return [piece for sentence in sentences if sentence for piece in _wrap(sentence)]


def document(lines) -> Document | None:
    """Returns the document of some lines, split into sentences; None for lines without text."""
    lines_split = [sentences for line in lines if (sentences := split_sentences(line))]
    return (
        Document(tuple(itertools.chain.from_iterable(lines_split)), tuple(map(len, lines_split)))
        if lines_split
        else None
    )


def _wrap(sentence: str) -> list[str]:
    if len(sentence) <= LONGEST:
        return [sentence]
    pieces, start = [], 0
    while len(sentence) - start > LONGEST:
        cut = sentence.rfind(" ", start + 1, start + LONGEST)
        cut = start + LONGEST if cut < 0 else cut
        pieces.append(sentence[start:cut])
        start = cut + (sentence[cut] == " ")
    return [*pieces, sentence[start:]]
