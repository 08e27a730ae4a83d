"""The programs of the phases of a run. Phases with the same changes share one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
from jax.sharding import Mesh

from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten
from ptm_jax.core.system import Experiment, in_phase
from ptm_jax.core.types import Batch
from ptm_jax.mesh import rules
from ptm_jax.training.steps.building import building
from ptm_jax.training.steps.step import Program, TrainState, jitted_evaluate, program

if TYPE_CHECKING:
    from ptm_jax.core.types import Params


@dataclasses.dataclass(frozen=True)
class PhaseWork:
    """What a phase runs.

    plain     the program for one device
    program   the program for the mesh; `state` is its abstract state
    evaluate  its jitted evaluation
    """

    plain: Program
    program: Program
    state: TrainState
    evaluate: Callable[..., tuple[dict[str, jax.Array], Params]]


class Phases:
    """The work of the system itself, `base`, and of each phase (`at`).

    `batch_of` returns a batch of a phase, or of the system itself without a number.
    """

    def __init__(self, config: Experiment, mesh: Mesh, batch_of: Callable[..., Batch]):
        self._config, self._mesh, self._batch_of = config, mesh, batch_of
        self._works: dict[str, PhaseWork] = {}
        self.base = self._made(None)

    def at(self, phase: int) -> PhaseWork:
        """Returns the work of a phase. Raises UserError if its changes alter the state."""
        changes = self._config.system.recipe.phases[phase].changes
        if not changes:
            return self.base
        key = repr(changes)
        if key not in self._works:
            work = self._made(phase)
            _compare(phase, self.base.state, work.state)
            self._works[key] = work
        return self._works[key]

    def _made(self, phase: int | None) -> PhaseWork:
        config, mesh = self._config, self._mesh
        system = config.system if phase is None else in_phase(config.system, phase)
        plain = program(system, config.seed)
        with building(system):
            work, state = plain.on(mesh, config.rules, self._batch_of(phase))
        evaluate = jitted_evaluate(work, rules.replicated(mesh))
        return PhaseWork(plain, work, state, evaluate)


def _compare(phase: int, base: TrainState, changed: TrainState) -> None:
    """Raises UserError if a phase has other parameters than the system itself."""
    one, other = (
        {path: leaf.shape for path, leaf in flatten(state.params).items()}
        for state in (base, changed)
    )
    differing = [path for path in {**one, **other} if one.get(path) != other.get(path)]
    same = jax.tree.structure(base.carry) == jax.tree.structure(changed.carry)
    if differing or not same:
        reason = f"the parameter {differing[0]}" if differing else "the memory between the steps"
        raise UserError(
            f"recipe.phases.{phase}.changes give another model: {reason} differs; a phase changes "
            "settings, not parameters"
        )
