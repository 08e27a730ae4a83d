"""Matryoshka: the loss of the first features of each vector, and of the vectors of lower layers."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Batch, Encoded, Loss, add_losses
from ptm_jax.objectives.base import real_rows, token_loss
from ptm_jax.objectives.sentences.base import AroundTexts, Vectors
from ptm_jax.objectives.sentences.similarities import unit


@dataclasses.dataclass(frozen=True, kw_only=True)
class NestedFeatures(AroundTexts):
    """The sum of `weights` times the loss of the first d features, of length 1, for d in `dims`.

    Kusupati et al. 2022, arXiv 2205.13147, Eq. 1. The metrics of d have the ending _d.
    """

    dims: tuple[int, ...]
    weights: tuple[float, ...] = ()

    def __post_init__(self):
        super().__post_init__()
        if not self.dims or min(self.dims) < 1:
            raise ValueError(f"dims is {self.dims}; name one or more numbers of features above 0")
        if self.weights and len(self.weights) != len(self.dims):
            raise ValueError(
                f"{len(self.weights)} weights for {len(self.dims)} dims; give a weight for each"
            )

    def judged(self, vectors: Vectors, batch: Batch) -> Loss:
        width = max(leaf.shape[-1] for leaf in jax.tree.leaves(vectors))
        if max(self.dims) > width:
            raise ValueError(f"dims has {max(self.dims)}, and vectors have {width} features")
        parts = []
        for dim, weight in zip(self.dims, self.weights or (1.0,) * len(self.dims), strict=True):
            first = jax.tree.map(lambda leaf, dim=dim: unit(leaf[..., :dim]), vectors)
            parts.append((weight, _named(self.task.judged(first, batch), str(dim))))
        return add_losses(*parts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NestedLayers(AroundTexts):
    """The loss of the last layer, plus `scale` times the mean loss of `layers`.

    The vectors of a layer are pooled from its states. Each of `layers` (from 1) also learns the
    last layer's distribution over features at `temperature` by KL, with the weight `match` times
    the temperature (Li et al. 2024, arXiv 2402.14776; the last layer is not changed by it).
    """

    layers: tuple[int, ...]
    scale: float = 1.0
    match: float = 1.0
    temperature: float = 0.3

    def __post_init__(self):
        super().__post_init__()
        if not self.layers or min(self.layers) < 1 or self.temperature <= 0:
            raise ValueError(
                f"layers is {self.layers} and temperature {self.temperature}; layers count from 1, "
                "and the temperature is above 0"
            )

    def vectors(self, tower: Tower, encoded: Encoded, batch: Batch) -> Vectors:
        if encoded.layers is None or max(self.layers) >= len(encoded.layers):
            many = 0 if encoded.layers is None else len(encoded.layers) - 1
            raise ValueError(f"layers is {self.layers}, and the encoder returns {many} layers")
        states = {f"{n:02d}": encoded.layers[n] for n in self.layers}
        lower = {
            name: self.task.vectors(tower, dataclasses.replace(encoded, hidden=hidden), batch)
            for name, hidden in states.items()
        }
        return {"last": self.task.vectors(tower, encoded, batch), **lower}

    def judged(self, vectors: Vectors, batch: Batch) -> Loss:
        last, weight = vectors["last"], self.scale / len(self.layers)
        parts = []
        for name in sorted(set(vectors) - {"last"}):
            lower = vectors[name]
            parts.append((weight, _named(self.task.judged(lower, batch), f"layer_{int(name)}")))
            if self.match:
                parts.append((self.match * self.temperature, self._matched(lower, last, batch)))
        return add_losses(*parts, (1.0, self.task.judged(last, batch)))

    def _matched(self, lower: Vectors, last: Vectors, batch: Batch) -> Loss:
        mine, its = (
            jax.nn.log_softmax(part / self.temperature)
            for part in (lower, jax.lax.stop_gradient(last))
        )
        return token_loss((jnp.exp(its) * (its - mine)).sum(-1), real_rows(batch), name="layer_kl")


def _named(loss: Loss, ending: str) -> Loss:
    metrics = {f"{name}_{ending}": value for name, value in loss.metrics.items()}
    return dataclasses.replace(loss, metrics=metrics)
