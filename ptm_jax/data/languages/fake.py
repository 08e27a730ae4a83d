"""Fake English: text whose characters have other code points (K et al. 2020, arXiv 1912.07840,
section 3.1.1), so that a model shares no piece between the two, and all structure."""

from __future__ import annotations

import dataclasses

from ptm_jax.data.text.documents import Document

SHIFT, LAST = 0xA000, 0x3FF
"""Yi syllables follow the shift: letters, which no tokenizer divides, folds or leaves out."""
_TABLE = {code: code + SHIFT for code in range(0x21, LAST + 1) if not chr(code).isspace()}


def shifted(text: str) -> str:
    """Returns the text with every character up to U+03FF but blanks shifted by `SHIFT`.

    Other characters stay: the text of a language with Latin or Greek letters has few of them.
    """
    return text.translate(_TABLE)


def inside(source: str) -> str:
    """Returns the source whose text is read for `fake:SOURCE`."""
    return source.removeprefix("fake:")


def document(real: Document) -> Document:
    """Returns a document with the same sentences in other letters."""
    return dataclasses.replace(real, sentences=tuple(map(shifted, real.sentences)))
