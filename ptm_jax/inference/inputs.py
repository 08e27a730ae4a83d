"""Makes batches from arrays and texts: checks sizes, adds special tokens, pads to buckets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.reading import check_unicode, shown
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.context import read_languages
from ptm_jax.inference import steady
from ptm_jax.inference.decoding.settings import bucket
from ptm_jax.inference.steady import SHORTEST as SHORTEST
from ptm_jax.nn.embeddings.summed import reads_neighbours
from ptm_jax.objectives.text.text_traits import NeighbourDecoders

if TYPE_CHECKING:
    from ptm_jax.core.networks import Encoder
    from ptm_jax.inference.pretrained import Pretrained


def batch_of(
    encoder: Encoder,
    vocab: Vocab,
    input_ids,
    *,
    attention_mask=None,
    token_type_ids=None,
    position_ids=None,
    language_ids=None,
    multiple: int = 1,
) -> dict[str, np.ndarray]:
    """Checks arrays [B, L] and pads them to a bucket of rows (times `multiple`) and lengths.
    Raises UserError.

    `position_ids` start at 0 in every family. The default is 0, 1, ... along the row; for tables
    with an offset (RoBERTa) only tokens other than `pad` count. Both are as in the `transformers`
    library.
    """
    embed = encoder.embeddings
    ids, limit = _checked("input_ids", input_ids, vocab.size, "the vocabulary"), encoder.limit
    batch = {"input_ids": ids, "segment_ids": np.ones_like(ids)}
    if position_ids is None:
        if limit is not None:
            check_length(ids.shape[1], limit)
        batch["positions"] = _positions(encoder, vocab, ids)
    for field, name, value, size, what in (
        ("segment_ids", "attention_mask", attention_mask, 2, "the values of a mask"),
        ("positions", "position_ids", position_ids, limit, "the position table"),
        (
            "token_type_ids",
            "token_type_ids",
            token_type_ids,
            max(1, encoder.types),
            "the token types",
        ),
        (
            "language_ids",
            "language_ids",
            language_ids,
            max(1, read_languages(encoder)),
            "the languages",
        ),
    ):
        if value is not None:
            batch[field] = _checked(name, value, size, what, ids.shape)
    if reads_neighbours(embed):
        batch["in_row"] = np.ones_like(ids)
    return bucketed(batch, limit, multiple)


def shape_of(input_ids: Any, fields: Mapping[str, Any] | None) -> tuple[int, int]:
    """Returns (rows, length) of a request, from its ids or the first field with both axes.
    Raises UserError."""
    shapes = [
        np.shape(value)
        for value in ((fields or {}).values() if input_ids is None else (input_ids,))
    ]
    first_shape = next((shape for shape in shapes if len(shape) >= 2), None)
    if first_shape is None:
        raise UserError("give input_ids [B, L], or the fields [B, L, ...] that this model reads")
    return first_shape[0], first_shape[1]


def fields_of(
    examples: Any,
    vocab: Vocab,
    fields: Mapping[str, Any],
    batch: Mapping[str, np.ndarray],
    shape: tuple[int, int],
) -> dict[str, np.ndarray]:
    """Returns the padded `batch` of a request of `shape` (rows, length).
    Its other `fields` are padded in the same way.

    Raises UserError for a field that `examples` do not declare, or one of another shape or type.
    """
    rows, length = shape
    row_count, width = (
        next(iter(batch.values())).shape if batch else (bucket(rows), bucket(length, SHORTEST))
    )
    full_batch = {**batch, "rows": np.arange(row_count, dtype=np.int32)}
    if not fields:
        return full_batch
    exact, padded = examples.spec(length, vocab), examples.spec(width, vocab)
    for name, value in fields.items():
        if name not in exact:
            raise unknown("field", name, exact)
        (wanted, kind), value = exact[name], np.asarray(value)
        if value.shape != (rows, *wanted) or not np.can_cast(value.dtype, kind, "same_kind"):
            raise UserError(
                f"{name} has the shape {value.shape} and type {value.dtype}; expected "
                f"{(rows, *wanted)} and {np.dtype(kind)}"
            )
        pads = [(0, b - a) for a, b in zip(value.shape, (row_count, *padded[name][0]), strict=True)]
        full_batch[name] = np.pad(value, pads).astype(kind)
    if "segment_ids" in exact and "segment_ids" not in full_batch:
        full_batch["segment_ids"] = np.pad(
            np.ones((rows, length), np.int32), ((0, row_count - rows), (0, width - length))
        )
    return full_batch


def decoder_of(
    encoder: Encoder, vocab: Vocab, ids, rows: int, row_count: int
) -> dict[str, np.ndarray]:
    """Returns the checked `decoder_input_ids` [B, T] of `rows` sources, padded to `row_count` rows.
    Raises UserError."""
    if not encoder.reads_source:
        raise UserError("decoder_input_ids are for an encoder with a decoder; this model has none")
    ids, limit = (
        _checked("decoder_input_ids", ids, vocab.size, "the vocabulary"),
        encoder.decoder.limit,
    )
    if len(ids) != rows:
        raise UserError(
            f"decoder_input_ids has {len(ids)} rows; input_ids has {rows}, and both must be equal"
        )
    if limit is not None:
        check_length(ids.shape[1], limit, "the decoder's sequence")
    width = bucket(ids.shape[1], SHORTEST, limit)
    return {
        "decoder_input_ids": np.pad(ids, ((0, row_count - rows), (0, width - ids.shape[1]))).astype(
            np.int32
        )
    }


def check_length(length: int, limit: int, what: str = "the sequence") -> None:
    """Raises UserError for a sequence longer than the position table."""
    if length > limit:
        raise UserError(
            f"{what} has {length} tokens; this model's position table holds {limit}: shorten "
            "or split it"
        )


def bucketed(
    batch: dict[str, np.ndarray], limit: int | None = None, multiple: int = 1
) -> dict[str, np.ndarray]:
    """Pads arrays [B, L] with 0 to powers of two, on the right and below.
    L is at most `limit` if it can be."""
    rows, length = batch["input_ids"].shape
    width = bucket(length, SHORTEST, None if limit is None or length > limit else limit)
    if rows % multiple:
        raise UserError(f"{rows} rows are not questions of {multiple} readings each")
    padded = steady.rows_for(rows // multiple, length) * multiple
    pads = ((0, padded - rows), (0, max(width, length) - length))
    return {name: np.pad(part, pads).astype(np.int32) for name, part in batch.items()}


def cuts(rows: int, length: int, target: int) -> dict[str, Any]:
    """Returns the slices of each output without padding.
    `target` is the length of the decoder's input."""
    return {
        "hidden": np.s_[:rows, :target],
        "layers": np.s_[:, :rows, :target],
        "attention": np.s_[:, :rows, :, :target, :target],
        "pooled": np.s_[:rows],
        "vectors": np.s_[:rows],
        "logits": np.s_[:rows, :target],
        "source": np.s_[:rows, :length],
        "source_layers": np.s_[:, :rows, :length],
        "source_attention": np.s_[:, :rows, :, :length, :length],
        "cross_attention": np.s_[:, :rows, :, :target, :length],
    }


def framed(model: Pretrained, row: Sequence[int]) -> np.ndarray:
    """Adds special tokens to the ids of a text.

    They are those that the post-processor of the published tokenizer names, or those of the
    examples; a decoder trained here has none.
    """
    tokenizer, goes_on = (
        model.tokenizer,
        model.causal and not isinstance(model.module.encoder, NeighbourDecoders),
    )
    if tokenizer.published is not None:
        return tokenizer.frame(np.asarray(row, np.int32))[0]
    names = () if goes_on else (model.examples.begin, model.examples.end)
    begin, end = (
        [] if name is None or (i := model.vocab.id(name)) is None else [i]
        for name in names or (None, None)
    )
    return np.array([*begin, *row, *end], np.int32)


def rectangle(rows: Sequence[np.ndarray], pad: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Returns (ids, mask) [B, L] int32 of rows of ids, padded on the right to the longest."""
    width = max(len(row) for row in rows)
    ids, mask = (
        np.full((len(rows), width), pad or 0, np.int32),
        np.zeros((len(rows), width), np.int32),
    )
    for number, row in enumerate(rows):
        ids[number, : len(row)], mask[number, : len(row)] = row, 1
    return ids, mask


def batches(rows: Sequence[np.ndarray], size: int, *, decoded: bool = False) -> list[np.ndarray]:
    """Returns the row indices of batches of at most `size` rows of similar length.

    See `steady.batches`; `decoded`: they are prompts.
    """
    if size < 1:
        raise UserError(f"batch_size is {size}; it must be at least 1")
    return steady.batches([len(row) for row in rows], size, decoded=decoded)


def padded_batches(
    rows: Sequence[np.ndarray], size: int, pad: int | None
) -> Iterator[tuple[np.ndarray, ...]]:
    """Yields (indices [B], ids [B, L], mask [B, L]) of `batches`."""
    for chosen in batches(rows, size):
        yield chosen, *rectangle([rows[number] for number in chosen], pad)


def texts_of(texts: Any, what: str = "texts") -> list[str]:
    """Returns `texts` as a list.

    Raises UserError for a single text, another type, and for texts with a lone surrogate.
    """
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise UserError(
            f"{what} must be a list of texts; given {type(texts).__name__}, write [text] for "
            "a single one"
        )
    texts = list(texts)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(
                f"{what}[{number}] is {shown(text)}; expected a text (str): leave the missing ones "
                "out, or write them as texts"
            )
        if not text.isascii():
            check_unicode(f"{what}[{number}]", text)
    return texts


def _positions(encoder: Encoder, vocab: Vocab, ids: np.ndarray) -> np.ndarray:
    if (
        vocab.pad is not None
        and encoder.embeddings is not None
        and encoder.embeddings.counts_tokens
    ):
        real = ids != vocab.pad
        return np.where(
            real, np.cumsum(real, 1) - 1, -1
        )  # -1: padding uses the table row before the first position
    return np.broadcast_to(np.arange(ids.shape[1]), ids.shape)


def _checked(
    name: str, value: Any, size: int | None, what: str, shape: tuple[int, ...] | None = None
) -> np.ndarray:
    """Returns `value` as int64 [B, L]: of the `shape` of input_ids, if given, with entries below
    `size`, if not None."""
    array = np.asarray(value)
    if array.dtype.kind not in "iub":
        raise UserError(f"{name} must be whole numbers; given {array.dtype}")
    if shape is None and (array.ndim != 2 or 0 in array.shape):
        raise UserError(
            f"{name} must be a matrix [B, L] with at least one token; given the shape {array.shape}"
        )
    if shape is not None and array.shape != shape:
        raise UserError(
            f"{name} has the shape {array.shape}; input_ids has {shape}, and both must be equal"
        )
    array = array.astype(np.int64)
    least, largest = array.min(), array.max()
    if size is not None and (least < 0 or largest >= size):
        wrong = least if least < 0 else largest
        raise UserError(f"{name} holds {wrong}, outside {what} of this model: 0 to {size - 1}")
    return array
