"""`ptm predict` over the lines of a file or of standard input: written as it goes, and resumed."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptm_jax.cli import options
from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import check_apart
from ptm_jax.inference.uses import Request, Result, Use

if TYPE_CHECKING:
    from ptm_jax.cli.models.predict import Args
    from ptm_jax.inference.streams.journal import Refused
    from ptm_jax.inference.streams.lines import Source
    from ptm_jax.inference.streams.row_formats import Format
    from ptm_jax.inference.streams.running import Stream, Summary

OPTIONS = ("block", "strict", "text_column", "pair_column", "id_column")
"""Options that need a file of texts."""
ROWS = ("top", "seed", "max_new_tokens")
"""Options on which a row depends, and no vector of an index."""


def check(args: Args, use: Use, streams: bool) -> None:
    """Raises UserError for options of a file without one, and for a block without lines."""
    if not (streams or use.ranking) and (flags := options.given(args, OPTIONS)):
        raise UserError(f"{flags[0]} is for lines of --input or of standard input: leave it out")
    if args.index is not None and use.ranking is None:
        raise UserError(f"--index is for --task similar or search; the task is {use.name}")
    if use.arrays is None:
        _check_ending(args, use.name)
    if use.ranking is not None and args.strict:
        raise UserError("--strict is for a result for each line; leave it out")
    _check_block(args)


def check_options(args: Args) -> None:
    """Raises UserError for options that a table of the user's does not take."""
    if args.index is not None:
        raise UserError(f"--index is for --task similar or search; the task is {args.task}")
    _check_ending(args, args.task)
    _check_block(args)


def _check_ending(args: Args, task: str) -> None:
    if args.output is not None and args.output.lower().endswith(".npy"):
        raise UserError(
            f"an --output of .npy holds vectors (--task embed); {task} is written as .csv, .tsv, "
            ".jsonl or .json"
        )


def _check_block(args: Args) -> None:
    if args.block < 1:
        raise UserError(f"--block is {args.block}; a block has at least one line")


def run(args: Args, use: Use, request: Request, model: object, parts: Sequence[object]) -> int:
    """Writes a result for each line of the inputs, or those that are missing.

    `parts` are the models whose hash the record has. Raises UserError.
    """
    from ptm_jax.inference.streams import row_formats, running

    output = None if args.output is None else Path(args.output)
    stream = running.Stream(
        use=use, model=model, request=request, source=source_of(args, use), block=args.block,
        strict=args.strict,
    )  # fmt: skip
    ids = bool(stream.source.id)
    put(args, stream, row_formats.format_of(use, output, args.json, stream.width, ids), parts)
    return 0


def put(args: Args, stream: Stream, form: Format, parts: Sequence[object]) -> None:
    """Writes the results of a stream to --output, or those that are missing; else prints them.

    `parts` are the models whose hash the record has. Raises UserError.
    """
    from ptm_jax.inference.streams import running

    output, source = None if args.output is None else Path(args.output), stream.source
    if output is not None:
        check_apart(output, "--output", *source.paths)
    settled = output is not None and (not output.exists() or stat.S_ISREG(output.stat().st_mode))
    digest, total = (None, None) if source.path is None else source.digest()
    stream = dataclasses.replace(stream, total=total)
    if settled:
        record = record_of(args, stream.use, digest, parts)
        record["ending"] = output.suffix
        with _interrupted(output):
            summary = running.written(stream, form, output, record, overwrite=args.overwrite)
    elif output is not None:
        with output.open("wb") as target:
            summary = running.printed(stream, form, target)
    else:
        sys.stdout.flush()
        summary = running.printed(stream, form, sys.stdout.buffer)
    _report(summary, args.output, form.arrays)


@contextlib.contextmanager
def _interrupted(output: Path) -> Iterator[None]:
    """Prints after Ctrl-C where the rows are, and how to go on."""
    from ptm_jax.inference.streams import journal

    try:
        yield
    except KeyboardInterrupt:
        options.say(
            f"{output} is not complete; its rows so far are in {journal.partial_of(output).name}: "
            "run the same command again to go on"
        )
        raise


def rank(
    args: Args, use: Use, request: Request, model: object, parts: Sequence[object]
) -> list[Result]:
    """Returns the nearest lines of --input, or of the --index, to each --text. Raises UserError."""
    from ptm_jax.inference.streams import journal, nearest_lines, running
    from ptm_jax.inference.text.pair_scores import cross_encoder, reordered

    folder, top = None if args.index is None else Path(args.index), request.top
    reranker = None if args.rerank is None else cross_encoder(args.rerank)
    if reranker is not None:
        request = dataclasses.replace(request, top=max(top, args.candidates) if top > 0 else top)
    if args.input is None:
        args = dataclasses.replace(args, input=nearest_lines.source_of(folder))
    source = source_of(args, use)
    digest, total = source.digest()
    stream = running.Stream(
        use=use, model=model, request=request, source=source, block=args.block, total=total
    )
    if folder is None:
        results, summary = nearest_lines.nearest(stream, args.text)
    else:
        record = _of_vectors(record_of(args, use, digest, parts, ()), stream)
        with _interrupted(folder / nearest_lines.VECTORS):
            results, summary = nearest_lines.indexed(
                stream, args.text, folder, record, args.overwrite
            )
        if summary.before < summary.rows:
            options.say(f"wrote {summary.rows:,} vectors to {folder}")
    if summary.refused:
        options.say(f"left out: {journal.named(summary.refused)}, empty or refused")
        options.say("\n".join(journal.reasons(summary.refused)))
    if reranker is None:
        return results
    return reordered(reranker, results, use.ranking, top)


def source_of(args: Args, use: Use) -> Source:
    """Returns the lines of --input or of standard input. Raises UserError."""
    from ptm_jax.inference.streams import divided, lines

    source = lines.Source(None) if args.input is None else divided.source_of(args.input)
    columns = ("text_column", "pair_column", "id_column")
    if not source.format and (flags := options.given(args, columns)):
        raise UserError(
            f"{flags[0]} names a column of a table, .csv, .tsv or .jsonl; {source.name} has a text "
            "in each line"
        )
    if use.paired and not source.format:
        raise UserError(
            f"{use.name} reads questions and passages: give a .csv, .tsv or .jsonl with columns "
            "question and context (or --text-column and --pair-column)"
        )
    if args.pair_column is not None and "pair" not in use.options:
        raise UserError(f"--pair-column is for --task classify or qa; the task is {use.name}")
    text, pair = (lines.QUESTIONS, lines.PASSAGES) if use.paired else (lines.TEXTS, lines.PAIRS)
    text = text if args.text_column is None else (args.text_column,)
    pair = pair if args.pair_column is None else (args.pair_column,)
    known = use.paired or args.pair_column is not None
    names = _columns(source)
    if "pair" not in use.options or not (known or set(pair) & set(names)):
        pair = ()
    name = lines.id_column(names, args.id_column, (*text, *pair))
    return dataclasses.replace(source, text=text, pair=pair, id=() if name is None else (name,))


def _columns(source: Source) -> list[str]:
    return source.columns() if source.format else []


def record_of(
    args: Args, use: Use, digest: str | None, parts: Sequence[object], more: Sequence[str] = ROWS
) -> dict[str, Any]:
    """Returns what the bytes of an output depend on; `more`: options of its rows."""
    from ptm_jax.inference.streams import identity, journal

    names = ("text_column", "pair_column", "tower", *more, *use.options)
    settings = {name: vars(args)[name] for name in names}
    if args.id_column is not None:
        settings["id_column"] = args.id_column
    return {
        "version": version("ptm_jax"),
        "task": use.name,
        "options": json.loads(json.dumps(settings)),  # tuples are lists in the record
        "model": identity.of_model(*parts),
        "input": digest,
        journal.NAMES: {
            "input": None if args.input is None else os.path.abspath(args.input),
            "model": ", ".join(map(_absolute, (args.model, *args.ensemble))),
        },
    }


def _absolute(model: str) -> str:
    """Returns the absolute path of a model, or its name on the Hub."""
    return os.path.abspath(model) if Path(model).exists() else model


def _of_vectors(record: dict[str, Any], stream: Stream) -> dict[str, Any]:
    """Returns the record of an index: its vectors depend on the prompt before the lines, not on the
    name of the task, nor on the option that gave the prompt."""
    dropped = ("prompt", "prompt_name")
    settings = {name: one for name, one in record["options"].items() if name not in dropped}
    prompts = list(stream.use.ranking.prompts(stream.model, stream.request))
    others = {name: one for name, one in record.items() if name != "task"}
    return {**others, "options": settings, "prompt": prompts}


def queries() -> tuple[str, ...]:
    """Returns the texts of standard input, one a line; empty lines are left out. Raises UserError
    for a line that is no text."""
    from ptm_jax.inference.streams import lines

    texts = []
    for line in lines.Source(None).lines():
        if line.text and line.fault:
            raise UserError(f"standard input: line {line.number} is refused: {line.fault}")
        texts += [line.text] * bool(line.text)
    return tuple(texts)


def _report(summary: Summary, output: str | None, arrays: bool) -> None:
    """Prints the number of rows, and the refused lines."""
    if output is not None and summary.before == summary.rows:
        options.say(f"{os.fspath(output)} is complete: {summary.rows:,} rows")
    elif output is not None:
        before = f", {summary.before:,} of them before" if summary.before else ""
        options.say(f"wrote {summary.rows:,} rows to {os.fspath(output)}{before}")
    report_refused(summary.refused, arrays, output)


def report_refused(refused: Refused, arrays: bool, output: str | None = None) -> None:
    """Prints the refused lines; their reasons, where rows are vectors."""
    from ptm_jax.inference.streams import journal

    if refused and arrays:
        options.say(f"refused: {journal.named(refused)}; their rows are NaN")
        options.say("\n".join(journal.reasons(refused)))
        if len(refused) > journal.SHOWN and output is not None:
            options.say(f"  all reasons: {journal.path_of(Path(output))}")
    elif refused:
        options.say(f"refused: {journal.named(refused)}; the reason is in the row")


def put_all(args: Args, use: Use, results: Sequence[Result]) -> None:
    """Prints the results, or writes them to --output."""
    from ptm_jax.inference.streams import row_formats

    output = None if args.output is None else Path(args.output)
    form = row_formats.format_of(use, output, args.json, lambda: len(results[0]["vector"]))
    if form.arrays:
        results = [result["vector"] for result in results]
    data = io.BytesIO(form.begin())
    data.seek(0, io.SEEK_END)
    data.write(form.rows([row_formats.Row(None, result) for result in results], True))
    data.write(form.end(len(results)))
    form.finish(data, len(results))
    if output is None:
        print(data.getvalue().decode(), end="")
    else:
        _write(output, data.getvalue())
        options.say(f"wrote {len(results)} rows to {args.output}")


def _write(path: Path, data: bytes) -> None:
    """The whole file or none of it."""
    draft = path.with_name(path.name + ".draft")
    draft.write_bytes(data)
    os.replace(draft, path)
