"""Words of a vocabulary, and their vectors in text files (word2vec, fastText, GloVe).

Files of word2vec and fastText begin with a line `V D`.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import broken, check_encoding, reading, shown


def vectors_in(path: Path, words: Collection[str]) -> dict[str, np.ndarray]:
    """Returns {word: [D] float32} of the `words` in the file.

    Of a word on several lines the first line counts. Numbers of other words are not read. Raises
    UserError with file and line.
    """
    vectors: dict[str, np.ndarray] = {}
    width = None
    with reading(path), path.open("rb") as file:
        check_encoding(path, file.read(1000))
        file.seek(0)
        for number, line in enumerate(file, 1):
            name, _, numbers = line.rstrip().partition(b" ")
            if number == 1:
                name = name.removeprefix(codecs.BOM_UTF8)
                if name.isdigit() and numbers.strip().isdigit():
                    width = int(numbers)
                    continue
            word = name.decode(errors="replace")
            if word not in words or word in vectors:
                continue
            if width and len(numbers.split()) > width:  # a word that holds blanks
                continue
            try:
                vector = np.array(numbers.split(), np.float32)
            except ValueError:
                raise broken(
                    path, f"line {number:,} is {shown(line[:80])}; expected a word and its numbers"
                ) from None
            width = width or len(vector)
            if len(vector) != width or not width or not np.isfinite(vector).all():
                wrong = f"line {number:,} has {len(vector)} numbers of {shown(word)}"
                raise broken(path, f"{wrong}; expected {width} finite ones")
            vectors[word] = vector
    if not vectors:
        raise UserError(
            f"{path} has none of the {len(words):,} words; give vectors of this language as "
            "text (.vec)"
        )
    return vectors


def mean_of(vectors: dict[str, np.ndarray], text: str) -> np.ndarray | None:
    """Returns the mean vector [D] of a text's words; None if no word has a vector.

    A word is looked up as it is written, then with a capital.
    """
    some = [vectors.get(word, vectors.get(word.capitalize())) for word in text.split()]
    some = [vector for vector in some if vector is not None]
    return np.mean(some, axis=0) if some else None


def words_of(tokenizer: Any) -> dict[int, str]:
    """Returns {id: word} of the pieces that begin a word, without special ones."""
    special, begins = {*tokenizer.special_pieces.values()}, tokenizer.word_starts()
    plain = (piece.lstrip("Ġ▁") for piece in tokenizer.pieces)
    pairs = enumerate(zip(plain, begins, strict=True))
    return {i: word for i, (word, start) in pairs if word and start and i not in special}
