"""Search over the choices of a student's layers by a recurrent controller and REINFORCE.

Zoph and Le 2017, arXiv 1611.01578; the survey names it as a future way to smaller models, section
8.2.

    result = search((4, 4, 4), lambda choice: -loss_of(choice), steps=200)
    result.best                 # such as (1, 3, 4): layers of the teacher, from 1
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ptm_jax.compress.matches.base import Match
from ptm_jax.compress.matches.predictions import SoftTargets
from ptm_jax.compress.students.distillation import Distillation
from ptm_jax.compress.students.from_teacher import SomeLayers, stack_of
from ptm_jax.core import towers
from ptm_jax.core.errors import UserError
from ptm_jax.core.system import adapted
from ptm_jax.core.types import Array, Params

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ptm_jax.core.system import System
    from ptm_jax.core.types import Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Controller:
    """Draws one choice after another by an LSTM.

    Its input is the vector of the choice before (section 3.1).

    hidden    number of units (35)
    scale     limit of the uniform initial values (0.08)
    rate      Adam's learning rate (0.0006, section 4.1)
    samples   children of an update (the paper: 8 replicas)
    decay     decay of the moving average of rewards, which is the baseline (section 3.2)
    """

    hidden: int = 35
    scale: float = 0.08
    rate: float = 6e-4
    samples: int = 8
    decay: float = 0.9

    def init(self, key: Array, sizes: Sequence[int]) -> dict[str, Any]:
        """Returns parameters for choices of these numbers of options."""
        options, h = max(sizes), self.hidden
        shapes = {
            "start": (h,),
            "table": (len(sizes), options, h),
            "in": (h, 4 * h),
            "state": (h, 4 * h),
            "bias": (4 * h,),
        }
        shapes |= {"out": (len(sizes), h, options)}
        keys = jax.random.split(key, len(shapes))

        def draw(key, shape):
            return jax.random.uniform(key, shape, minval=-self.scale, maxval=self.scale)

        return {
            name: draw(key, shape) for key, (name, shape) in zip(keys, shapes.items(), strict=True)
        }

    def run(
        self, params: Mapping[str, Any], sizes: Sequence[int], key: Array, choice: Any = None
    ) -> tuple[Any, Any]:
        """Returns (choices [T], the log probability of each [T]): drawn with a key, or of a given
        `choice` [T]."""
        x, h, c = params["start"], jnp.zeros(self.hidden), jnp.zeros(self.hidden)
        drawn, logs = [], []
        for place, size in enumerate(sizes):
            gates = x @ params["in"] + h @ params["state"] + params["bias"]
            i, f, g, o = jnp.split(gates, 4)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            chances = jax.nn.log_softmax((h @ params["out"][place])[:size])
            one = (
                jax.random.categorical(jax.random.fold_in(key, place), chances)
                if choice is None
                else choice[place]
            )
            drawn.append(one)
            logs.append(chances[one])
            x = params["table"][place, one]
        return jnp.stack(drawn), jnp.stack(logs)


@dataclasses.dataclass(frozen=True)
class Searched:
    """The result of a search: the best choice and the rewards.

    It has the choice with the highest reward, the reward, the mean reward of each update, and all
    rewards {choice: reward}.
    """

    best: tuple[int, ...]
    reward: float
    curve: tuple[float, ...]
    rewards: Mapping[tuple[int, ...], float]


def search(
    sizes: Sequence[int], reward: Callable[[tuple[int, ...]], float], *, steps: int = 100,
    seed: int = 0,
    controller: Controller = Controller(),
) -> Searched:  # fmt: skip
    """Trains a controller by REINFORCE.

    The gradient of mean_k (R_k - b) log P(choice_k), b the moving average of earlier rewards (Eq.
    4). `sizes` are the numbers of options; `reward` gets choices that count from 1, each once.

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
        def logs(params, choice):
            return controller.run(params, sizes, None, choice)[1].sum()

        def loss(params):
            return -(jax.vmap(logs, (None, 0))(params, choices) * advantages).mean()

        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    for number in range(steps):
        keys = jax.random.split(
            jax.random.fold_in(jax.random.key(seed + 1), number), controller.samples
        )
        choices = np.asarray(draw(params, keys))
        for one in map(tuple, (choices + 1).tolist()):
            if one not in rewards:
                rewards[one] = float(reward(one))
                if not np.isfinite(rewards[one]):
                    raise UserError(f"the reward of {one} is {rewards[one]}; it must be finite")
        values = np.array([rewards[tuple(one)] for one in (choices + 1).tolist()])
        baseline = values.mean() if baseline is None else baseline
        params, state = update(params, state, choices, jnp.asarray(values - baseline, jnp.float32))
        baseline = controller.decay * baseline + (1 - controller.decay) * values.mean()
        curve.append(float(values.mean()))
    best = max(rewards, key=rewards.get)
    return Searched(best, rewards[best], tuple(curve), rewards)


def proxy(
    system: System, teacher: Params, batches: Sequence[Any], wrapper: Distillation
) -> Callable[[tuple[int, ...]], float]:
    """Returns the reward of a choice of layers.

    The student consists of these layers of the teacher, without training. Its reward is minus the
    loss of `wrapper`'s matches on `batches`. `system` is the teacher's system, `teacher` its
    parameters.
    """
    measures: dict[int, Any] = {}

    def reward(choice: tuple[int, ...]) -> float:
        single = dataclasses.replace(wrapper, keep=choice, hard=0.0)
        if len(choice) not in measures:
            compared = adapted(dataclasses.replace(system, compress=(single,)))

            def run(params, batch):
                return compared.objective(
                    towers.bind(compared.towers, params), {**batch, "step": 0}, None
                )

            measures[len(choice)] = jax.jit(lambda params, batch: run(params, batch).value())
        params = {
            single.tower: single.maker.begin(teacher, teacher),
            **dict.fromkeys(single.teachers, teacher),
        }
        return -float(np.mean([measures[len(choice)](params, batch) for batch in batches]))

    return reward


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerSearch(Distillation):
    """Searches the layers of the teacher that the student takes, and distils into them.

    It draws `count` layers in any order by a recurrent controller and REINFORCE (Zoph and Le 2017,
    arXiv 1611.01578). The reward is minus the loss of the matches on `measures` training examples
    before training, a proxy.

    steps   updates of the controller; seed: of its values and draws
    """

    matches: tuple[Match, ...] = (SoftTargets(temperature=2.0),)
    student: Any = SomeLayers(keep=3)
    count: int = 3
    steps: int = 100
    seed: int = 0
    measures: int = 64

    def __post_init__(self):
        super().__post_init__()
        if min(self.count, self.steps, self.measures) < 1:
            raise ValueError(
                f"count is {self.count}, steps {self.steps}, measures {self.measures}; each "
                "must be at least 1"
            )

    def measured(self, system: System, params: Params, batches: Iterable[Batch]) -> LayerSearch:
        layers = stack_of(system.towers[self.tower]).layers
        reward = proxy(
            dataclasses.replace(system, compress=()), params[self.tower], list(batches()), self
        )
        result = search((layers,) * self.count, reward, steps=self.steps, seed=self.seed)
        return dataclasses.replace(self, keep=result.best)
