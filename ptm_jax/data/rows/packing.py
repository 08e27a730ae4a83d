"""Packing: the best-fit placement of pieces of text in rows, and the rows that result."""

from __future__ import annotations

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.fields import Field


def special(vocab, name: str | None) -> int | None:
    """Returns the id of the special token `name`, None for None.
    Raises UserError where the vocabulary lacks it."""
    if name is None:
        return None
    try:
        return vocab.need(name)[0]
    except ValueError:
        style = (
            "--tokenizer bytebpe --specials gpt2" if name in ("bos", "eos") else "--specials bert"
        )
        raise UserError(
            f"the tokenizer has no {name} token, which these examples need; `ptm prepare "
            f"--data SOURCE --out DIR {style}` "
            "makes one that has it"
        ) from None


def room(length: int, frame: int) -> int:
    """Returns the number of tokens that fit in a row with `frame` special tokens.
    Raises UserError where none does."""
    if length <= frame:
        raise UserError(
            f"rows of length {length} have no room beside {frame} special tokens; choose a "
            "greater length"
        )
    return length - frame


def fields(length: int, *names: str) -> dict[str, Field]:
    """Returns {name: Field} of int32 fields that run along the row."""
    return dict.fromkeys(names, Field((length,)))


def empty(count: int, length: int, pad: int | None, *names: str) -> dict[str, np.ndarray]:
    """Returns rows of padding: `input_ids` and the fields `names`, [count, length] int32."""
    batch = {"input_ids": np.full((count, length), 0 if pad is None else pad, np.int32)}
    return batch | {name: np.zeros((count, length), np.int32) for name in names}


def ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns the ranges starts[i], starts[i] + 1, ... of lengths[i] members, concatenated."""
    lengths = np.asarray(lengths, np.int64)
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(np.asarray(starts, np.int64) - ends + lengths, lengths) + np.arange(total)


def best_fit(sizes: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Returns the row and column of every piece, and the number of rows.
    The placement is best fit, largest piece first.

    sizes [P] are in 1..length. A bit set of the sizes of free spaces finds the tightest one in
    constant time.
    """
    order = np.argsort(-sizes, kind="stable")
    rows, columns = np.zeros(len(sizes), np.int64), np.zeros(len(sizes), np.int64)
    spaces: list[list[int]] = [[] for _ in range(length + 1)]
    open_spaces, count = 0, 0
    for index, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        fitting = open_spaces >> size
        if fitting:
            space = size + (fitting & -fitting).bit_length() - 1
            row = spaces[space].pop()
            if not spaces[space]:
                open_spaces &= ~(1 << space)
        else:
            space, row, count = length, count, count + 1
        rows[index], columns[index] = row, length - space
        left = space - size
        if left:
            spaces[left].append(row)
            open_spaces |= 1 << left
    return rows, columns, count


def cut(starts: np.ndarray, lengths: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ranges, with every range longer than `size` cut into pieces and a rest."""
    count = -(-lengths // size)
    number = ranges(np.zeros(len(count), np.int64), count)
    starts = np.repeat(starts, count) + number * size
    return starts, np.minimum(size, np.repeat(lengths, count) - number * size)


def pieces(
    out: dict[str, np.ndarray],
    tokens,
    starts,
    sizes,
    row,
    *,
    column,
    begin: int | None,
    end: int | None,
) -> dict[str, np.ndarray]:
    """Writes pieces of `tokens` into the empty rows `out` at (row, column).
    Each stands between `begin` and `end`.

    The pieces of a row are segments 1, 2, ... from left to right. Positions restart at every piece.
    """
    length, frame = out["input_ids"].shape[1], (begin is not None) + (end is not None)
    order = np.lexsort((column, row))
    starts, sizes, row, column = starts[order], sizes[order], row[order], column[order]
    first = np.concatenate([[True], row[1:] != row[:-1]])
    number = (
        np.arange(len(row)) - np.maximum.accumulate(np.where(first, np.arange(len(row)), 0)) + 1
    )
    corner = row * length + column
    cells = ranges(corner, sizes + frame)
    out["segment_ids"].reshape(-1)[cells] = np.repeat(number, sizes + frame)
    out["positions"].reshape(-1)[cells] = ranges(np.zeros(len(row), np.int64), sizes + frame)
    ids = out["input_ids"].reshape(-1)
    offset = begin is not None
    ids[ranges(corner + offset, sizes)] = tokens[ranges(starts, sizes)]
    if begin is not None:
        ids[corner] = begin
    if end is not None:
        ids[corner + offset + sizes] = end
    return out
