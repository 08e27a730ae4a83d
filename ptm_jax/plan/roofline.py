"""Computes the time of a step by a roofline model with exposed communication.

    products   = FLOPs of a device / (its peak x efficiency)
    memory     = bytes of activations that products read and write / HBM bandwidth
    weights    = bytes of parameters, gradients and optimizer state read and written / HBM bandwidth
    blocking   = time of messages along `model` and `seq`, between a layer's products
    hideable   = time of messages along `data` and `fsdp` (gradients, slices of parameters) and
               between slices, beside products
    exposed    = blocking + max(0, hideable - HIDE x products)

    step       = max(products, memory) + weights + exposed

The compiled program shows which messages are under way while a product runs (`Traffic.hidden`). The
times with this overlap take these as hideable, and all others as blocking.

`mesh.chips` has peaks, bandwidths and their sources; `plan.links` has times of messages. HIDE =
0.75 is the share of the backward pass with recomputation in the products. Gradients of the layer
above can be summed during this time, by asynchronous collectives; `exposed_without_overlap` is the
time without overlap. With efficiency 1 the step time is a lower bound. Large models have reached
0.5 to 0.7 of it (Megatron-Core 0.47 on H100, MaxText 0.65 on v5p).

    utilisation = FLOPs without recomputation / (step x devices x peak)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from ptm_jax.mesh.collectives import BETWEEN
from ptm_jax.plan.estimate import Traffic
from ptm_jax.plan.links import Links

HIDE = 0.75
HIDEABLE = {"data", "fsdp", *BETWEEN}


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds of a step by part; the formula is in the module's docstring."""

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
    by_program: bool = False,
) -> Times:
    """Returns the times of a device.

    flops     FLOPs of the device
    traffic   bytes of activations that products read and write
    weights   bytes of parameters and their state that are read and written
    by_program  hideable are the messages that the compiled program has beside products
    """
    chip = links.topology.chip
    peak = chip.float32 if precision == "float32" else chip.bfloat16
    blocking = hideable = 0.0
    for message in messages:
        seconds = links.seconds(message.kind, message.axes, message.bytes, message.count)
        share = float(set(message.axes) <= HIDEABLE)
        if by_program:
            share = message.hidden / message.bytes if message.bytes else 0.0
        hideable += share * seconds
        blocking += (1 - share) * seconds
    return Times(
        flops / (peak * efficiency),
        traffic / chip.hbm_rate,
        weights / chip.hbm_rate,
        blocking,
        hideable,
    )
