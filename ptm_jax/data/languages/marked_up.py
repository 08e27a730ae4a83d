"""Lines of the markup in which translations are published.

    NAME.sgm, NAME.sgml, NAME.xml   segments of a side of a test set: WMT's SGML, IWSLT's XML
    train.tags.*                    IWSLT's training text, with lines of tags around each talk
    NAME.xml with both sides        WMT's XML from 2021 on: <src lang=...> and <ref lang=...>

A document ends with an empty line. WMT's SGML is no XML (it has bare &), so segments are found by
their tags.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import broken

SUFFIXES = (".sgm", ".sgml", ".xml")
_DOCUMENT = re.compile(r"<doc\b[^>]*>(.*?)</doc>", re.I | re.S)
_SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.I | re.S)
_NUMBERED = re.compile(r"<seg\b[^>]*\bid=[\"']([^\"']*)[\"'][^>]*>(.*?)</seg>", re.I | re.S)
_SIDE = re.compile(r"<(src|ref)\b[^>]*\blang=[\"']([^\"']*)[\"'][^>]*>(.*?)</\1>", re.I | re.S)
_TAG = re.compile(r"<(/?)(\w+)\b.*>")


def lines_of(path: Path, text: str) -> list[str]:
    """Returns the lines of a side of translations, of a file of plain text or of markup.
    Raises UserError for markup without segments."""
    if path.suffix.lower() in SUFFIXES:
        documents = [_texts(part) for part in _DOCUMENT.findall(text) or [text]]
        if not any(documents):
            raise broken(path, "has no <seg>; expected a side of a test set of WMT or IWSLT")
        return [line for document in documents for line in (*document, "")]
    lines = text.removesuffix("\n").split("\n")
    if not path.name.startswith("train.tags."):
        return lines
    plain = []
    for line in lines:
        tag = _TAG.match(line.strip())
        if tag is None:
            plain.append(line)
        elif tag[2] == "url":  # the first tag of a talk
            plain.append("")
    return plain


def both_sides(path: Path, text: str, languages: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """Yields the pairs of a file with both sides, and a pair of "" after each document.

    A side with several references gives its first. Raises UserError.
    """
    empty = True
    for document in _DOCUMENT.findall(text):
        sides: dict[str, dict[str, str]] = {}
        for _, language, inner in _SIDE.findall(document):
            sides.setdefault(language, dict(_NUMBERED.findall(inner)))
        if missing := [language for language in languages if language not in sides]:
            raise UserError(
                f"{path} has no {missing[0]} in a document with {', '.join(sides) or 'no side'}; "
                "give a file of each side as FILE,FILE"
            )
        first, second = (sides[language] for language in languages)
        if lonely := sorted(first.keys() ^ second.keys()):
            raise broken(
                path, f"has the segment {lonely[0]} on one side alone; add its translation"
            )
        for number in next(iter(sides.values())):  # in the order of the source
            empty = False
            yield _clean(first[number]), _clean(second[number])
        yield "", ""
    if empty:
        raise broken(path, "has no <doc> with <src> and <ref>; give a file of each side")


def _texts(text: str) -> list[str]:
    return [_clean(segment) for segment in _SEGMENT.findall(text)]


def _clean(segment: str) -> str:
    return " ".join(html.unescape(segment).split())
