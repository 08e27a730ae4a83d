"""The page of a study before its runs start: their time, price and memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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


def dollars(cost: float) -> str:
    """Returns a cost in whole dollars, below ten with two digits."""
    return f"{cost:,.0f}" if cost >= 10 or not cost else f"{cost:.2g}"


def record(point: Point, price: float | None, chips: int) -> dict[str, Any]:
    """Returns a run before it starts as numbers: seconds and dollars are bounds from below, memory
    is in bytes. A refused run has its reason."""
    if point.refusal:
        return {"run": point.name, "refused": point.refusal}
    cost, seconds = point.cost, point.total("seconds") + START
    return {
        "run": point.name,
        "parameters": cost.parameters,
        "body": cost.body,
        "steps": point.steps,
        "tokens": point.tokens,
        "operations": point.total("operations"),
        "memory": cost.memory,
        "capacity": cost.capacity,
        "seconds": seconds,
        **({} if price is None else {"dollars": seconds / 3600 * chips * price}),
    }


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
    lines, seconds, operations = [], 0.0, 0.0
    for point in runs:
        row = record(point, price, chips)
        if point.refusal:
            lines.append([point.name, *[""] * (len(header) - 2), f"refused: {point.refusal}"])
            continue
        seconds, operations = seconds + row["seconds"], operations + row["operations"]
        fits = "" if row["memory"] <= row["capacity"] else " DOES NOT FIT"
        memory = f"{row['memory'] / 2**30:.2f} of {row['capacity'] / 2**30:.0f} GiB{fits}"
        counts = [f"{row[name]:,}" for name in ("parameters", "body", "steps", "tokens")]
        line = [point.name, *counts, f"{row['operations']:.3g}", memory]
        line.append(spoken(row["seconds"] / 3600))
        lines.append(line + ([dollars(row["dollars"])] if price is not None else []))
    total = ["all", "", "", "", "", f"{operations:.3g}", "", spoken(seconds / 3600)]
    cost = seconds / 3600 * chips * (price or 0.0)
    lines.append(total + ([dollars(cost)] if price is not None else []))
    return header, lines
