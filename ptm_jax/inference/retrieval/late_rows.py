"""Rows of ids of queries and documents, as a late-interaction model reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.nn.heads.retrieval.late_vectors import COUNTED, LateRows

if TYPE_CHECKING:
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer


def piece(tokenizer: Tokenizer, name: str, kind: str) -> int:
    """Returns the id of a piece. Raises UserError where the vocabulary lacks it."""
    number = tokenizer.id(name)
    if number is None:
        raise UserError(
            f"the vocabulary has no piece {name!r}, the {kind}; name another by LateRows, or '' "
            "for none"
        )
    return number


def room(rows: LateRows, tokenizer: Tokenizer, length: int, query: bool) -> int:
    """Returns the number of tokens of a text that fit in a row of `length`. Raises UserError."""
    limit = rows.query_length if query else rows.document_length or length
    marker = rows.query_marker if query else rows.document_marker
    size = min(limit, length) - len(tokenizer.frame(())[0]) - bool(marker)
    if size < 1:
        raise UserError(f"rows of length {length} have no room for a text; choose a greater length")
    return size


def row_of(
    rows: LateRows, tokenizer: Tokenizer, ids: np.ndarray, length: int, query: bool
) -> dict[str, np.ndarray]:
    """Returns the fields of a row: a text between special tokens, with its marker and mask tokens.

    Mask tokens that others do not attend to have the segment 0, as padding: they read the text.
    """
    size = room(rows, tokenizer, length, query)
    framed, types = tokenizer.frame(np.asarray(ids[:size], np.int32))
    marker = rows.query_marker if query else rows.document_marker
    if marker:
        first = int(len(ids) == 0 or framed[0] != ids[0])
        number = piece(tokenizer, marker, "marker of a query" if query else "marker of a document")
        framed = np.insert(framed, first, number)
        types = np.insert(types, first, types[0])
    segments, counted = np.ones(len(framed), np.int32), np.ones(len(framed), np.int32)
    if query and rows.expands:
        more = max(0, min(rows.query_length, length) - len(framed))
        framed = np.append(framed, np.full(more, _mask(tokenizer), np.int32))
        types = np.append(types, np.zeros(more, np.int32))
        segments = np.append(segments, np.full(more, int(rows.attends), np.int32))
        counted = np.append(counted, np.ones(more, np.int32))
    if not query:
        skipped = [tokenizer.id(name) for name in rows.skipped]
        counted[np.isin(framed, [number for number in skipped if number is not None])] = 0
    return {
        "input_ids": framed.astype(np.int32),
        "token_type_ids": types.astype(np.int32),
        "segment_ids": segments,
        "positions": np.arange(len(framed), dtype=np.int32),
        COUNTED: counted,
    }


def _mask(tokenizer: Tokenizer) -> int:
    number = tokenizer.vocab.mask
    if number is None:
        raise UserError(
            "the vocabulary has no mask token, which fills queries; set expands=False of LateRows"
        )
    return number
