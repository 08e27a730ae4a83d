"""The rows of a table that is guessed, and the lines that say what was guessed."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ptm_jax.tasks.tables import table_cells as cells
from ptm_jax.tasks.tables.own_tables import OwnTable

TASKS = {
    "classify": "a class of a text",
    "pairs": "a class of two texts",
    "rate": "a number of a text, or of two",
    "labels": "any number of labels of a text, or of two",
    "ner": "tags of words, with entities",
    "pos": "tags of words",
    "answers": "the answer to a question in a text",
}
"""{task of a table: what is predicted}."""


class Table(NamedTuple):
    """The rows of a training file."""

    path: str
    places: Sequence[str]
    rows: Sequence[dict[str, Any]]

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def column(self, name: str) -> list[Any]:
        return [row.get(name) for row in self.rows]

    def with_cells(self, texts: Sequence[str], labels: Sequence[str] = ()) -> Table:
        """Returns the rows in which no cell of these columns is empty."""
        pairs = [
            (place, row)
            for place, row in zip(self.places, self.rows, strict=True)
            if all(cells.plain(row.get(name)) for name in texts)
            and not any(cells.is_empty(row.get(name)) for name in labels)
        ]
        return self._replace(places=[place for place, _ in pairs], rows=[row for _, row in pairs])

    def first(self, name: str, holds: Callable[[Any], bool]) -> tuple[str, str]:
        """Returns (place, cell) of the first cell of a column that `holds`."""
        cell, place = next(
            (cell, place)
            for cell, place in zip(self.column(name), self.places, strict=True)
            if holds(cell)
        )
        return place, cells.shown(cells.plain(cell))


def lines(table: Table, examples: OwnTable, reason: str) -> tuple[str, ...]:
    """Returns the lines that say which task a table has, why, and how to say otherwise."""
    texts, labels = examples.text_columns, examples.label_columns
    others = [name for name in TASKS if name != examples.task]
    printed = [
        f"{table.path}: {len(table.rows):,} rows; text: {', '.join(examples.text_columns)}; "
        f"label: {', '.join(examples.label_columns)}",
        f"  task: {examples.task}, {TASKS[examples.task]} ({reason}); "
        f"otherwise --task {', '.join(others[:-1])} or {others[-1]}",
    ]
    if examples.task in ("classify", "pairs"):
        printed += _of_classes(table, labels[0])
    return (*printed, *_copies(table, texts, labels))


def _of_classes(table: Table, label: str) -> list[str]:
    """Returns the classes with their rows, and what looks like a mistake among them."""
    values = [cells.plain(cell) for cell in table.column(label) if not cells.is_empty(cell)]
    counts = collections.Counter(values)
    lines = [f"  classes: {cells.listed_counts(counts.most_common())}"]
    alike = collections.defaultdict(list)
    for name in counts:
        alike[" ".join(name.casefold().split())].append(name)
    for names in alike.values():
        if len(names) > 1:
            lines.append(f"  {' and '.join(map(repr, names))} are taken as different classes")
    single = [name for name, count in counts.items() if count == 1]
    if single and len(counts) > 1:
        lines.append(
            f"  {len(single)} of {len(counts)} classes have one row, which is not held out: "
            f"{', '.join(map(cells.shown, single[:3]))}"
        )
    return lines


def _copies(table: Table, texts: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Returns a line on texts that occur in several rows, and on their different labels."""
    known = collections.defaultdict(list)
    for row in table.rows:
        key = tuple(" ".join(cells.plain(row.get(name)).casefold().split()) for name in texts)
        known[key].append(tuple(cells.plain(row.get(name)) for name in labels))
    copied = [group for group in known.values() if len(group) > 1]
    if not copied:
        return []
    odd = sum(len({*group}) > 1 for group in copied)
    different = f", {odd:,} of them with different labels" if odd else ""
    occur = "1 text occurs" if len(copied) == 1 else f"{len(copied):,} texts occur"
    return [
        f"  {occur} in more than one row{different}; all rows of a text go to the same side of the "
        "split"
    ]
