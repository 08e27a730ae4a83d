"""Rows of ids of texts, and the settings with which a model makes their vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ptm_jax.convert.libraries.sentence_folder import Sentence, settings_of
from ptm_jax.core.errors import UserError
from ptm_jax.encoders.transformer.seq2seq import makes_vector
from ptm_jax.inference import inputs
from ptm_jax.nn.heads.text_vector import vector_head

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained


def settings(model: Pretrained) -> Sentence:
    """Returns how a model makes vectors: by its head, its sentence-transformers folder, or as
    means. TSDAE's vector is the state of the first token (Wang et al. 2021, section 3)."""
    if model.sentence is None and not has_pooling(model):
        return Sentence(("cls",)) if makes_vector(model.module.encoder) else Sentence()
    return settings_of(model.module.heads, model.sentence) or Sentence()


def has_pooling(model: Pretrained) -> bool:
    """Whether a folder or a head defines the pooling of a model."""
    return model.sentence is not None or vector_head(model.module.heads) is not None


def prompted_limit(model: Pretrained) -> int | None:
    """Returns the longest text in tokens, with special ones and its prompt; None: any length."""
    lengths = settings(model).max_length, model.limit
    return min((n for n in lengths if n is not None), default=None)


def rows_of(
    model: Pretrained, texts: Sequence[str], specials: bool, truncate: bool
) -> list[np.ndarray]:
    """Returns ids [l] of each text with special tokens, cut to the longest that is allowed if
    `truncate`."""
    limit = prompted_limit(model)
    room = None if limit is None else limit - len(inputs.framed(model, ()))
    rows = model._tokenizer().encode_batch(texts, specials)
    if truncate and room is not None:
        rows = [row[:room] for row in rows]
    long = next(
        (number for number, row in enumerate(rows) if room is not None and len(row) > room), None
    )
    if long is not None:
        what = "position table" if limit == model.limit else "max_seq_length"
        raise UserError(
            f"text {long + 1} has {len(rows[long]) + limit - room} tokens; this model's "
            f"{what} holds {limit}: shorten or "
            "split it, or cut it with truncate=True (--truncate)"
        )
    rows = [inputs.framed(model, row) for row in rows]
    model._check(rows)
    return rows
