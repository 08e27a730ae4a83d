"""Scores of pairs of texts by a cross-encoder: a model that reads both texts and gives a number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.inference import head_scores
from ptm_jax.inference.text.classifying import HEAD

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained
    from ptm_jax.inference.uses import Ranking, Result

NO_NUMBER = (
    "gives no number for a pair of texts; take a model of --task rank or stsb, or a checkpoint "
    "...ForSequenceClassification with one label"
)
LENGTH = 512
"""Tokens of a pair at most, where the model has no limit."""


def is_cross_encoder(model: Pretrained) -> bool:
    """Returns whether a model gives one number for a text or a pair."""
    head = model.module.heads.get(HEAD)
    return head is not None and slots.classes_of(head) == 1


def _check(model: Pretrained) -> None:
    if not is_cross_encoder(model):
        raise UserError(f"{model.system.name} {NO_NUMBER}")


def pair_scores(
    model: Pretrained, firsts: Sequence[str], seconds: Sequence[str], batch_size: int = 32
) -> np.ndarray:
    """Returns the logit [n] float32 of each pair of texts.

    A pair that is too long for the model is cut at the end of its longer text. Raises UserError for
    a model whose head does not give one number.
    """
    _check(model)
    tokenizer = model._tokenizer()
    size = head_scores.room(tokenizer, True, model.limit or LENGTH)
    ids = (tokenizer.encode_batch(list(part)) for part in (firsts, seconds))
    rows = []
    for first, second in zip(*ids, strict=True):
        framed, types = tokenizer.frame(*cut_to(first, second, size))
        rows.append([{"input_ids": framed, "token_type_ids": types}])
    scores = head_scores.scored(model, HEAD, rows, batch_size)
    return np.array(scores, np.float32).reshape(len(rows))


def cross_encoder(path: str) -> Pretrained:
    """Returns the cross-encoder of a run or a checkpoint. Raises UserError for another model."""
    from ptm_jax.inference.loading import has_encoder, load

    model = load(path)
    if not has_encoder(model):
        raise UserError(f"{path} {NO_NUMBER}")
    _check(model)
    return model


def reordered(
    model: Pretrained, results: Sequence[Result], ranking: Ranking, top: int
) -> list[Result]:
    """Returns the results of a ranking, their best `top` lines in the order of a cross-encoder.

    The score of a line is the logit of its text after the text that was asked. Equal ones keep
    their order."""
    lines = [result[ranking.field] for result in results]
    firsts = [result["text"] for result, near in zip(results, lines, strict=True) for _ in near]
    seconds = [line["text"] for near in lines for line in near]
    logits = iter(pair_scores(model, firsts, seconds).tolist() if firsts else ())
    judged = [[{**line, ranking.score: next(logits)} for line in near] for near in lines]
    best = [sorted(near, key=lambda line: -line[ranking.score])[:top] for near in judged]
    return [{**result, ranking.field: near} for result, near in zip(results, best, strict=True)]


def cut_to(first: np.ndarray, second: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns two texts with `size` tokens together at most; the longer one is cut first."""
    half, (a, b) = size // 2, (len(first), len(second))
    if a + b > size:
        a, b = (size - b, b) if b <= half else (a, size - a) if a <= half else (size - half, half)
    return first[:a], second[:b]
