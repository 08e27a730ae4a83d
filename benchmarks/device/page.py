"""The JSON file and the Markdown page of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]


def write(folder: Path, name: str, record: dict[str, Any]) -> None:
    """Writes the record; the page is made from it by `text`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"device_{name}.json").write_text(json.dumps(record, indent=1) + "\n", "utf8")
    (folder / "device.md").write_text(text(record), "utf8")


def merged(older: dict[str, Any], newer: dict[str, Any]) -> dict[str, Any]:
    """Returns the newer record with the rows of the older one that it did not repeat.

    A row that the newer run did not reach, or for which the processes of other parts had left no
    memory, does not replace one that was."""
    parts = {name: dict(part) for name, part in older["parts"].items()}
    for name, part in newer["parts"].items():
        rows = {_identity(row): row for row in parts.get(name, {"rows": []})["rows"]}
        kept = {key: row for key, row in rows.items() if row["name"] != "all"}
        for row in part["rows"]:
            reason = row.get("reason", "")
            full = "RESOURCE_EXHAUSTED" in reason or "out of memory" in reason
            missed = full or reason.endswith("time was over")
            if row["name"] != "all" and not (missed and _identity(row) in kept):
                kept[_identity(row)] = {**row, "date": newer["facts"]["date"]}
        parts[name] = {**part, "rows": list(kept.values())}
    before = older.get("runs", [older["facts"]])
    return {**newer, "parts": parts, "runs": [*before, newer["facts"]]}


def _identity(row: dict[str, Any]) -> str:
    """Returns what tells a row from the others of its part: the item and the program."""
    names = ("name", "kind", "fields", "case", "length", "model", "layout", "words", "config")
    return json.dumps([row.get(name) for name in names], sort_keys=True)


def table(head: Iterable[str], lines: Iterable[Iterable[Any]]) -> list[str]:
    """Returns the lines of a table."""
    head = list(head)
    rows = [f"| {' | '.join(str(cell) for cell in line)} |" for line in lines]
    return ["", f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *rows, ""]


def text(record: dict[str, Any]) -> str:
    """Returns the page."""
    facts = record["facts"]
    lines = ["# What one GPU shows", ""]
    lines.append(
        f"Written by `python -m benchmarks.device` on {facts['date']}: {facts['card']}, commit "
        f"{facts['commit']}, {', '.join(facts['versions'])}."
    )
    if rates := record.get("rates"):
        lines.append(
            f"A product of two 8,192 x 8,192 bfloat16 matrices ran at {rates['gemm'] / 1e12:.0f} "
            f"TFLOP/s, a copy at {rates['copy'] / 1e12:.2f} TB/s."
        )
    if runs := record.get("runs"):
        commits = ", ".join(run["commit"] for run in runs)
        lines.append(f"Its rows are from {len(runs)} runs on this card: commits {commits}.")
    lines += [f"- {note}" for note in record.get("notes", ())]
    order = {name: i for i, name in enumerate(TITLES)}
    parts = sorted(record["parts"].items(), key=lambda part: order[part[0]])
    for name, part in parts:
        title = TITLES.get(name, name)
        lines += ["", f"## {title}", "", f"{part['took']:.0f} s. {part.get('note', '')}".strip()]
        lines += SECTIONS.get(name, plain)(part["rows"])
    return "\n".join(lines).rstrip() + "\n"


def plain(rows: Rows) -> list[str]:
    """Returns a table of all fields of the rows."""
    hidden = ("fields", "building", "running")
    columns = list(dict.fromkeys(k for row in rows for k in row if k not in hidden))
    return table(columns, ([_cell(row.get(name, "")) for name in columns] for row in rows))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{k} {_cell(x)}" for k, x in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value).replace("|", "/")


def kernels(rows: Rows) -> list[str]:
    """Returns counts by candidate, then a line for each class."""
    names = list(dict.fromkeys(row["name"] for row in rows))
    counts = [
        [name, *(sum(row["name"] == name and row["status"] in states for row in rows)
                 for states in (("right",), ("wrong", "failed"), ("refused", "not there")))]
        for name in names
    ]  # fmt: skip
    lines = table(("candidate", "right", "wrong or failed", "refused"), counts)
    classes: dict[str, dict[str, dict]] = {}
    for row in rows:
        classes.setdefault(f"{row['kind']} {_fields(row['fields'])}", {})[row["name"]] = row
    cells = ([key, *(_verdict(of.get(name)) for name in names)] for key, of in classes.items())
    lines += ["Greatest error of a result or gradient, over the greatest number of its array:"]
    lines += table(("class", *names), cells)
    bad = [row for row in rows if row["status"] in ("wrong", "failed")]
    lines += [
        f"- {row['kind']} {_fields(row['fields'])}, {row['name']}: {row['status']}, "
        f"{row.get('reason', '')}"
        for row in bad
    ]
    refused = {(row["name"], row["reason"]): 1 for row in rows if row["status"] == "refused"}
    return lines + ["", *(f"- {name} refuses: {reason}" for name, reason in refused)]


def _fields(fields: dict[str, Any]) -> str:
    if "queries" not in fields:
        return ", ".join(f"{name} {x}" for name, x in fields.items())
    extras = " ".join(fields.get("extras", ()))
    relative = f" relative {fields['relative']}" if fields.get("relative") else ""
    kind = fields["compute"] + ("" if fields["dtype"] == fields["compute"] else " from float32")
    return f"{fields['queries']} x {fields['keys']} x {fields['width']} {kind} {extras}{relative}"


def _verdict(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    if "errors" in row:
        return f"{max(row['errors'].values()):.1e}{'' if row['status'] == 'right' else ' WRONG'}"
    return row["status"]


def timed(rows: Rows) -> list[str]:
    """Returns a line for each case, a column for each program: ms forward, and of both passes."""
    names = list(dict.fromkeys(row["name"] for row in rows))
    cases: dict[tuple, dict[str, dict]] = {}
    for row in rows:
        cases.setdefault((row["case"], row["length"]), {})[row["name"]] = row
    lines = ["Milliseconds forward / forward and backward; TFLOP/s of both passes in brackets."]
    lines += table(
        ("case", "length", *names),
        ([case, length, *(_speed(of.get(name)) for name in names)]
         for (case, length), of in cases.items()),
    )  # fmt: skip
    reasons = {
        (row["name"], row["case"], row.get("reason", "")): 1
        for row in rows
        if row["status"] != "timed" and row.get("reason")
    }
    return lines + [f"- {name}, {case}: {reason}" for name, case, reason in reasons]


def _speed(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    if row["status"] != "timed":
        return row["status"]
    flops = f" ({row['flops'] / row['both'] / 1e12:.0f})" if "flops" in row else ""
    return f"{1e3 * row['forward']:.2f} / {1e3 * row['both']:.2f}{flops}"


TITLES = {
    "kernels": "Kernels against the definition",
    "doctor": "The self-check of `ptm doctor`",
    "attention": "Attention",
    "torch_attention": "Attention of torch",
    "steps": "Training steps of BERT",
    "torch_steps": "Training steps of transformers",
    "vocabulary": "Linear cross-entropy",
    "training": "A training of 200 steps",
    "vectors": "Skip-gram and an ELMo cell",
}
SECTIONS = {"kernels": kernels, "attention": timed, "torch_attention": timed}
