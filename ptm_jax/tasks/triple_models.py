"""Reads a run on triples of a graph as the model that scores them."""

from __future__ import annotations

from pathlib import Path

from ptm_jax.core.system import in_effect
from ptm_jax.inference.loading import system_of
from ptm_jax.inference.words.triple_models import TripleModel, of_system
from ptm_jax.runs.run import Run


def read(path: str | Path) -> TripleModel:
    """Reads a run. Raises UserError where it scores no triples."""
    run = Run.at(Path(path))
    system = system_of(run.system, "float32", run.kinds)
    params, meta, _ = run.restore()
    return of_system(system, in_effect(system, params), run.tokenizer(meta), path)
