"""Search over the choices of a student's layers by a recurrent controller and REINFORCE (Zoph and Le 2017, arXiv
1611.01578; the survey names it as a future way to smaller models, section 8.2).

    found = search((4, 4, 4), lambda choice: -loss_of(choice), steps=200)
    found.best                                      # such as (1, 3, 4): layers of the teacher, from 1
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ptm_jax.compress.distillation import Distillation
from ptm_jax.compress.students import SomeLayers
from ptm_jax.core.errors import UserError
from ptm_jax.core.system import System
from ptm_jax.train import step as training


@dataclasses.dataclass(frozen=True, kw_only=True)
class Controller:
    """An LSTM that draws one choice after another; its input is the vector of the choice before (section 3.1).

    hidden    units (35); scale: of the uniform initial values (0.08); rate: Adam's (0.0006, section 4.1)
    samples   children of an update (the paper: 8 replicas)
    decay     of the exponential moving average of rewards, the baseline (section 3.2)
    """

    hidden: int = 35
    scale: float = 0.08
    rate: float = 6e-4
    samples: int = 8
    decay: float = 0.9

    def init(self, key: Any, sizes: Sequence[int]) -> dict[str, Any]:
        """Returns parameters for choices of these numbers of options."""
        most, h = max(sizes), self.hidden
        shapes = {"start": (h,), "table": (len(sizes), most, h), "in": (h, 4 * h), "state": (h, 4 * h), "bias": (4 * h,)}
        shapes |= {"out": (len(sizes), h, most)}
        keys = jax.random.split(key, len(shapes))
        draw = lambda key, shape: jax.random.uniform(key, shape, minval=-self.scale, maxval=self.scale)
        return {name: draw(key, shape) for key, (name, shape) in zip(keys, shapes.items(), strict=True)}

    def run(self, params: Mapping[str, Any], sizes: Sequence[int], key: Any, choice: Any = None) -> tuple[Any, Any]:
        """Returns (choices [T], the log probability of each [T]): drawn with a key, or of a given `choice` [T]."""
        x, h, c = params["start"], jnp.zeros(self.hidden), jnp.zeros(self.hidden)
        drawn, logs = [], []
        for place, size in enumerate(sizes):
            gates = x @ params["in"] + h @ params["state"] + params["bias"]
            i, f, g, o = jnp.split(gates, 4)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            chances = jax.nn.log_softmax((h @ params["out"][place])[:size])
            one = jax.random.categorical(jax.random.fold_in(key, place), chances) if choice is None else choice[place]
            drawn.append(one)
            logs.append(chances[one])
            x = params["table"][place, one]
        return jnp.stack(drawn), jnp.stack(logs)


@dataclasses.dataclass(frozen=True)
class Found:
    """The choice with the highest reward, the reward, the mean reward of each update, and all rewards {choice: reward}."""

    best: tuple[int, ...]
    reward: float
    curve: tuple[float, ...]
    rewards: Mapping[tuple[int, ...], float]


def search(
    sizes: Sequence[int], reward: Callable[[tuple[int, ...]], float], *, steps: int = 100, seed: int = 0,
    controller: Controller = Controller(),
) -> Found:  # fmt: skip
    """Trains a controller by REINFORCE: the gradient of mean_k (R_k - b) log P(choice_k), b the moving average of earlier
    rewards (Eq. 4). `sizes` are the numbers of options; `reward` gets choices that count from 1, each once.

    Raises UserError for no options or steps, and a reward that is not finite.
    """
    if not sizes or min(sizes) < 1 or steps < 1:
        raise UserError(f"options {tuple(sizes)} and {steps} steps; give at least one of each")
    sizes, optimizer, rewards = tuple(sizes), optax.adam(controller.rate), {}
    params = controller.init(jax.random.key(seed), sizes)
    state, baseline, curve = optimizer.init(params), None, []
    draw = jax.jit(jax.vmap(lambda params, key: controller.run(params, sizes, key)[0], (None, 0)))

    @jax.jit
    def update(params, state, choices, advantages):
        logs = lambda params, choice: controller.run(params, sizes, None, choice)[1].sum()
        loss = lambda params: -(jax.vmap(logs, (None, 0))(params, choices) * advantages).mean()
        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    for number in range(steps):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed + 1), number), controller.samples)
        choices = np.asarray(draw(params, keys))
        for one in map(tuple, (choices + 1).tolist()):
            if one not in rewards:
                rewards[one] = float(reward(one))
                if not np.isfinite(rewards[one]):
                    raise UserError(f"the reward of {one} is {rewards[one]}; it must be finite")
        found = np.array([rewards[tuple(one)] for one in (choices + 1).tolist()])
        baseline = found.mean() if baseline is None else baseline
        params, state = update(params, state, choices, jnp.asarray(found - baseline, jnp.float32))
        baseline = controller.decay * baseline + (1 - controller.decay) * found.mean()
        curve.append(float(found.mean()))
    best = max(rewards, key=rewards.get)
    return Found(best, rewards[best], tuple(curve), rewards)


def proxy(
    system: System, teacher: Any, batches: Sequence[Any], matches: Sequence[Any]
) -> Callable[[tuple[int, ...]], float]:
    """Returns the reward of a choice of layers: minus the loss of the `matches` on `batches` for the student of these layers
    of the teacher, before training. `system` is that of the teacher, `teacher` its parameters."""
    programs: dict[int, Any] = {}

    def reward(choice: tuple[int, ...]) -> float:
        wrapper = Distillation(student=SomeLayers(keep=choice), matches=tuple(matches), hard=0.0)
        if len(choice) not in programs:
            work = training.program(dataclasses.replace(system, compress=(wrapper,)), seed=0)
            measure = lambda params, batch, work=work: work.evaluate(params, batch, 0)[0]["loss"]
            programs[len(choice)] = jax.jit(measure), jax.eval_shape(work.init, batches[0]).params
        measure, shapes = programs[len(choice)]
        whole = {**jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes), "teacher": teacher}
        params, total = wrapper.init(whole, None), 0.0
        for batch in batches:
            loss = measure(params, batch)
            total += float((loss.sum / jnp.maximum(loss.weight, 1.0)).sum())
        return -total / len(batches)

    return reward
