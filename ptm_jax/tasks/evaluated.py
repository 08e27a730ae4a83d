"""The evaluations of this room that are no downstream tasks (`runs.evaluations`)."""

from __future__ import annotations

from ptm_jax.runs.evaluations import Evaluation
from ptm_jax.tasks import bilingual, completion, properties, wordsets


def kinds() -> tuple[Evaluation, ...]:
    """Returns the evaluations of word vectors and of graphs."""
    rooms = wordsets, properties, bilingual, completion
    return tuple(evaluation for room in rooms for evaluation in room.EVALUATIONS)
