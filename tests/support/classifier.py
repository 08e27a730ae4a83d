"""A small classifier, and which of its parameters a run moves, step by step."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.adapt import catalogue
from ptm_jax.core import facts
from ptm_jax.core.paths import flatten
from ptm_jax.core.recipe import AdamW, Constant, Phase, Recipe
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import transformer
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.task_heads import SequenceHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.objectives.tasks.downstream import Classification
from ptm_jax.tasks.formats.labelled import Labelled
from ptm_jax.training.steps import step

VOCAB = Vocab(size=24, pad=0, cls=1, sep=2, mask=3)
LAYERS, WIDTH, ROWS, LENGTH = 3, 8, 4, 6
DECAYING = AdamW(eps=1e-4, weight_decay=0.1, decay_rules=())
"""Everything decays: what is frozen has to be spared."""


def classifier(
    *adapt: str,
    optimizer: Any = DECAYING,
    lr: float = 1e-2,
    dropout: float = 0.0,
    steps: int = 100,
    types: int = 0,
) -> System:
    """A Transformer of three layers with a head of two classes, adapted as `--adapt` would."""
    encoder = transformer(
        vocab=VOCAB, layers=LAYERS, width=WIDTH, heads=2, hidden=12,
        positions=LearnedPositions(8, initializer=Normal(0.3)),
        initializer=Normal(0.3), dropout=dropout, types=types,
    )  # fmt: skip
    head = SequenceHead(2, Summary("none", at="mean"), initializer=Normal(0.5))
    recipe = Recipe(
        phases=(Phase(steps=steps, batch=ROWS, length=LENGTH),),
        lr=lr,
        optimizer=optimizer,
        schedule=Constant(),
        clip=None,
    )
    towers = {"main": Model(encoder=encoder, heads={"classify": head})}
    examples = Labelled(first=("a",), second=("b",)) if types else None
    return System(
        name="small", paper="", section="", examples=examples, towers=towers,
        objective=Classification(), recipe=recipe,
        adapt=facts.stand_ins(catalogue.read_all(adapt), VOCAB),
    )  # fmt: skip


def batch(types: int = 0) -> dict[str, Any]:
    ids = jnp.asarray(np.random.default_rng(0).integers(4, VOCAB.size, (ROWS, LENGTH)), jnp.int32)
    segments = jnp.ones_like(ids).at[1, 4:].set(0)
    fields = {
        "input_ids": ids,
        "segment_ids": segments,
        "rows": jnp.arange(ROWS),
        "label": jnp.asarray([0, 1, 1, 0]),
    }
    return fields | ({"token_type_ids": jnp.zeros_like(ids).at[:, 2:].set(1)} if types else {})


def layered(path: str) -> bool:
    """Whether a parameter has an axis of layers."""
    return "/encoder/stack/block/" in path and "/encode/" not in path and "/decode/" not in path


class Trace(NamedTuple):
    program: step.Program
    states: list[step.TrainState]
    metrics: list[Any]

    def params(self, number: int) -> dict[str, np.ndarray]:
        """{path: array} before the first step (0), after it (1), ..."""
        return {
            path: np.asarray(leaf) for path, leaf in flatten(self.states[number].params).items()
        }

    def moved(self, number: int) -> set[str]:
        """What changed in a bit at a step, 0 the first: paths, those of the stack ending in @ and
        the layer."""
        before, after = self.params(number), self.params(number + 1)
        found = set()
        for path, old in before.items():
            if layered(path):
                parts = range(len(old))
                found |= {
                    f"{path}@{n + 1}" for n in parts if old[n].tobytes() != after[path][n].tobytes()
                }
            elif old.tobytes() != after[path].tobytes():
                found.add(path)
        return found

    def levels(self, number: int) -> set[int]:
        """The levels that moved at a step: 0 embeddings, 1 ... layers, `LAYERS + 1` heads."""

        def level(path):
            return (
                int(path.rpartition("@")[2])
                if "@" in path
                else (LAYERS + 1 if "heads" in path else 0)
            )

        return {level(path) for path in self.moved(number) if "recent" not in path}

    def everything(self) -> set[str]:
        """All parameters, named as `moved` names them."""
        return {
            name
            for path, leaf in self.params(0).items()
            for name in ([f"{path}@{n + 1}" for n in range(len(leaf))] if layered(path) else [path])
        }


def run(system: System, steps: int = 1, given: Any = None) -> Trace:
    """The first steps of a system on one batch, from its own parameters or those given."""
    program, rows = step.program(system, seed=0), batch()
    state = jax.jit(program.init)(rows)
    if given is not None:
        state = dataclasses.replace(state, params=program.begun({**state.params, **given}, given))
    update, states, metrics = jax.jit(program.step), [state], []
    for _ in range(steps):
        state, found = update(states[-1], rows)
        states.append(state)
        metrics.append(found)
    return Trace(program, states, metrics)
