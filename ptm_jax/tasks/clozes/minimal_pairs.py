"""`ptm evaluate --task blimp`: which sentence of a pair does a language model find more probable.

Data: a folder or files of pairs. JSON lines have `sentence_good` and `sentence_bad`, a paradigm
`UID` and its `linguistics_term` (BLiMP, Warstadt et al. 2020). Tables have the columns
`grammatical` and `ungrammatical`, and `test case` (Marvin and Linzen 2018). Sentences are scored by
`inference.likelihoods.cloze_scores.sentence_scores`. Equal scores count as wrong. `--by span` masks
all tokens in which the sentences differ, and adds their log-probabilities; where only one sentence
has such tokens, both also mask the token before them.

The figures and baselines are means over paradigms, as BLiMP's; `accuracy over pairs` is added where
paradigms differ in size. Baselines: `shorter sentence` takes the sentence with fewer tokens,
`unigram` the one with more frequent words in the suite, and `majority` the one whose words are more
often in good sentences of the paradigm's other pairs.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.inference.likelihoods import cloze_scores
from ptm_jax.inference.loading import load
from ptm_jax.runs.evaluations import METHOD, Evaluation, Report, Request
from ptm_jax.runs.run import best_checkpoint
from ptm_jax.tasks.clozes import baselines
from ptm_jax.tasks.formats import tabular
from ptm_jax.tasks.tables import table_cells as cells

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained

PUBLISHED = "models_summary.jsonl"
"""BLiMP's file with the accuracy of published models for each paradigm."""
PEOPLE = "human_validation_summary.csv"
"""BLiMP's file with the accuracy of people for each paradigm."""
SCORES = {
    "piece": "pseudo-log-likelihood",
    "word": "pseudo-log-likelihood of words",
    "span": "the masked tokens in which they differ",
}
"""{--by: score of a masked model}."""
OTHERS = ("predictions", "plot", "adapter", "ensemble", "beside", "languages", "speed")


def refused(*takes: str) -> tuple[tuple[tuple[str, ...], str], ...]:
    """Returns `Evaluation.refuses` of a cloze test that takes some of the options."""
    others = tuple(option for option in OTHERS if option not in takes)
    return METHOD, (others, "{option} is not for {task}; leave it out")


REFUSED = refused()


Name = TypeVar("Name", str, tuple[str, str])


class Pair(NamedTuple):
    """A good and a bad sentence, their paradigm, and its group of paradigms."""

    good: str
    bad: str
    paradigm: str
    group: str


def report(request: Request) -> Report:
    """Returns the accuracy of all paradigms, of groups, and of baselines: means over paradigms."""
    files = files_of(request.data, (".jsonl", ".txt", ".tsv", ".csv"), "blimp")
    pairs = [
        pair for file in files if file.name not in (PUBLISHED, PEOPLE) for pair in pairs_of(file)
    ]
    model = load(best_checkpoint(request.model), tower=request.tower)
    if request.by != "piece" and (model.causal or cloze_scores.detects(model)):
        raise UserError(f"--by {request.by} is for masked models; leave it out")
    with request.progress():
        right, shorter = _compared(model, pairs, request)
    paradigms = accuracies(right, [pair.paradigm for pair in pairs])
    published = _published(files, paradigms)
    words = baselines.Unigrams(text for pair in pairs for text in (pair.good, pair.bad))
    unigram = [words.share(pair.good, [pair.bad]) for pair in pairs]
    metrics = averages(pairs, right, {
        "shorter sentence": shorter, "majority": majority(pairs), "unigram": unigram,
    })  # fmt: skip
    metrics |= {f"published {name}": value for name, value in published.items()}
    if len({pair.group for pair in pairs}) > 1:
        metrics |= of_groups(pairs, right)
    document = {
        "task": "blimp", "examples": len(pairs), "paradigms": paradigms, "metrics": metrics,
        "source": ", ".join(request.data),
    }  # fmt: skip
    kind = "log-probability" if model.causal else SCORES[request.by]
    kind = "unchanged tokens" if cloze_scores.detects(model) else kind
    head = f"blimp: {len(pairs):,} pairs of {len(paradigms)} paradigms, by {kind}"
    return Report(document=document, head=head, width=26)


def _compared(
    model: Pretrained, pairs: Sequence[Pair], request: Request
) -> tuple[np.ndarray, np.ndarray]:
    """Returns whether each good sentence has the higher score, and whether it has fewer tokens, of
    equally many a half."""
    texts = list(dict.fromkeys(text for pair in pairs for text in (pair.good, pair.bad)))
    rows = dict(zip(texts, model.ids_of(texts), strict=True))
    both = [(rows[pair.good], rows[pair.bad]) for pair in pairs]
    if request.by == "span":
        spans = [span for one in both for span in spans_of(*one)]
        every = [row for one in both for row in one]
        scores = cloze_scores.span_scores(model, every, spans, request.batch).reshape(-1, 2)
    else:
        values = cloze_scores.sentence_scores(model, texts, by=request.by, batch=request.batch)
        score = dict(zip(texts, values, strict=True))
        scores = np.array([(score[pair.good], score[pair.bad]) for pair in pairs])
    shorter = [0.5 + 0.5 * np.sign(len(bad) - len(good)) for good, bad in both]
    return scores[:, 0] > scores[:, 1], np.array(shorter)


def spans_of(*rows: np.ndarray) -> list[list[int]]:
    """Returns the places of the tokens in which two rows differ, at least one in each."""
    least = min(map(len, rows))
    same = rows[0][:least] == rows[1][:least]
    first = int(np.argmin(same)) if not same.all() else least
    same = rows[0][::-1][: least - first] == rows[1][::-1][: least - first]
    last = int(np.argmin(same)) if not same.all() else least - first
    if first + last == least:  # one row is a part of the other; the first token is special
        first, last = (first - 1, last) if first > 1 else (first, last - 1)
    return [list(range(first, len(row) - last)) for row in rows]


def majority(pairs: Sequence[Pair]) -> list[float]:
    """Returns how far the words of each good sentence win: 1, or 0.5 for equal counts. A word
    counts the good less the bad sentences of its paradigm's other pairs that have it."""
    words = [[{*text.lower().split()} for text in (pair.good, pair.bad)] for pair in pairs]
    balance: Counter[tuple[str, str]] = Counter()
    for pair, (good, bad) in zip(pairs, words, strict=True):
        balance.update((pair.paradigm, word) for word in good)
        balance.subtract((pair.paradigm, word) for word in bad)
    wins = []
    for pair, (good, bad) in zip(pairs, words, strict=True):
        votes = [balance[pair.paradigm, word] - 1 for word in good - bad]
        votes += [-balance[pair.paradigm, word] - 1 for word in bad - good]
        wins.append(0.5 + 0.5 * float(np.sign(sum(votes))))
    return wins


def pairs_of(file: Path) -> list[Pair]:
    """Returns the pairs of a file. Raises UserError with the place."""
    pairs = []
    for place, fields in tabular.rows(file):
        good, bad = (
            cells.text_of(place, names[0], tabular.need(place, fields, *names))
            for names in (("sentence_good", "grammatical"), ("sentence_bad", "ungrammatical"))
        )
        paradigm = cells.plain(fields.get("UID", fields.get("test case"))) or file.stem
        group = cells.plain(fields.get("linguistics_term")) or paradigm
        pairs.append(Pair(good, bad, paradigm, group))
    if not pairs:
        raise UserError(f"{file} has no pairs; give lines with sentence_good and sentence_bad")
    return pairs


def files_of(sources: Sequence[str], endings: Sequence[str], task: str) -> list[Path]:
    """Returns the files of --data: those of a folder have one of the endings. Raises UserError."""
    files: list[Path] = []
    for source in sources:
        path = Path(source)
        folder = path.is_dir()
        files += (
            sorted(p for p in path.iterdir() if p.name.endswith(tuple(endings)))
            if folder
            else [path]
        )
    if not files:
        raise UserError(f"{task} reads files that end in {', '.join(endings)}; give them as --data")
    return files


def averages(
    pairs: Sequence[Pair], right: Sequence[bool], simple: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """Returns the accuracy and the figures of the baselines: means over paradigms, and the accuracy
    over pairs where paradigms differ in size."""
    names = [pair.paradigm for pair in pairs]
    figures = {
        figure: float(np.mean([*accuracies(values, names).values()]))
        for figure, values in {"accuracy": right, **simple}.items()
    }
    if len({*Counter(names).values()}) == 1:
        return figures
    accuracy = figures.pop("accuracy")
    return {"accuracy": accuracy, "accuracy over pairs": float(np.mean(right)), **figures}


def of_groups(pairs: Sequence[Pair], right: Sequence[bool]) -> dict[str, float]:
    """Returns {group: mean accuracy over its paradigms}."""
    parts = accuracies(right, [(pair.group, pair.paradigm) for pair in pairs])
    return accuracies(parts.values(), [group for group, _ in parts])


def accuracies(right: Iterable[float], names: Iterable[Name]) -> dict[Name, float]:
    """Returns {name: share of its examples that are right}, in the order of the names."""
    parts: dict[Name, list[float]] = defaultdict(list)
    for value, name in zip(right, names, strict=True):
        parts[name].append(float(value))
    return {name: float(np.mean(values)) for name, values in sorted(parts.items())}


def _published(files: Sequence[Path], paradigms: Mapping[str, float]) -> dict[str, float]:
    """Returns {model, or "people": its published accuracy on the paradigms of the data}, where
    BLiMP's files of them are among the files."""
    rows: list[dict[str, str | float]] = []
    for file in files:
        if file.name == PUBLISHED:
            rows += [json.loads(line) for line in file.read_text(encoding="utf8").splitlines()]
        elif file.name == PEOPLE:
            table = [fields for _, fields in tabular.rows(file)]
            rows += [{"UID": one["Condition"], "people": float(one["total_mean"])} for one in table]
    rows = [row for row in rows if row["UID"] in paradigms]
    names = dict.fromkeys(name for row in rows for name in row)
    return {
        name: float(np.mean([row[name] for row in rows if name in row]))
        for name in names
        if name not in ("UID", "linguistics_term")
    }


EVALUATIONS = (
    Evaluation(
        name="blimp", reads="task", run=report, refuses=REFUSED, takes=("by", "tower"),
        help="pairs of a good and a bad sentence under a language model (BLiMP, Marvin and Linzen)",
    ),
)  # fmt: skip
