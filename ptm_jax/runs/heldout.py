"""Evaluates a run's checkpoint on a corpus with the metrics of the run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import jax

from ptm_jax.core.system import Experiment
from ptm_jax.data.corpora.store import Corpus
from ptm_jax.mesh import rules as tables
from ptm_jax.runs.run import Run
from ptm_jax.train import differing, evaluation, setup
from ptm_jax.train.building import building
from ptm_jax.train.step import program


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Metrics of the checkpoint of `step` over `examples` rows."""

    step: int
    examples: int
    metrics: Mapping[str, float]


def measure(run: Run, config: Experiment, corpus: Corpus, split: str, batches: int = 0) -> Evaluation:
    """Evaluates a run's checkpoint on a split of a corpus, with the row length of the checkpoint's phase.

    On the run's own held-out text the metrics equal those of its log. The mesh may differ from the run's.
    """
    config = differing.with_facts(config, run.corpus)
    mesh, rules = _mesh(config)
    with building(config.system):
        work, state = program(config.system, config.seed).on(mesh, rules, setup.example(config, corpus))
    params, meta, step = run.restore(like=state.params, true=work.padding.true)
    run.tokenizer(meta)
    phase = meta["position"]["phase"]
    stream = setup.stream(config, corpus, phase, split, epochs=1)
    with jax.set_mesh(mesh), building(config.system):
        carry = work.initial_carry(params, setup.example(config, corpus, phase))
        metrics, rows = evaluation.evaluate(jax.jit(work.evaluate), params, stream, mesh=mesh, carry=carry, batches=batches)
    return Evaluation(step, rows, metrics)


def _mesh(config: Experiment):
    """Returns the run's mesh and rules if the number of devices is the same, else all devices on `data`."""
    sizes = dict(config.mesh)
    if math.prod(sizes.values()) == jax.device_count():
        return tables.make_mesh(sizes), config.rules
    return tables.make_mesh(), "replicated"
