"""How long a step would take: a roofline, with the communication that nothing hides.

    products   = operations of a device / (its peak x efficiency)
    memory     = bytes of activations that products read and write, in parts, / HBM bandwidth
    weights    = bytes of parameters, gradients and optimizer state read and written / HBM bandwidth
    blocking   = time of messages along `model` and `seq`: they stand between a layer's products
    hideable   = time of messages along `data` and `fsdp` (gradients, slices of parameters): they can run beside products
    exposed    = blocking + max(0, hideable - HIDE x products)

    step       = max(products, memory) + weights + exposed

Peaks, bandwidths and their sources are `mesh.chips`'; times of messages `plan.links`'. HIDE = 0.75: the backward pass
and its recomputation, beside which a gradient of the layer above can be summed; compilers do it where they are told to
(on TPU: asynchronous collectives), so `exposed_without_overlap` says what is left where they do not. Efficiency is 1: the
result is a bound. Large models have reached 0.5 to 0.7 of it (Megatron-Core 0.47 on H100, MaxText 0.65 on v5p).

    utilisation = operations without what is recomputed / (step x devices x peak)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from ptm_jax.plan.estimate import Traffic
from ptm_jax.plan.links import Links

HIDE = 0.75
HIDEABLE = {"data", "fsdp"}


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds of a step by what takes them; the formula is the module's."""

    products: float
    memory: float
    weights: float
    blocking: float
    hideable: float

    @property
    def exposed(self) -> float:
        return self.blocking + max(0.0, self.hideable - HIDE * self.products)

    @property
    def step(self) -> float:
        return max(self.products, self.memory) + self.weights + self.exposed


def times(
    links: Links,
    messages: Iterable[Traffic],
    *,
    flops: float,
    traffic: float,
    weights: float,
    precision: str = "bfloat16",
    efficiency: float = 1.0,
) -> Times:
    """Of a device: its operations, the bytes of its activations in products, and of its weights and their state."""
    chip = links.topology.chip
    peak = chip.float32 if precision == "float32" else chip.bfloat16
    blocking = hideable = 0.0
    for message in messages:
        seconds = links.seconds(message.kind, message.axes, message.bytes, message.count)
        if set(message.axes) <= HIDEABLE:
            hideable += seconds
        else:
            blocking += seconds
    return Times(flops / (peak * efficiency), traffic / chip.hbm_rate, weights / chip.hbm_rate, blocking, hideable)
