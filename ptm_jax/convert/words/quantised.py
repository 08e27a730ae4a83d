"""Matrices of fastText's compressed models (.ftz): product quantisation.
Joulin et al. 2016, arXiv 1612.03651, section 3.1.

A row is cut into parts; a part is one of 256 centroids, named by a byte. The length of a row may be
a byte as well.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from ptm_jax.convert.words.cursor import Cursor

CENTROIDS = 256


@dataclasses.dataclass(frozen=True, eq=False)
class Codebook:
    """Centroids of each part of a row: all have `part` numbers, the last one `last`."""

    width: int
    parts: int
    part: int
    last: int
    centroids: np.ndarray

    def rows(self, codes: np.ndarray) -> np.ndarray:
        """Returns rows [n, width] of codes [n, parts]."""
        size = (self.parts - 1) * CENTROIDS * self.part
        before = self.centroids[:size].reshape(self.parts - 1, CENTROIDS, self.part)
        after = self.centroids[size:].reshape(CENTROIDS, self.last)
        front = before[np.arange(self.parts - 1), codes[:, :-1]].reshape(len(codes), -1)
        return np.concatenate([front, after[codes[:, -1]]], 1)


@dataclasses.dataclass(frozen=True, eq=False)
class Quantised:
    """A matrix [R, D] that decodes the rows it is indexed by."""

    shape: tuple[int, int]
    codes: np.ndarray
    book: Codebook
    length_codes: np.ndarray | None = None
    lengths: Codebook | None = None

    def __getitem__(self, ids: np.ndarray) -> np.ndarray:
        rows = self.book.rows(self.codes[ids])
        return rows if self.lengths is None else rows * self.lengths.rows(self.length_codes[ids])


def read(cursor: Cursor, what: str) -> Quantised:
    """Reads a QMatrix. Raises UserError."""
    scaled, rows, width, size = cursor.take("?qqi", what)

    def book_of(expected):
        return _codebook(cursor, expected, what)

    codes = cursor.matrix(1, size, f"the codes of {what}", "u1")[0] if size > 0 else None
    if codes is None or rows < 0:
        raise cursor.fail(f"{what} has {rows:,} rows and {size:,} codes; the file is damaged")
    book = book_of(width)
    if rows * book.parts != size:
        raise cursor.fail(
            f"{what} has {rows:,} rows of {book.parts} codes but {size:,} codes; the file is "
            "damaged"
        )
    codes = codes.reshape(rows, book.parts)
    if not scaled:
        return Quantised((rows, width), codes, book)
    lengths = cursor.matrix(rows, 1, f"the lengths of {what}", "u1")
    return Quantised((rows, width), codes, book, lengths, book_of(1))


def _codebook(cursor: Cursor, expected: int, what: str) -> Codebook:
    width, parts, part, last = cursor.take("4i", f"the codebook of {what}")
    if min(width, parts, part, last) < 1 or (parts - 1) * part + last != width or width != expected:
        description = f"{parts} parts of {part} and {last} numbers for rows of {expected:,}"
        raise cursor.fail(f"the codebook of {what} has {description}; the file is damaged")
    centroids = cursor.matrix(1, width * CENTROIDS, f"the centroids of {what}")[0]
    return Codebook(width, parts, part, last, centroids)
