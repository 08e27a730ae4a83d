"""Phrases: words that follow one another more often than by chance become one word.
An underscore joins them.

    score(a, b) = (count(a b) - delta) / (count(a) count(b)) * N,   N words of text

(Mikolov et al. 2013b, arXiv 1310.4546, Eq. 6; the factor N is word2phrase.c's). A pass joins the
pairs of a sentence whose score is above its threshold, from left to right, none twice. Further
passes with lower thresholds join phrases to longer ones; the paper has 2 to 4.
"""

from __future__ import annotations

import collections
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from ptm_jax.core.errors import UserError
from ptm_jax.data.text import sources as text_sources

DELTA = 5
"""word2phrase.c's discount, and the occurrences below which no pair is a phrase."""
WORD = re.compile(r"[^\W_]+|[^\w\s]|_")

Lines = Callable[[], Iterable[list[str]]]


def join(lines: Lines, threshold: float, delta: float = DELTA) -> Iterator[list[str]]:
    """Yields the words of each sentence after one pass.
    `lines()` gives the sentences anew at each call, which is twice: the counts of words and pairs
    are in memory, the text is not."""
    words, pairs = collections.Counter(), collections.Counter()
    for line in lines():
        words.update(line)
        pairs.update(itertools.pairwise(line))
    total = words.total()

    def score(a, b, n):
        return (n - delta) / (words[a] * words[b]) * total

    phrases = {(a, b) for (a, b), n in pairs.items() if score(a, b, n) > threshold}
    for line in lines():
        joined: list[str] = []
        alone = True  # whether the word before is in no phrase
        for before, word in itertools.pairwise(["", *line]):
            if joined and alone and (before, word) in phrases:
                joined[-1] += f"_{word}"
                alone = False
            else:
                joined.append(word)
                alone = True
        yield joined


def write(
    sources: Sequence[str], out: Path, thresholds: Sequence[float], lowercase: bool = True
) -> Path:
    """Writes the sentences of `sources` with their phrases, and returns the file.

    A line is a sentence with a blank between words, and an empty line follows a document. There is
    a pass for each threshold. A word is a run of letters and digits; every other mark is one.

    Raises UserError for thresholds that are not positive or do not fall, and as
    `data.text.sources.documents` does.
    """
    if (
        not thresholds
        or min(thresholds) <= 0
        or any(b > a for a, b in itertools.pairwise(thresholds))
    ):
        listed = ", ".join(f"{value:g}" for value in thresholds)
        raise UserError(
            f"the thresholds of phrases are {listed or 'none'}; expected positive numbers "
            "that fall, as 200, 100"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    before, draft = (out.with_name(f".{out.name}.{part}") for part in ("before", "draft"))
    fold = str.lower if lowercase else str
    try:
        with draft.open("w", encoding="utf8") as file:
            for document in text_sources.documents(sources):
                file.writelines(
                    " ".join(WORD.findall(fold(sentence))) + "\n" for sentence in document.sentences
                )
                file.write("\n")
        for threshold in thresholds:
            draft.replace(before)
            with draft.open("w", encoding="utf8") as file:
                file.writelines(
                    " ".join(line) + "\n" for line in join(lambda: _read(before), threshold)
                )
        draft.replace(out)
    finally:
        before.unlink(missing_ok=True), draft.unlink(missing_ok=True)
    return out


def _read(path: Path) -> Iterator[list[str]]:
    with path.open(encoding="utf8") as file:
        yield from (line.split() for line in file)
