"""Link prediction: the rank of the true entity among all entities.
It replaces the head and the tail of every triple, or the true relation if a model predicts
relations.

Ranks are filtered (Bordes et al. 2013, section 4.1): other answers that make a triple of any split
do not count. Of equal scores the true one has the mean rank. MRR is the mean of 1 / rank, Hits@k
the share of ranks of at most k; both sides count alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.system import in_effect
from ptm_jax.inference.loading import system_of
from ptm_jax.inference.words.triple_models import TripleModel, of_system
from ptm_jax.knowledge.graphs.formats import sources
from ptm_jax.knowledge.graphs.graph_store import MANIFEST, GraphStore, open_graph
from ptm_jax.knowledge.graphs.opening import compiled
from ptm_jax.runs.evaluations import Evaluation, Report, Request
from ptm_jax.runs.run import Run
from ptm_jax.tasks.wordsets import Outcome, report_of

HITS = (1, 3, 10)
Score = Callable[[jax.Array, jax.Array, str], jax.Array]
COLUMNS = {"tail": (0, 1, 2), "head": (2, 1, 0), "relation": (0, 2, 1)}
"""{target: (column of the known entity, of the relation, of the answer)}."""


def model_of(path: str | Path) -> TripleModel:
    """Reads a run on triples of a graph. Raises UserError where it scores none."""
    run = Run.at(Path(path))
    system = system_of(run.system, "float32", run.kinds)
    params, meta, _ = run.restore()
    return of_system(system, in_effect(system, params), run.tokenizer(meta), path)


def ranks(
    score: Score,
    triples: np.ndarray,
    known: np.ndarray,
    size: int,
    *,
    batch: int = 256,
    sought=("tail", "head"),
):
    """Returns the filtered ranks [len(sought), N] float64 of the answers of triples [N, 3].

    score(x [B], y [B], what) gives the scores [B, size] of all answers: of tails from head and
    relation, of heads from tail and relation, or of relations from head and tail. `known` [M, 3]
    are the triples that do not count. A score that is no number is the worst."""
    out = np.zeros((len(sought), len(triples)))
    for row, what in enumerate(sought):
        columns = list(COLUMNS[what])
        answers = _answers(known[:, columns], triples[:, columns[:2]], size)
        for start in range(0, len(triples), batch):
            rows, masked = triples[start : start + batch, columns], answers[start : start + batch]
            fill = batch - len(rows)
            rows, masked = (
                np.pad(rows, ((0, fill), (0, 0)), "edge"),
                np.pad(masked, ((0, fill), (0, 0)), "edge"),
            )
            batch_ranks = _rank(score(rows[:, 0], rows[:, 1], what), rows[:, 2], masked)
            out[row, start : start + batch] = np.asarray(batch_ranks)[: batch - fill]
    return out


@jax.jit
def _rank(scores: jax.Array, answer: jax.Array, masked: jax.Array) -> jax.Array:
    """The ranks [B] of answers [B] by scores [B, size], without those that are `masked` [B,
    most]."""
    true = jnp.take_along_axis(scores, answer[:, None], 1)
    places = jnp.arange(len(scores))[:, None]
    better = (~(scores <= true)).at[places, masked].set(False, mode="drop")
    equal = (
        (scores == true)
        .at[places, masked]
        .set(False, mode="drop")
        .at[places, answer[:, None]]
        .set(False)
    )
    return 1 + better.sum(-1) + equal.sum(-1) / 2


def _answers(known: np.ndarray, queries: np.ndarray, size: int) -> np.ndarray:
    """Returns the answers of known (x, y, answer) to queries (x, y), [N, most]; `size` after the
    last."""
    known = known[np.lexsort((known[:, 0], known[:, 1]))].astype(np.int64)
    base = 1 + max(int(known[:, 0].max(initial=0)), int(queries[:, 0].max(initial=0)))

    def key(rows):
        return rows[:, 1] * base + rows[:, 0]

    keys, asked = key(known), key(queries.astype(np.int64))
    low, high = np.searchsorted(keys, asked, "left"), np.searchsorted(keys, asked, "right")
    where = low[:, None] + np.arange(max(1, int((high - low).max(initial=0))))
    known_answer = where < high[:, None]
    return np.where(known_answer, known[np.minimum(where, len(known) - 1), 2], size).astype(
        np.int32
    )


def _also_in(triples: np.ndarray, others: np.ndarray) -> int:
    """Returns the number of triples [n, 3] that are among others."""
    known = set(map(tuple, others.tolist()))
    return sum(tuple(triple) in known for triple in triples.tolist())


def measures(ranks_of: np.ndarray, sought: Sequence[str] = ("tail", "head")) -> dict[str, float]:
    """Returns MRR, Hits@1, 3 and 10 and the mean rank of ranks [len(sought), N].
    With two sides also the MRR of each."""
    metrics = {
        "mrr": (1 / ranks_of).mean(),
        **{f"hits@{k}": (ranks_of <= k).mean() for k in HITS},
        "mean_rank": ranks_of.mean(),
    }
    sides = (
        {f"{what}_mrr": (1 / row).mean() for what, row in zip(sought, ranks_of, strict=True)}
        if len(sought) > 1
        else {}
    )
    return {name: float(value) for name, value in {**metrics, **sides}.items()}


def graph_of(names: Sequence[str]) -> GraphStore:
    """Returns a compiled graph, or the graph of sources from the cache."""
    if len(names) == 1 and (Path(names[0]).expanduser() / MANIFEST).is_file():
        return open_graph(names[0])
    return compiled(sources([name.removeprefix("triples:") for name in names]))


def evaluate(
    path: str | Path, data: Sequence[str], split: str = "valid", batch: int = 256, limit: int = 0
) -> Outcome:
    """Returns the metrics of a run on a split of a graph, filtered by all splits.

    Of all triples, or of `limit` of them at equal distances. `batch` is that of vectors; a model
    that reads texts has its own. Raises UserError.
    """
    model = model_of(path)
    graph = graph_of(data)
    asked = graph.triples(split)
    if not len(asked):
        raise UserError(
            f"{' '.join(data)} has no triples of {split}; give a folder with dev.tsv or test.tsv"
        )
    triples, known = model.placed(graph, asked), model.placed(graph, graph.known)
    seen = 0 if split == "train" else _also_in(asked, graph.triples("train"))
    if not len(triples):
        raise UserError(
            f"the model knows no triple of {' '.join(data)}; it was trained on another graph"
        )
    remarks, left = {}, len(asked) - len(triples)
    if left:
        remarks[
            "triples have an entity or relation that the model does not know; they are left out"
        ] = left
    if 0 < limit < len(triples):
        remarks["triples are there, of which a part was ranked"] = len(triples)
        triples = triples[np.arange(limit) * len(triples) // limit]
    if seen:
        remarks[
            f"triples of {split} stand in the training triples too; their ranks are too good"
        ] = seen
    answer_ranks = ranks(
        model.score,
        triples,
        known,
        model.answers,
        batch=model.queries or batch,
        sought=model.sought,
    )
    return Outcome(measures(answer_ranks, model.sought), len(triples), remarks)


def _report(request: Request) -> Report:
    if not request.data:
        raise UserError(
            "give the graph as --data: a folder with train.tsv and dev.tsv, or one of ptm "
            "prepare --graph"
        )
    split = {"heldout": "valid"}.get(request.split, request.split)
    limit = request.batches * request.batch
    outcome = evaluate(request.model, request.data, split, max(request.batch, 256), limit)
    return report_of(request, outcome)


EVALUATIONS = (
    Evaluation(
        name="links",
        reads="graph",
        run=_report,
        refuses=(
            (
                (
                    "config", "predictions", "plot", "adapter", "ensemble", "beside", "languages",
                    "method",
                ),
                "{option} is not for --task links; leave it out",
            ),
        ),
        help="link prediction in a graph",
    ),
)  # fmt: skip
