"""BERT-of-Theseus: modules of a model are replaced by smaller ones while it trains.

Xu et al. 2020, arXiv 2002.02925.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.compress.base import Compression
from ptm_jax.compress.students.from_teacher import SomeLayers, stack_of
from ptm_jax.core import slots
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Encoded, Loss, Params, Ratio
from ptm_jax.nn.blocks import Stack
from ptm_jax.objectives.base import AroundTask

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ptm_jax.core.system import System
    from ptm_jax.core.types import Step


PREDECESSOR = "teacher"


def replacing_rate(step: Step, base: float, slope: float) -> Any:
    """Returns the probability that a successor replaces its predecessor.

    min(1, slope * step + base) (section 3.3).
    """
    return jnp.minimum(1.0, slope * jnp.asarray(step, jnp.float32) + base)


class ReplacingStack(Stack):
    """A stack of N successor layers, which replace predecessors at random.

    In a training step successor i runs with probability `rate`. Otherwise its predecessors run:
    `each` layers of the parameters `predecessor` (section 3.1, Eqs. 2 and 3). One draw holds for
    all rows.
    """

    each: int = 2
    base: float = 0.5
    slope: float = 0.0

    @nn.compact
    def __call__(self, x, context, cache=None):
        student, old = (
            self.get_variable("params", name)["block"] for name in ("successor", "predecessor")
        )
        keys = jax.random.split(self.make_rng("dropout"), 1 + self.layers * (1 + self.each))
        rate = replacing_rate(context.step, self.base, self.slope)
        new = jax.random.bernoulli(keys[0], rate, (self.layers,))
        block = self.block.clone(parent=None, name=None)

        def run(params, i, x, key):
            return block.apply(
                {"params": jax.tree.map(lambda leaf: leaf[i], params)},
                x,
                context,
                rngs={"dropout": key},
            )[0]

        for module in range(self.layers):
            first, *others = keys[1 + module * (1 + self.each) :][: 1 + self.each]

            def successor(x, module=module, key=first):
                return run(student, module, x, key)

            def predecessors(x, module=module, keys=others):
                for offset, key in enumerate(keys):
                    x = run(old, module * self.each + offset, x, key)
                return x

            x = jax.lax.cond(new[module], successor, predecessors, x)
        return Encoded(self.final_norm(x))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replacing(AroundTask):
    """The task loss of a network in which some layers are replaced by the teacher's.

    `ReplacingStack` draws the layers of the tower "teacher". An evaluation uses only the
    successor's layers. The metric `replaced` is the replacement rate.
    """

    base: float
    slope: float
    each: int

    @property
    def given(self) -> tuple[str, ...]:
        return (PREDECESSOR,)

    @property
    def tower(self) -> str:
        return slots.objective(self.task).tower

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        tower = towers[self.tower]
        if key is None or not tower.train:
            return self.task(towers, batch, key)
        stack = tower.module.encoder.stack
        fields = {name: vars(stack)[name] for name in ("block", "layers", "final_norm")}
        mixed = ReplacingStack(**fields, each=self.each, base=self.base, slope=self.slope)
        module = tower.module.clone(encoder=tower.module.encoder.clone(stack=mixed))
        new, old = flatten(tower.params), flatten(towers[PREDECESSOR].params)
        at, block = "encoder/stack/", "encoder/stack/block/"
        params = {
            f"{at}successor/{p.removeprefix(at)}" if p.startswith(block) else p: leaf
            for p, leaf in new.items()
        }
        params |= {
            f"{at}predecessor/{p.removeprefix(at)}": leaf
            for p, leaf in old.items()
            if p.startswith(block)
        }
        loss = self.task({**towers, self.tower: Tower(module, unflatten(params), True)}, batch, key)
        rate = replacing_rate(batch["step"], self.base, self.slope)
        return dataclasses.replace(
            loss, metrics={**loss.metrics, "replaced": Ratio(rate, jnp.ones(()))}
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Theseus(Compression):
    """Replaces modules of `each` layers by one layer at random, then fine-tunes the successor.

    The probability grows. The loss is the task's alone; the predecessor, its embeddings and its
    head never move (Xu et al. 2020, section 3).

    The replacing rate is min(1, k t + `base`) at step t. Successors begin as the lowest layers of
    the predecessor.

    slope   k; None: such that the rate is 1 after the share `until` of the run (the authors: base
            0.3, k 0.0006 for MRPC)
    each    layers of a predecessor module
    tuned   what trains when the rate is 1: "layers" as before (the authors' program), or "all" of
            the successor
    """

    base: float = 0.3
    slope: float | None = None
    until: float = 0.5
    each: int = 2
    tuned: str = "layers"
    tower: str = "main"
    total: int = 0

    def __post_init__(self):
        if (
            not 0 < self.base <= 1
            or not 0 < self.until <= 1
            or self.each < 2
            or self.tuned not in ("layers", "all")
        ):
            raise ValueError(
                f"base is {self.base}, until {self.until}, each {self.each}, tuned "
                f"{self.tuned!r}; rates and shares lie in "
                "(0, 1], a module has 2 layers or more, and tuned is layers or all"
            )

    remakes = True

    def start(self, model: str) -> Any:
        return ((PREDECESSOR, model),)

    def within(self, system: System) -> Theseus:
        return dataclasses.replace(self, total=system.recipe.steps)

    @property
    def k(self) -> float:
        """The growth of the rate in a step."""
        return (
            (1 - self.base) / max(1.0, self.until * self.total)
            if self.slope is None
            else self.slope
        )

    def rate_at(self, step: Step) -> Any:
        """Returns the replacing rate at a step, from 0."""
        return replacing_rate(step, self.base, self.k)

    def rewrite(self, system: System) -> Any:
        towers = dict(system.towers)
        teacher = towers.setdefault(PREDECESSOR, towers[self.tower])
        layers = stack_of(teacher).layers
        if layers % self.each:
            raise ValueError(f"{layers} layers are no modules of {self.each}; choose a divisor")
        towers[self.tower] = self._student(layers).tower(teacher)
        objective = Replacing(task=system.objective, base=self.base, slope=self.k, each=self.each)
        return dataclasses.replace(system, towers=towers, objective=objective)

    def _student(self, layers: int) -> SomeLayers:
        return SomeLayers(keep=layers // self.each, which="first")

    def init(self, params: Params, source: Params | None) -> Params:
        old = params[PREDECESSOR]
        layers = next(
            len(leaf)
            for path, leaf in flatten(old).items()
            if path.startswith("encoder/stack/block/")
        )
        return {**params, self.tower: self._student(layers).begin(params[self.tower], old)}

    def trainable(self, path: str, step: Step) -> Any:
        if path.startswith(f"{self.tower}/encoder/stack/"):
            return True
        return self.tuned == "all" and path.startswith(f"{self.tower}/") and self.rate_at(step) >= 1

    def finish(self, params: Params) -> Params:
        """Returns the successor's parameters."""
        return {name: tree for name, tree in params.items() if name != PREDECESSOR}

    def smaller(
        self, system: System, params: Params, batches: Iterable[Batch]
    ) -> tuple[Any, Params]:
        params = self.finish(params)
        task = (
            system.objective.task if isinstance(system.objective, Replacing) else system.objective
        )
        towers = {name: system.towers[name] for name in params}
        others = tuple(wrapper for wrapper in system.compress if wrapper != self)
        return dataclasses.replace(system, towers=towers, objective=task, compress=others), params
