"""Shapes of a system's parameters, and the share of them that a rule table splits over devices."""

import math

import jax

from ptm_jax import systems
from ptm_jax.core import paths
from ptm_jax.core.system import Experiment
from ptm_jax.mesh import rules
from ptm_jax.plan import lowering
from ptm_jax.training.steps.step import program


def parameters(name):
    """{path: shape} of a system's parameters."""
    config = lowering.published(Experiment(system=systems.get(name)))
    state = jax.eval_shape(program(config.system, 0).init, lowering.batch_of(config, 0))
    return {path: leaf.shape for path, leaf in paths.flatten(state.params).items()}


def share_split(shapes, name="megatron_fsdp"):
    """The share of parameter bytes that a rule table splits."""
    table, mesh = rules.table(name), lowering.abstract_mesh({})
    split = [
        math.prod(shape)
        for path, shape in shapes.items()
        if any(rules.spec_of(path, shape, table, mesh))
    ]
    return sum(split) / sum(map(math.prod, shapes.values()))
