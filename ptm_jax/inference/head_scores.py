"""Scores of a task head for rows of token ids, and the number of text tokens that fit in a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.inference import inputs
from ptm_jax.nn.embeddings.summed import types_are_words
from ptm_jax.objectives.base import reads_first

if TYPE_CHECKING:
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer
    from ptm_jax.inference.pretrained import Pretrained


def scored(
    model: Pretrained, head: str, groups: Sequence[Sequence[Mapping[str, Any]]], batch: int
) -> list[Any]:
    """Returns the scores of every group of rows, an array or a tuple of arrays each, in order.

    A row has `input_ids` and `token_type_ids`. Rows of similar length share a batch. Raises
    UserError for a missing head.
    """
    check(model, head)
    results: list[Any] = [None] * len(groups)
    longest = [max(len(row["input_ids"]) for row in group) for group in groups]
    encoder = model.module.encoder
    typed = encoder.types > 1 and not types_are_words(encoder.embeddings)
    for chosen in inputs.batches([np.zeros(size) for size in longest], batch):
        rows = [row for number in chosen for row in groups[number]]
        ids, mask = inputs.rectangle([row["input_ids"] for row in rows], model.vocab.pad)
        types = inputs.rectangle([row["token_type_ids"] for row in rows], 0)[0] if typed else None
        scores = model(ids, mask, types).scores[head]
        for place, number in enumerate(chosen):
            results[number] = (
                tuple(part[place] for part in scores)
                if isinstance(scores, tuple)
                else scores[place]
            )
    return results


def check(model: Pretrained, head: str) -> None:
    """Raises UserError if the model lacks the head."""
    if head not in model.module.heads:
        raise UserError(
            f"{model.system.name} has no head {head!r} for this task; it has "
            f"{', '.join(model.module.heads) or 'none'}: "
            "fine-tune it with `ptm train --init MODEL --task NAME --data PATH`"
        )


def around(tokenizer: Tokenizer, pair: bool) -> int:
    """Returns the number of special tokens of a text or a pair of texts."""
    return len(tokenizer.frame((), () if pair else None)[0])


def room(tokenizer: Tokenizer, pair: bool, length: int) -> int:
    """Returns the number of text tokens in a row of `length`. Raises UserError if it is 0."""
    specials = around(tokenizer, pair)
    if length <= specials:
        raise UserError(
            f"rows of length {length} have no room beside {specials} special tokens; choose "
            "a greater length"
        )
    return length - specials


def length_of(model: Pretrained, tuned: bool, default: int) -> int:
    """Returns the row length in tokens, at most the length of the position table.
    It is the length of the last training phase if the model was `tuned` on such rows, else
    `default`."""
    recipe, limit = model.system.recipe, model.limit
    length = recipe.phases[-1].length if tuned and recipe is not None else default
    return length if limit is None else min(length, limit)


def is_of_task(head: slots.Head) -> bool:
    """Whether a head is neither a vocabulary head nor one that reads only the first token."""
    return not (head.scores_words or reads_first(head))
