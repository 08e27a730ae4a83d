"""Benchmarks at sizes that measure nothing, and the check of their rows."""

import json
import math

from ptm_jax.bench import suite

NETWORK = {"layers": 2, "width": 32, "heads": 2, "vocab": 120, "batch": 2, "length": 16, "gemm": 64}
FIELDS = ["name", "ours", "peers", "ratio", "spread", "roofline", "settings"]


def measure(name, sizes, **options):
    """The entries of one benchmark by two rounds."""
    (entries,) = suite.run(
        [name], repeats=2, sizes={name: sizes}, say=lambda message: None, **options
    )
    return entries


def check(entry):
    row = entry.document()
    assert list(row) == FIELDS
    json.dumps(row, allow_nan=False)
    assert row["ours"] and all(
        math.isfinite(v) for figures in row["ours"].values() for v in figures.values()
    )
    assert any(row["settings"]["compares"] in figures for figures in row["ours"].values())
    assert {
        "device",
        "threads",
        "date",
        "versions",
        "environment",
        "ratio",
        "rounds",
        "quick",
    } <= set(row["settings"])
    assert {"jax", "jaxlib"} <= set(row["settings"]["versions"])
    assert row["roofline"].get("share", 1.0) > 0
    if row["ratio"] is None:
        assert row["peers"] == {} and row["settings"]["reason"]
    else:
        assert (
            row["spread"]["low"] <= row["ratio"] <= row["spread"]["high"]
            and row["spread"]["pairs"] == 2
        )
    return row
