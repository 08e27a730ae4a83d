"""Cleaning of raw text: rules for documents, and the order of rules and duplicate searches.

A step is a frozen dataclass. A `Rule` judges one document. In a `Duplicates`
(`data.text.duplicates`) documents claim keys, and the earliest document that claims a key holds it.
Documents are ordered by source, then by number in it. So every step is a function of the documents
alone, and `clean` has the same result as the pipeline of `data.corpora.beam`.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import decoded, read_bytes
from ptm_jax.data.text.documents import Document, split_sentences


class Verdict(NamedTuple):
    """The document after a step (None: dropped), and counts of the removed parts.
    For example {'documents: lorem ipsum': 1}."""

    document: Document | None
    counts: dict[str, int]


class Rule:
    """Base of a step that judges each document alone."""

    def __call__(self, document: Document) -> Verdict:
        raise NotImplementedError


class Duplicates:
    """Base of a step that compares documents.
    Of the documents that claim a key and are `same`, all but the earliest lose."""

    dropped = "documents: duplicate"

    def claims(self, document: Document) -> list[tuple[bytes, bytes]]:
        """Returns (key, evidence) of every claim, in order."""
        raise NotImplementedError

    def same(self, earlier: bytes, later: bytes) -> bool:
        """Whether the evidence of two claims of one key is that of duplicates."""
        return True

    def settle(self, document: Document, lost: Sequence[int]) -> Verdict:
        """Returns the rest of a document that lost these of its claims.
        Nothing unless overridden."""
        return Verdict(None, {self.dropped: 1}) if lost else Verdict(document, {})


def loses(holders: list[bytes], evidence: bytes, step: Duplicates) -> bool:
    """Whether a claim is lost to an earlier one of the same key.
    If not, it is added to `holders`."""
    if any(step.same(holder, evidence) for holder in holders):
        return True
    holders.append(evidence)
    return False


def clean(
    documents: Iterable[Document], steps: Sequence[Rule | Duplicates], counts: collections.Counter
) -> Iterator[Document]:
    """Yields the documents that pass `steps`, and adds the removals to `counts`."""
    holders: list[dict[bytes, list[bytes]]] = [collections.defaultdict(list) for _ in steps]
    for document in documents:
        counts["read"] += 1
        for step, held in zip(steps, holders, strict=True):
            if isinstance(step, Duplicates):
                claims = enumerate(step.claims(document))
                verdict = step.settle(
                    document, [n for n, (key, what) in claims if loses(held[key], what, step)]
                )
            else:
                verdict = step(document)
            counts.update(verdict.counts)
            document = verdict.document
            if document is None:
                break
        else:
            counts["kept"] += 1
            yield document


def described(steps: Sequence[Rule | Duplicates]) -> list[dict[str, Any]]:
    """Returns the steps for a manifest, a list of words as its hash."""
    return [
        {"step": type(step).__name__}
        | {f.name: _plain(vars(step)[f.name]) for f in dataclasses.fields(step)}
        for step in steps
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return hashlib.sha256("\n".join(value).encode()).hexdigest() if value else ""
    return f"{value.__module__}.{value.__qualname__}" if callable(value) else value


def report(counts: dict[str, int]) -> dict[str, Any]:
    """Returns {'read', 'kept', 'dropped': {what: number}}, the dropped ones sorted by name."""
    dropped = {name: int(counts[name]) for name in sorted(counts) if name not in ("read", "kept")}
    return {
        "read": int(counts.get("read", 0)),
        "kept": int(counts.get("kept", 0)),
        "dropped": dropped,
    }


def total(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the sum of reports."""
    counts: collections.Counter[str] = collections.Counter()
    for each in reports:
        counts.update({"read": each["read"], "kept": each["kept"], **each["dropped"]})
    return report(counts)


_CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
_POLICIES = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class C4(Rule):
    """The rules for a page of the Colossal Clean Crawled Corpus (Raffel et al. 2020, section 2.2).

    A line is kept if it ends in a terminal punctuation mark (not an ellipsis), has `words` words,
    none longer than `longest` characters, and mentions neither JavaScript nor policies. Citation
    marks are removed from it. A page is dropped for "lorem ipsum", a curly bracket or one of
    `bad_words` in a kept line, and for fewer than `sentences` sentences. As in the authors' code,
    only kept lines count for a page. Deviation: a bad word is also found at the ends of a line.
    `duplicates.Spans` removes repeated spans.
    """

    words: int = 5
    sentences: int = 3
    longest: int = 1000
    bad_words: tuple[str, ...] = ()

    @functools.cached_property
    def _bad(self) -> re.Pattern | None:
        listed = "|".join(map(re.escape, sorted(self.bad_words)))
        return re.compile(f"(?<![a-z])(?:{listed})(?![a-z])") if listed else None

    def __call__(self, document: Document) -> Verdict:
        counts, lines_kept = collections.Counter(), []
        for line, sentences in lines(document):
            text = _CITATION.sub("", line).strip()
            if fault := self._fault(text):
                counts[f"lines: {fault}"] += 1
                continue
            if fault := self._page_fault(text.lower()):
                return Verdict(None, {f"documents: {fault}": 1})
            lines_kept.append(sentences if text == line else tuple(split_sentences(text)))
        if sum(map(len, lines_kept)) < self.sentences:
            return Verdict(None, {"documents: too few sentences": 1})
        return Verdict(_of_lines(lines_kept), counts)

    def _fault(self, line: str) -> str | None:
        words, low = line.split(), line.lower()
        of_page = "lorem ipsum" in low  # a fault of the page, not of the line
        faults = {
            "too long a word": any(len(word) > self.longest for word in words),
            "no end mark": not line.endswith((".", "?", "!", '"')) or line.endswith("..."),
            "too few words": len(words) < self.words,
            "javascript": "javascript" in low and not of_page,
            "policy": any(policy in low for policy in _POLICIES)
            and "{" not in line
            and not of_page,
        }
        return next((name for name, is_fault in faults.items() if is_fault), None)

    def _page_fault(self, low: str) -> str | None:
        if "lorem ipsum" in low:
            return "lorem ipsum"
        if "{" in low:
            return "curly bracket"
        return "bad word" if self._bad and self._bad.search(low) else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shortest(Rule):
    """Drops documents of fewer than `words` words.
    OpenWebText's authors dropped those below 128 tokens."""

    words: int = 128

    def __call__(self, document: Document) -> Verdict:
        if sum(len(sentence.split()) for sentence in document.sentences) < self.words:
            return Verdict(None, {"documents: too short": 1})
        return Verdict(document, {})


def identify(text: str) -> tuple[str, float]:
    """Returns (ISO 639-1 code, probability) of the language, by py3langid and the model in it."""
    return _identifier().classify(text)


@functools.cache
def _identifier():
    try:
        from py3langid import langid
    except ImportError:
        raise UserError(
            "the language filter needs py3langid; run pip install 'ptm_jax[clean]'"
        ) from None
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Language(Rule):
    """Keeps documents in language `code` with probability `least` or more.
    C4 has 0.99, by langdetect.

    `identify` is any module-level function from a text to (code, probability).
    """

    code: str = "en"
    least: float = 0.99
    identify: Callable[[str], tuple[str, float]] = identify

    def __call__(self, document: Document) -> Verdict:
        code, probability = self.identify("\n".join(document.sentences))
        if code != self.code:
            return Verdict(None, {f"documents: language {code}": 1})
        if probability < self.least:
            return Verdict(None, {"documents: language unsure": 1})
        return Verdict(document, {})


def lines(document: Document) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields (line, its sentences) of a document.
    Every sentence is a line where the lines are unknown."""
    start = 0
    for count in document.lines or (1,) * len(document.sentences):
        sentences = document.sentences[start : start + count]
        yield " ".join(sentences), sentences
        start += count


def without(document: Document, removed: set[int]) -> Document | None:
    """Returns the document without the sentences of these numbers; None where none is left."""
    lines_kept, start = [], 0
    for _, sentences in lines(document):
        left = tuple(s for n, s in enumerate(sentences, start) if n not in removed)
        lines_kept += [left] if left else []
        start += len(sentences)
    return _of_lines(lines_kept)


def _of_lines(lines: list[tuple[str, ...]]) -> Document | None:
    return (
        Document(tuple(s for line in lines for s in line), tuple(map(len, lines)))
        if lines
        else None
    )


def read_words(path: str | Path) -> tuple[str, ...]:
    """Returns the lower-cased words of a file with one word on each line.
    Raises UserError where there are none."""
    words = {line.strip().lower() for line in decoded(path, read_bytes(path)).splitlines()}
    if not words - {""}:
        raise UserError(f"{path} holds no words; expected one on each line")
    return tuple(sorted(words - {""}))
