"""Word analogies and word similarity: published sets of words, and what word vectors make of them.

Analogies are files of `a b c d` lines in sections `: name` (Mikolov et al. 2013, arXiv 1301.3781,
table 1; sections of syntax are named `gram`; the set of Mikolov, Yih & Zweig 2013 in that form).
Similarity sets have two words and a number per line (WordSim-353, SimLex-999, MEN, RG-65). Words
are compared in capitals, as in word2vec's compute-accuracy and in gensim: of several spellings the
first one of the vocabulary counts. Examples with an unknown word are left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import broken, decoded, read_bytes, shown
from ptm_jax.inference.loading import vectors_of
from ptm_jax.inference.text.vectors import unit
from ptm_jax.inference.words.word_vectors import EPSILON, Method, WordVectors
from ptm_jax.runs.evaluations import Evaluation, Report, Request

MOST = 300_000
"""Words of the vocabulary that take part, as in gensim."""
SCORES = 1 << 25
"""Scores that are held at a time."""
OTHERS = (
    "split", "batches", "config", "predictions", "plot", "adapter", "ensemble", "batch", "beside",
    "languages",
)  # fmt: skip
"""Options of `ptm evaluate` that evaluations of words do not take."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Metrics, the number of examples that count, and remarks with their numbers."""

    metrics: Mapping[str, float]
    examples: int
    remarks: Mapping[str, int]


def evaluate(
    model: WordVectors, task: str, path: str | Path, method: Method = "3cosadd"
) -> Outcome:
    """Evaluates word vectors on a file of the task "analogy" or "similarity". Raises UserError."""
    return (
        analogies(model, Path(path), method)
        if task == "analogy"
        else similarities(model, Path(path))
    )


def evaluation(
    name: str, help: str, run: Callable[[Request], Outcome], *, files: str = "one file of words",
    takes: tuple[str, ...] = (),
) -> Evaluation:  # fmt: skip
    """Returns an evaluation of word vectors on `files`.

    `takes` are its options other than --method. Raises UserError for another number of files.
    """

    def report(request: Request) -> Report:
        if len(request.data) != (2 if files.startswith("two") else 1):
            raise UserError(
                f"give {files} as --data, such as questions-words.txt or EN-WS-353-ALL.txt"
            )
        return report_of(request, run(request))

    others = tuple(option for option in OTHERS if option not in takes)
    message = "{option} is not for --task {task} with word vectors; leave it out"
    return Evaluation(name=name, reads="words", run=report, refuses=((others, message),), help=help)


def report_of(request: Request, outcome: Outcome) -> Report:
    """Returns the report of an outcome, with the first file of the data as its source."""
    document = {
        "task": request.task,
        "examples": outcome.examples,
        "metrics": dict(outcome.metrics),
        "source": request.data[0],
        "remarks": dict(outcome.remarks),
    }
    head = f"{request.task}: {outcome.examples:,} examples of {request.data[0]}"
    return Report(document=document, head=head, width=28)


def analogies(model: WordVectors, path: Path, method: Method = "3cosadd") -> Outcome:
    """Returns the accuracy of all questions, of semantic and of syntactic ones, and by section.

    A question is right if the first answer of `WordVectors.analogy` is the expected word. Raises
    UserError for a line of another form, or no known question.
    """
    index, folded = _vocabulary(model)
    sections, known, total, section = [], [], 0, ""
    for number, line in _lines(path):
        if line.startswith(":"):
            section = line[1:].strip()
            continue
        words = line.upper().split()
        if len(words) != 4:
            raise broken(
                path,
                f"line {number:,} has {len(words)} words; expected the four of an analogy, "
                "or `: section`",
            )
        total += 1
        if all(word in index for word in words):
            sections.append(section)
            known.append([index[word] for word in words])
    if not known:
        raise broken(
            path,
            f"none of its {total:,} analogies has all words in the vocabulary; give vectors "
            "of that language",
        )
    right = _right(model, np.array(known), folded, method)
    names = np.array(sections)
    syntax = np.char.startswith(names, "gram")
    parts = (
        {"accuracy": right, "semantic": right[~syntax], "syntactic": right[syntax]}
        if syntax.any()
        else {"accuracy": right}
    )
    parts |= {name: right[names == name] for name in dict.fromkeys(sections) if name}
    metrics = {name: float(part.mean()) for name, part in parts.items() if len(part)}
    return Outcome(
        {**metrics, "coverage": len(known) / total},
        len(known),
        _left_out(total - len(known), "analogies"),
    )


def similarities(model: WordVectors, path: Path) -> Outcome:
    """Returns the correlations of Spearman (ranks) and Pearson of cosines with a set.

    Lines that begin with # and a header are skipped. Raises UserError for a line of another form,
    or for fewer than two known pairs.
    """
    index, _ = _vocabulary(model)
    pairs, gold, total = [], [], 0
    for number, line in _lines(path):
        cells = line.split("\t") if "\t" in line else line.replace(",", " ").split()
        try:
            first, second, score = (
                cells[0].strip().upper(),
                cells[1].strip().upper(),
                float(cells[2]),
            )
        except (ValueError, IndexError):
            if number == 1:
                continue
            raise broken(
                path, f"line {number:,} is {shown(line)}; expected two words and a number"
            ) from None
        total += 1
        if first in index and second in index:
            pairs.append((index[first], index[second]))
            gold.append(score)
    if len(pairs) < 2:
        raise broken(
            path,
            f"{len(pairs)} of its {total:,} pairs have both words in the vocabulary; two are "
            "needed at least",
        )
    from scipy import stats  # a second, which other evaluations need not wait for

    first, second = (unit(model.vectors[list(ids)]) for ids in zip(*pairs, strict=True))
    cosines = (first * second).sum(1)
    metrics = {
        "spearman": float(stats.spearmanr(gold, cosines).statistic),
        "pearson": float(stats.pearsonr(gold, cosines).statistic),
        "coverage": len(pairs) / total,
    }
    return Outcome(metrics, len(pairs), _left_out(total - len(pairs), "pairs"))


def _left_out(count: int, what: str) -> dict[str, int]:
    return (
        {f"{what} have a word outside of the vocabulary; they are left out": count} if count else {}
    )


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields (number, line) of lines that are not empty and no comments."""
    text = decoded(path, read_bytes(path))
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            yield number, line.strip()


def _vocabulary(model: WordVectors) -> tuple[dict[str, int], np.ndarray]:
    """Returns ({word in capitals: its first row}, [V] the first row of each word in capitals)."""
    capitals = [word.upper() for word in model.words[:MOST]]
    index = dict(zip(reversed(capitals), range(len(capitals) - 1, -1, -1), strict=True))
    return index, np.array([index[word] for word in capitals])


def _right(
    model: WordVectors, questions: np.ndarray, folded: np.ndarray, method: Method
) -> np.ndarray:
    """Returns [n] whether the best word for rows [n, 4] is the expected one.
    No spelling of the given words is an answer."""
    if method not in ("3cosadd", "3cosmul"):
        raise UserError(f"the method {method!r} is unknown; there are: 3cosadd, 3cosmul")
    table = unit(model.vectors[: len(folded)])
    order = np.argsort(folded, kind="stable")  # of the words, by the first one of the same letters
    bounds = np.searchsorted(folded[order], np.arange(len(folded) + 1))
    right, step = np.zeros(len(questions), bool), max(1, SCORES // len(folded))
    for start in range(0, len(questions), step):
        a, b, c, expected = questions[start : start + step].T
        if method == "3cosadd":
            scores = (table[b] - table[a] + table[c]) @ table.T
        else:

            def cosine(rows):
                return (1 + table[rows] @ table.T) / 2

            scores = cosine(b) * cosine(c) / (cosine(a) + EPSILON)
        for row, question in enumerate(np.stack([a, b, c], 1)):
            for word in question:
                scores[row, order[bounds[word] : bounds[word + 1]]] = -np.inf
        right[start : start + step] = folded[scores.argmax(1)] == expected
    return right


def _of_request(request: Request) -> Outcome:
    return evaluate(vectors_of(request.model), request.task, request.data[0], request.method)


EVALUATIONS = (
    evaluation("analogy", "accuracy of analogies of word vectors", _of_request),
    evaluation("similarity", "rank correlation with judged similarities of words", _of_request),
)
