"""Messages that cross slices, and what they send over the data-centre network.

The TPU compiler divides a collective over n chips of each of s slices; so does the model:

    all-reduce      reduce-scatter and all-gather of V in the slice, all-reduce of V / n between
    all-gather      all-gather of V / n between slices, then of V in the slice
    reduce-scatter  reduce-scatter of V in the slice, then of V / n between slices
    all-to-all      all-to-all of V between slices, and of V / s in the slice
    permute         V between slices

V is the result of a gather, else the operand. A chip sends 2 (V / n) (s - 1) / s bytes to other
slices in an all-reduce, as in a ring. The algorithm of the runtime is not in the program.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

from ptm_jax.mesh.collectives import BETWEEN
from ptm_jax.plan.estimate import Traffic
from ptm_jax.plan.links import Links


@dataclasses.dataclass(frozen=True)
class Crossing:
    """What a chip sends to other slices in a step: bytes by the model, bytes of the planned
    messages, and their seconds at `rate` bytes/s."""

    slices: int
    modelled_bytes: float
    bytes: float
    seconds: float
    rate: float


def crossing(links: Links, modelled: Iterable[Traffic], planned: Iterable[Traffic]) -> Crossing:
    """Returns the crossing of messages that `divided` has divided."""

    def between(messages):
        return [one for one in messages if one.axes == BETWEEN]

    def sent(messages):
        return sum(links.sent(one.kind, one.axes, one.bytes) for one in between(messages))

    planned = list(planned)
    seconds = sum(
        links.seconds(one.kind, one.axes, one.bytes, one.count) for one in between(planned)
    )
    return Crossing(
        links.topology.slices, sent(modelled), sent(planned), seconds, links.topology.chip.network
    )


def divided(messages: Iterable[Traffic], links: Links) -> list[Traffic]:
    """Returns messages inside a slice and between slices, one of each kind and axes."""
    slices = links.topology.slices
    if slices == 1:
        return list(messages)
    sums: dict[tuple[str, tuple[str, ...]], np.ndarray] = defaultdict(lambda: np.zeros(3))
    for message in messages:
        share = np.nan if message.hidden is None else message.hidden / message.bytes
        for part in _parts(message, links, slices):
            sums[part.kind, part.axes] += (part.count, part.bytes, part.bytes * share)
    return [
        Traffic(kind, axes, float(count), float(size), None if np.isnan(hidden) else float(hidden))
        for (kind, axes), (count, size, hidden) in sums.items()
    ]


def _parts(message: Traffic, links: Links, slices: int) -> Iterator[Traffic]:
    if "data" not in message.axes:
        yield message
        return
    kind, count, size = message.kind, message.count, message.bytes
    axes = tuple(axis for axis in message.axes if links.parts((axis,)) > 1)
    chips = links.parts(axes)
    if kind in ("all-to-all", "collective-permute"):
        yield Traffic(kind, BETWEEN, count, size)
        if kind == "all-to-all" and chips > 1:
            yield Traffic(kind, axes, count, size / slices)
        return
    if chips > 1 and kind != "all-gather":
        yield Traffic("reduce-scatter", axes, count, size)
    yield Traffic(kind, BETWEEN, count, size / chips)
    if chips > 1 and kind != "reduce-scatter":
        yield Traffic("all-gather", axes, count, size)
