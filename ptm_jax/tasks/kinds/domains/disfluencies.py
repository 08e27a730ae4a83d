"""Words to delete from spontaneous speech (row 163), on Disfl-QA (Gupta et al. 2021).

Disfl-QA has a question, and the question with a repair: "Who did no What did they want?". The
words that go are found by aligning both, since the file marks none. Switchboard's corpus, on which
Wang et al. 2020 (arXiv 1908.05378) measure, cannot be had freely.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import parse_json, read_bytes
from ptm_jax.tasks.catalogue import Task, catalogue
from ptm_jax.tasks.formats import tabular
from ptm_jax.tasks.formats.tagged import Sentence, Tagged
from ptm_jax.tasks.formats.taskdata import Remarks
from ptm_jax.tasks.kinds import tagging
from ptm_jax.tasks.kinds.base import Metrics, register
from ptm_jax.tasks.metrics import measures

STAYS, GOES = "O", "D"
"""Tags of words that stay, and of words that go."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Repairs(Tagged):
    """Disfluent sentences with a tag for each word, from a JSON object {id: {"original": text,
    "disfluent": text}} (Disfl-QA's files), or columns of words and tags as `Tagged` reads them."""

    labels: tuple[str, ...] | Literal["found"] = (STAYS, GOES)
    scheme: Literal["", "IOB1", "IOB2", "IOBES"] = ""

    def read(
        self, path: str | Path, remarks: Remarks | None = None, labels: bool = True
    ) -> Iterator[Sentence]:
        if Path(path).suffix != ".json":
            yield from super().read(path, remarks, labels)
            return
        remarks = Remarks() if remarks is None else remarks
        document = parse_json(Path(path), read_bytes(path), "JSON")
        if not isinstance(document, dict):
            raise UserError(f'{path}: expected {{id: {{"original": text, "disfluent": text}}}}')
        for key, fields in document.items():
            place = f"{path}: {key}"
            disfluent = tabular.needed_text(place, fields, "disfluent").split()
            if not disfluent:
                raise UserError(f"{place}: the text is empty; correct the entry, or remove it")
            if not labels:
                yield Sentence(tuple(disfluent), None, place)
                continue
            original = tabular.needed_text(place, fields, "original").split()
            stays = aligned([plain(word) for word in original], [plain(word) for word in disfluent])
            if sum(stays) < len(original):
                remarks["sentences with words that their disfluent form lacks"] += 1
            tags = tuple(STAYS if stay else GOES for stay in stays)
            yield Sentence(tuple(disfluent), tags, place)


def plain(word: str) -> str:
    """Returns a word in lower case without punctuation at its ends, or the word if it has none."""
    return re.sub(r"^\W+|\W+$", "", word.lower()) or word


def aligned(original: Sequence[str], disfluent: Sequence[str]) -> list[bool]:
    """Returns which words of `disfluent` are in a longest common subsequence with `original`.

    Of several the one with the last words: the first of two equal words is what is repaired.
    """
    n, m = len(original), len(disfluent)
    size = np.zeros((n + 1, m + 1), np.int64)  # of the first i and the first j words
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            same = size[i - 1, j - 1] + (original[i - 1] == disfluent[j - 1])
            size[i, j] = max(same, size[i - 1, j], size[i, j - 1])
    stays, i, j = [False] * m, n, m
    while i and j:
        if original[i - 1] == disfluent[j - 1] and size[i, j] == size[i - 1, j - 1] + 1:
            i, j = i - 1, j - 1
            stays[j] = True
        elif size[i - 1, j] == size[i, j]:
            i -= 1
        else:
            j -= 1
    return stays


def disfluent_words(
    examples: Sequence[Sentence], predictions: Sequence[Sequence[str]], task=None
) -> Metrics:
    """F1, precision and recall of the words that go, the measure of Switchboard."""
    pairs = [
        pair
        for example, chosen in zip(examples, predictions, strict=True)
        for pair in zip(example.tags, chosen, strict=True)
    ]
    same = sum(a == b == GOES for a, b in pairs)
    figures = measures.f_of(
        same, sum(b == GOES for _, b in pairs), sum(a == GOES for a, _ in pairs)
    )
    return dict(zip(("f1", "precision", "recall"), figures, strict=True))


KIND = register(
    dataclasses.replace(
        tagging.KIND,
        examples=Repairs,
        measures={**tagging.KIND.measures, "disfluent_words": disfluent_words},
    )
)
catalogue.add(
    Task(
        name="disfl_qa_tags",
        paper="Gupta et al. 2021, arXiv 2106.04016 (Disfl-QA)",
        rows=(163,),
        examples=Repairs(),
        metrics=("disfluent_words",),
        length=64,
        batch=32,
        lr=5e-5,
        epochs=3.0,
    )
)
