"""`ptm evaluate --task cluster`: clusters of the vectors of texts, compared with their labels.

The measure is the V-measure (Rosenberg and Hirschberg 2007) of mini-batch k-means with as many
clusters as labels, as in MTEB (Muennighoff et al. 2023, arXiv 2210.07316, section 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.inference.loading import has_encoder, load
from ptm_jax.runs.evaluations import METHOD, Evaluation, Report, Request
from ptm_jax.runs.run import best_checkpoint
from ptm_jax.tasks.formats import tabular
from ptm_jax.tasks.tables import table_cells as cells

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained

TEXTS = ("text", "sentence", "sentences", "title", "question", "content")
LABELS = ("label", "labels", "class", "category", "cluster", "topic", "coarse_label")
BATCH, SEEDS = 512, 3
"""Texts in a batch of k-means, and its runs, of which the mean is printed."""


def report(request: Request) -> Report:
    """Returns the measures of the clusters of a table's texts. Raises UserError."""
    if len(request.data) != 1:
        raise UserError("cluster reads one table with texts and labels; give it as --data")
    texts, labels = texts_of(request.data[0], request.text_column, request.label_column)
    if len({*labels}) < 2:
        raise UserError(f"{request.data[0]} has texts of one label; give texts of several")
    model = load(best_checkpoint(request.model))
    if not has_encoder(model):
        raise UserError(f"{request.model} has no encoder of texts; take a sentence encoder")
    with request.progress():
        metrics = measured(model, texts, labels, request.batch)
    document = {
        "task": "cluster", "examples": len(texts), "clusters": len({*labels}), "metrics": metrics,
        "source": request.data[0],
    }  # fmt: skip
    head = f"cluster: {len(texts):,} texts of {request.data[0]}, {len({*labels})} labels"
    return Report(document=document, head=head, width=22)


def texts_of(
    path: str, text_column: Sequence[str] = (), label_column: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """Returns the texts and the labels of a table. Raises UserError with the place."""
    texts, labels = [], []
    for place, fields in tabular.rows(path):
        texts.append(
            cells.text_of(place, "text", tabular.need(place, fields, *text_column or TEXTS))
        )
        label = cells.plain(tabular.need(place, fields, *label_column or LABELS))
        if not label:
            raise cells.empty_cell(place, "label")
        labels.append(label)
    return texts, labels


def measured(
    model: Pretrained, texts: Sequence[str], labels: Sequence[str], batch: int = 32
) -> dict[str, float]:
    """Returns the mean V-measure over `SEEDS` runs of k-means, and its parts."""
    from sklearn.cluster import MiniBatchKMeans
    from sklearn.metrics import homogeneity_completeness_v_measure

    vectors = model.encode(list(texts), batch_size=batch, truncate=True)
    count, figures = len({*labels}), []
    for seed in range(SEEDS):
        means = MiniBatchKMeans(count, batch_size=BATCH, n_init=3, random_state=seed)
        clusters = means.fit_predict(vectors)
        figures.append(homogeneity_completeness_v_measure(labels, clusters))
    names = ("homogeneity", "completeness", "v_measure")
    return dict(zip(names, np.mean(figures, 0).tolist(), strict=True))


EVALUATIONS = (
    Evaluation(
        name="cluster", reads="task", run=report, names_columns=True,
        refuses=(
            METHOD,
            (
                ("predictions", "plot", "adapter", "ensemble", "beside", "languages", "speed"),
                "{option} is not for cluster; leave it out",
            ),
        ),
        help="clusters of a table's texts by their vectors, compared with its labels (V-measure)",
    ),
)  # fmt: skip
