"""Segmenters: optional packages that divide text without blanks into words.

Whole word masking (`data.rows.annotated.Annotated.segmenter`) and tokenizers of words
(`TokenizerSpec.segmenter`) read them by name. One more is a line of `SEGMENTERS` and of setup.cfg.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

from ptm_jax.core.errors import UserError, unknown

Cut = Callable[[str], Iterable[str]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Segmenter:
    """A package that divides text into words.

    languages  codes of the languages that it divides
    package    what pip installs, with the packages of its dictionary
    extra      extra of setup.cfg that has it
    module     module of the function
    cut        makes the function from a text to its words from the module
    note       what it is, in a few words
    normal     a tokenizer brings text to this form of Unicode before it is divided ("": none)
    """

    languages: tuple[str, ...]
    package: str
    extra: str
    module: str
    cut: Callable[..., Cut]
    note: str
    normal: Literal["", "NFKC"] = ""


def _quiet(jieba) -> Cut:
    """jieba writes its loading to stderr."""
    jieba.setLogLevel(60)
    return jieba.lcut


def _mecab(dictionary) -> Cut:
    """The words of MeCab with an installed dictionary, as transformers calls it."""
    import fugashi

    folder = dictionary.DICDIR
    tagger = fugashi.GenericTagger(f'-d "{folder}" -r "{Path(folder) / "mecabrc"}" -Owakati')
    return lambda text: [word.surface for word in tagger(text)]


SEGMENTERS = {
    "jieba": Segmenter(
        languages=("zh",), package="jieba", extra="chinese", module="jieba",
        cut=_quiet, note="a dictionary of 350,000 words, and an HMM",
    ),
    "rjieba": Segmenter(
        languages=("zh",), package="rjieba", extra="chinese", module="rjieba",
        cut=lambda module: module.cut, note="jieba in Rust: the same words, 20 times as fast",
    ),
    "pkuseg": Segmenter(
        languages=("zh",), package="spacy-pkuseg", extra="chinese", module="spacy_pkuseg",
        cut=lambda module: module.pkuseg().cut,
        note="a CRF; it downloads its model at the first use",
    ),
    "pythainlp": Segmenter(
        languages=("th",), package="pythainlp", extra="thai", module="pythainlp.tokenize",
        cut=lambda module: module.word_tokenize, note="the longest words of a dictionary",
    ),
    "ipadic": Segmenter(
        languages=("ja",), package="fugashi ipadic", extra="japanese", module="ipadic",
        cut=_mecab, note="MeCab with the dictionary of the first Japanese BERTs", normal="NFKC",
    ),
    "unidic": Segmenter(
        languages=("ja",), package="fugashi unidic-lite", extra="japanese", module="unidic_lite",
        cut=_mecab, note="MeCab with shorter words; 250 MB", normal="NFKC",
    ),
}  # fmt: skip
"""{name: segmenter}."""


def check(name: str, option: str = "segmenter") -> str:
    """Returns the name of a segmenter. Raises UserError with the nearest for an unknown one."""
    if name not in SEGMENTERS:
        raise unknown(option, str(name), tuple(SEGMENTERS))
    return name


def words(name: str, text: str) -> list[str]:
    """Returns the words of a text. Joined, they are the text: blanks are words too, and so is what
    the segmenter left out. Raises UserError where the package is not installed."""
    return [text[start:stop] for start, stop in _spans(name, text)]


def spaced(name: str, text: str) -> tuple[str, list[tuple[int, int]]]:
    """Returns the words of a text with one blank between them, and for each character of this
    the place (start, end) in `text`; an inserted blank is an empty place."""
    text, origins = normalised(text, SEGMENTERS[check(name)].normal)
    parts: list[str] = []
    places: list[tuple[int, int]] = []
    for start, stop in _spans(name, text):
        word = text[start:stop]
        if not word.strip():
            continue
        if parts:
            parts.append(" ")
            places.append((places[-1][1],) * 2)
        parts.append(word)
        places += origins[start:stop]
    return "".join(parts), places


def normalised(text: str, form: Literal["", "NFKC"]) -> tuple[str, list[tuple[int, int]]]:
    """Returns a text in a form of Unicode, and for each character the place of its origin."""
    if not form or unicodedata.is_normalized(form, text):
        return text, [(i, i + 1) for i in range(len(text))]
    parts, places, start = [], [], 0
    for stop in range(1, len(text) + 1):
        if stop < len(text) and _joins(text[stop]):
            continue
        part = unicodedata.normalize(form, text[start:stop])
        parts.append(part)
        places += [(start, stop)] * len(part)
        start = stop
    return "".join(parts), places


def _joins(character: str) -> bool:
    """Whether a character may melt into the one before: marks, and the voicing of half-width
    kana."""
    return unicodedata.category(character).startswith("M") or character in "\uff9e\uff9f"


def _spans(name: str, text: str) -> Iterator[tuple[int, int]]:
    """Yields the places of the words, and of what is between them."""
    done = 0
    for word in cut_of(name)(text) if text else ():
        start = text.find(word, done)
        if start < 0 or not word:  # a word that the segmenter has changed
            continue
        if start > done:
            yield done, start
        done = start + len(word)
        yield start, done
    if done < len(text):
        yield done, len(text)


def cut_of(name: str) -> Cut:
    """Returns the function of a segmenter. Raises UserError where it is not installed."""
    segmenter = SEGMENTERS[check(name)]
    try:
        return _started(name, importlib.import_module(segmenter.module))
    except ImportError:
        raise UserError(
            f"the segmenter {name} is not installed; pip install {segmenter.package}, or take "
            "another segmenter or none"
        ) from None
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise UserError(f"the segmenter {name} does not start ({reason}); take another") from None


@functools.lru_cache(maxsize=8)
def _started(name: str, module) -> Cut:
    return SEGMENTERS[name].cut(module)
