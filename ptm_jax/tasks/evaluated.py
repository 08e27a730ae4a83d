"""The evaluations of this package that are no downstream tasks (`runs.evaluations`)."""

from __future__ import annotations

from ptm_jax.runs.evaluations import Evaluation
from ptm_jax.tasks import bilingual, clustering, completion, properties, searching, wordsets


def kinds() -> tuple[Evaluation, ...]:
    """Returns the evaluations of word vectors, of graphs, of searches and of clusters."""
    modules = wordsets, properties, bilingual, completion, searching, clustering
    return tuple(evaluation for module in modules for evaluation in module.EVALUATIONS)
