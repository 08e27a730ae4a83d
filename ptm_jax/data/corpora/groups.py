"""Groups of blocks, which are cut into rows together, and their lanes (`data.corpora.stream`)."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.slots import Examples
from ptm_jax.data.corpora import store
from ptm_jax.data.languages import mix

GROUP_ROWS = 64
"""Rows of a group, about."""


def groups_of(
    corpus: store.Corpus,
    split: str,
    examples: Examples,
    *,
    length: int,
    batch: int,
    seed: int,
    row: np.dtype,
    sampled: bool = False,
) -> Groups | MixedGroups:
    """Returns groups of about `GROUP_ROWS` rows.
    For continuing examples at least one group a row of a batch. A `Mixture` has each group of its
    languages once, or with `sampled` the shares of its languages."""
    if isinstance(examples, mix.Mixture):
        parts = examples.parts(corpus, split)
        groups = tuple(
            groups_of(
                part.corpus, split, part.examples, length=length, batch=batch, seed=seed, row=row
            )
            for part in parts
        )
        sizes = np.array([len(group) for group in groups])
        shares = np.array([part.share for part in parts])
        texts = np.array([group.source.tokens for group in groups])
        quotas = mix.quotas(sizes, texts, shares) if sampled else sizes
        return MixedGroups(groups, tuple(quotas.tolist()), seed)
    empty = UserError(
        f"the split {split} of {corpus.dir} is empty; prepare it with a greater heldout share"
    )
    if not corpus.size(split)["blocks"]:
        raise empty
    source = examples.blocks(corpus, split) or store.Blocks(corpus, split)
    if not len(source):
        raise empty
    count, parts = max(1, round(GROUP_ROWS * length * len(source) / max(1, source.tokens))), 1
    consecutive = examples.continuing
    if consecutive:
        count, parts = max(1, min(count, len(source) // batch)), max(1, -(-batch // len(source)))
    words = corpus.word_starts() if examples.needs_words else None
    spellings = examples.table(corpus.tokenizer()) if examples.spells else None
    return Groups(
        corpus,
        split,
        examples,
        length,
        seed,
        count,
        row,
        source,
        words,
        consecutive,
        parts,
        spellings,
    )


_mixed = functools.lru_cache(maxsize=3)(mix.order)


@functools.lru_cache(maxsize=3)
def _order(seed: int, epoch: int, count: int) -> np.ndarray:
    """Returns the blocks, or runs of blocks, in the order of an epoch."""
    return np.random.default_rng([seed, epoch]).permutation(count)


@dataclasses.dataclass(frozen=True)
class Groups:
    """The groups of a split.
    A group is one of `parts` equal parts of the rows of `size` blocks, which are adjacent in the
    corpus where `consecutive`."""

    corpus: store.Corpus
    split: str
    examples: Any
    length: int
    seed: int
    size: int
    row: np.dtype
    source: Any
    words: np.ndarray | None = None
    consecutive: bool = False
    parts: int = 1
    spellings: np.ndarray | None = None

    def __len__(self) -> int:
        return self.parts * -(-self._blocks // self.size)

    @property
    def _blocks(self) -> int:
        return len(self.source)

    def cut(self, epoch: int, group: int) -> np.ndarray:
        """Returns all rows of a group, [R] of the row's type."""
        run, part = divmod(group, self.parts)
        if self.consecutive:
            first = int(_order(self.seed, epoch, -(-self._blocks // self.size))[run]) * self.size
            blocks = range(first, min(first + self.size, self._blocks))
        else:
            blocks = _order(self.seed, epoch, self._blocks)[run * self.size : (run + 1) * self.size]
        block = self.source.join([self.source[int(i)] for i in blocks])
        if self.words is not None or self.spellings is not None:
            block = dataclasses.replace(block, words=self.words, spellings=self.spellings)
        rng = np.random.default_rng([self.seed, epoch, run, 1])
        columns = self.examples.rows(block, length=self.length, vocab=self.corpus.vocab, rng=rng)
        rows = np.empty(len(columns["input_ids"]), self.row)
        for name in self.row.names:
            rows[name] = columns[name]
        return rows[len(rows) * part // self.parts : len(rows) * (part + 1) // self.parts]


@dataclasses.dataclass(frozen=True)
class MixedGroups:
    """The groups of several languages, `quotas` of each in an epoch."""

    parts: tuple[Groups, ...]
    quotas: tuple[int, ...]
    seed: int
    consecutive = False

    @property
    def corpus(self) -> store.Corpus:
        return self.parts[0].corpus

    @property
    def row(self) -> np.dtype:
        return self.parts[0].row

    def __len__(self) -> int:
        return sum(self.quotas)

    def cut(self, epoch: int, group: int) -> np.ndarray:
        """Returns all rows of a group, [R] of the row's type."""
        language, number = _mixed(self.quotas, self.seed, epoch)[group].tolist()
        groups = self.parts[language]
        return groups.cut(*divmod(epoch * self.quotas[language] + number, len(groups)))


class Lane:
    """Reads the rows of groups g, g + G, ... of every epoch.
    `cursor` is (epoch, group, row) of the next row."""

    def __init__(self, groups: Groups | MixedGroups, number: int, lanes: int, epochs: int | None):
        self._groups, self._number, self._lanes, self._epochs = groups, number, lanes, epochs
        self.seek((0, number, 0))

    def seek(self, cursor: tuple[int, int, int]) -> None:
        """Continues at `cursor`."""
        self.cursor, self._rows = cursor, None

    def replay(self, count: int) -> None:
        """Reads `count` rows from the start, to reach a point whose cursor is unknown."""
        self.seek((0, self._number, 0))
        scratch = np.empty(256, self._groups.row)
        while count:
            count -= self.fill(scratch[: min(count, len(scratch))])

    def fill(self, out: np.ndarray) -> int:
        """Writes the next rows into out [R] and returns their number.
        It is less than R when the last epoch ends."""
        done, goal = 0, len(out)
        while done < goal:
            epoch, group, row = self.cursor
            if epoch == self._epochs:
                break
            if self._rows is None:
                self._rows = self._groups.cut(epoch, group)
            taken = min(goal - done, len(self._rows) - row)
            out[done : done + taken] = self._rows[row : row + taken]
            done += taken
            if row + taken < len(self._rows):
                self.cursor = (epoch, group, row + taken)
            else:
                self._rows, group = None, group + self._lanes
                self.cursor = (
                    (epoch, group, 0) if group < len(self._groups) else (epoch + 1, self._number, 0)
                )
        return done
