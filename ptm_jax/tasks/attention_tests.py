"""`ptm evaluate --task attention`: does the class of a text follow its attention?

Data: a table with texts. The class is that of a classifier with one attention over its tokens
(`--adapt attentive`), or of the first token of a Transformer, whose heads of the last layer are
tested together. Special tokens keep their weights (`inference.saliency.alternatives`).

Jain and Wallace 2019 (arXiv 1902.10186): the weights permuted, adversarial weights, and Kendall's
tau of the weights with gradients and with the change of the class probabilities without a token.
Serrano and Smith 2019 (arXiv 1906.03731): the greatest weight set to zero against a random one, and
the share of the tokens that are removed in an order until the class flips. Where the attention is
needed, permutations change the prediction, adversaries stay near, and few tokens flip the class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.inference import inputs
from ptm_jax.inference.loading import load
from ptm_jax.inference.saliency import alternatives
from ptm_jax.inference.text import classifying
from ptm_jax.runs.evaluations import Evaluation, Report, Request
from ptm_jax.runs.run import best_checkpoint
from ptm_jax.tasks.clozes import minimal_pairs
from ptm_jax.tasks.clustering import TEXTS
from ptm_jax.tasks.formats import tabular
from ptm_jax.tasks.tables import table_cells as cells

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained

DISTANCE = 0.01
"""The greatest distance of the prediction of an adversary."""
SIGNIFICANT = 0.05
BINS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Edges of the bins of a text's greatest weight, the mean over heads."""
ORDERS = ("attention", "gradient", "gradient x attention", "random")

Figures = Mapping[str, np.ndarray]
"""{name: the figure of each text}."""


class Tested(NamedTuple):
    """A classifier, and the arguments of the functions of `alternatives` that know it."""

    model: Pretrained
    known: tuple[alternatives.Part, alternatives.Params]

    def batch(self, ids: Sequence[np.ndarray], types: Sequence[np.ndarray]) -> alternatives.Batch:
        """Returns the padded batch of rows of ids."""
        typed = self.model.module.encoder.types > 1
        kinds = inputs.rectangle(types, 0)[0] if typed else None
        return self.model._batch(*inputs.rectangle(ids, self.model.vocab.pad), kinds)

    def attended(self, batch: alternatives.Batch) -> alternatives.Attended:
        specials = np.array(self.model.vocab.specials, np.int32)
        return alternatives.attended(*self.known, batch, specials)

    def chances(self, texts: alternatives.Attended, weights: np.ndarray) -> np.ndarray:
        """Returns the probabilities [B, K, C] of the classes under the weights [B, K, H, L]."""
        return np.exp(np.asarray(alternatives.predicted(*self.known, texts, weights), np.float64))


def report(request: Request) -> Report:
    """Returns the means over the texts, and the same by the greatest weight. Raises UserError."""
    if not request.data:
        raise UserError("attention reads tables with texts; give them as --data")
    texts = [
        cells.text_of(place, "text", tabular.need(place, fields, *request.text_column or TEXTS))
        for source in request.data
        for place, fields in tabular.rows(source)
    ]
    texts = texts[: request.batches * request.batch] if request.batches else texts
    model = load(best_checkpoint(request.model))
    if min(request.permutations, *request.searches) < 1:
        raise UserError("--permutations and --searches must be at least 1")
    settings = {"permutations": request.permutations, "searches": (*request.searches, DISTANCE)}
    with request.progress() as progress:
        figures = measured(model, texts, batch=request.batch, progress=progress, **settings)
    count = len(figures["greatest weight"])
    rows = list(_by_bin(figures))
    document = {
        "task": "attention", "examples": count, "source": ", ".join(request.data),
        "metrics": {name: float(np.nanmean(values)) for name, values in figures.items()},
        "bins": [dict(zip(rows[0], row, strict=True)) for row in rows[1:]],
    }  # fmt: skip
    if left := len(texts) - count:
        document["remarks"] = {"texts left out: they have fewer than two tokens": left}
    head = f"attention: {count:,} texts of {document['source']}"
    table = [rows[0], *([row[0], str(row[1]), *(f"{x:.3f}" for x in row[2:])] for row in rows[1:])]
    return Report(document=document, head=head, width=34, table=table)


def measured(
    model: Pretrained, texts: Sequence[str], *, batch: int = 32, seed: int = 0,
    permutations: int = 100, searches: tuple[int, int, float] = (5, 500, DISTANCE),
    progress: Callable[..., None] | None = None,
) -> Figures:  # fmt: skip
    """Returns the figures of the texts, in their order; texts of one token are left out.

    searches  starts and steps of the search for an adversary, and the greatest distance of its
              prediction
    progress  called as progress(stage, done, total)

    Raises UserError for a model without one attention that its class is predicted from.
    """
    tested = Tested(model, alternatives.part_of(model))
    rows = classifying._framed(model, texts, None)
    specials = list(model.vocab.specials)
    rows = [row for row in rows if (~np.isin(row[0], specials)).sum() > 1]
    if not rows:
        raise UserError("no text has two tokens; give longer texts")
    draw, results, done = np.random.default_rng(seed), [{}] * len(rows), 0
    progress = progress or (lambda *_: None)
    for chosen in inputs.batches([ids for ids, _ in rows], batch):
        progress(f"testing the attention of {len(rows):,} texts", done, len(rows))
        done, part = done + len(chosen), [rows[i] for i in chosen]
        fields = tested.batch([ids for ids, _ in part], [types for _, types in part])
        seen = tested.attended(fields)
        base = tested.chances(seen, seen.weights[:, None])
        labels = base[:, 0].argmax(-1).astype(np.int32)
        key = jax.random.key(int(draw.integers(1 << 31)))
        _, far = alternatives.adversary(*tested.known, seen, key, searches)
        figures = {
            "greatest weight": np.asarray(seen.share()).mean(1).max(-1),
            "TVD of permutations": _permuted(tested, seen, base, draw, permutations),
            "JSD of adversaries": np.asarray(far),
            **_zeroed(tested, seen, base, draw),
            **_removed(tested, seen, labels, draw),
            **_correlated(tested, fields, seen, labels, part, batch=batch),
        }
        for place, number in enumerate(chosen):
            results[number] = {name: float(one[place]) for name, one in figures.items()}
    return {name: np.array([one[name] for one in results]) for name in results[0]}


def _by_bin(figures: Figures) -> Iterator[list]:
    """Yields the header and the rows of the means by the greatest weight."""
    names = [name for name in figures if not name.startswith(("tau", "removed", "significant"))]
    yield ["greatest weight", "texts", *names[1:]]
    for low, high in zip(BINS[:-1], BINS[1:], strict=True):
        great = figures["greatest weight"]
        inside = (great >= low) & ((great < high) | (high == BINS[-1]))
        if inside.any():
            means = (float(figures[name][inside].mean()) for name in names[1:])
            yield [f"{low:g} to {high:g}", int(inside.sum()), *means]


def _permuted(
    tested: Tested, seen: alternatives.Attended, base: np.ndarray, draw: np.random.Generator,
    count: int,
) -> np.ndarray:  # fmt: skip
    """Returns the median distance [B] of the prediction under permuted weights; all heads have the
    same permutation."""
    text = np.asarray(seen.text)
    order = np.tile(np.arange(text.shape[1]), (len(text), count, 1))
    for row, places in enumerate(map(np.flatnonzero, text)):
        order[row][:, places] = draw.permuted(np.tile(places, (count, 1)), axis=1)
    share = np.take_along_axis(np.asarray(seen.share())[:, None], order[:, :, None], -1)
    distances = alternatives.total_variation(tested.chances(seen, seen.with_share(share)), base)
    return np.median(np.asarray(distances), 1)


def _zeroed(
    tested: Tested, seen: alternatives.Attended, base: np.ndarray, draw: np.random.Generator
) -> Figures:
    """Returns what happens without the greatest weight, and without another token's."""
    text, share = np.asarray(seen.text), np.asarray(seen.share())
    greatest = np.where(text, share.mean(1), -1).argmax(-1)
    noise = np.where(text, draw.random(text.shape), -1)
    noise[np.arange(len(text)), greatest] = -1
    gone = np.arange(text.shape[1]) == np.stack([greatest, noise.argmax(-1)], 1)[..., None]
    after = tested.chances(seen, seen.with_share(_without(share[:, None], gone[:, :, None])))
    flips = after.argmax(-1) != base.argmax(-1)
    changes = np.asarray(alternatives.divergence(after, base))
    return {
        "flips without greatest": flips[:, 0],
        "flips without random": flips[:, 1],
        "JSD greatest less random": changes[:, 0] - changes[:, 1],
    }


def _removed(
    tested: Tested, seen: alternatives.Attended, labels: np.ndarray, draw: np.random.Generator
) -> Figures:
    """Returns the share of the tokens that are removed, the first of each order before the others,
    until the class flips; 1 where it never flips."""
    share, text = np.asarray(seen.share()), np.asarray(seen.text)
    slope = np.asarray(alternatives.slopes(*tested.known, seen, labels))
    weight = np.asarray(seen.weights)
    scores = share.mean(1), slope.sum(1), (slope * weight).sum(1), draw.random(text.shape)
    sizes, results = text.sum(1), {}
    for name, score in zip(ORDERS, scores, strict=True):
        places = np.where(text, -score, np.inf).argsort(-1, kind="stable")
        rank = places.argsort(-1, kind="stable")
        counts = np.arange(1, max(2, sizes.max()))
        gone = (rank[:, None] < counts[:, None])[:, :, None]
        after = tested.chances(seen, seen.with_share(_without(share[:, None], gone)))
        flips = (after.argmax(-1) != labels[:, None]) & (counts < sizes[:, None])
        first = np.where(flips.any(1), counts[flips.argmax(1)], sizes)
        results[f"removed to flip, by {name}"] = first / np.maximum(sizes, 1)
    return results


def _correlated(
    tested: Tested, fields: alternatives.Batch, seen: alternatives.Attended, labels: np.ndarray,
    part: Sequence[tuple[np.ndarray, np.ndarray]], *, batch: int,
) -> Figures:  # fmt: skip
    """Returns Kendall's tau of the weights with gradients, and with the distance of the prediction
    of a text without the token; and whether each is significant."""
    from scipy.stats import kendalltau

    specials = np.array(tested.model.vocab.specials, np.int32)
    gradients = alternatives.sensitivity(*tested.known, fields, specials, labels)
    share, text = np.asarray(seen.share()).mean(1), np.asarray(seen.text)
    others = np.zeros(text.shape)
    base = tested.chances(seen, seen.weights[:, None])[:, 0]
    places = [(row, place) for row in range(len(part)) for place in np.flatnonzero(text[row])]
    for start in range(0, len(places), batch):
        few = places[start : start + batch]
        cut = [[np.delete(part[row][k], place) for row, place in few] for k in (0, 1)]
        left = tested.attended(tested.batch(*cut))
        after = tested.chances(left, left.weights[:, None])[: len(few), 0]
        rows, columns = np.array(few).T
        others[rows, columns] = alternatives.total_variation(after, base[rows])
    results = {}
    for name, scores in (("gradients", np.asarray(gradients)), ("leave-one-out", others)):
        taus = [
            kendalltau(share[row][on], scores[row][on]) for row, on in enumerate(text[: len(part)])
        ]
        results[f"tau with {name}"] = np.array([tau.statistic for tau in taus])
        results[f"significant, {name}"] = np.array([tau.pvalue < SIGNIFICANT for tau in taus])
    return results


def _without(share: np.ndarray, gone: np.ndarray) -> np.ndarray:
    """Returns shares [B, K, H, L] without the tokens that are `gone`, scaled to 1."""
    left = np.where(gone, 0.0, share)
    return left / np.maximum(left.sum(-1, keepdims=True), alternatives.LEAST)


EVALUATIONS = (
    Evaluation(
        name="attention", reads="task", run=report, names_columns=True,
        takes=("permutations", "searches"),
        refuses=(
            *minimal_pairs.REFUSED,
            (("label_column",), "attention reads no labels; leave {option} out"),
        ),
        help="whether a classifier's class follows its attention (Jain, Wallace; Serrano, Smith)",
    ),
)  # fmt: skip
