"""Result files of a device: DEVICE.json holds all rows, DEVICE.md shows them as a table.
New rows replace old ones."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ptm_jax.bench.record import Entry
from ptm_jax.core.errors import UserError
from ptm_jax.kernels.choice import KERNELS

HEADER_OF_KERNELS = ("kernel", "device", "compiled for", "agrees with", "hardware")
HEADER = ("benchmark", "ours", "peer at its best", "ratio (10% to 90%)", "of the roofline", "date")
UNITS = {"tokens_per_second": "tokens/s", "bytes_per_second": "B/s", "seconds": "s"}


def document(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Returns the entries as one JSON document."""
    return [entry.document() for entry in entries]


def write(entries: Sequence[Entry], folder: str | Path) -> Path:
    """Writes rows to the files of their device and returns the path of the table.
    Rows of the same name are replaced."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    new = document(entries)
    device = new[0]["settings"]["device"]
    path = folder / f"{slug(device)}.json"
    rows = {row["name"]: row for row in [*_known(path), *new]}
    ordered = [rows[name] for name in sorted(rows)]
    _replace(path, json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")
    _replace(path.with_suffix(".md"), text(ordered))
    return path.with_suffix(".md")


def slug(device: str) -> str:
    """Returns a file name for a device."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the page of one device: results, validation of kernels, settings of every row."""
    cells = [_cells(row) for row in rows]
    lines = [
        f"# {rows[0]['settings']['device']}",
        "",
        "Written by `ptm bench --out`. Medians; every ratio is that of alternating pairs, "
        "measured in one run.",
        "",
        *_table(HEADER, cells),
        "",
        "## Kernels",
        "",
        'Of the kernels for TPUs and GPUs, `impl="auto"` takes what a device finds right and '
        "fastest (`ptm doctor`).",
        "The ring is taken by rules whose names end in `_ring`.",
        "",
        *_table(
            HEADER_OF_KERNELS,
            [(k.name, k.platform, k.compiled, k.checked, k.hardware) for k in KERNELS],
        ),
        "",
    ]
    return "\n".join(lines + [line for row in rows for line in _details(row)])


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *rows)]


def summary(entry: Entry) -> list[str]:
    """Returns the cells of one row."""
    return _cells(entry.document())


def _known(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    try:
        return json.loads(path.read_text(encoding="utf8"))
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); delete it or name another --out") from error


def _replace(path: Path, content: str) -> None:
    draft = path.with_name(path.name + ".draft")
    draft.write_text(content, encoding="utf8")
    draft.replace(path)


def _cells(row: Mapping[str, Any]) -> list[str]:
    figure, spread = row["settings"]["compares"], row["spread"]
    ratio = "none" if row["ratio"] is None else f"{row['ratio']:.3g}"
    if spread.get("low") is not None:
        ratio += f" ({spread['low']:.3g} to {spread['high']:.3g})"
    share = row["roofline"].get("share")
    return [
        row["name"],
        _best(row["ours"], figure),
        _best(row["peers"], figure),
        ratio,
        "" if share is None else f"{100 * share:.3g}%",
        row["settings"]["date"],
    ]


def _best(variants: Mapping[str, Mapping[str, float]], figure: str) -> str:
    """Returns the figure of the best variant.
    For seconds it is the first variant; the others are parts of it."""
    values = {
        name: figures[figure]
        for name, figures in variants.items()
        if figures.get(figure) is not None
    }
    if not values:
        return ""
    name = next(iter(values)) if figure == "seconds" else max(values, key=values.get)
    return f"{_number(values[name])} {UNITS.get(figure, figure)}, {name}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _details(row: Mapping[str, Any]):
    yield f"## {row['name']}"
    yield ""
    yield f"Ratio: {row['settings']['ratio']}."
    yield ""
    for side in ("ours", "peers"):
        for variant, figures in row[side].items():
            yield f"- {side}, {variant}: {_listed(figures)}"
    yield f"- roofline: {_listed(row['roofline'])}"
    listed = {
        key: value
        for key, value in row["settings"].items()
        if key not in ("ratio", "compares", "device", "date")
    }
    yield f"- settings: {_listed(listed)}"
    yield ""


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {_value(value)}" for name, value in values.items())


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"({_listed(value)})"
    if isinstance(value, float):
        return _number(value) if value < 1e7 else f"{value:.3g}"
    return str(value)
