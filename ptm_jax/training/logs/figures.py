"""Numbers as text: one way for the terminal, the log, the plot and the report of a run."""

from __future__ import annotations


def figure(value: float | None) -> str:
    """Returns a metric as text: four decimals, or three digits below 0.001.
    The terminal and reports use it."""
    if value is None:
        return ""
    return f"{value:.3g}" if 0 < abs(value) < 1e-3 else f"{value:.4f}"
