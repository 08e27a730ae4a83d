"""Hard negatives: texts of a corpus that are near an anchor, and no answer to it.

The corpus is read in blocks: vectors of the anchors, the nearest texts of each anchor and one block
are in memory. Margins relative to the positive text are those of NV-Retriever (Moreira et al. 2024,
arXiv 2407.15831, section 3.2: TopK-MarginPos, TopK-PercPos).
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from ptm_jax.core.errors import UserError, unknown
from ptm_jax.inference.loading import has_encoder, load
from ptm_jax.inference.streams.lines import Source
from ptm_jax.inference.streams.nearest_lines import Best
from ptm_jax.inference.text.pair_scores import pair_scores
from ptm_jax.inference.text.vectors import DOCUMENTS, QUERIES, prompt_for
from ptm_jax.runs.run import best_checkpoint
from ptm_jax.tasks.formats.text_groups import Group, TextGroups

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained

BLOCK, ANCHORS = 1024, 1024
"""Texts and anchors whose similarities are in memory at once."""
WIDER = 10
"""Candidates for each negative, where some of them may be refused."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mining:
    """Which texts near an anchor are its negatives.

    negatives        texts for each anchor at most
    range_min        nearest texts that are passed over
    range_max        rank of the last candidate; None: range_min + negatives, and ten times as many
                     negatives where scores refuse some
    max_score, min_score   limits of the score
    absolute_margin  the score is at most the positive text's minus this
    relative_margin  the score is at most p - |p| times this, for the positive text's score p
    sampling         "top": the nearest candidates; "random": drawn from all candidates by `seed`

    An anchor with several positive texts takes the lowest of their scores. All its positive texts,
    and the negatives that it has, are never candidates.
    """

    negatives: int = 3
    range_min: int = 0
    range_max: int | None = None
    max_score: float | None = None
    min_score: float | None = None
    absolute_margin: float | None = None
    relative_margin: float | None = None
    sampling: Literal["top", "random"] = "top"
    seed: int = 0

    def __post_init__(self):
        if self.negatives < 0 or self.range_min < 0:
            raise UserError(
                f"negatives is {self.negatives} and range_min {self.range_min}; both must be at "
                "least 0"
            )
        if self.sampling not in ("top", "random"):
            raise unknown("sampling", self.sampling, ("top", "random"))
        if self.last - self.range_min < self.negatives:
            raise UserError(
                f"ranks {self.range_min + 1} to {self.last} hold {self.last - self.range_min} "
                f"candidates for {self.negatives} negatives; take a greater range_max"
            )

    @property
    def last(self) -> int:
        """The rank of the last candidate."""
        if self.range_max is not None:
            return self.range_max
        limits = (self.max_score, self.min_score, self.absolute_margin, self.relative_margin)
        wider = WIDER if any(limit is not None for limit in limits) else 1
        return self.range_min + self.negatives * wider

    def usable(self, scores: np.ndarray, positive: float) -> np.ndarray:
        """Returns whether each score [k] may be a negative's, for the positive text's score."""
        limits = [self.max_score]
        if self.absolute_margin is not None:
            limits.append(positive - self.absolute_margin)
        if self.relative_margin is not None:
            limits.append(positive - abs(positive) * self.relative_margin)
        usable = np.isfinite(scores)
        for limit in (limit for limit in limits if limit is not None):
            usable &= scores <= limit
        return usable if self.min_score is None else usable & (scores >= self.min_score)

    def chosen(self, scores: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        """Returns the places of the negatives among candidates, by falling scores [k]; -inf is
        none."""
        order = np.argsort(-scores, kind="stable")[self.range_min : self.last]
        order = order[np.isfinite(scores[order])]
        if self.sampling == "random" and len(order) > self.negatives:
            order = order[np.sort(draw.choice(len(order), self.negatives, replace=False))]
        return order[: self.negatives]


@dataclasses.dataclass(frozen=True)
class Texts:
    """The distinct texts of groups, and after them those of a corpus, which is read at each pass.

    groups  distinct texts
    corpus  a file with a text in each line or row, or texts
    """

    groups: Collection[str]
    corpus: str | Path | Collection[str] = ()

    def __iter__(self) -> Iterator[str]:
        known: set[bytes] = set()
        for text in itertools.chain(self.groups, self._corpus()):
            digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
            if digest not in known:
                known.add(digest)
                yield text

    def at(self, numbers: Collection[int]) -> dict[int, str]:
        """Returns {number: text} of numbers."""
        return {number: text for number, text in enumerate(self) if number in numbers}

    def _corpus(self) -> Iterator[str]:
        if not isinstance(self.corpus, str | Path):
            yield from self.corpus
            return
        for line in Source(Path(self.corpus)).lines():
            if not line.text:
                continue
            if line.fault:
                raise UserError(f"{self.corpus}:{line.number}: {line.fault}; correct the line")
            yield line.text


@dataclasses.dataclass(frozen=True)
class Near:
    """The nearest texts of each of q anchors, and the scores of the pairs of groups.

    scores, texts  [q, k]: scores and numbers of texts; a score of -inf is no text
    pairs          [p, 2]: anchor and text
    of_pairs       [p]: their scores
    count          number of texts
    """

    scores: np.ndarray
    texts: np.ndarray
    pairs: np.ndarray
    of_pairs: np.ndarray
    count: int = 0


@dataclasses.dataclass(frozen=True)
class Mined:
    """Groups with their negatives.

    rows     the columns anchor, positive, negatives, and scores of the texts after the anchor, if
             they were asked for
    texts    number of distinct texts that were compared
    missing  number of negatives that were not found
    """

    rows: list[dict[str, object]]
    texts: int
    missing: int


def mine(
    model: Pretrained | str | Path, data: str | Path | Iterable[Mapping[str, object]],
    corpus: str | Path | Collection[str] = (), *, rescorer: Pretrained | str | Path | None = None,
    scores: bool = False, batch_size: int = 32, **options,
) -> list[dict[str, object]]:  # fmt: skip
    """Returns the rows of `data` with hard negatives, on which `ptm_jax.finetune` trains.

    data      a file of pairs, or dicts with its columns (`TextGroups`)
    corpus    a file with a text in each line, or texts; negatives come from it and from the texts
              of `data`
    rescorer  a cross-encoder, whose logits take the place of the similarities
    scores    whether rows have the scores of their texts after the anchor
    options   of `Mining`

    Raises UserError.
    """
    examples, mining = TextGroups(), Mining(**options)
    if isinstance(data, str | Path):
        groups = list(examples.read(data))
    else:
        groups = list(examples.grouped((f"row {n}", row) for n, row in enumerate(data, 1)))
    result = mined(
        _loaded(model), groups, corpus, mining, scores=scores, batch_size=batch_size,
        rescorer=None if rescorer is None else _loaded(rescorer),
    )  # fmt: skip
    return result.rows


def _loaded(model: Pretrained | str | Path) -> Pretrained:
    return load(best_checkpoint(model)) if isinstance(model, str | Path) else model


def mined(
    model: Pretrained, groups: Sequence[Group], corpus: str | Path | Collection[str],
    mining: Mining, *, rescorer: Pretrained | None = None, scores: bool = False,
    batch_size: int = 32,
) -> Mined:  # fmt: skip
    """Returns groups with their negatives. Raises UserError."""
    if not groups:
        raise UserError("there are no pairs; give rows with an anchor and a positive text")
    anchors: dict[str, int] = {}
    texts: dict[str, int] = {}
    numbers = [
        (
            anchors.setdefault(group.texts[0], len(anchors)),
            [texts.setdefault(text, len(texts)) for text in group.texts[1:]],
        )
        for group in groups
    ]
    pairs = np.array(sorted({(anchor, text) for anchor, row in numbers for text in row}))
    every, names = Texts(texts, corpus), list(anchors)
    size = mining.last + int(np.bincount(pairs[:, 0]).max())
    near = nearest(model, names, every, pairs, size=size, batch_size=batch_size)
    if rescorer is not None:
        near = rescored(rescorer, names, every, near, batch_size)
    positives = {(anchor, row[0]) for anchor, row in numbers}
    negatives = _negatives(near, positives, mining)
    wanted = {text for row in negatives for text, _ in row}
    chosen = every.at(wanted | {text for _, row in numbers for text in row})
    score_of = dict(zip(map(tuple, near.pairs.tolist()), near.of_pairs.tolist(), strict=True))
    rows = []
    for anchor, (positive, *others) in numbers:
        known = [(text, score_of[anchor, text]) for text in others]
        row = [*known, *negatives[anchor]]
        fields = (
            {"scores": [score_of[anchor, positive], *(score for _, score in row)]} if scores else {}
        )
        rows.append({
            "anchor": names[anchor], "positive": chosen[positive],
            "negatives": [chosen[text] for text, _ in row], **fields,
        })  # fmt: skip
    missing = sum(mining.negatives - len(negatives[anchor]) for anchor, _ in numbers)
    return Mined(rows, near.count, missing)


def nearest(
    model: Pretrained, anchors: Sequence[str], texts: Iterable[str], pairs: np.ndarray, *,
    size: int, batch_size: int = 32,
) -> Near:  # fmt: skip
    """Returns the `size` nearest texts of each anchor, of equally near ones the first, and the
    scores of the pairs [p, 2]. Raises UserError."""
    if not has_encoder(model):
        raise UserError(f"{model.system.name} has no encoder of texts; take a sentence encoder")
    options = {"batch_size": batch_size, "truncate": True}
    asked = model.encode(anchors, **options, **prompt_for(model, {}, QUERIES))
    starts = range(0, len(anchors), ANCHORS)
    best = [Best.of(len(asked[start : start + ANCHORS]), size) for start in starts]
    of_pairs, count = np.zeros(len(pairs), np.float32), 0
    stream = iter(texts)
    while block := list(itertools.islice(stream, BLOCK)):
        stored = model.encode(block, **options, **prompt_for(model, {}, DOCUMENTS))
        for start, part in zip(starts, best, strict=True):
            scores = model.similarity(asked[start : start + ANCHORS], stored)
            rows, columns = (pairs - (start, count)).T
            here = (rows >= 0) & (rows < len(scores)) & (columns >= 0) & (columns < len(block))
            of_pairs[here] = scores[rows[here], columns[here]]
            part.add(scores, count)
        count += len(block)
    scores, indices = (
        np.concatenate([vars(part)[name] for part in best]) for name in ("scores", "indices")
    )
    return Near(scores, indices, pairs, of_pairs, count)


def rescored(
    rescorer: Pretrained, anchors: Sequence[str], texts: Texts, near: Near, batch_size: int
) -> Near:
    """Returns the candidates with the logits of a cross-encoder as scores. Raises UserError."""
    rows, columns = np.nonzero(np.isfinite(near.scores))
    pairs = np.concatenate([near.pairs, np.stack([rows, near.texts[rows, columns]], 1)])
    words = texts.at({*pairs[:, 1].tolist()})
    firsts = [anchors[anchor] for anchor, _ in pairs.tolist()]
    logits = pair_scores(rescorer, firsts, [words[n] for n in pairs[:, 1].tolist()], batch_size)
    scores, split = near.scores.copy(), len(near.pairs)
    scores[rows, columns] = logits[split:]
    return dataclasses.replace(near, scores=scores, of_pairs=logits[:split])


def _negatives(
    near: Near, positives: Collection[tuple[int, int]], mining: Mining
) -> list[list[tuple[int, float]]]:
    """Returns [(text, score), ..] of the negatives of each anchor."""
    lowest = np.full(len(near.scores), np.inf, np.float32)
    refused: list[list[int]] = [[] for _ in near.scores]
    for (anchor, text), score in zip(near.pairs.tolist(), near.of_pairs, strict=True):
        refused[anchor].append(text)
        if (anchor, text) in positives:
            lowest[anchor] = min(lowest[anchor], score)
    draw, negatives = np.random.default_rng(mining.seed), []
    columns = (near.scores, near.texts, lowest, refused)
    for scores, texts, positive, paired in zip(*columns, strict=True):
        usable = mining.usable(scores, positive) & ~np.isin(texts, paired)
        usable = np.where(usable, scores, -np.inf)
        places = mining.chosen(usable, draw)
        negatives.append(list(zip(texts[places].tolist(), scores[places].tolist(), strict=True)))
    return negatives
