"""Words in a lexical relation, and their vectors in an auxiliary space (LIBERT)."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from ptm_jax.knowledge.triples import Triples
from ptm_jax.knowledge.vector_files import mean_of, vectors_in

SKETCH = 16
"""Numbers that describe the spelling of a word (`sketch`)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LexicalRelations(Triples):
    """Pairs of related words as `Triples`, and unit vectors of the words, [E, D] float32.

    A word without a vector has zeros.

    file      lines of word, relation and word with tabs; or a compiled graph of WordNet. It gives
              pairs of two lemmas of a synset (synonyms), and pairs of a lemma of a synset and a
              lemma of its direct hypernym
    vectors   word vectors as text, such as fastText's wiki-news-300d-1M-subword.vec; a multiword
              gets the mean vector of its words. None: hashed counts of the 3-grams of the spelling
              (`sketch`), for miniatures
    """

    array_names: ClassVar[tuple[str, ...]] = (*Triples.array_names, "vectors")
    kind: ClassVar[str] = "lexical"

    vectors: str | None = None

    def files(self) -> list[Path]:
        return [
            *super().files(),
            *([] if self.vectors is None else [Path(self.vectors).expanduser()]),
        ]

    def of_entities(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        if self.vectors is None:
            vectors = [sketch(text) for text in texts]
        else:
            parts = {part for text in texts for part in text.split()}
            known = vectors_in(
                Path(self.vectors).expanduser(), parts | {part.capitalize() for part in parts}
            )
            none = np.zeros_like(next(iter(known.values())))
            vectors = [none if (mean := mean_of(known, text)) is None else mean for text in texts]
        rows = np.asarray(vectors, np.float32)
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
        return {"vectors": rows}

    def unpacked(self, packed: np.ndarray) -> dict[str, np.ndarray]:
        arrays = super().unpacked(packed)
        bits = packed[sum(array.size for array in arrays.values()) :]
        vectors = bits.view(np.float32).reshape(len(arrays["entity_tokens"]), -1)
        return {**arrays, "vectors": vectors}

    @property
    def space(self) -> np.ndarray:
        """[E, D] float32: the vectors of the words."""
        return self.arrays["vectors"]

    @functools.cached_property
    def _codes(self) -> np.ndarray:
        heads, tails = self.triples()[:, [0, 2]].astype(np.int64).T
        return np.unique(
            np.concatenate([heads * self.sizes[1] + tails, tails * self.sizes[1] + heads])
        )

    def related(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Returns whether two words are a pair, in either order, bool of their common shape."""
        codes = first.astype(np.int64) * self.sizes[1] + second
        places = np.minimum(np.searchsorted(self._codes, codes), len(self._codes) - 1)
        return self._codes[places] == codes


def sketch(text: str) -> np.ndarray:
    """Returns hashed counts of the 3-grams of a word, [16] float32.

    Words that share spellings have large products, as subword vectors without training have.
    """
    counts, marked = np.zeros(SKETCH, np.float32), f"<{text.split(',')[0].lower()}>"
    for start in range(max(1, len(marked) - 2)):
        code = zlib.crc32(marked[start : start + 3].encode())
        counts[code % SKETCH] += 1 if code & 1 << 20 else -1
    return counts
