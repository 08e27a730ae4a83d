"""`ptm train --text-column --label-column`: fine-tuning on a table of the user's."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ptm_jax.cli import options, target
from ptm_jax.core.errors import UserError

if TYPE_CHECKING:
    from ptm_jax.cli.runs.train import Args
    from ptm_jax.core.system import Experiment
    from ptm_jax.tasks.formats.taskdata import TaskExamples
    from ptm_jax.tuning.selection import Tuned

OF_TABLES = ("text_column", "label_column", "id_column", "heldout", "skip_empty")


def is_asked(args: Args) -> bool:
    """Returns whether the data are a table of the user's.

    An option of tables without a task that has them (`named`), or a model and data without a system
    and without a task.
    """
    if args.task is not None and _names_columns(_examples(args.task)):
        return False
    bare = args.target is None and args.task is None and not args.tasks
    return bool(options.given(args, OF_TABLES)) or (bare and bool(args.init and args.data))


def _examples(task: str) -> TaskExamples:
    from ptm_jax.tasks.catalogue import catalogue

    return catalogue.get(task).examples


def _names_columns(examples: TaskExamples) -> bool:
    from ptm_jax.tasks.formats.named_columns import names_columns

    return names_columns(examples)


def named(args: Args) -> TaskExamples | None:
    """Returns the examples of --task with the columns of the command; None without columns.
    Raises UserError."""
    examples, flags = _examples(args.task), options.given(args, OF_TABLES)
    if not _names_columns(examples) or not flags:
        return None
    if excluded := [flag for flag in flags if flag not in ("--text-column", "--label-column")]:
        raise UserError(
            f"{excluded[0]} is for a table with labels; {args.task} holds out a tenth of the first "
            "texts, or the second of two files: leave it out"
        )
    return examples.with_columns(args.data, args.text_column, args.label_column)


def say_lines(config: Experiment) -> None:
    """Prints the fields that a task reads and its steps, where its columns can be named."""
    from ptm_jax.training.hosts import group
    from ptm_jax.tuning import own_data

    if not group.current().index and (lines := own_data.lines_of(config)):
        options.say("\n".join(lines))


def resolved(
    args: Args, words: list[str], init_of: Callable[[Any], Any], wrappers_of: Callable[[Any], Any]
) -> tuple[Args, Experiment]:
    """Returns the arguments with the task of the table, and its experiment; prints the guess and
    the recipe.

    `words` change the experiment, as --set. Raises UserError.
    """
    from ptm_jax.tasks.tables import guessing
    from ptm_jax.training.hosts import group
    from ptm_jax.tuning import own_data

    flags = options.given(args, OF_TABLES)
    if args.target is not None or args.tasks:
        other = "--tasks" if args.tasks else "the system"
        raise UserError(
            f"{flags[0]} is for a table and the model of --init; leave {flags[0]} out, or {other}"
        )
    if lacks := lacking(args, "the table (--data)"):
        raise UserError(f"{flags[0]} needs {lacks}")
    asked = guessing.Asked(
        text_columns=args.text_column, label_columns=args.label_column, task=args.task,
        share=0.1 if args.heldout is None else args.heldout, id_column=args.id_column,
        skip_empty=args.skip_empty,
    )  # fmt: skip
    names = ("epochs", "batch", "length", "lr", "tagger")
    fields = {name: vars(args)[name] for name in names} | wrappers_of(args)
    chosen = own_data.experiment(init_of(args.init), args.data, asked, **fields)
    if args.heldout is not None and chosen.two_files:
        raise UserError(
            "--heldout divides one file; the second of two is held out whole: leave --heldout out, "
            "or give one file"
        )
    config = own_data.regrouped(target.changed(chosen.config, words), chosen.config)
    if not group.current().index:
        options.say("\n".join([*chosen.lines, chosen.plan(config)]))
    return dataclasses.replace(args, task=chosen.task), config


def lacking(args: Args, data: str) -> str:
    """Returns the names of the model and the `data` where the command has none, or ""."""
    named = {"the model (--init)": args.init, data: args.data}
    return " and ".join(name for name, value in named.items() if not value)


def next_of_task(run: Tuned) -> list[str]:
    """Returns the commands that use a run whose task names its columns, or of entities whose types
    are text; [] for a run on another task."""
    from ptm_jax.tasks.formats.entity_spans import types_are_texts

    examples = _examples(run.task)
    folder, out = shlex.quote(str(run.workdir)), shlex.quote(f"{run.workdir}-hf")
    if _names_columns(examples):
        return ["next:", *(f"  {line.format(folder=folder)}" for line in examples.uses)]
    if types_are_texts(examples):
        types = shlex.quote(",".join(list(run.classes or ())[:5]) or "person,city")
        lines = [
            f"  ptm evaluate {folder} --task {run.task} --data more.jsonl",
            f"  ptm predict {folder} --task entities --types {types} --input lines.txt",
        ]
        return ["next:", *lines, f"  ptm export {folder} --out {out}"]
    return []


def next_steps(run: Tuned, id_column: str | None = None) -> list[str]:
    """Returns the commands that use a run on a table."""
    folder, out = shlex.quote(str(run.workdir)), shlex.quote(f"{run.workdir}-hf")
    ids = "" if id_column is None else f" --id-column {shlex.quote(id_column)}"
    more = f" --predictions more_predictions.csv{ids}" if ids else ""
    return [
        "next:",
        f"  ptm predict {folder} --input new.csv{ids} --output predictions.csv",
        f"  ptm evaluate {folder} --data more.csv{more}",
        f"  ptm export {folder} --out {out}",
    ]
