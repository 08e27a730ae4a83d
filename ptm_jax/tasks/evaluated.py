"""The evaluations of this package that are no downstream tasks (`runs.evaluations`)."""

from __future__ import annotations

from ptm_jax.runs.evaluations import Evaluation
from ptm_jax.tasks import bilingual, completion, properties, wordsets


def kinds() -> tuple[Evaluation, ...]:
    """Returns the evaluations of word vectors and of graphs."""
    modules = wordsets, properties, bilingual, completion
    return tuple(evaluation for module in modules for evaluation in module.EVALUATIONS)
