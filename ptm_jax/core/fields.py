"""The fields of a batch: shape and type of one row, and which fields belong to tokens.

`Examples.spec` declares the fields of a row as {name: Field}. A name has one meaning everywhere
(`core.types`). A module that makes a field which moves with its tokens declares it by
`move_with_tokens`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np


class Field(NamedTuple):
    """Shape of the field in one row, and its NumPy type. A plain (shape, dtype) tuple works too."""

    shape: tuple[int, ...] = ()
    dtype: Any = np.int32


Spec = Mapping[str, Field | tuple[tuple[int, ...], Any]]

_MOVING = {"token_type_ids", "word_starts", "sentences", "documents", "language_ids"}


def move_with_tokens(*names: str) -> None:
    """Declares fields [B, L, ...] with a value for each token, such as its part of speech.

    A corruption that permutes, inserts or deletes tokens moves these values with them. Do not
    declare `input_ids` or fields that describe positions (`segment_ids`, `positions`, `order`).
    """
    _MOVING.update(names)


def moving(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the fields among `names` (a batch, a spec) that move with their tokens, in order."""
    return tuple(name for name in names if name in _MOVING)


def row_type(spec: Spec) -> np.dtype:
    """Returns the structured NumPy type of one row, with one entry per field."""
    return np.dtype([(name, dtype, shape) for name, (shape, dtype) in spec.items()])


def gold_of(source: int) -> str:
    """Returns the field of the true entities of an encoder's linker number `source`.

    gold_entities, gold_entities_1, ...
    """
    return f"gold_entities_{source}" if source else "gold_entities"
