"""What is kept of raw text: rules for single documents, and how rules and the search for duplicates follow one another.

A step is a frozen dataclass. A `Rule` judges one document; a `Duplicates` (`data.duplicates`) lets documents claim keys,
of which the earliest document holds its own. Documents are ordered by their place: source, then number in it. So every
step is a function of the documents alone, and `clean` here gives what the pipeline of `data.beam` gives.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ptm_jax.core.errors import UserError
from ptm_jax.data.sentences import Document, split_sentences


class Verdict(NamedTuple):
    """What a step leaves of a document (None: nothing), and how many of what it took: {'documents: lorem ipsum': 1}."""

    document: Document | None
    counts: dict[str, int]


class Rule(Protocol):
    """A step that needs no other document than the one it judges."""

    def __call__(self, document: Document) -> Verdict: ...


class Duplicates(Protocol):
    """A step that compares: of the documents that claim a key and are `same`, all but the earliest lose the claim."""

    def claims(self, document: Document) -> list[tuple[bytes, bytes]]:
        """(key, evidence) in order."""

    def same(self, earlier: bytes, later: bytes) -> bool:
        """Whether the evidence of two claims of one key is that of a duplicate."""

    def settle(self, document: Document, lost: Sequence[int]) -> Verdict:
        """What is left of a document that lost these of its claims."""


def loses(holders: list[bytes], evidence: bytes, step: Duplicates) -> bool:
    """Whether a claim is lost to an earlier one of the same key; otherwise it is among `holders` from now on."""
    if any(step.same(holder, evidence) for holder in holders):
        return True
    holders.append(evidence)
    return False


def clean(
    documents: Iterable[Document], steps: Sequence[Rule | Duplicates], counts: collections.Counter
) -> Iterator[Document]:
    """The documents that `steps` leave, in order; `counts` is told of everything that they took."""
    holders: list[dict[bytes, list[bytes]]] = [collections.defaultdict(list) for _ in steps]
    for document in documents:
        counts["read"] += 1
        for step, held in zip(steps, holders, strict=True):
            if hasattr(step, "claims"):
                claims = enumerate(step.claims(document))
                verdict = step.settle(document, [n for n, (key, what) in claims if loses(held[key], what, step)])
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
    """The steps for a manifest; a list of words is given by its hash."""
    values = [{f.name: _plain(getattr(step, f.name)) for f in dataclasses.fields(step)} for step in steps]
    return [{"step": type(step).__name__} | fields for step, fields in zip(steps, values, strict=True)]


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return hashlib.sha256("\n".join(value).encode()).hexdigest() if value else ""
    return f"{value.__module__}.{value.__qualname__}" if callable(value) else value


def report(counts: dict[str, int]) -> dict[str, Any]:
    """{'read', 'kept', 'dropped': {what: number}}, the dropped ones by name."""
    dropped = {name: int(counts[name]) for name in sorted(counts) if name not in ("read", "kept")}
    return {"read": int(counts.get("read", 0)), "kept": int(counts.get("kept", 0)), "dropped": dropped}


_CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
_POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")


@dataclasses.dataclass(frozen=True, kw_only=True)
class C4:
    """The rules for one page of the Colossal Clean Crawled Corpus (Raffel et al. 2020, section 2.2).

    A line stays if it ends in a terminal punctuation mark (and not in an ellipsis), has `words` words, none of them
    longer than `longest` characters, and speaks neither of JavaScript nor of policies; marks of citations are taken out
    of it. A page is dropped for "lorem ipsum", a curly bracket or one of `bad_words` in a line that was left, and when
    fewer than `sentences` sentences stay. As in the authors' code, a page is judged by the lines that stay only. Unlike
    there, a bad word is found at the ends of a line too. Spans that occur twice are `duplicates.Spans`.
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
        counts, kept = collections.Counter(), []
        for line, sentences in lines(document):
            text = _CITATION.sub("", line).strip()
            if fault := self._fault(text):
                counts[f"lines: {fault}"] += 1
                continue
            if fault := self._page_fault(text.lower()):
                return Verdict(None, {f"documents: {fault}": 1})
            kept.append(sentences if text == line else tuple(split_sentences(text)))
        if sum(map(len, kept)) < self.sentences:
            return Verdict(None, {"documents: too few sentences": 1})
        return Verdict(_of_lines(kept), counts)

    def _fault(self, line: str) -> str | None:
        words = line.split()
        if any(len(word) > self.longest for word in words):
            return "too long a word"
        if not line.endswith((".", "?", "!", '"')) or line.endswith("..."):
            return "no end mark"
        if len(words) < self.words:
            return "too few words"
        low = line.lower()
        if "lorem ipsum" in low:  # a matter of the page
            return None
        if "javascript" in low:
            return "javascript"
        if "{" not in line and any(policy in low for policy in _POLICIES):
            return "policy"
        return None

    def _page_fault(self, low: str) -> str | None:
        if "lorem ipsum" in low:
            return "lorem ipsum"
        if "{" in low:
            return "curly bracket"
        return "bad word" if self._bad and self._bad.search(low) else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shortest:
    """Drops documents of fewer than `words` words: what OpenWebText's authors did at 128 tokens."""

    words: int = 128

    def __call__(self, document: Document) -> Verdict:
        if sum(len(sentence.split()) for sentence in document.sentences) < self.words:
            return Verdict(None, {"documents: too short": 1})
        return Verdict(document, {})


def identify(text: str) -> tuple[str, float]:
    """(ISO 639-1 code, probability) of the language, by py3langid, whose model comes with it."""
    return _identifier().classify(text)


@functools.cache
def _identifier():
    try:
        from py3langid import langid
    except ImportError:
        raise UserError("the language filter needs py3langid; run pip install 'ptm_jax[clean]'") from None
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Language:
    """Keeps documents that are in `code` with a probability of `least`: C4 has 0.99, there by langdetect.

    `identify` may be any function of the text to (code, probability) that a module holds by its name.
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
    """(line, its sentences) of a document; every sentence is a line where the source's are not known."""
    start = 0
    for count in document.lines or (1,) * len(document.sentences):
        sentences = document.sentences[start : start + count]
        yield " ".join(sentences), sentences
        start += count


def without(document: Document, removed: set[int]) -> Document | None:
    """The document without the sentences of these numbers."""
    kept, start = [], 0
    for _, sentences in lines(document):
        left = tuple(s for n, s in enumerate(sentences, start) if n not in removed)
        kept += [left] if left else []
        start += len(sentences)
    return _of_lines(kept)


def _of_lines(kept: list[tuple[str, ...]]) -> Document | None:
    return Document(tuple(s for line in kept for s in line), tuple(map(len, kept))) if kept else None


def read_words(path: str | Path) -> tuple[str, ...]:
    """The words of a file with one on each line, in lower case. Raises UserError where there are none."""
    try:
        words = {line.strip().lower() for line in Path(path).read_text("utf-8").splitlines()}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); expected UTF-8 text with one word on each line") from None
    if not words - {""}:
        raise UserError(f"{path} holds no words; expected one on each line")
    return tuple(sorted(words - {""}))
