"""List systems, survey rows, tasks, uses of models, sources of text, families of checkpoints,
adaptations, compressions, or which encoder works with which pre-training task.

Example:
  ptm list
  ptm list --status matches --text t5
  ptm list --rows --group Adaptation
  ptm list --rows --missing
  ptm list --json
  ptm list --matrix
  ptm list --adaptations
  ptm list --compressions
  ptm list --tasks
  ptm list --uses
  ptm list --sources
  ptm list --checkpoints
"""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ptm_jax.cli.derived import PACKAGE, derived
from ptm_jax.cli.list_pages import LISTS, label, missing_text, rows_text, systems_text
from ptm_jax.cli.options import Flag, Text, report
from ptm_jax.core.errors import UserError, unknown

if TYPE_CHECKING:
    from ptm_jax.core.system import System


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    rows: Flag = False
    """List the 270 rows of the survey with the values that implement them."""
    missing: Flag = False
    """With --rows: only rows that lack a word, with the words that each of their values has."""
    status: Text = None
    """Only systems or rows with this status word, or "none"."""
    group: Text = None
    """Only systems or rows whose group contains this text (rows: or whose table is it, as A3)."""
    text: Text = None
    """Only systems or rows that contain this text anywhere."""
    json: Flag = False
    """Print one JSON list of objects with all fields."""
    matrix: Flag = False
    """List which encoder works with which pre-training task, and why the others do not."""
    tasks: Flag = False
    """List the downstream tasks, values of --task of `ptm train`, `evaluate` and `predict`."""
    uses: Flag = False
    """List the values of --task of `ptm predict` and `evaluate` that are no downstream task."""
    sources: Flag = False
    """List the kinds of sources of text, values of --data."""
    checkpoints: Flag = False
    """List the families of Hugging Face checkpoints, values of model_type, with their classes."""
    adaptations: Flag = False
    """List the adaptations, values of `ptm train --adapt`, with their fields and defaults."""
    compressions: Flag = False
    """List the compressions, values of `ptm train --compress` and `ptm compress`, with their fields
    and defaults."""


def run(args: Args) -> int:
    """Print the list that the arguments ask for."""
    listed = [name for name in ("rows", *LISTS) if vars(args)[name]]
    if len(listed) > 1:
        raise UserError(f"--{listed[0]} and --{listed[1]} are two lists; give one of them")
    if listed and listed[0] != "rows" and (args.status or args.group or args.text):
        raise UserError(
            f"--status, --group and --text filter systems and --rows; leave --{listed[0]} out"
        )
    if listed and listed[0] != "rows":
        return LISTS[listed[0]](args.json)
    if args.missing and not args.rows:
        raise UserError("--missing is about the rows of the survey; give --rows too")
    from ptm_jax.systems.survey.rows import WORDS

    if args.status not in (None, "none", *WORDS):
        raise unknown("status", args.status, [*WORDS, "none"])
    entries = [
        one for one in (listed_rows() if args.rows else listed_systems()) if _kept(one, args)
    ]
    filtered = args.status or args.group or args.text
    if args.missing:
        lines = missing_text(entries)
    else:
        lines = rows_text(entries) if args.rows else systems_text(entries, folded=not filtered)
    return report(entries, "\n".join(lines) if entries else "nothing matches", args.json)


def listed_systems() -> list[dict[str, Any]]:
    """Returns the entry of every system, from the cache where the package and HEAD are the same."""
    return derived("systems", lambda: [entry(one) for one in systems()], head())


def listed_rows() -> list[dict[str, Any]]:
    """Returns `rows()`, from the cache where the package and HEAD are the same."""
    return derived("rows", rows, head())


def systems() -> list[Any]:
    """Every system, in the order of the catalogue."""
    from ptm_jax import systems

    return [systems.get(name) for name in systems.names()]


def entry(system: System) -> dict[str, Any]:
    """The fields of `ptm list --json` of a system."""
    from ptm_jax.core import slots
    from ptm_jax.systems.survey import trainings
    from ptm_jax.systems.survey.rows import status

    words = list(status().get(system.name, ()))
    return {
        "name": system.name,
        "rows": list(system.rows),
        "group": system.group,
        "section": system.section,
        "paper": system.paper,
        "towers": {
            name: label(slots.encoder_in(tower) or tower) for name, tower in system.towers.items()
        },
        "corruption": label(system.corruption),
        "objective": label(system.objective),
        "adapt": [label(part) for part in system.adapt],
        "compress": [label(part) for part in system.compress],
        "status": words,
        "overdue": ["trains"] if "trains" in words and trainings.overdue(system) else [],
    }


def head() -> str:
    """Returns the commit of the checkout, on which `overdue` depends; "" outside of one."""
    if not (PACKAGE.parent / ".git").exists():
        return ""
    words = ["git", "rev-parse", "HEAD"]
    try:
        done = subprocess.run(words, cwd=PACKAGE, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()


def rows() -> list[dict[str, Any]]:
    """Returns the fields of `ptm list --rows --json`.

    They are a row, the names of its values, the words that they or the row itself earned with date
    and commit, and the words that it lacks.
    """
    from ptm_jax.adapt import catalogue as adaptations
    from ptm_jax.compress import catalogue as compressions
    from ptm_jax.systems.survey import rows as survey
    from ptm_jax.systems.survey import trainings
    from ptm_jax.tasks.catalogue import catalogue as tasks

    named = [(system.name, system.rows) for system in systems()]
    late = {("trains", system.name) for system in systems() if trainings.overdue(system)}
    named += [(name, tasks.get(name).rows) for name in tasks.names()]
    for wrappers in (adaptations, compressions):
        named += [(name, numbers) for name, (_, numbers) in wrappers.NAMES.items()]
    entries = []
    for row in survey.rows():
        values = list(
            dict.fromkeys([*(name for name, numbers in named if row.number in numbers), *row.parts])
        )
        earned = [
            {
                "word": word, "value": value, "date": date, "commit": commit,
                "overdue": (word, value) in late,
            }
            for value in dict.fromkeys([*values, row.name])
            for word, (date, commit) in survey.status().get(value, {}).items()
        ]  # fmt: skip
        words = [word for word in survey.WORDS if any(one["word"] == word for one in earned)]
        entries.append(
            {
                "row": row.number,
                "name": row.name,
                "section": row.section,
                "table": row.table,
                "group": row.group,
            }
            | {"kind": row.kind, "values": values, "status": words, "earned": earned}
            | {"missing": [word for word in survey.EXPECTED[row.kind] if word not in words]}
        )
    return entries


def _kept(one: Mapping[str, Any], args: Args) -> bool:
    if args.missing and not one["missing"]:
        return False
    if args.status is not None and (
        args.status not in one["status"] if args.status != "none" else one["status"]
    ):
        return False
    group = (one["group"].lower(), str(one.get("table", "")).lower())
    if (
        args.group is not None
        and args.group.lower() not in group[0]
        and args.group.lower() != group[1]
    ):
        return False
    return args.text is None or args.text.lower() in " ".join(map(str, one.values())).lower()
