"""The page of a study before its runs start: their time, price and memory."""

from __future__ import annotations

from collections.abc import Sequence

from ptm_jax.tuning.studies.points import Point
from ptm_jax.tuning.studies.studies import Study

START = 10.0
"""Seconds of a run before its first step, assumed as a bound: its process, data, and programs."""


def spoken(hours: float) -> str:
    """Returns a time in minutes, from two hours on in hours, from two days on in days."""
    minutes = 60 * hours
    if minutes < 120:
        return f"{minutes:.1f} min"
    return f"{hours:,.1f} h" if hours < 48 else f"{hours / 24:,.1f} days"


def planned(
    study: Study, runs: Sequence[Point], where: str, price: float | None, chips: int
) -> tuple[list[str], list[list[str]]]:
    """(header, cells) of the runs before they start, and of their sum.
    The time of a run is its steps at the modelled rate, and `START` of its process; both are bounds
    from below."""
    header = [
        "run",
        "parameters",
        "body",
        "steps",
        "tokens",
        "operations",
        f"memory of {where}",
        "time, at least",
    ]
    header += ["cost, at least"] if price is not None else []
    lines, hours, operations = [], 0.0, 0.0
    for point in runs:
        if point.refusal:
            lines.append([point.name, *[""] * (len(header) - 2), f"refused: {point.refusal}"])
            continue
        cost = point.cost
        run_hours, work = (point.total("seconds") + START) / 3600, point.total("operations")
        hours, operations = hours + run_hours, operations + work
        fits = "" if cost.memory <= cost.capacity else " DOES NOT FIT"
        memory = f"{cost.memory / 2**30:.2f} of {cost.capacity / 2**30:.0f} GiB{fits}"
        counts = [f"{cost.parameters:,}", f"{cost.body:,}", f"{point.steps:,}", f"{point.tokens:,}"]
        line = [point.name, *counts, f"{work:.3g}", memory, spoken(run_hours)]
        lines.append(line + ([f"{run_hours * chips * price:,.0f}"] if price is not None else []))
    total = ["all", "", "", "", "", f"{operations:.3g}", "", spoken(hours)]
    lines.append(total + ([f"{hours * chips * price:,.0f}"] if price is not None else []))
    return header, lines
