"""Corpora with realistic lengths: documents from a path, or from the documentation of the installed
packages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from ptm_jax.bench.input_stream import prepared
from ptm_jax.core.errors import UserError
from ptm_jax.data.corpora.store import Corpus
from ptm_jax.data.text import pydocs
from ptm_jax.data.text.documents import split_sentences

Unit = Literal["sentence", "paragraph"]


def units(text: str, unit: Unit, characters: int) -> list[str]:
    """Returns sentences or paragraphs (for `pydocs`: documents) with about `characters` in total,
    without headings."""
    found, size = [], 0
    for sentences in _pydocs(characters) if text == "pydocs" else _lines(Path(text)):
        for piece in sentences if unit == "sentence" else [" ".join(sentences)]:
            found.append(piece)
            size += len(piece)
        if size >= characters:
            break
    if not found:
        raise UserError(
            f"{text} has no text; give a file of text, a line for each paragraph, or pydocs"
        )
    return found


def _pydocs(characters: int) -> Iterator[tuple[str, ...]]:
    for document in pydocs.documents(characters):
        yield document.sentences


def _lines(path: Path) -> Iterator[list[str]]:
    try:
        lines = path.read_text(encoding="utf8").splitlines()
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); give a file of text, or pydocs"
        ) from None
    for line in lines:
        if line.strip() and not line.strip().startswith("="):
            yield split_sentences(line)


def corpus(pieces: list[str], folder: Path, vocab: int) -> Corpus:
    """Returns a corpus with one document per piece."""
    path = folder / "text.txt"
    path.write_text("\n\n".join(pieces), encoding="utf8")
    return prepared(path, folder / "prepared", vocab)
