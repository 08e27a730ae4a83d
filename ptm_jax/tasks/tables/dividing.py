"""The rows of a table that are held out: a share of every class, copies of a text on one side."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np

BINS = 10
"""Ranges of equal size into which numbers are divided."""


def divided(
    units: Sequence[Hashable], strata: Sequence[Hashable], share: float, seed: int
) -> list[bool]:
    """Returns whether each row is held out.

    units   key of each row; rows of one key are on the same side
    strata  class of each row. Of each class the same share of units is held out, rounded so that
            the sum is `share` of all units (largest remainders). One unit of a class at least
            stays for training.
    """
    strata_of: dict[Hashable, Hashable] = {}
    for unit, stratum in zip(units, strata, strict=True):
        strata_of.setdefault(unit, stratum)
    members: dict[Hashable, list[Hashable]] = {}
    for unit, stratum in strata_of.items():
        members.setdefault(stratum, []).append(unit)
    draw = np.random.default_rng(seed)
    order = {stratum: draw.permutation(len(units)) for stratum, units in members.items()}
    counts = _counts({stratum: len(units) for stratum, units in members.items()}, share, draw)
    held = {
        members[stratum][place]
        for stratum, places in order.items()
        for place in places[: counts[stratum]]
    }
    return [unit in held for unit in units]


def _counts(
    sizes: dict[Hashable, int], share: float, draw: np.random.Generator
) -> dict[Hashable, int]:
    """Returns the number of units of each class that are held out."""
    total = sum(sizes.values())
    wanted = min(max(1, round(share * total)), total - 1)
    counts = {
        stratum: min(math.floor(share * size), max(size - 1, 0)) for stratum, size in sizes.items()
    }
    ties = dict(zip(sizes, draw.permutation(len(sizes)), strict=True))
    by_remainder = sorted(
        sizes, key=lambda stratum: (counts[stratum] - share * sizes[stratum], ties[stratum])
    )
    while sum(counts.values()) < wanted:
        open_strata = [s for s in by_remainder if counts[s] < sizes[s] - 1]
        if not open_strata:
            break
        for stratum in open_strata[: wanted - sum(counts.values())]:
            counts[stratum] += 1
    if not any(counts.values()) and total > 1:  # every class has one unit
        for stratum in by_remainder[:wanted]:
            counts[stratum] = sizes[stratum]
    return counts


def ranges(numbers: Sequence[float]) -> list[int]:
    """Returns the range of each number: tenths by rank."""
    ranks = np.argsort(np.argsort(np.asarray(numbers), kind="stable"), kind="stable")
    return (ranks * BINS // max(1, len(numbers))).tolist()


def key_of(*texts: str | None) -> tuple[str, ...]:
    """Returns the key of the copies of a text or of a pair: without case and blanks."""
    return tuple(" ".join((text or "").casefold().split()) for text in texts)


def rarest(labels: Sequence[Sequence[str]]) -> list[str]:
    """Returns the rarest label of each row, "" for a row without labels."""
    counts: dict[str, int] = {}
    for row in labels:
        for label in row:
            counts[label] = counts.get(label, 0) + 1
    return [min(row, key=lambda label: (counts[label], label), default="") for row in labels]
