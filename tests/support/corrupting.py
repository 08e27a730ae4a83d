"""Rows for corruptions: two documents, specials, sentences, words of several pieces, padding; and
slots of sentences."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.types import Vocab

VOCAB = Vocab(
    size=400, pad=0, unk=1, cls=2, sep=3, mask=4, bos=5, eos=6, extra=tuple(range(399, 359, -1))
)
WORDS = 7, 360
"""Range of the ids that are words."""


def documents(
    rows: int = 8, length: int = 48, seed: int = 0, packed: bool = True, vocab: Vocab = VOCAB
) -> dict[str, Any]:
    """Rows [CLS] words [SEP], two of them where `packed`, and padding. Row 0 is padding, 1 has no
    words, 2 is full."""
    draw = np.random.default_rng(seed)
    real = draw.integers(length // 2, length + 1, rows)
    real[:3] = 0, 2, length
    place = np.arange(length)
    border = real // 2 * packed * (real > 8)
    segments = np.where(
        place < real[:, None], 1 + (place >= border[:, None]) * (border > 0)[:, None], 0
    )
    first = (place == 0) | ((place == border[:, None]) & (border > 0)[:, None])
    last = (place == real[:, None] - 1) | ((place == border[:, None] - 1) & (border > 0)[:, None])
    ids = np.where(
        first, vocab.cls, np.where(last, vocab.sep, draw.integers(*WORDS, (rows, length)))
    )
    words = (segments > 0) & ~first & ~last
    sentences = np.cumsum(first | (draw.random((rows, length)) < 0.12), 1)
    starts = words & ((draw.random((rows, length)) < 0.7) | np.pad(first, ((0, 0), (1, 0)))[:, :-1])
    fields = {
        "input_ids": np.where(segments > 0, ids, vocab.pad),
        "segment_ids": segments,
        "positions": np.where(
            segments > 1, place - border[:, None], np.where(segments > 0, place, 0)
        ),
        "token_type_ids": (segments > 0) & (place >= real[:, None] // 3),
        "sentences": np.where(words, sentences, 0),
        "word_starts": starts,
        "label": draw.integers(0, 2, rows),
        "rows": np.arange(rows),
    }
    return {name: jnp.asarray(value, jnp.int32) for name, value in fields.items()}


THOUSAND = Vocab(size=1000, pad=0, unk=1, cls=2, sep=3, mask=4)


def bordered(
    rows: int, length: int = 128, border: int = 61, shortest: int = 3, seed: int = 0
) -> dict[str, Any]:
    """Rows [CLS] words, [SEP] at 60, words, of two documents that meet at `border`, and padding,
    over `THOUSAND`.

    The second document has no [CLS] and no [SEP] at its end. Words have 1.4 pieces. Row 0 is
    padding."""
    draw = np.random.default_rng(seed)
    ids = draw.integers(5, 1000, (rows, length))
    ids[:, 0], ids[:, 60] = 2, 3
    real = draw.integers(shortest, length + 1, rows)
    real[0] = 0
    place = np.arange(length)
    segments = (place < real[:, None]) * (1 + (place >= border))
    starts = (draw.random((rows, length)) < 0.7) & (ids > 4) & (segments > 0)
    fields = {
        "input_ids": np.where(segments > 0, ids, 0),
        "segment_ids": segments,
        "word_starts": starts,
    }
    return {name: jnp.asarray(value, jnp.int32) for name, value in fields.items()}


def slots(
    rows: int = 8, sentences: int = 6, width: int = 8, seed: int = 0, vocab: Vocab = VOCAB
) -> dict[str, Any]:
    """Rows of sentence slots: [CLS] words [SEP] of 3 to `width` tokens in the first slots. Row 0 is
    padding."""
    draw = np.random.default_rng(seed)
    size = draw.integers(3, width + 1, (rows, sentences, 1))
    there = draw.integers(1, sentences + 1, (rows, 1, 1)) * (np.arange(rows) > 0)[:, None, None]
    size *= np.arange(sentences)[:, None] < there
    place = np.arange(width)
    ids = draw.integers(*WORDS, (rows, sentences, width))
    ids = np.where(place == 0, vocab.cls, np.where(place == size - 1, vocab.sep, ids))
    real = place < size
    fields = {
        "input_ids": np.where(real, ids, vocab.pad),
        "segment_ids": np.where(real, 1 + np.arange(sentences)[:, None], 0),
        "positions": np.where(real, place, 0),
    }
    fields = {
        name: jnp.asarray(value.reshape(rows, -1), jnp.int32) for name, value in fields.items()
    }
    return fields | {"rows": jnp.arange(rows)}


def words(batch: Any, vocab: Vocab = VOCAB) -> np.ndarray:
    """[B, L] True on tokens that are neither special nor padding."""
    return (np.asarray(batch["segment_ids"]) > 0) & ~np.isin(batch["input_ids"], vocab.specials)


def numpied(corruption: Any, key: int, batch: Any) -> dict[str, np.ndarray]:
    """The corrupted batch as numpy arrays, compiled in one piece."""
    return jax.tree.map(np.asarray, jax.jit(corruption)(jax.random.key(key), batch))
