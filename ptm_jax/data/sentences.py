"""Documents and the rule by which a paragraph becomes sentences."""

from __future__ import annotations

import dataclasses
import re

LONGEST = 2000
"""Characters after which a sentence is cut at a blank: text8 is one line of 100 MB."""

# Abbreviations that end in a full stop inside a sentence; single letters ("J. S. Bach") are one by rule.
_ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof st sr jr vs etc al fig figs eq eqs sec no nos vol pp ed eds cf resp approx inc ltd co corp dept "
    "gen col lt capt sgt rev hon gov sen rep jan feb mar apr jun jul aug sep sept oct nov dec e.g i.e viz".split()
)
_END = re.compile(
    r"""(?P<word>\S*?)[.!?]+['")\]’”]*\s+(?=["'(\[‘“`]*\s*[A-Z0-9À-ÖØ-Þ\u0391-\u042f])"""
    r"""|[。！？]+[」』”’]*"""
)


@dataclasses.dataclass(frozen=True)
class Document:
    """One document: its sentences in order, each without line breaks and without blanks at its ends.

    `lines` tells how many sentences each line of the source had, for rules that judge lines; empty where nobody knows.
    """

    sentences: tuple[str, ...]
    lines: tuple[int, ...] = dataclasses.field(default=(), compare=False)


def split_sentences(line: str) -> list[str]:
    """The sentences of one line or paragraph.

    A sentence ends at `.`, `!` or `?` (with closing quotes or brackets) when a blank and then an upper-case letter or a
    digit follows and the word before the stop is neither a single letter nor a common abbreviation; and at the Chinese
    and Japanese stops. Sentences longer than `LONGEST` characters are cut at a blank. Blanks are collapsed.
    """
    line = " ".join(line.split())
    if not line:
        return []
    sentences, start = [], 0
    for match in _END.finditer(line):
        word = match["word"]
        if word is not None:
            bare = word.lstrip("\"'([‘“`").lower()
            stop = line[match.end("word")]
            if stop == "." and (bare in _ABBREVIATIONS or (len(bare) == 1 and bare.isalpha())):
                continue
        sentences.append(line[start : match.end()].strip())
        start = match.end()
    sentences.append(line[start:].strip())
    return [piece for sentence in sentences if sentence for piece in _wrap(sentence)]


def document(lines) -> Document | None:
    """A document of lines, each split into sentences; None when nothing is left."""
    found = [sentences for line in lines if (sentences := split_sentences(line))]
    return Document(tuple(s for line in found for s in line), tuple(map(len, found))) if found else None


def _wrap(sentence: str) -> list[str]:
    pieces = []
    while len(sentence) > LONGEST:
        cut = sentence.rfind(" ", 1, LONGEST)
        cut = LONGEST if cut < 0 else cut
        pieces.append(sentence[:cut].strip())
        sentence = sentence[cut:].strip()
    return [*pieces, sentence] if sentence else pieces
