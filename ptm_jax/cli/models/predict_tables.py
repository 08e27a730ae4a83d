"""`ptm predict` of a run on a table of the user's, for another table with the same columns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ptm_jax.cli.models import predict_files

if TYPE_CHECKING:
    from ptm_jax.cli.models.predict import Args

TABLES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
JSON, CELLS = (".jsonl", ".json"), (".csv", ".tsv")


OF_TEXTS = {
    "classify": "classify",
    "pairs": "classify",
    "ner": "tag",
    "pos": "tag",
    "answers": "qa",
}
"""{task of a run on a table: the use of its model on texts}."""
OF_HEADS = {"classify": "classify", "tag": "tag", "span": "qa", "lm": "generate"}
"""{head of a published task: the use on texts of a model that was fine-tuned for it}."""


def use_of(args: Args) -> str | None:
    """Returns the use on texts of a run on a table or on a published task; None where there is
    none."""
    from ptm_jax.runs.run import Run
    from ptm_jax.tasks.catalogue import catalogue
    from ptm_jax.tasks.kinds.base import kind_of
    from ptm_jax.tuning import own_data

    if (task := own_data.task_of_run(args.model)) is not None:
        return OF_TEXTS.get(task)
    run = Run.at(args.model)
    choice = run.choice() if run.exists else None
    if choice is None or choice["task"] not in catalogue:
        return None
    return OF_HEADS.get(kind_of(catalogue.get(choice["task"]).examples).head)


def task_of(args: Args) -> str | None:
    """Returns the task of the run, where --input is a table.

    None where the model is none that was trained on a table, or where another task is asked.
    """
    if args.input is None or args.text or not {*Path(args.input).suffixes} & {*TABLES}:
        return None
    from ptm_jax.tuning import own_data

    task = own_data.task_of_run(args.model)
    return task if args.task in (None, task) else None


def run(args: Args) -> int:
    """Writes a row for each row of the table, or those that are missing; prints them without
    --output. Raises UserError."""
    from ptm_jax.inference.streams import row_formats
    from ptm_jax.tasks import evaluating
    from ptm_jax.tasks.catalogue import catalogue
    from ptm_jax.tasks.formats.taskdata import print_remarks
    from ptm_jax.tasks.tables import table_stream
    from ptm_jax.tuning import scoring

    predict_files.check_options(args)
    output = None if args.output is None else Path(args.output)
    ending = "" if output is None else output.suffix.lower()
    objects = ending in JSON or (args.json and ending not in CELLS)
    models = scoring.load((args.model, *args.ensemble), args.adapter)
    task = evaluating.task_of(models[0], catalogue.get(args.task))
    asked = table_stream.Columns(text=args.text_column, pair=args.pair_column, id=args.id_column)
    stream = table_stream.stream_of(
        scoring.together(models), task, Path(args.input), block=args.block, strict=args.strict,
        objects=objects, asked=asked,
    )  # fmt: skip
    if objects:
        form = row_formats.format_of(stream.use, output, True, stream.width)
    else:
        form = row_formats.Table(stream.use, ending != ".tsv", bool(stream.source.id))
    predict_files.put(args, stream, form, models)
    print_remarks(stream.remarks, args.input)
    return 0
