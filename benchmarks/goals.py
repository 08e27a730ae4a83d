"""The goals of speed as one page: goals.md, from goals.json.

    python -m benchmarks --out benchmarks/
    python -m benchmarks.goals
    python -m benchmarks.goals --figure "skip-gram over gensim=5.4" --machine "AMD EPYC, 2 cores"

The first command measures. The second takes the figures of its records (and those of
benchmarks.quantised, benchmarks.students and benchmarks.device) that goals.json does not have,
writes the page, and prints the goals whose figure got worse on the same machine. A benchmark
without a record gives its figure by `--figure`.

goals.json is a list of goals:

    goal, name    its number, and a name of its own
    where         C: two cores of a CPU. G: one GPU. A: compiled for a TPU pod
    asked         ">= 1.5" or "<= 1.1"
    command       what measures it
    reads         "step: ratio" is the field of an entry of `ptm bench`; "students.json:
                  rows/MobileBERT/times_32" is a path in another record (see `number`); empty: by
                  hand
    limit         why the goal is missed, and what would change it
    figures       value, low and high (10% to 90% of the pairs), machine, date; oldest first
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tyro

from ptm_jax.bench import record
from ptm_jax.core.errors import UserError

FOLDER = Path(__file__).parent
FILE = "goals.json"
WHERE = {"C": "On two cores", "G": "On one GPU", "A": "Compiled for TPU pods"}
Figure = dict[str, Any]
Goal = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Args:
    """Write the page of goals."""

    figure: tuple[str, ...] = ()
    """Measured figures: NAME=VALUE, or NAME=VALUE,LOW,HIGH."""
    machine: str = ""
    """Machine of --figure (default: this one)."""
    date: str = ""
    """Date of --figure (default: today)."""
    folder: Path = FOLDER
    """Folder of goals.json and of the records."""


def met(goal: Goal, value: float) -> bool:
    """Returns whether a figure meets the goal."""
    sign, bound = goal["asked"].split()
    return value >= float(bound) if sign == ">=" else value <= float(bound)


def worse(goal: Goal) -> bool:
    """Returns whether the last figure is worse than the one before it on the same machine, by more
    than its spread, or by 5% where it has none."""
    last = goal["figures"][-1] if goal["figures"] else {}
    before = [f for f in goal["figures"][:-1] if f["machine"] == last.get("machine")]
    if not before:
        return False
    more = goal["asked"].startswith(">=")
    margin = last.get("high" if more else "low", last["value"] * (1.05 if more else 0.95))
    return margin < before[-1]["value"] if more else margin > before[-1]["value"]


def recorded(folder: Path, reads: str) -> Iterator[Figure]:
    """Yields the figures that the records of a folder have for `reads`."""
    source, _, path = reads.partition(": ")
    if source.endswith(".json"):
        document = json.loads((folder / source).read_text(encoding="utf8"))
        settings = document.get("settings") or document["facts"]
        machine = settings.get("card") or f"{settings['processor']}, {settings['cores']} cores"
        yield {"value": number(document, path), "machine": machine, "date": settings["date"]}
        return
    for file in sorted(folder.glob("*-cores.json")):
        for entry in json.loads(file.read_text(encoding="utf8")):
            if entry["name"] == source and not entry["settings"].get("quick"):
                spread = entry["spread"] if path == "ratio" else {}
                yield {
                    "value": number(entry, path),
                    **{end: spread[end] for end in ("low", "high") if end in spread},
                    "machine": entry["settings"]["device"],
                    "date": entry["settings"]["date"],
                }


def number(document: Any, path: str) -> float:
    """Returns the number at a path of keys: "a/b"; "rows[name=x,length=512]/c" is `c` of the row
    with these fields; "a/b over a/c" is a quotient."""
    top, _, below = path.partition(" over ")
    if below:
        return number(document, top) / number(document, below)
    for step in path.split("/"):
        key, _, fields = step.rstrip("]").partition("[")
        document = document[key]
        if fields:
            pairs = [field.split("=") for field in fields.split(",")]
            document = next(
                part for part in document if all(str(part[name]) == value for name, value in pairs)
            )
    return float(document)


def measured(goals: list[Goal], args: Args) -> None:
    """Adds the figures of records and of `--figure` that the goals do not have."""
    for goal in goals:
        if goal["reads"]:
            for figure in recorded(args.folder, goal["reads"]):
                add(goal, figure)
    goals_by_name = {goal["name"]: goal for goal in goals}
    for text in args.figure:
        name, _, values = text.rpartition("=")
        if name not in goals_by_name or not re.fullmatch(r"[\d.]+(,[\d.]+,[\d.]+)?", values):
            raise UserError(
                f"--figure {text!r} is not NAME=VALUE or NAME=VALUE,LOW,HIGH; "
                f"names: {', '.join(goals_by_name)}"
            )
        add(
            goals_by_name[name],
            {
                **dict(zip(("value", "low", "high"), map(float, values.split(",")), strict=False)),
                "machine": args.machine or record.device(),
                "date": args.date or datetime.date.today().isoformat(),
            },
        )


def add(goal: Goal, figure: Figure) -> None:
    """Adds a figure, unless the goal has this value of this machine."""
    value = float(f"{figure['value']:.4g}")
    if all((f["value"], f["machine"]) != (value, figure["machine"]) for f in goal["figures"]):
        goal["figures"].append({**figure, "value": value})
        goal["figures"].sort(key=lambda f: f["date"])


def page(goals: list[Goal]) -> str:
    """Returns the text of goals.md."""
    parts = ["# Goals of speed\n"]
    for where, title in WHERE.items():
        if where != "C":
            parts.append(f"\n## {title}\n")
        parts.append(
            "| goal | question | asked | figure | met | measured on | limit | command | before "
            "| before that |\n|---|---|---:|---:|---|---|---|---|---:|---:|"
        )
        parts.extend(row(goal) for goal in goals if goal["where"] == where)
    parts.append(
        "\nFigures are ratios of pairs in one run, with the 10th and 90th percentile in "
        "parentheses where it was recorded. The first table is of two cores. `worse` marks a "
        "figure below the one before it on the same machine. `python -m benchmarks.goals` writes "
        "this page from [goals.json](goals.json).\n"
    )
    return "\n".join(parts)


def row(goal: Goal) -> str:
    figures = goal["figures"][::-1][:3]
    last, *before = [*figures, *[{}] * 3][:3]
    words = "not measured"
    if last:
        words = ("yes" if met(goal, last["value"]) else "no") + (", worse" if worse(goal) else "")
    cells = [
        goal["goal"],
        goal["name"],
        goal["asked"],
        shown(last),
        words,
        ", ".join(filter(None, (last.get("machine"), last.get("date")))),
        goal["limit"],
        f"`{goal['command']}`",
        *(" ".join(filter(None, (shown(f), f.get("date")))) for f in before),
    ]
    return "| " + " | ".join(cells) + " |"


def shown(figure: Figure) -> str:
    if not figure:
        return ""
    ends = f" ({figure['low']:.4g} to {figure['high']:.4g})" if "low" in figure else ""
    return f"{figure['value']:.4g}{ends}"


def main(words: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    args = tyro.cli(Args, args=words, prog="python -m benchmarks.goals", description=__doc__)
    file = args.folder / FILE
    goals = json.loads(file.read_text(encoding="utf8"))
    try:
        measured(goals, args)
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    file.write_text(json.dumps(goals, indent=1) + "\n", encoding="utf8")
    (args.folder / "goals.md").write_text(page(goals), encoding="utf8")
    reached = sum(bool(g["figures"]) and met(g, g["figures"][-1]["value"]) for g in goals)
    print(f"{reached} of {len(goals)} goals are met: {args.folder / 'goals.md'}")
    for goal in goals:
        if worse(goal):
            print(f"worse: {goal['name']}: {shown(goal['figures'][-1])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
