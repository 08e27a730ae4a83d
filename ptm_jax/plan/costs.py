"""The cost of an experiment's step on a topology, from its trace and the model of `plan.planning`, in which nothing is
compiled; `measure` times steps of fewer rows."""

from __future__ import annotations

import math

from ptm_jax.core.paths import flatten
from ptm_jax.core.system import Experiment
from ptm_jax.mesh.chips import Topology
from ptm_jax.plan import estimate, lowering, measured, planning
from ptm_jax.tuning.studies import Cost


def of(config: Experiment, where: Topology, measure: bool = False) -> Cost:
    """The cost of an experiment with one phase. `measure`: its seconds are those of this device (`plan.measured`). Raises
    UserError where the system or the mesh refuses."""
    config, sizes, phase = planning.prepared(config, where, None)
    work = estimate.work_of(config, phase)
    plan = planning.model(config, where, sizes, phase, work)
    vocab = lowering.vocab_of(config).size
    leaves = flatten(work.shapes.params)
    outside = [leaf for path, leaf in leaves.items() if vocab in leaf.shape or "/embed/" in path]
    count = lambda found: sum(math.prod(leaf.shape) for leaf in found)
    return Cost(
        parameters=count(leaves.values()),
        body=count(leaves.values()) - count(outside),
        operations=work.model_flops,
        body_operations=work.model_flops - work.vocabulary,
        memory=plan.needs,
        capacity=plan.hbm_bytes,
        seconds=measured.step(config, phase).seconds if measure else plan.times.step,
    )
