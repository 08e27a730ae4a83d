"""Greedy layer-wise pre-training: layers are trained one by one, then together.

Hinton et al. 2006; Bengio et al. 2007; row 29. Layer l learns on h_{l-1}, the output of the
trained layers below, which have no gradient:

    rbm           a restricted Boltzmann machine by contrastive divergence with one step (Hinton
                  2002). The loss is F(v0) - F(v1) with the free energy

                      F(v) = -v c - sum softplus(v W + b)

                  and a fixed v1. Its gradient for W is -(v0 h0' - v1 h1'), with h the probabilities
                  of the units above. v1 is drawn from units that are drawn given v0. Real numbers
                  v0 in [0, 1] count as probabilities
    autoencoder   a denoising autoencoder with tied weights (Vincent et al. 2008). The loss is the
                  cross-entropy of v0 and sigmoid(h W' + c), where h reads v0 with a fraction
                  `noise` of its units set to 0

Afterwards all layers are fine-tuned as one autoencoder, which reconstructs h_0 through all layers
and back (Hinton and Salakhutdinov 2006).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, get_args

import jax
import jax.numpy as jnp

from ptm_jax.core.batch import rows_of
from ptm_jax.core.errors import unknown
from ptm_jax.core.streams import named, row_keys
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Encoded, Loss, Ratio
from ptm_jax.objectives.base import OnePass

Weights = tuple[Array, Array, Array]
"""W [I, O], b [O] of the units above, c [I] of those below."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GreedyLayers(OnePass):
    """Trains layer l of `extra["weights"]` in steps (l - 1) `steps` ... l `steps`, then all layers.

    The metric `bag_nll` is the cross-entropy of the reconstruction of h_0 through all layers, per
    text in nats. Reads the batch's `step`; without it all layers are trained.
    """

    kind: Literal["rbm", "autoencoder"] = "rbm"
    steps: int = 1000
    noise: float = 0.25
    tower: str = "main"

    def __post_init__(self):
        if self.kind not in get_args(Literal["rbm", "autoencoder"]):
            raise unknown("greedy layer", str(self.kind), ("rbm", "autoencoder"))
        if self.steps < 1 or not 0 <= self.noise < 1:
            raise ValueError(
                f"steps is {self.steps}, noise {self.noise}; steps must be positive, noise "
                "in [0, 1)"
            )

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        levels, weights = encoded.extra["levels"], encoded.extra["weights"]
        stage = (
            jnp.minimum(batch["step"] // self.steps, len(weights))
            if "step" in batch
            else len(weights)
        )
        real = levels[0].any(-1).astype(jnp.float32)
        nll = _cross_entropy(levels[0], unrolled(weights, levels[-1]))
        losses = [*self._layers(levels, weights, batch), nll]
        total = sum(
            jnp.where(stage == number, (loss * real).sum(), 0.0)
            for number, loss in enumerate(losses)
        )
        return Loss(total, real.sum(), {"bag_nll": Ratio((nll * real).sum(), real.sum())})

    def _layers(
        self, levels: Sequence[Array], weights: Sequence[Weights], batch: Batch
    ) -> list[Array]:
        """Returns the losses [B, S] of the single layers."""
        losses = []
        for number, (v, layer) in enumerate(zip(levels[:-1], weights, strict=True)):
            v, key = jax.lax.stop_gradient(v), batch.get("noise")

            def draw(name, p, at=number, key=key):
                return drawn(key, f"{name}{at}", rows_of(batch), p)

            if self.kind == "rbm":
                h = draw("above", jax.nn.sigmoid(_up(layer, v)))
                seen = jax.lax.stop_gradient(draw("below", jax.nn.sigmoid(_down(layer, h))))
                losses.append(free_energy(layer, v) - free_energy(layer, seen))
            else:
                keep = draw("kept", jnp.full(v.shape, 1 - self.noise)) if key is not None else 1.0
                losses.append(_cross_entropy(v, _down(layer, jax.nn.sigmoid(_up(layer, v * keep)))))
        return losses


def free_energy(layer: Weights, v: Array) -> Array:
    """Returns F(v) [..] = -v c - sum over the units above of softplus(v W + b), for v [.., I]."""
    return -(v * layer[2]).sum(-1) - jax.nn.softplus(_up(layer, v)).sum(-1)


def unrolled(weights: Sequence[Weights], code: Array) -> Array:
    """Returns the logits [.., V] of h_0 from the states of the last layer, through all layers."""
    for layer in reversed(weights[1:]):
        code = jax.nn.sigmoid(_down(layer, code))
    return _down(weights[0], code)


def drawn(key: Array, name: str, rows: Array, p: Array) -> Array:
    """Returns bits of probabilities p [B, ..]; p itself without a key."""
    if key is None:
        return p
    uniform = jax.vmap(lambda one: jax.random.uniform(one, p.shape[1:]))(
        row_keys(named(key, name), rows)
    )
    return (uniform < p).astype(p.dtype)


def _up(layer: Weights, v: Array) -> Array:
    return v @ layer[0] + layer[1]


def _down(layer: Weights, h: Array) -> Array:
    return h @ layer[0].T + layer[2]


def _cross_entropy(v: Array, logits: Array) -> Array:
    """Returns -sum v log p + (1 - v) log (1 - p) [..] for p = sigmoid(logits) [.., I]."""
    return (jax.nn.softplus(logits) - v * logits).sum(-1)
