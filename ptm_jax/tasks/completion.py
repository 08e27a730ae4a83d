"""Link prediction: the rank of the true entity among all, in place of the head and of the tail of every triple.

Ranks are filtered (Bordes et al. 2013, section 4.1): other entities that make a triple of any split do not count. Of equal
scores the true one has the mean rank. MRR is the mean of 1 / rank, Hits@k the share of ranks of at most k; both sides count
alike.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.graph import ENTITY, kinds_of
from ptm_jax.core.graph_store import MANIFEST, GraphStore, open_graph
from ptm_jax.core.system import in_effect
from ptm_jax.core.towers import Tower
from ptm_jax.data.graphs.compiling import compile_graph
from ptm_jax.data.graphs.formats import sources
from ptm_jax.inference.loading import system_of
from ptm_jax.objectives.graph_vectors import unit
from ptm_jax.runs.run import Run
from ptm_jax.tasks.wordsets import Outcome

HITS = (1, 3, 10)
Score = Callable[[jax.Array, jax.Array, bool], jax.Array]


def ranks(score: Score, triples: np.ndarray, known: np.ndarray, entities: int, batch: int = 256) -> np.ndarray:
    """Returns the filtered ranks [2, N] float64 of the tails and of the heads of triples [N, 3].

    score(x [B], r [B], side) gives the scores [B, E] of all entities as tails of (x, r), or as heads where `side` is True.
    It is compiled. `known` [M, 3] are the triples that do not count. A score that is no number is the worst."""
    out = np.zeros((2, len(triples)))
    for side in (False, True):
        given, sought = (2, 0) if side else (0, 2)
        answers = _answers(known[:, [given, 1, sought]], triples[:, [given, 1]], entities)
        rank = _ranker(score, side)
        for start in range(0, len(triples), batch):
            rows, masked = triples[start : start + batch], answers[start : start + batch]
            fill = batch - len(rows)
            rows, masked = np.pad(rows, ((0, fill), (0, 0)), "edge"), np.pad(masked, ((0, fill), (0, 0)), "edge")
            found = rank(rows[:, given], rows[:, 1], rows[:, sought], masked)
            out[int(side), start : start + batch] = np.asarray(found)[: batch - fill]
    return out


def _ranker(score: Score, side: bool) -> Callable[..., jax.Array]:
    def rank(x, r, answer, masked):
        scores = score(x, r, side)
        true = jnp.take_along_axis(scores, answer[:, None], 1)
        places = jnp.arange(len(x))[:, None]
        better = (~(scores <= true)).at[places, masked].set(False, mode="drop")
        equal = (scores == true).at[places, masked].set(False, mode="drop").at[places, answer[:, None]].set(False)
        return 1 + better.sum(-1) + equal.sum(-1) / 2

    return jax.jit(rank)


def _answers(known: np.ndarray, queries: np.ndarray, entities: int) -> np.ndarray:
    """Returns the answers of known triples (x, r, y) to queries (x, r), [N, most]; E behind the last."""
    known = known[np.lexsort((known[:, 0], known[:, 1]))].astype(np.int64)
    key = lambda rows: rows[:, 1] * (entities + 1) + rows[:, 0]
    keys, asked = key(known), key(queries.astype(np.int64))
    low, high = np.searchsorted(keys, asked, "left"), np.searchsorted(keys, asked, "right")
    where = low[:, None] + np.arange(max(1, int((high - low).max(initial=0))))
    there = where < high[:, None]
    return np.where(there, known[np.minimum(where, len(known) - 1), 2], entities).astype(np.int32)


def measures(found: np.ndarray) -> dict[str, float]:
    """Returns MRR, Hits@1, 3 and 10 and the mean rank of ranks [2, N], and the MRR of each side."""
    metrics = {"mrr": (1 / found).mean(), **{f"hits@{k}": (found <= k).mean() for k in HITS}, "mean_rank": found.mean()}
    return {name: float(value) for name, value in {**metrics, "tail_mrr": (1 / found[0]).mean(),
                                                   "head_mrr": (1 / found[1]).mean()}.items()}  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class TripleModel:
    """A trained model of triples: its tower, the rows of entities in its table, and {piece: row}."""

    tower: Tower
    objective: Any
    rows: np.ndarray
    pieces: dict[str, int]

    @classmethod
    def read(cls, path: str | Path) -> TripleModel:
        """Reads a run. Raises UserError where it scores no triples."""
        run = Run.at(Path(path))
        system = system_of(run.system, "float32", run.kinds)
        objective = slots.objective(system.objective)
        head = slots.heads_of(system, objective.tower).get(objective.head)
        if head is None or head.relations is None:
            raise UserError(f"{path} scores no triples; give a run of transe, transh, distmult or conve")
        params, meta, _ = run.restore()
        pieces = run.tokenizer(meta).pieces
        tower = Tower(system.towers[objective.tower], in_effect(system, params)[objective.tower])
        rows = np.flatnonzero(kinds_of(pieces) == ENTITY).astype(np.int32)
        return cls(tower, objective, rows, {piece: place for place, piece in enumerate(pieces)})

    @functools.cached_property
    def table(self) -> jax.Array:
        """[V, D]: the vectors that scores read."""
        return self.tower.params["encoder"]["token"]

    def score(self, x: jax.Array, r: jax.Array, side: bool) -> jax.Array:
        """Returns the scores [B, E] of all entities; x are places among `rows`, r rows of the table."""
        every = self.table[self.rows]
        every = unit(every) if self.objective.unit else every
        one = lambda values: values[None]
        inputs = one(every[x]), one(self.table[r]), one(r), jnp.full((1, len(x)), side), every, jnp.asarray(self.rows), False
        return self.tower.head(self.objective.head, *inputs)[0][0]

    def placed(self, graph: GraphStore, triples: np.ndarray) -> np.ndarray:
        """Returns the triples [n, 3] of a graph whose parts the model has: places of entities, and rows of relations."""
        row = lambda kind, name: self.pieces.get(f"{kind}:{'_'.join(name.split())}", -1)
        place = np.full(max(self.pieces.values()) + 2, -1, np.int64)
        place[self.rows] = np.arange(len(self.rows))
        entities = place[np.array([row("e", name) for name in graph.entities], np.int64)]
        relations = np.array([row("r", name) for name in graph.relations], np.int64)
        found = np.stack([entities[triples[:, 0]], relations[triples[:, 1]], entities[triples[:, 2]]], -1)
        return found[(found >= 0).all(1)]


@contextlib.contextmanager
def graph_of(names: Sequence[str]) -> Iterator[GraphStore]:
    """A compiled graph, or the graph of sources, compiled for the while."""
    if len(names) == 1 and (Path(names[0]).expanduser() / MANIFEST).is_file():
        yield open_graph(names[0])
        return
    with tempfile.TemporaryDirectory() as folder:
        yield compile_graph(sources([name.removeprefix("triples:") for name in names]), Path(folder) / "graph")


def evaluate(path: str | Path, data: Sequence[str], split: str = "valid", batch: int = 256) -> Outcome:
    """Returns the metrics of a run on a split of a graph, filtered by all splits. Raises UserError."""
    model = TripleModel.read(path)
    with graph_of(data) as graph:
        given = graph.triples(split)
        if not len(given):
            raise UserError(f"{' '.join(data)} has no triples of {split}; give a folder with dev.tsv or test.tsv")
        triples, known = model.placed(graph, given), model.placed(graph, graph.known)
    if not len(triples):
        raise UserError(f"the model knows no triple of {' '.join(data)}; it was trained on another graph")
    found = ranks(model.score, triples, known, len(model.rows), batch)
    left = len(given) - len(triples)
    remarks = {"triples have an entity or relation that the model does not know; they are left out": left} if left else {}
    return Outcome(measures(found), len(triples), remarks)
