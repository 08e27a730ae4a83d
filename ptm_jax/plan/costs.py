"""The cost of an experiment's step on a topology, from its trace and the model of `plan.planning`,
in which nothing is compiled; `measure` times steps of fewer rows."""

from __future__ import annotations

import math

from ptm_jax.core.paths import flatten
from ptm_jax.core.system import Experiment
from ptm_jax.mesh.chips import Topology
from ptm_jax.plan import estimate, measured, planning
from ptm_jax.tuning.studies.points import Cost


def of(config: Experiment, where: Topology, measure: bool = False) -> Cost:
    """The cost of an experiment with one phase.
    `measure`: its seconds are those of this device (`plan.measured`). Raises UserError where the
    system or the mesh refuses."""
    config, sizes, phase = planning.prepared(config, where, None)
    work = estimate.work_of(config, phase)
    plan = planning.model(config, where, sizes, phase, work)
    leaves = flatten(work.shapes.params)
    alone = estimate.with_rows(config, config.system.recipe.phases[phase].batch, phase)
    shapes, operations = estimate.without_vocabulary(alone, work)
    leaf_at = flatten(shapes.params)
    body = [
        leaf
        for path, leaf in leaves.items()
        if leaf.shape == leaf_at[path].shape and "/embed/" not in path
    ]
    return Cost(
        parameters=sum(math.prod(leaf.shape) for leaf in leaves.values()),
        body=sum(math.prod(leaf.shape) for leaf in body),
        operations=work.model_flops,
        body_operations=operations,
        memory=plan.needs,
        capacity=plan.hbm_bytes,
        seconds=measured.step(config, phase).seconds if measure else plan.times.step,
    )
