"""The tokens of a text, with the characters that each spells."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ptm_jax.data.tokenizers import pieces
from ptm_jax.inference import html_tables

if TYPE_CHECKING:
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer


class Tokens(NamedTuple):
    """The tokens of a text: ids, pieces, and the start and end of each in characters."""

    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]

    def _repr_html_(self) -> str:
        return html_tables.table(("id", "piece", "start", "end"), zip(*self, strict=True))


def tokens(tokenizer: Tokenizer, text: str) -> Tokens:
    """`Pretrained.tokens`."""
    (row,) = pieces.pieces_of(tokenizer, [text])
    names = tuple(tokenizer.piece(int(index)) for index in row.ids)
    return Tokens(*(tuple(row.ids.tolist()), names), *(tuple(c.tolist()) for c in row[1:]))
