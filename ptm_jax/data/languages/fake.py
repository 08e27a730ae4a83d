"""Fake English: text whose characters have other code points (K et al. 2020, arXiv 1912.07840,
section 3.1.1), so that a model shares no piece between the two, and all structure."""

from __future__ import annotations

SHIFT, LAST = 0xA000, 0x3FF
"""Yi syllables follow the shift: letters, which no tokenizer divides, folds or leaves out."""
_TABLE = {code: code + SHIFT for code in range(0x21, LAST + 1) if not chr(code).isspace()}


def shifted(text: str) -> str:
    """Returns the text with every character up to U+03FF but blanks shifted by `SHIFT`.

    Other characters stay: the text of a language with Latin or Greek letters has few of them.
    """
    return text.translate(_TABLE)
