"""The training step: one pure function for every system.

    corruption -> objective -> gradient -> optimizer -> adaptations

Every random draw comes from (seed, stream name, step), so a step is a function of (state, batch).
Corruption runs once on the whole batch, before it is split into micro-batches. Dropout is drawn by
global row. The mean of each loss term is over the whole batch. The update therefore does not depend
on the number of micro-batches or the sharding of rows.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from ptm_jax.core import paths, slots, spec
from ptm_jax.core import towers as core_towers
from ptm_jax.core.batch import merged_rows, split_rows, with_rows
from ptm_jax.core.constraint import use
from ptm_jax.core.errors import Advised, UserError
from ptm_jax.core.paths import flatten
from ptm_jax.core.streams import stream
from ptm_jax.core.system import System, adapted, refusal, tied, untied
from ptm_jax.core.types import Axes, Batch, Loss, Params, Ratio, record
from ptm_jax.mesh.axes import ParameterAxes
from ptm_jax.mesh.layout import Layout, layout_of
from ptm_jax.mesh.padding import Padding, padding_of, stored
from ptm_jax.mesh.rules import Table
from ptm_jax.nn.declared import axes_of, collected
from ptm_jax.training.updates import clipping, in_place, optimizers, sparse, spikes
from ptm_jax.training.updates.freedom import Freedom, held


@record
class TrainState:
    """The state of training. `carry` is passed from the objective to the next step, or None."""

    step: Any
    params: Any
    opt_state: Any
    carry: Any = None


@dataclasses.dataclass(frozen=True)
class Program:
    """A system with wrapped towers, its optimizer, and the pure functions over them.
    `seed` is a number, or an argument of the function that is compiled (`jitted`).
    `freedom` decides which parameters are updated, at which steps, and at which rate. `native` is a
    kernel that makes the updates (`training.updates.in_place`). `axes` are the logical axes of the
    parameters, if they are known: an optimizer by role reads them."""

    system: System
    towers: Mapping[str, Any]
    optimizer: Any
    seed: int | jax.Array
    freedom: Freedom = Freedom()
    layout: Layout | None = None
    padding: Padding = Padding()
    native: in_place.Native | None = None
    axes: ParameterAxes | None = None

    def on(self, mesh: Mesh, rules: str | Table, batch: Batch) -> tuple[Program, TrainState]:
        """Returns (this program for a mesh, its abstract state), from the shapes of a batch.
        The state has the stored shapes with shardings.

        The devices may be abstract: `jax.jit(work.step).lower(state, batch)` compiles for them.
        Raises UserError if rules, mesh and sizes do not fit.
        """
        layout = layout_of(mesh, rules)
        state, axes = self.abstract(batch)
        padding = padding_of(state, axes, layout.rules, mesh)
        native = in_place.kernel_of(self.system, mesh)
        work = dataclasses.replace(
            self,
            layout=layout if mesh.size > 1 else None,
            padding=padding,
            native=native,
            axes=axes,
        )
        return work, stored(state, padding, axes, layout.rules, mesh)

    def abstract(self, batch: Batch) -> tuple[TrainState, ParameterAxes]:
        """Returns the shapes of the state on one device, and the logical axes of its parameters."""
        work = self.defined()
        with collected() as collector:
            # A new function for each call: JAX would not trace an equal one again.
            state = jax.eval_shape(lambda fields: work.init(fields), batch)
        return state, self._axes(collector.axes())

    def init(self, batch: Batch) -> TrainState:
        """Returns the state before the first step, from the shapes of a batch.
        Adaptations are initialised last."""
        batch = self._corrupt(
            batch, "train", 0, None
        )  # towers need the fields of a corruption: T5's decoder input
        with collected() as collector:
            params = core_towers.init(self.defined().towers, stream(self.seed, "init"), batch)
        optimizer = self._optimizer(lambda: self._axes(collector.axes()))
        params = self.begun(params)
        params = untied(params, self.system.ties, fresh=True)
        carry = self.defined().initial_carry(params, batch)
        return self.padding.fill(
            TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), carry)
        )

    def _axes(self, declared: Mapping[str, Axes]) -> ParameterAxes:
        """Returns the axes of the towers' parameters with those of the adaptations."""
        return ParameterAxes(declared, [wrapper.logical_axes for wrapper in self.system.wrappers])

    def _optimizer(self, axes: Callable[[], ParameterAxes]) -> Any:
        """Returns the optimizer. One by role is built for the axes of the parameters."""
        recipe = self.system.recipe
        if not optimizers.by_role(recipe.optimizer):
            return self.optimizer
        return optimizers.build(recipe, self.freedom, self.axes or axes())

    def begun(self, params: Params, source: Params | None = None) -> Params:
        """Returns parameters with the initial ones of adaptations and compressions.
        They are computed from the random parameters, and again from the initial model of the run
        (`source`)."""
        for wrapper in self.system.wrappers:
            params = wrapper.init(params, source)
        return params

    def initial_carry(self, params: Params, batch: Batch) -> Any:
        """Returns the carry of the first batch of a stream, or None."""
        params = self.padding.cut(params, "params/")
        return slots.objective(self.system.objective).initial_carry(
            self._bind(params, False), batch
        )

    def step(
        self, state: TrainState, batch: Batch, accumulate: int = 1
    ) -> tuple[TrainState, dict[str, Any]]:
        """Runs one update. Returns the new state and metrics: `Ratio`s, and `grad_norm`."""
        with use(self.layout):
            state, metrics = self._updates(self.padding.cut(state), batch, accumulate)
        return self.padding.fill(state), metrics

    def _updates(
        self, state: TrainState, batch: Batch, accumulate: int
    ) -> tuple[TrainState, dict[str, Any]]:
        """Runs the `recipe.updates` of a step in sequence, each on its part of the rows."""
        parts = self.system.recipe.updates
        if self.native is not None:
            batch = self._corrupt(batch, "train", state.step, state.carry)
            params, opt_state, metrics = in_place.step(self.system, self.native, state, batch)
            return TrainState(state.step + 1, params, opt_state, state.carry), metrics
        if parts == 1:
            return self._step(state, batch, accumulate)
        if state.carry is not None:
            raise UserError(
                f"recipe.updates is {parts}, but the objective has a carry from step to "
                "step; set it to 1"
            )

        def one(before, micro):
            after, metrics = self._step(before, with_rows(batch, micro), accumulate)
            return dataclasses.replace(after, step=before.step), metrics

        state, metrics = jax.lax.scan(one, state, split_rows(batch, parts))
        metrics = jax.tree.map(lambda x: x.sum(0), metrics)
        if spikes.PART not in state.opt_state:  # otherwise a ratio
            metrics["grad_norm"] /= parts
        return dataclasses.replace(state, step=state.step + 1), metrics

    def _step(
        self, state: TrainState, batch: Batch, accumulate: int
    ) -> tuple[TrainState, dict[str, Any]]:
        batch = self._corrupt(batch, "train", state.step, state.carry)
        key = stream(self.seed, "noise", state.step)
        batch, selected = sparse.select(self.system, batch)
        rows = sparse.SelectedRows.of(state.params, selected)
        params, opt_state = rows.take(state.params), rows.take(state.opt_state, moments=True)

        def loss_of(params, micro) -> Loss:
            return self._loss(self._bind(self._frozen(params), True), micro, key)

        grads, loss = _accumulated(loss_of, params, batch, accumulate)
        grads, seen = self.freedom.parted(held(grads, self.freedom, state.step))
        updates, opt_state = self._optimizer(
            lambda: self._axes(axes_of(self.defined().towers, batch).declared)
        ).update(grads, opt_state, params, placed=True)
        made = spikes.made(state.opt_state, opt_state)
        params = optimizers.apply(params, updates)
        params = paths.map_with_path(
            lambda path, leaf: (
                spikes.chosen(made, leaf + seen[path], leaf) if path in seen else leaf
            ),
            params,
        )
        params, opt_state = (
            rows.put(state.params, params),
            rows.put(state.opt_state, opt_state, moments=True),
        )
        for wrapper in self.system.wrappers:
            params = wrapper.on_step(params, state.step)
        metrics = {
            "grad_norm": clipping.norm(self.system.recipe, grads),
            "tokens": jnp.sum(batch["segment_ids"] > 0)
            if "segment_ids" in batch
            else batch["rows"].size,
        }
        carry = spikes.chosen(made, loss.carry, state.carry)
        metrics = spikes.measured(made, metrics, loss)
        return TrainState(state.step + 1, params, opt_state, carry), metrics

    def evaluate(
        self, params: Params, batch: Batch, index, carry=None
    ) -> tuple[dict[str, Any], Any]:
        """Returns metrics of one held-out batch and the next carry.
        No dropout; the batch's index seeds the corruption, and the batch has no `step`."""
        with use(self.layout):
            params = self.padding.cut(params, "params/")
            batch = self._corrupt(batch, "heldout", index, carry)
            loss = self._loss(
                self._bind(params, False), batch, stream(self.seed, "heldout-noise", index)
            )
        return {**loss.metrics, "loss": Ratio(loss.sum, loss.weight)}, loss.carry

    def _loss(self, towers, batch: Batch, key) -> Loss:
        """Returns the loss of the objective.
        Raises UserError for another value, `Advised` for an unknown name."""
        objective = self.system.objective
        try:
            loss = objective(towers, batch, key)
        except KeyError as error:
            advice = (
                f"the batch has the fields {', '.join(sorted(batch))}; the towers are "
                f"{', '.join(towers)}"
            )
            raise Advised(f"KeyError: {error}", advice).with_traceback(
                error.__traceback__
            ) from error
        if not isinstance(loss, Loss):
            name = type(objective).__name__
            if isinstance(objective, types.FunctionType):
                name = (
                    f"{objective.__name__} "
                    f"({objective.__code__.co_filename}:{objective.__code__.co_firstlineno})"
                )
            described = (
                f"{loss.dtype}{list(loss.shape)}"
                if isinstance(loss, jax.Array)
                else type(loss).__name__
            )
            raise UserError(
                f"the objective {name} returns {described}; it must return "
                f"{Loss.__module__}.{Loss.__name__}(sum, weight), a sum over "
                "the batch and the number of its terms"
            )
        return loss

    def defined(self) -> Program:
        """Returns the program for one device with reference attention and softmax.

        It initialises a run, before there is a layout for the kernels, and serves to count
        operations (a blocked kernel computes some products twice)."""

        def plain(part):
            return dataclasses.replace(part, impl="reference")

        towers = spec.respell(self.towers, slots.Kernel, plain)
        return dataclasses.replace(self, towers=towers, layout=None, padding=Padding(), native=None)

    def _frozen(self, params):
        """Stops the gradients of frozen parameters: no backward pass through a teacher, no share in
        the norm."""
        if not self.freedom.restricts:
            return params
        known, flat = self.freedom.places(params), flatten(params)

        def free(path):
            return self.freedom.trains(known[path]) or self.freedom.observed(path)

        leaves = [
            leaf if free(path) else jax.lax.stop_gradient(leaf) for path, leaf in flat.items()
        ]
        return jax.tree.unflatten(jax.tree.structure(params), leaves)

    def _bind(self, params, train):
        params = tied(params, self.system.ties)
        for wrapper in self.system.wrappers:
            params = wrapper.effective(params, train)
        return core_towers.bind(self.towers, params, train)

    def _corrupt(self, batch, name, number, carry):
        """Returns the corrupted batch of a step, or of a held-out batch, with this number.
        Only a batch of training has the field `step`: schedules end, and evaluation is the same at
        every step."""
        fields = {"step": number} if name == "train" else {}
        fields |= {} if carry is None else {"carry": carry}
        batch = {**batch, **fields}
        if self.system.corruption is None:
            return batch
        return self.system.corruption(stream(self.seed, f"corruption-{name}", number), batch)


def jitted(program: Program, shardings: TrainState, everywhere: Any, accumulate: int) -> Any:
    """Returns the jitted step: (state, batch, seed) -> (state, metrics).
    `shardings` belong to the state, which is donated; `everywhere` is the sharding of the
    metrics."""

    def step(state, batch, seed):
        return dataclasses.replace(program, seed=seed).step(state, batch, accumulate)

    return jax.jit(step, donate_argnums=0, out_shardings=(shardings, everywhere))


def jitted_init(program: Program, shardings: TrainState) -> Callable[[Batch], TrainState]:
    """Returns the jitted `Program.init`. Its compiled program serves every seed."""

    def init(seed, batch):
        return dataclasses.replace(program, seed=seed).init(batch)

    return functools.partial(jax.jit(init, out_shardings=shardings), argument(program.seed))


def jitted_evaluate(program: Program, everywhere: Any) -> Callable[..., tuple[dict[str, Any], Any]]:
    """Returns the jitted `Program.evaluate`. Its compiled program serves every seed."""

    def evaluate(seed, params, batch, index, carry=None):
        return dataclasses.replace(program, seed=seed).evaluate(params, batch, index, carry)

    made = jax.jit(evaluate, out_shardings=(everywhere, None))
    return functools.partial(made, argument(program.seed))


def argument(seed: int) -> np.ndarray:
    """Returns a seed as an argument of a compiled program: int32, as `jax.random.key` reads a
    number. The seeds of a study would compile each program anew if they were constants in it."""
    return np.asarray(seed, np.int32)


def program(system: System, seed: int) -> Program:
    """Wraps the towers of a system and builds its optimizer.
    Raises UserError if its slots do not fit together."""
    if reason := refusal(system):
        raise UserError(f"{system.name or 'this system'} cannot be trained: {reason}")
    system = adapted(system)
    freedom = Freedom(system.wrappers, system.towers, slots.objective(system.objective).given)
    return Program(system, system.towers, optimizers.build(system.recipe, freedom), seed, freedom)


def _accumulated(loss_of: Callable[[Params, Batch], Loss], params, batch, parts: int):
    """Returns (gradient of the mean loss, Loss of the whole batch) over `parts` micro-batches."""

    def mean(params, micro, *weights):
        loss = loss_of(params, micro)
        return loss.value(*weights), loss

    gradient = jax.grad(mean, has_aux=True)
    if parts == 1:
        return gradient(params, batch)

    micro = split_rows(batch, parts)
    # The weights of the whole batch are needed first. They do not depend on parameters, so the
    # compiler removes the forward passes of this loop and keeps only a few sums over the batch.
    weights = jax.lax.map(lambda m: loss_of(params, with_rows(batch, m)).weight, micro).sum(0)

    def one(grads, m):
        more, loss = gradient(params, with_rows(batch, m), weights)
        return jax.tree.map(jnp.add, grads, more), loss

    grads, losses = jax.lax.scan(one, jax.tree.map(jnp.zeros_like, params), micro)
    carry = jax.tree.map(merged_rows, losses.carry)
    sums = jax.tree.map(lambda x: x.sum(0), (losses.sum, losses.weight, losses.metrics))
    return grads, Loss(*sums, carry)
