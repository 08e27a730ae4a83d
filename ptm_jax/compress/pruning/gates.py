"""Attention heads with gates that learn to close.

Voita et al. 2019, arXiv 1905.09418, section 5.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.compress.base import Compression
from ptm_jax.compress.pruning import removal
from ptm_jax.core.streams import named
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Loss, Params, Ratio, add_losses
from ptm_jax.objectives.base import AroundTask

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ptm_jax.core.system import System


PLACE = "gates"
"""Where log alpha lies in a tower: `gates/LAYER/bias` [H], a bias of the logistic noise, which does
not decay."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HardConcrete:
    """The hard concrete distribution of a gate g in [0, 1].

    Louizos et al. 2018, arXiv 1712.01312, Eqs. 10-12.

    temperature  beta; low, high: the limits gamma < 0 and zeta > 1 of the stretch
    """

    temperature: float = 0.33
    low: float = -0.1
    high: float = 1.1

    def sample(self, log_alpha: Array, key: Array) -> Array:
        """Returns gates clip(s (zeta - gamma) + gamma, 0, 1) with s = sigmoid((log u - log(1 - u) +
        log alpha) / beta)."""
        noise = jax.random.logistic(key, log_alpha.shape)
        return self._stretched(jax.nn.sigmoid((noise + log_alpha) / self.temperature))

    def expected(self, log_alpha: Array) -> Array:
        """Returns the gates of a trained model, clip(sigmoid(log alpha) (zeta - gamma) + gamma, 0,
        1) (Eq. 13)."""
        return self._stretched(jax.nn.sigmoid(log_alpha))

    def open(self, log_alpha: Array) -> Array:
        """Returns P(g != 0) = sigmoid(log alpha - beta log(-gamma / zeta)) (Eq. 12)."""
        return jax.nn.sigmoid(log_alpha - self.temperature * math.log(-self.low / self.high))

    def _stretched(self, s: Array) -> Array:
        return jnp.clip(s * (self.high - self.low) + self.low, 0, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatedHeads(AroundTask):
    """L = L_task + `weight` sum_h P(g_h != 0), with gates drawn anew for each batch.

    Voita et al. 2019, section 5.1.

    The gates multiply the outputs of the heads of `gated`. The metric `open_heads` is the sum.
    """

    weight: float
    gate: HardConcrete
    gated: tuple[str, ...] = ("main",)

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        towers, opened = dict(towers), []
        for name in self.gated:
            tower = towers[name]
            if PLACE not in tower.params:  # an evaluation: the gates are in the weights
                continue
            logits = _logits(tower.params)
            keys = jax.random.split(named(key, f"gates {name}"), len(logits))
            gates = [
                self.gate.sample(one, layer_key)
                for one, layer_key in zip(logits, keys, strict=True)
            ]
            towers[name] = dataclasses.replace(
                tower, params=removal.gated(_without(tower.params), gates, "heads")
            )
            opened += [self.gate.open(one).sum() for one in logits]
        task = self.task(towers, batch, key)
        if not opened:
            return task
        count = jnp.stack(opened).sum()
        return add_losses(
            (1.0, task), (self.weight, Loss(count, 1.0, {"open_heads": Ratio(count, 1.0)}))
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadGates(Compression):
    """Learns which heads of a trained model to remove.

    Each head has a hard concrete gate, and the loss has the expected number of open gates (Voita et
    al. 2019, section 5). A head whose gate is 0 at the end is removed; each layer keeps one.

    weight   lambda, the weight of the number of open gates (the paper varies it to get other
             numbers of heads)
    opening  initial log alpha; 3 gives P(g != 0) = 0.98
    speed    factor on the learning rate of log alpha. The paper has no such factor; its learning
             rate is about a thousand times the rate of fine-tuning
    """

    weight: float = 0.01
    opening: float = 3.0
    speed: float = 1000.0
    gate: HardConcrete = HardConcrete()
    towers: tuple[str, ...] = ("main",)

    owns = rf"^\w+/{PLACE}/"
    logical_axes = {f"{PLACE}/*/bias": (None,)}
    minimises = "task + expected open gates"

    def __post_init__(self):
        if not (
            self.weight >= 0
            and self.speed > 0
            and self.gate.low < 0 < 1 < self.gate.high
            and self.gate.temperature > 0
        ):
            raise ValueError(
                "the weight must be at least 0, speed and temperature above 0, low below 0 "
                "and high above 1"
            )

    def rewrite(self, system: System) -> Any:
        objective = GatedHeads(
            task=system.objective, weight=self.weight, gate=self.gate, gated=self.towers
        )
        return dataclasses.replace(system, objective=objective)

    def init(self, params: Params, source: Params | None) -> Params:
        new = {}
        for name in self.towers:
            shapes = [leaf.shape for leaf in _outputs(params[name])]
            if not shapes:
                raise ValueError("it has no attention heads; take a Transformer")
            gates = {
                str(i): {"bias": jnp.full(shape[:1], self.opening)}
                for i, shape in enumerate(shapes)
            }
            new[name] = {**params[name], PLACE: gates}
        return {**params, **new}

    def rate(self, path: str) -> float:
        return self.speed if path.partition("/")[2].startswith(f"{PLACE}/") else 1.0

    def effective(self, params: Params, train: bool) -> Params:
        if train:
            return params
        new = {}
        for name in self.towers:
            if PLACE in params[name]:
                gates = [self.gate.expected(one) for one in _logits(params[name])]
                new[name] = removal.gated(_without(params[name]), gates, "heads")
        return {**params, **new}

    def finish(self, params: Params) -> Params:
        """Returns the parameters with the gates in the weights."""
        return self.effective(params, False)

    def smaller(
        self, system: System, params: Params, batches: Iterable[Batch]
    ) -> tuple[Any, Params]:
        def less(_, layers):
            kernels = (np.asarray(tree["attention"]["out"]["kernel"]) for _, tree in layers)
            chosen = (np.flatnonzero(np.any(kernel != 0, (1, 2))) for kernel in kernels)
            return removal.kept(
                layers, "heads", (heads if len(heads) else np.array([0]) for heads in chosen)
            )

        if isinstance(system.objective, GatedHeads):
            system = dataclasses.replace(system, objective=system.objective.task)
        return removal.changed(system, params, self.towers, less)


def _outputs(params: Params) -> list[Any]:
    """Returns the output kernel [H, K, D] of the heads of each layer, arrays or shapes."""
    stack = params.get("encoder", {}).get("stack", {})
    try:
        if "block" in stack:
            kernel = stack["block"]["attention"]["out"]["kernel"]
            return [jax.ShapeDtypeStruct(kernel.shape[1:], kernel.dtype)] * kernel.shape[0]
        names = sorted(
            (name for name in stack if name.startswith("blocks_")), key=lambda name: int(name[7:])
        )
        return [stack[name]["attention"]["out"]["kernel"] for name in names]
    except KeyError:
        return []


def _logits(params: Params) -> list[Any]:
    return [params[PLACE][str(layer)]["bias"] for layer in range(len(params[PLACE]))]


def _without(params: Params) -> Params:
    return {name: tree for name, tree in params.items() if name != PLACE}
