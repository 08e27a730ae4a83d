"""Arrays and texts made ready for a network: checked against its tables, framed by special tokens, put into buckets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Vocab
from ptm_jax.tasks.generation import bucket

SHORTEST = 16
"""Least length of a bucket: below it, another program costs more than the padding."""


def limit_of(encoder: Any) -> int | None:
    """The longest sequence that the encoder's position table holds; None without a table."""
    position = getattr(getattr(encoder, "embed", None), "position", None)
    return getattr(position, "limit", None)


def batch_of(
    encoder: Any,
    vocab: Vocab,
    input_ids,
    attention_mask=None,
    token_type_ids=None,
    position_ids=None,
    language_ids=None,
    multiple: int = 1,
) -> dict[str, np.ndarray]:
    """The checked batch of arrays [B, L], padded to a bucket of rows (times `multiple`) and lengths. Raises UserError.

    `position_ids` count from 0 in every family. Where none are given they are 0, 1, ... along the row, as the
    `transformers` library has them; a table with an offset (RoBERTa) counts tokens other than `pad`, as there.
    """
    ids = _whole("input_ids", input_ids, None)
    _within("input_ids", ids, vocab.size, "the vocabulary")
    segments = np.ones_like(ids) if attention_mask is None else _whole("attention_mask", attention_mask, ids.shape)
    _within("attention_mask", segments, 2, "the values of a mask")
    limit = limit_of(encoder)
    if position_ids is not None:
        positions = _whole("position_ids", position_ids, ids.shape)
        if limit is not None:
            _within("position_ids", positions, limit, "the position table")
    else:
        if limit is not None:
            check_length(ids.shape[1], limit)
        positions = _positions(encoder, vocab, ids)
    batch = {"input_ids": ids, "segment_ids": segments, "positions": positions}
    if token_type_ids is not None:
        types = _whole("token_type_ids", token_type_ids, ids.shape)
        _within("token_type_ids", types, max(1, types_of(encoder)), "the token types")
        batch["token_type_ids"] = types
    if language_ids is not None:
        languages = _whole("language_ids", language_ids, ids.shape)
        _within("language_ids", languages, max(1, getattr(encoder.embed, "languages", 0)), "the languages")
        batch["language_ids"] = languages
    return bucketed(batch, limit, multiple)


def decoder_of(encoder: Any, vocab: Vocab, ids, rows: int, most: int) -> dict[str, np.ndarray]:
    """The checked `decoder_input_ids` [B, T] beside `rows` sources, in their bucket of `most` rows. Raises UserError."""
    if not hasattr(encoder, "decoder"):
        raise UserError("decoder_input_ids are for an encoder with a decoder; this model has none")
    ids, limit = _whole("decoder_input_ids", ids, None), limit_of(encoder.decoder)
    if len(ids) != rows:
        raise UserError(f"decoder_input_ids has {len(ids)} rows; input_ids has {rows}, and both must be equal")
    _within("decoder_input_ids", ids, vocab.size, "the vocabulary")
    if limit is not None:
        check_length(ids.shape[1], limit, "the decoder's sequence")
    width = bucket(ids.shape[1], SHORTEST, limit)
    return {"decoder_input_ids": np.pad(ids, ((0, most - rows), (0, width - ids.shape[1]))).astype(np.int32)}


def types_of(encoder: Any) -> int:
    """How many sentence types the encoder tells apart."""
    return getattr(encoder, "types", 0) or getattr(encoder.embed, "types", 0)


def tells_types(encoder: Any) -> bool:
    """Whether the encoder has vectors of sentence types; XLM's, which are words, were trained without any."""
    return types_of(encoder) > 1 and not getattr(encoder.embed, "word_types", False)


def check_length(length: int, limit: int, what: str = "the sequence") -> None:
    """Raises UserError for a sequence that the position table cannot hold."""
    if length > limit:
        raise UserError(f"{what} has {length} tokens; this model's position table holds {limit}: shorten or split it")


def bucketed(batch: dict[str, np.ndarray], limit: int | None = None, multiple: int = 1) -> dict[str, np.ndarray]:
    """Arrays [B, L] padded with 0 on the right and below to powers of two (`limit` at most, where L allows)."""
    rows, length = batch["input_ids"].shape
    width = bucket(length, SHORTEST, None if limit is None or length > limit else limit)
    if rows % multiple:
        raise UserError(f"{rows} rows are not questions of {multiple} readings each")
    pads = ((0, bucket(rows // multiple) * multiple - rows), (0, max(width, length) - length))
    return {name: np.pad(part, pads).astype(np.int32) for name, part in batch.items()}


def frame(system: Any, vocab: Vocab, causal: bool) -> tuple[list[int], list[int]]:
    """Ids that stand before and after a text: [CLS] and [SEP] or their like, none around a decoder's."""
    if causal:
        return [], []
    names = getattr(system.examples, "begin", "cls"), getattr(system.examples, "end", "sep")
    ids = [None if name is None else getattr(vocab, name, None) for name in names]
    return [[] if i is None else [i] for i in ids]


def framed(model: Any, row: Sequence[int]) -> np.ndarray:
    """Ids int32 of a text between the special tokens of the model's family: what its published tokenizer puts there, or
    what its examples do."""
    tokenizer = model.tokenizer
    if getattr(tokenizer, "published", None) is not None and not model.causal:
        return tokenizer.frame(np.asarray(row, np.int32))[0]
    begin, end = frame(model.system, model.vocab, model.causal)
    return np.array([*begin, *row, *end], np.int32)


def rectangle(rows: Sequence[np.ndarray], pad: int | None) -> tuple[np.ndarray, np.ndarray]:
    """(ids, mask) [B, L] int32 of rows of ids, padded on the right to the longest."""
    width = max(len(row) for row in rows)
    ids, mask = np.full((len(rows), width), pad or 0, np.int32), np.zeros((len(rows), width), np.int32)
    for number, row in enumerate(rows):
        ids[number, : len(row)], mask[number, : len(row)] = row, 1
    return ids, mask


def batches(rows: Sequence[np.ndarray], size: int) -> list[np.ndarray]:
    """Numbers of rows in batches of at most `size`, rows of similar length together."""
    if size < 1:
        raise UserError(f"batch_size is {size}; it must be at least 1")
    order = np.argsort([len(row) for row in rows], kind="stable")
    return [order[start : start + size] for start in range(0, len(order), size)]


def texts_of(texts: Any, what: str = "texts") -> list[str]:
    """A list of texts; one text alone, or anything else, is an error."""
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{what} must be a list of texts; given {type(texts).__name__}, write [text] for a single one")
    return list(texts)


def _positions(encoder: Any, vocab: Vocab, ids: np.ndarray) -> np.ndarray:
    position = getattr(getattr(encoder, "embed", None), "position", None)
    if getattr(position, "offset", 0) and not getattr(position, "counts_padding", False) and vocab.pad is not None:
        real = ids != vocab.pad
        return np.where(real, np.cumsum(real, 1) - 1, -1)  # padding takes the row before the first
    return np.broadcast_to(np.arange(ids.shape[1]), ids.shape)


def _whole(name: str, value: Any, shape: tuple[int, ...] | None) -> np.ndarray:
    """`value` as int64 [B, L], of the shape of input_ids where that is given."""
    array = np.asarray(value)
    if array.dtype.kind not in "iub":
        raise UserError(f"{name} must be whole numbers; given {array.dtype}")
    if shape is None and (array.ndim != 2 or 0 in array.shape):
        raise UserError(f"{name} must be a matrix [B, L] with at least one token; given the shape {array.shape}")
    if shape is not None and array.shape != shape:
        raise UserError(f"{name} has the shape {array.shape}; input_ids has {shape}, and both must be equal")
    return array.astype(np.int64)


def _within(name: str, array: np.ndarray, size: int, what: str) -> None:
    if array.min() < 0 or array.max() >= size:
        wrong = array.min() if array.min() < 0 else array.max()
        raise UserError(f"{name} holds {wrong}, outside {what} of this model: 0 to {size - 1}")
