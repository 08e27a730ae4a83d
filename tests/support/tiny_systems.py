"""Small builders, and the laws that every system of the pressure tests obeys: `check`."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax import systems
from ptm_jax.core import slots
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.recipe import AdamW, Constant, Phase, Recipe
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.transformer.transformer import Transformer, transformer
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layers import Dense
from ptm_jax.systems.survey import compose, matrix
from ptm_jax.training.checkpoints import Checkpoints
from ptm_jax.training.steps import step

ROWS, LENGTH, WIDTH = 4, 8, 16
VOCAB = Vocab(size=48, pad=0, cls=1, sep=2, mask=3)
# A large eps: where a gradient is zero but for rounding, m / sqrt(v) would make an update of noise
# over noise.
ADAM = AdamW(eps=1e-4, weight_decay=0.0)


def recipe(lr: float = 1e-2, optimizer: Any = ADAM) -> Recipe:
    """A constant rate without clipping."""
    phases = (Phase(steps=100, batch=ROWS, length=LENGTH),)
    return Recipe(phases=phases, lr=lr, optimizer=optimizer, schedule=Constant(), clip=None)


def system(name: str, **slots: Any) -> System:
    """A record of nothing but the slots."""
    return System(
        **{"name": name, "paper": "", "section": "", "examples": None, "recipe": recipe()} | slots
    )


def encoder(
    layers: int = 2, width: int = WIDTH, dropout: float = 0.1, **options: Any
) -> Transformer:
    """A Transformer of two heads."""
    positions = LearnedPositions(32, initializer=Normal(0.1))
    sizes = {"layers": layers, "width": width, "heads": 2, "hidden": 2 * width, "dropout": dropout}
    return transformer(
        vocab=VOCAB, positions=positions, initializer=Normal(0.1), eps=1e-6, **sizes | options
    )


def sentences(rows: int = ROWS, length: int = LENGTH, **more: Any) -> dict[str, Any]:
    """Rows that count upwards from different words: no id twice in a row, every token determined by
    its neighbours."""
    start = np.random.default_rng(0).integers(4, VOCAB.size - length, (rows, 1))
    ids = jnp.asarray(start + np.arange(length), jnp.int32)
    return {
        "input_ids": ids,
        "segment_ids": jnp.ones_like(ids),
        "rows": jnp.arange(rows, dtype=jnp.int32),
        **more,
    }


class Project(slots.Head, nn.Module):
    """A head that is one dense layer on every token."""

    width: int

    @staticmethod
    def example(encoded):
        return (encoded.hidden,)

    @nn.compact
    def __call__(self, x, *, table=None, context=None):
        return Dense(self.width, initializer=Normal(0.2), name="dense")(x)


@dataclasses.dataclass(frozen=True)
class Freeze(slots.Wrapper):
    """Adaptation: parameters whose path the pattern finds stay as they are."""

    pattern: str

    def trainable(self, path, step):
        return not re.search(self.pattern, path)


@dataclasses.dataclass(frozen=True)
class Given(slots.Wrapper):
    """Adaptation: a tower starts from parameters that are there already."""

    tower: str
    params: Any

    def init(self, params, source):
        return {**params, self.tower: self.params}


class Run(NamedTuple):
    program: step.Program
    first: step.TrainState
    second: step.TrainState
    last: step.TrainState
    losses: list[float]


def start(system: System, batch, params=None) -> tuple[step.Program, step.TrainState]:
    """The program of a system and its state before the first step, with the given parameters in
    place of its own."""
    program = step.program(system, seed=0)
    state = jax.jit(program.init)(batch)
    return program, state if params is None else dataclasses.replace(state, params=params)


def check(system: System, batch, steps: int = 20, params=None, splits: bool = True) -> Run:
    """Train on one batch. The loss falls, gradients are finite, frozen parameters keep their bits,
    a run resumed from a checkpoint ends in the same bits, and two micro-batches give the
    parameters, the carry and the metrics of one (`splits=False`: a second stage of a system for
    which the last two are shown already)."""
    program, first = start(system, batch, params)
    update = jax.jit(program.step, static_argnames="accumulate")
    if splits:
        close(update(first, batch), update(first, batch, accumulate=2), 1e-5)
    states, losses = [first], []
    for _ in range(steps):
        state, metrics = update(states[-1], batch)
        states.append(state)
        losses.append(float(metrics["loss"].value().sum()))
        assert np.isfinite(losses[-1]) and np.isfinite(metrics["grad_norm"])
    assert np.mean(losses[-3:]) < 0.9 * np.mean(losses[:3]), losses
    if splits:
        again = restored(states[-3])
        for _ in range(2):
            again, _ = update(again, batch)
        assert {path: bits(leaf) for path, leaf in flatten(again).items()} == {
            path: bits(leaf) for path, leaf in flatten(state).items()
        }
    before, after = flatten(first.params), flatten(state.params)
    trainable = program.freedom.trains
    changed = {path for path in before if bits(before[path]) != bits(after[path])}
    assert changed and all(trainable(path) for path in changed)
    return Run(program, first, states[1], state, losses)


def restored(state: step.TrainState) -> step.TrainState:
    """The state as a checkpoint on the disk gives it back."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(folder)
        checkpoints.save(1, state, {})
        return checkpoints.restore(like=state)[0]


def standing(system: System) -> dict[str, str | None]:
    """{task: why the system's encoder cannot carry it, or None} over the tasks of `ptm list
    --matrix`, which refuses with a reason of some length or takes the cell."""
    tasks = {name: systems.get(task) for name, task in matrix.TASKS.items()}
    cells = {
        task: reason for (_, task), reason in compose.matrix({system.name: system}, tasks).items()
    }
    assert all(reason is None or len(reason) > 20 for reason in cells.values())
    return cells


def corrupted(system: System, batch):
    """The batch as one draw of the system's corruption leaves it."""
    return evaluate(system.corruption, jax.random.key(0), batch)


def evaluate(function, *args):
    """function(*args), compiled in one piece."""
    return jax.jit(function)(*args)


def bits(array) -> bytes:
    """What an array is made of: -0.0 differs from 0.0."""
    return np.asarray(array).tobytes()


def close(a, b, tolerance: float) -> None:
    """Two trees are equal within an absolute and relative tolerance."""
    a, b = flatten(a), flatten(b)
    assert a.keys() == b.keys()
    for path, leaf in a.items():
        np.testing.assert_allclose(leaf, b[path], rtol=tolerance, atol=tolerance, err_msg=path)


def towers(run: Run, state=None):
    """The towers over the trained parameters, ties filled in, without dropout."""
    params = step.tied((state or run.last).params, run.program.system.ties)
    return step.core_towers.bind(run.program.towers, params)


def sees(tower, table: str, outputs, ids) -> np.ndarray:
    """[L, n] booleans: whether output i of `outputs(tower) [L, D]` depends on the token ids[n], by
    gradients that are exactly zero where it does not. `table` is the path of the token table in the
    tower."""
    flat = flatten(tower.params)
    mix = jax.random.normal(jax.random.key(7), (outputs(tower).shape[-1],))

    def scores(tokens):
        return outputs(dataclasses.replace(tower, params=unflatten({**flat, table: tokens}))) @ mix

    slopes = evaluate(jax.jacrev(scores), flat[table])
    return np.asarray((slopes != 0).any(-1)[:, jnp.asarray(ids)])
