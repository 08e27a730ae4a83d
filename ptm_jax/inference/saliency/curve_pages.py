"""A page of the curves of probes: figures by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import read_json
from ptm_jax.inference.saliency.html_pages import Page

FILE = "probe.json"
DEPTHS = ("expected layer", "centre of gravity")
"""Figures of all layers that are numbers of layers; no curve has them as its baseline."""


def curve_page(
    title: str, layers: Mapping[str, Sequence[float]], baselines: Mapping[str, float],
    heads: Mapping[str, Sequence[Sequence[float]]] | None = None, first: int = 0,
) -> Page:  # fmt: skip
    """Returns the page of {figure: its values by layer} and {baseline: value}.

    Figures with values outside of -1 to 1, as bits, are in plots of their own. `heads` has the
    values [N, H] of figures of heads, and `first` is the number of the first layer.
    """
    data = {
        "layers": {name: [_number(x) for x in row] for name, row in layers.items()},
        "baselines": {name: _number(value) for name, value in baselines.items()},
        "heads": {
            name: [[_number(x) for x in row] for row in rows]
            for name, rows in (heads or {}).items()
        },
        "depths": [name for name in baselines if name in DEPTHS],
        "first": first,
    }
    about = "Point at a layer, or move by the arrow keys. Layer 0 has the embeddings."
    return Page(title, "curves", data, about, data)


def of_file(path: str | Path) -> Page:
    """Returns the page of the figures that `ptm probe --out` wrote. Raises UserError."""
    path = Path(path)
    path = path / FILE if path.is_dir() else path
    if not path.is_file():
        raise UserError(f"{path} is no file; give the folder of `ptm probe --out`")
    fields = read_json(path, "the figures of a probe")
    rows = fields.get("layers") if isinstance(fields, dict) else None
    if not isinstance(rows, dict) or not rows or not all(map(_is_row, rows.values())):
        raise UserError(f"{path} has no figures by layer; give the folder of `ptm probe --out`")
    names = path.absolute().parent.name, str(fields.get("label") or fields.get("by"))
    title = ": ".join(dict.fromkeys(names))
    others = fields.get("baselines") or {}, fields.get("heads"), fields.get("first layer", 0)
    return curve_page(title, rows, *others)


def _number(value: float | None) -> float | None:
    return float(value) if value is not None and np.isfinite(value) else None


def _is_row(row: object) -> bool:
    return isinstance(row, list) and all(isinstance(x, int | float | None) for x in row)
