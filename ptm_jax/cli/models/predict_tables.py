"""`ptm predict` of a run on a table of the user's, for another table with the same columns."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ptm_jax.cli import options

if TYPE_CHECKING:
    from ptm_jax.cli.models.predict import Args

TABLES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
JSON = (".jsonl", ".json")


def task_of(args: Args) -> str | None:
    """Returns the task of the run, where --input is a table.

    None where the model is none that was trained on a table, or where another task or other columns
    are asked.
    """
    named = args.text_column is not None or args.pair_column is not None
    if args.input is None or named or not {*Path(args.input).suffixes} & {*TABLES}:
        return None
    from ptm_jax.tuning import own_data

    task = own_data.task_of_run(args.model)
    return task if args.task in (None, task) else None


def run(args: Args) -> int:
    """Writes a row for each row of the table, in blocks; prints them without --output.
    Raises UserError."""
    from ptm_jax.tasks import evaluating
    from ptm_jax.tasks.catalogue import catalogue
    from ptm_jax.tasks.formats.taskdata import Remarks, print_remarks
    from ptm_jax.tasks.tables import prediction_tables
    from ptm_jax.tuning import scoring

    models = scoring.load((args.model, *args.ensemble), args.adapter)
    task = evaluating.task_of(models[0], catalogue.get(args.task))
    remarks, count = Remarks(), 0
    ending = Path(args.output or "").suffix.lower()

    def blocks():
        nonlocal count
        for block in evaluating.blocks(scoring.together(models), task, args.input, remarks):
            count += len(block[0])
            yield block

    if args.json or ending in JSON:
        lines = (f"{line}\n" for block in blocks() for line in evaluating.lines(task, *block))
    else:
        rows = (row for block in blocks() for row in evaluating.rows_of(task, *block))
        separator = prediction_tables.SEPARATORS.get(ending, ",")
        lines = prediction_tables.lines(rows, separator, paired=len(task.examples.text_columns) > 1)
    if args.output is None:
        sys.stdout.writelines(lines)
    else:
        _write(Path(args.output), lines)
        options.say(f"wrote {count:,} predictions to {args.output}")
    print_remarks(remarks, args.input)
    return 0


def _write(path: Path, lines: Iterator[str]) -> None:
    """Writes the file, whole or not at all."""
    draft = path.with_name(path.name + ".draft")
    with draft.open("w", encoding="utf8", newline="") as file:
        file.writelines(lines)
    draft.replace(path)
