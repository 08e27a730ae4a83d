"""Numbers as text: one way for the terminal, the log, the plot and the report of a run."""

from __future__ import annotations

PERCENT = ("bleu", "chrf")
"""Metrics that are printed in percent with one decimal, as sacreBLEU prints them. The value is a
fraction, as that of every other metric."""


def metric(name: str, value: float | None) -> str:
    """Returns a metric as text, by its name, with or without a task or a language before it."""
    if value is None or name.rpartition("/")[2] not in PERCENT:
        return figure(value)
    return f"{100 * value:.1f}"


def figure(value: float | None) -> str:
    """Returns a metric as text: four decimals, or three digits below 0.001.
    The terminal and reports use it."""
    if value is None:
        return ""
    return f"{value:.3g}" if 0 < abs(value) < 1e-3 else f"{value:.4f}"
