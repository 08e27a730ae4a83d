"""Labelled texts with stored scores of teachers (`tuning.augmentation.teaching`)."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.tasks.formats.labelled import Labelled
from ptm_jax.tasks.formats.taskdata import Remarks
from ptm_jax.tasks.formats.taskrows import Record

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer


FIELD = "teacher_scores"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaughtLabels(Labelled):
    """`Labelled` with a field `teacher_scores` [T, C] float32.
    These are the logits of T teachers, from the file `scores`.

    The file has a JSON object a line, {"first", "second", "scores"}. It is found by the texts, so
    that it serves any tokenizer, and any order and part of the data.
    """

    scores: str
    teachers: int
    classes: int

    def spec(self, length: int, vocab: Vocab) -> dict[str, tuple[tuple[int, ...], type]]:
        return super().spec(length, vocab) | {FIELD: ((self.teachers, self.classes), np.float32)}

    def encode(self, tokenizer: Tokenizer, examples: Sequence[Any]) -> list[Record]:
        known, records = read(self.scores), super().encode(tokenizer, examples)
        for example, record in zip(examples, records, strict=True):
            key = example.first, example.second or ""
            if key not in known:
                raise UserError(
                    f"{example.place}: {self.scores} has no scores of this text; remove the "
                    "file, and run again"
                )
            record[FIELD] = known[key].ravel()
        return records

    def features(
        self, tokenizer: Tokenizer, records: Sequence[Record], length: int
    ) -> tuple[list[list[Record]], Remarks]:
        groups, remarks = super().features(tokenizer, records, length)
        for (row,), record in zip(groups, records, strict=True):
            row[FIELD] = np.asarray(record[FIELD], np.float32).reshape(self.teachers, self.classes)
        return groups, remarks


@functools.lru_cache(maxsize=2)
def read(path: str) -> dict[tuple[str, str], np.ndarray]:
    """Returns {(first text, second text or ""): scores [T, C]}.
    Raises UserError with file and line."""
    scores, number = {}, 0
    try:
        with Path(path).open(encoding="utf8") as file:
            for line in file:
                number += 1
                one = json.loads(line)
                scores[one["first"], one["second"]] = np.asarray(one["scores"], np.float32)
    except OSError:
        raise UserError(f"{path} is no file of scores; `ptm compress` writes it") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"{path}:{number}: expected first, second and scores; remove the file, and run again"
        ) from None
    return scores
