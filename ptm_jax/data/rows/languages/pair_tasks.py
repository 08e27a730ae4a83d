"""Rows of several tasks on translations: a field of the rows has the number of their task."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.fields import Field
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.corpora.store import Corpus
from ptm_jax.data.languages.mix import Part
from ptm_jax.data.rows.examples import Around, Fields, Spec
from ptm_jax.data.rows.languages.multilingual import Multilingual, Translated


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairTasks(Multilingual):
    """`Multilingual` whose translations are cut in several ways, with equal shares.

    `task` [R] int32 is 0 on text of one language and n on rows of `kinds[n - 1]`. `parallel` is not
    read.
    """

    kinds: tuple[slots.Examples, ...] = (Translated(), Translated(kind="alternating"))

    def __post_init__(self):
        super().__post_init__()
        if not self.kinds:
            raise UserError("examples.kinds is empty; give rows of translations for each task")

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields of all kinds of rows. Raises UserError as they do."""
        fields = {}
        for kind in self.kinds:
            fields |= kind.spec(length, vocab)
        return {**fields, **super().spec(length, vocab), "task": Field()}

    def parts(self, corpus: Corpus, split: str) -> Sequence[Part]:
        """Returns the languages, and each pair of them once for each kind. Raises UserError."""
        parts = []
        for part in super().parts(corpus, split):
            if "-" not in part.name:
                parts.append(part)
                continue
            share = part.share / len(self.kinds)
            for task, kind in enumerate(self.kinds, 1):
                rows = dataclasses.replace(part.examples, examples=kind)
                tasked = _Tasked(examples=rows, task=task)
                parts.append(Part(f"{part.name}/{task}", part.corpus, tasked, share))
        return parts


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Tasked(Around):
    """Rows with the number of their task."""

    task: int

    def spec(self, length: int, vocab) -> Spec:
        return self.examples.spec(length, vocab)

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        rows = dict(self.examples.rows(block, length=length, vocab=vocab, rng=rng))
        return {**rows, "task": np.full(len(rows["input_ids"]), self.task, np.int32)}
