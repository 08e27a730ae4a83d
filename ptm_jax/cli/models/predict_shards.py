"""`ptm predict` with its output in shards: by one process, by the hosts of `ptm launch`, or by the
workers of an Apache Beam pipeline (--runner)."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ptm_jax.cli import options, places
from ptm_jax.cli.models import predict_files
from ptm_jax.core.errors import UserError
from ptm_jax.inference.uses import Request, Use

if TYPE_CHECKING:
    from ptm_jax.cli.models.predict import Args
    from ptm_jax.data.corpora.runners import Runner
    from ptm_jax.inference.streams.divided import Division
    from ptm_jax.inference.streams.running import Summary
    from ptm_jax.inference.streams.shard_files import Place, Writer
    from ptm_jax.training.hosts.hosts import HostProcess

OPTIONS = ("shards", "runner", "runner_options", "workers", "dry_run")
Opened = Callable[["Args"], tuple[Use, Request, object, Sequence[object]]]
"""Loads the model of arguments: (use, request, the model, the models whose hash counts)."""


def asked(args: Args) -> bool:
    """Whether the output is in shards. Raises UserError for options of them without them."""
    if args.runner is None and (
        flags := options.given(args, ("runner_options", "workers", "dry_run"))
    ):
        raise UserError(
            f"{flags[0]} is for a pipeline; add --runner direct, flink, spark or dataflow"
        )
    return (args.shards, args.runner) != (None, None) or (
        args.output is not None and args.input is not None and _host() is not None
    )


def named(args: Args) -> Args:
    """Returns the arguments with a name in --output, which may be a folder."""
    if args.output is None or Path(args.output).suffix:
        return args
    return dataclasses.replace(args, output=os.path.join(args.output, "predictions.jsonl"))


def check(args: Args, use: Use) -> None:
    """Raises UserError for arguments that shards do not take."""
    from ptm_jax.inference.streams import divided

    for name in ("input", "output"):
        if vars(args)[name] is None:
            raise UserError(f"shards are files of the rows of a file; give --{name}")
    if use.ranking is not None:
        raise UserError(f"shards are for a result for each line; the task is {use.name}")
    if args.shards is not None and args.shards < 1:
        raise UserError(f"--shards is {args.shards}; there is at least one")
    if args.workers is not None and (args.workers < 1 or args.runner != "direct"):
        raise UserError("--workers is the number of processes of --runner direct, at least 1")
    if args.overwrite and _host() is not None:
        raise UserError(
            "--overwrite would begin anew at each restart of a host; remove the shards instead"
        )
    ending = divided.source_of(args.input).format
    if ending not in ("", ".jsonl"):
        raise UserError(f"shards are of lines of text or of .jsonl; {args.input} is a {ending}")


@dataclasses.dataclass(frozen=True)
class Job:
    """Shards to write, for any process: the arguments of the command, how they become a model, the
    division of the lines, and the hash of the model (None: not known yet)."""

    args: Args
    opened: Opened
    place: Place
    division: Division | None = None
    model: str | None = None
    numbers: tuple[int, ...] = ()

    def load(self) -> Writer:
        """Loads the model, and divides the lines where they are not. Raises UserError."""
        from ptm_jax.inference.streams import journal, row_formats, running, shard_files

        args = places.opened("predict", dataclasses.replace(self.args, output=None))
        use, request, model, parts = self.opened(args)
        source = predict_files.source_of(args, use)
        stream = running.Stream(
            use=use, model=model, request=request, source=source, block=args.block,
            strict=args.strict,
        )  # fmt: skip
        name = Path(self.place.name(0, 1))
        form = row_formats.format_of(use, name, args.json, stream.width, bool(source.id))
        record = predict_files.record_of(args, use, None, parts)
        record["ending"] = name.suffix
        if self.model not in (None, record["model"]):
            raise UserError(f"a worker has another model {args.model}; give all of them the same")
        facts = {name: one for name, one in record.items() if name != journal.NAMES}
        division = self.division or self.place.division(source.paths, args.shards, facts)
        record["input"] = division.digest
        return shard_files.Writer(
            stream=stream, form=form, place=self.place, division=division, record=record
        )


def run(args: Args, use: Use, opened: Opened) -> int:
    """Writes the shards that are missing. Raises UserError."""
    from ptm_jax.inference.streams import shard_files

    check(args, use)
    runner = None if args.runner is None else _runner(args)
    if args.dry_run:
        print("\n".join(runner.flags()))
        return 0
    place = shard_files.Place.of(args.output)
    if args.overwrite:
        place.clear()
    job = Job(_everywhere(args), opened, place)
    writer = job.load()
    count = writer.division.count
    complete = place.complete(count)
    if complete:
        options.say(f"{len(complete)} of {count} shards were there")
    if runner is None:
        host = _host()
        index, processes = (0, 1) if host is None else (host.index or 0, host.count or 1)
        summaries = shard_files.written(writer, index, processes, options.say)
    else:
        missing = tuple(number for number in range(count) if number not in complete)
        job = dataclasses.replace(
            job, division=writer.division, model=writer.record["model"], numbers=missing
        )
        _pipe(job, runner)
        summaries = _read(writer, missing)
    _report(writer, summaries)
    return 0


def _host() -> HostProcess | None:
    """Returns the place of this process among several."""
    from ptm_jax.training.hosts import hosts

    return hosts.detect(os.environ)


def _runner(args: Args) -> Runner:
    """Returns the runner of the arguments. Raises UserError where Beam is missing, or refuses its
    options."""
    from ptm_jax.data.corpora.runners import Runner
    from ptm_jax.data.stores import working

    processes = (
        (f"direct_num_workers={args.workers}", "direct_running_mode=multi_processing")
        if (args.workers or 1) > 1
        else ()
    )
    runner = Runner(args.runner, (*processes, *args.runner_options), job="ptm-predict")
    if runner.kind == "dataflow" and not all(map(working.url_of, (args.input, args.output))):
        raise UserError(
            "the workers of dataflow see no folder of this machine; give --input and --output as "
            "gs:// URLs"
        )
    if not args.dry_run or importlib.util.find_spec("apache_beam"):
        from ptm_jax.data.corpora import beam

        beam.options(runner)
    return runner


def _everywhere(args: Args) -> Args:
    """Returns the arguments with paths and URLs that hold in any process."""
    from ptm_jax.data.stores import working

    def named(path: str) -> str:
        return working.url_of(path) or (os.path.abspath(path) if os.path.exists(path) else path)

    return dataclasses.replace(
        args,
        model=named(args.model),
        adapter=args.adapter and named(args.adapter),
        ensemble=tuple(map(named, args.ensemble)),
        input=working.url_of(args.input) or os.path.abspath(args.input),
    )


def _pipe(job: Job, runner: Runner) -> None:
    """Runs the pipeline of a job, and shows how many shards are there."""
    from ptm_jax.data.corpora import direct
    from ptm_jax.inference.streams import beam_shards

    if not job.numbers:
        return
    options.say(f"{len(job.numbers)} shards by --runner {runner.kind}")
    with _counted(job):
        if runner.kind == "direct":
            direct.run(job, runner, beam_shards.submit)
        else:
            beam_shards.submit(job, runner)


@contextlib.contextmanager
def _counted(job: Job) -> Iterator[None]:
    """A bar of the shards that are complete, for the time of the block."""
    from ptm_jax.inference import bars

    count, ended = job.division.count, threading.Event()

    def watch() -> None:
        while not ended.wait(1.0):
            bar.update(len(job.place.complete(count)) - bar.n)

    with bars.bar(count, "shard", count - len(job.numbers)) as bar:
        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _read(writer: Writer, numbers: Sequence[int]) -> list[Summary]:
    """Returns the counts of complete shards."""
    return [] if writer.place.remote else [writer.write(number) for number in numbers]


def _report(writer: Writer, summaries: Sequence[Summary]) -> None:
    """Prints what was written, and the refused lines."""
    place, count = writer.place, writer.division.count
    complete = len(place.complete(count))
    if summaries:
        rows = sum(one.rows for one in summaries)
        options.say(f"wrote {len(summaries)} of {count} shards ({rows:,} rows) to {place.folder}")
    if complete == count:
        options.say(f"all {count} shards are complete: {writer.division.lines:,} rows")
    else:
        options.say(f"{complete} of {count} shards are complete")
    refused = [line for one in summaries for line in one.refused]
    predict_files.report_refused(refused, writer.form.arrays)
