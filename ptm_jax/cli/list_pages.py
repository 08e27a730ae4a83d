"""The tables that `ptm list` prints."""

from __future__ import annotations

import itertools
import re
import textwrap
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ptm_jax.cli.options import report, table

WIDTH = 80


def label(part: Any) -> str | None:
    """The name of the value in a slot: its class, or its own name where it is a function."""
    return (
        None
        if part is None
        else part.__name__
        if isinstance(part, types.FunctionType)
        else type(part).__name__
    )


def fold(names: Iterable[str]) -> str:
    """Names with a common beginning in short: 'bert_base, _large', 'bert_L{2..12}_H{128..768}'."""
    folded = []
    for _, several in itertools.groupby(names, lambda name: name.partition("_")[0]):
        several = list(several)
        grid = [re.fullmatch(r"(.*_L)(\d+)(_H)(\d+)", name) for name in several]
        if len(several) > 2 and all(grid) and len({match[1] for match in grid}) == 1:
            depths, widths = ([int(match[i]) for match in grid] for i in (2, 4))
            folded.append(
                f"{grid[0][1]}{{{min(depths)}..{max(depths)}}}_H{{{min(widths)}..{max(widths)}}}"
            )
            continue
        parts = zip(*(name.split("_") for name in several), strict=False)
        common = [each[0] for each in itertools.takewhile(lambda each: len({*each}) == 1, parts)]
        start = len("_".join(common))
        folded += [several[0], *(name[start:] for name in several[1:])]
    return ", ".join(folded)


def systems_text(entries: Sequence[Mapping[str, Any]], folded: bool) -> list[str]:
    """A line for each system, or `folded` for each family: systems of the same rows and slots."""
    from ptm_jax.systems.survey.rows import WORDS

    families: dict[Any, list[Mapping[str, Any]]] = {}
    for one in entries:
        slots = tuple(
            _cell(one[name]) for name in ("towers", "corruption", "objective", "adapt", "compress")
        )
        families.setdefault((*slots, *one["rows"], "" if folded else one["name"]), []).append(one)
    cells = []
    for several in families.values():
        first, shown = several[0], ("corruption", "objective", "adapt", "compress")
        parts = [_cell(first[name]) for name in shown if first[name]]
        names = fold(one["name"] for one in several)
        names = names if len(names) <= 27 else names[:26].rpartition(",")[0] + ", …"
        slots = textwrap.shorten(" > ".join(parts), 24, placeholder=" …")
        letters = [_letter(word, several) for word in WORDS]
        cells.append([names, _cell(first["rows"]), slots, " ".join(filter(None, letters))])
    remark = (
        "A line is a family of sizes, and has the words of any of them; a filter lists each: "
        "ptm list --text albert"
    )
    return [
        table(["name", "row", "corruption > objective", "status"], cells, WIDTH),
        "",
        f"{len(entries)} systems. row: number in the survey (--rows). --json: all fields.",
        *(textwrap.wrap(remark, WIDTH) if folded else ()),
        "status: the words that tests earned, by their first letters; (t) is overdue: the",
        "system has changed since it was last trained, more than 500 commits ago",
        *_meanings(),
    ]


def _letter(word: str, entries: Sequence[Mapping[str, Any]]) -> str:
    """Returns the first letter of a word that entries have, in brackets if overdue in each."""
    late = [word in one["overdue"] for one in entries if word in one["status"]]
    return "" if not late else f"({word[0]})" if all(late) else word[0]


def rows_text(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the rows below the titles of their tables, as text.

    A row has its values and the newest run that earned each word.
    """
    lines = []
    for _, several in itertools.groupby(entries, lambda one: one["table"]):
        several = list(several)
        head = several[0]
        lines.append(f"{head['table']}  {head['group']} (survey {head['section']})")
        for one in several:
            letters = " ".join(word[0] for word in one["status"])
            lines.append(f"{one['row']:>5}  {one['name']:<44} {one['kind']:<7} {letters}".rstrip())
            if one["values"]:
                lines += textwrap.wrap(
                    fold(one["values"]), WIDTH, initial_indent=" " * 7, subsequent_indent=" " * 7
                )
            runs: dict[str, list[str]] = {}
            for word in one["status"]:
                runs_of = (e for e in one["earned"] if e["word"] == word)
                date, commit, late = max((e["date"], e["commit"], e["overdue"]) for e in runs_of)
                runs.setdefault(f"{date} {commit}", []).append(word + " (overdue)" * late)
            earned = ", ".join(f"{' '.join(words)} {run}" for run, words in runs.items())
            lines += textwrap.wrap(earned, WIDTH, initial_indent=" " * 7, subsequent_indent=" " * 7)
    done = sum(bool(one["status"]) for one in entries)
    return [
        *lines,
        "",
        f"{len(entries)} rows, {sum(bool(one['values']) for one in entries)} with a value, "
        f"{done} with a word.",
        "Below a row: the systems, tasks, wrappers and classes that implement it, and",
        "date and commit of the newest test run that earned a word.",
        "Figures beside published ones, with the tolerance that earns `sized` or",
        "`reproduces`: benchmarks/registry.json in a checkout, a page on the site.",
        *_meanings(),
    ]


def missing_text(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rows with the words that they lack. Below a row stand its values by the words they have."""
    lines = []
    for one in entries:
        lines.append(f"{one['row']:>5}  {one['name']:<44} {one['kind']}")
        lines.append(f"{'':7}lacks {' '.join(one['missing'])}")
        groups: dict[str, list[str]] = {}
        for value in one["values"]:
            words = [each["word"] for each in one["earned"] if each["value"] == value]
            groups.setdefault(" ".join(words) or "no word", []).append(value)
        for words, values in groups.items():
            text = f"{words}: {fold(values)}"
            lines += textwrap.wrap(text, WIDTH, initial_indent=" " * 7, subsequent_indent=" " * 9)
        if not one["values"]:
            lines.append(f"{'':7}no value")
    from ptm_jax.systems.survey.rows import EXPECTED, WORDS

    lacking = {word: sum(word in one["missing"] for one in entries) for word in WORDS}
    counts = ", ".join(f"{word} {count}" for word, count in lacking.items())
    kinds = "; ".join(f"{kind}: {' '.join(words)}" for kind, words in EXPECTED.items())
    return [
        *lines,
        "",
        f"{len(entries)} rows lack a word: {counts}.",
        *textwrap.wrap(f"Words that a row of each kind can lack: {kinds}.", WIDTH),
        *_meanings(),
    ]


def _meanings() -> list[str]:
    from ptm_jax.systems.survey.rows import WORDS

    lines = [
        textwrap.wrap(f"{word:<11} {text}", WIDTH - 2, subsequent_indent=" " * 12)
        for word, text in WORDS.items()
    ]
    return [f"  {line}" for several in lines for line in several]


def _tasks(as_json: bool) -> int:
    from ptm_jax.tasks.catalogue import catalogue as tasks

    values = [tasks.get(name) for name in tasks.names()]
    keys = ("name", "examples", "classes", "metrics", "group", "paper")

    def classes(labels):
        return "" if not labels else str(len(labels)) if labels != "found" else "found"

    cells = [
        [t.name, label(t.examples), classes(t.examples.labels), list(t.metrics), t.group, t.paper]
        for t in values
    ]
    document = [dict(zip(keys, row, strict=True)) for row in cells]
    return report(document, table(keys, [[_cell(part) for part in row] for row in cells]), as_json)


def _sources(as_json: bool) -> int:
    from ptm_jax.data.text.sources import FILES, SOURCES

    document = [
        {"kind": source.kind, "forms": list(source.forms), "help": source.help}
        for source in (FILES, *SOURCES)
    ]
    lines = [
        f"{', '.join(each['forms'])}\n{textwrap.indent(textwrap.fill(each['help'], 106), '    ')}"
        for each in document
    ]
    return report(document, "\n".join(lines), as_json)


def _uses(as_json: bool) -> int:
    from ptm_jax.cli.models import evaluate, predict

    document = [
        {"command": "predict", "task": use.name, "words": use.words, "help": use.help}
        for use in predict.known()
    ] + [
        {"command": "evaluate", "task": one.name, "words": one.reads == "words", "help": one.help}
        for one in evaluate.evaluations().values()
        if one.help
    ]
    rows = [[f"{one['command']} --task {one['task']}", one["help"]] for one in document]
    return report(document, table(["", ""], rows).lstrip("\n"), as_json)


def _checkpoints(as_json: bool) -> int:
    from ptm_jax.convert.family import families

    document = [
        {"model_type": name, "classes": list(families.get(name).heads)} for name in families.names()
    ]
    rows = [[one["model_type"], " ".join(one["classes"])] for one in document]
    note = "\n\nNo code of a checkpoint is ever run: a folder with auto_map is read by these names."
    return report(document, table(["model_type", "classes"], rows) + note, as_json)


def _adaptations(as_json: bool) -> int:
    from ptm_jax.adapt import catalogue

    return _wrappers(catalogue.entries(), as_json)


def _compressions(as_json: bool) -> int:
    from ptm_jax.compress import catalogue

    return _wrappers(catalogue.entries(), as_json)


def _wrappers(entries: Sequence[Mapping[str, Any]], as_json: bool) -> int:
    lines = []
    for each in entries:
        fields = ", ".join(f"{name}={value!r}" for name, value in each["fields"].items())
        lines.append(
            f"{each['name']}({fields})\n{textwrap.indent(textwrap.fill(each['what'], 106), '    ')}"
        )
    return report(entries, "\n".join(lines), as_json)


def _matrix(as_json: bool) -> int:
    from ptm_jax.systems.survey import matrix

    cells = matrix.cells()
    document = [
        {"encoder": row, "task": column, "works": not why, "reason": why}
        for (row, column), why in cells.items()
    ]
    reasons = list(dict.fromkeys(why for why in cells.values() if why))

    def mark(why):
        return str(reasons.index(why) + 1) if why else "yes"

    rows = [
        [row, *(mark(cells[row, column]) for column in matrix.TASKS)] for row in matrix.ENCODERS
    ]
    lines = [table(["encoder", *matrix.TASKS], rows, width=200), ""]
    lines += [f"{number}: {why}" for number, why in enumerate(reasons, 1)]
    lines.append(
        "ptm train ENCODER+TASK trains a cell, by the names of the systems: ptm train "
        "albert_mini+spanbert_mini"
    )
    return report(document, "\n".join(lines), as_json)


LISTS = {
    "tasks": _tasks,
    "uses": _uses,
    "sources": _sources,
    "checkpoints": _checkpoints,
    "adaptations": _adaptations,
    "compressions": _compressions,
    "matrix": _matrix,
}
"""{flag: the function that prints its list}, without the lists that filters narrow."""


def _cell(part: Any) -> str:
    if isinstance(part, dict):
        return (
            part["main"]
            if list(part) == ["main"]
            else " ".join(f"{name}:{kind}" for name, kind in part.items())
        )
    if isinstance(part, list):
        return " ".join(str(word) for word in part)
    return "" if part is None else str(part)
