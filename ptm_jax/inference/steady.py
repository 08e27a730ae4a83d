"""Batches whose shape depends on the lengths of their rows alone.

In `shapes()`, a batch holds rows of one bucket of lengths, and each bucket has its own number of
rows: short batches are padded. One compiled program then computes a row, whatever the other rows
are, so that its result has the same bits in any block of a stream (`inference.streams`).
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Sequence

import numpy as np

from ptm_jax.inference.decoding.settings import bucket
from ptm_jax.kernels.choice import platform

SHORTEST = 16
"""Minimum length of a bucket. Below it, compiling another program costs more than padding."""
ANSWERS = 8
"""Rows of a batch that is decoded on a CPU, where a step reads all weights for any number."""

_steady: contextvars.ContextVar[bool] = contextvars.ContextVar("steady", default=False)


@contextlib.contextmanager
def shapes() -> Iterator[None]:
    """Inside the block, batches have shapes that depend on the lengths of their rows alone."""
    token = _steady.set(True)
    try:
        yield
    finally:
        _steady.reset(token)


def inside() -> bool:
    """Returns whether the caller is inside `shapes()`."""
    return _steady.get()


def tokens() -> int:
    """Returns the tokens of a batch.

    Few on a CPU, which gains nothing from more. 800 sentences took 1.5% more time than without
    fixed shapes (MiniLM, 2 cores).
    """
    return 256 if platform() == "cpu" else 1 << 14


def rows_for(count: int, width: int) -> int:
    """Returns the padded number of rows of a batch of `count` rows of `width` tokens.

    A power of two, inside `shapes()` the one of this width.
    """
    return max(1, tokens() // bucket(width, SHORTEST)) if _steady.get() else bucket(count)


def answers_for(count: int) -> int:
    """Returns the padded number of prompts of a batch that is decoded."""
    if not _steady.get():
        return bucket(count)
    return ANSWERS if platform() == "cpu" else 8 * ANSWERS


def batches(lengths: Sequence[int], size: int, *, decoded: bool = False) -> list[np.ndarray]:
    """Returns the row indices of batches of rows of similar length.

    At most `size` rows, inside `shapes()` as many as their bucket has (`rows_for`, `answers_for`).
    """
    order = np.argsort(lengths, kind="stable")
    if not _steady.get():
        return [order[start : start + size] for start in range(0, len(order), size)]
    widths = np.array([bucket(int(length), SHORTEST) for length in lengths], np.int64)
    groups = []
    for width in np.unique(widths):
        rows = order[widths[order] == width]
        count = answers_for(0) if decoded else rows_for(0, int(width))
        groups += [rows[start : start + count] for start in range(0, len(rows), count)]
    return groups
