"""Runs the missing runs of a study in a workdir, which several processes may share.

    corpora/HASH/        text prepared once for all runs with the same sources and tokenizer
    costs.json           {fingerprint: cost}, so that nothing is traced twice
    runs/NAME/           the workdir of a run (`ptm train`), and row.json once it is done or has
                         failed
    runs/NAME/COLUMN/    the workdirs of its transfers; `tuning.studies.run_kinds` has what else a
                         run may be
    results.csv, study.md, *.png    `tuning.studies.study_page`

A run with a row is not run again; delete its folder to repeat it. The process of a run holds the
lock runs/.NAME.claim, which the operating system releases when it ends, so two processes share the
runs of a study and none is run twice. A process that is killed leaves a checkpoint and no row: the
same command goes on there. A run that compresses the model of another begins when that one has a
row.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from ptm_jax.core import cache, spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.spec import own_code
from ptm_jax.core.system import Experiment
from ptm_jax.core.types import Vocab
from ptm_jax.data.corpora.prepare import prepare
from ptm_jax.data.corpora.store import open_corpus
from ptm_jax.data.tokenizers.tokenizing import ROLES, STYLES
from ptm_jax.training import workdirs
from ptm_jax.training.hosts import group
from ptm_jax.training.logs import logs
from ptm_jax.training.start import differing, setup
from ptm_jax.tuning.studies import points as study_points
from ptm_jax.tuning.studies import run_kinds, run_rows
from ptm_jax.tuning.studies.points import Cost, Costs, Point
from ptm_jax.tuning.studies.studies import Study

if TYPE_CHECKING:
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer


BUSY = 75
"""Exit status of a process that found its run in the hands of another."""
POLL = 0.5


def points(study: Study, workdir: Path, costs: Costs, only: str | None = None) -> list[Point]:
    """The runs of a study on its corpora, which are prepared where they are missing.
    With `only`, those whose models it needs, and it as the last. Raises UserError for an unknown
    one."""
    known = study_points.names(study)
    if only is not None and only not in dict(known):
        raise UserError(
            f"{study.name} has no run {only!r}; its runs are "
            f"{', '.join(name for name, _ in known[:8])}, ..."
        )
    priced = remembered(costs, workdir / "costs.json")

    def made(name: str) -> Point:
        one = study_points.point(
            study, name, dict(known)[name], lambda config: priced(on_corpus(config, workdir))
        )
        return (
            one if one.refusal else dataclasses.replace(one, config=on_corpus(one.config, workdir))
        )

    if only is None:
        return [made(name) for name, _ in known]
    chain = [made(only)]
    while chain[0].after:
        chain.insert(0, made(chain[0].after))
    return chain


def on_corpus(config: Experiment, workdir: Path) -> Experiment:
    """The experiment on a prepared corpus below the workdir, with its vocabulary.
    Labelled data stay."""
    prepared = len(config.data) == 1 and (Path(config.data[0]) / "manifest.json").is_file()
    if config.system.examples.labelled:
        return config
    if not prepared:
        tokenizer = config.tokenizer or config.system.tokenizer
        if tokenizer is None:
            raise UserError(
                f"{config.system.name} names no tokenizer; set tokenizer=TokenizerSpec(...) "
                "in the base"
            )
        asked = json.dumps([config.data, spec.to_json(tokenizer), config.heldout])
        folder = workdir / "corpora" / hashlib.sha256(asked.encode()).hexdigest()[:12]
        group.current().chosen(lambda: _prepare(config, folder, tokenizer))
        config = dataclasses.replace(config, data=(str(folder),), tokenizer=None)
    return differing.resolve(config, open_corpus(config.data[0]).vocab)


def expected(config: Experiment) -> Experiment:
    """Returns the experiment with the vocabulary that its tokenizer will have.

    It has that size and those special tokens, where the tokenizer is to be trained.
    """
    tokenizer = config.tokenizer or config.system.tokenizer
    if tokenizer is None or tokenizer.path:
        return config

    def resized(vocab: Vocab) -> Vocab:
        specials = [
            name for name, pieces in ROLES.items() if set(pieces) & set(STYLES[tokenizer.specials])
        ]
        ids = {name: specials.index(name) if name in specials else None for name in setup.SPECIALS}
        extra = tuple(tokenizer.vocab - 1 - n for n in range(tokenizer.sentinels))
        return dataclasses.replace(vocab, size=tokenizer.vocab, extra=extra, **ids)

    return dataclasses.replace(config, system=spec.respell(config.system, Vocab, resized))


def _prepare(config: Experiment, folder: Path, tokenizer: Tokenizer) -> str:
    with _locked(folder.with_suffix(".lock"), wait=True):
        return str(prepare(config.data, folder, tokenizer=tokenizer, heldout=config.heldout).dir)


def remembered(costs: Costs, path: Path | None) -> Costs:
    """The costs, kept in a file or (None) in memory."""
    seen: dict[str, Any] = {}

    def of(config: Experiment) -> Cost:
        key = _key(config)
        known = seen if path is None else run_rows.read(path)
        if key not in known:
            cost = known[key] = dataclasses.asdict(costs(config))
        if path is not None and key not in run_rows.read(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(path.with_suffix(".lock"), wait=True):
                workdirs.replace(
                    path, (json.dumps(run_rows.read(path) | {key: cost}, indent=1) + "\n").encode()
                )
        return Cost(**known[key])

    return of


def stored(costs: Costs, path: Path) -> Costs:
    """The costs, kept in a document of the cache (`cli.derived`).
    A damaged one is absent; of two processes that write it the last one counts."""
    known = cache.read_document(path) or {}

    def of(config: Experiment) -> Cost:
        if own_code.sources_of(config, path.parent):
            return costs(config)  # a change of the user's code changes no key
        if (key := _key(config)) not in known:
            known[key] = dataclasses.asdict(costs(config))
            cache.write_document(path, known)
        return Cost(**known[key])

    return of


def _key(config: Experiment) -> str:
    """The key of the cost of a step, which seed, rate, steps and data do not change."""
    recipe = config.system.recipe
    phase = dataclasses.replace(recipe.phases[0], steps=1)
    system = dataclasses.replace(
        config.system, name="", recipe=dataclasses.replace(recipe, lr=0.0, phases=(phase,))
    )
    return spec.fingerprint(dataclasses.replace(config, system=system, seed=0, data=()))[:16]


def run_one(
    point: Point,
    workdir: Path,
    metrics: Sequence[str],
    quiet: bool = True,
    tasks: str | None = None,
) -> int:
    """Runs one run and its transfers, in this process, and writes its row.
    Returns the exit status: 0, 1 for a failed run, 128 and the signal for a stopped one, `BUSY`
    where another process runs it.

    tasks  folder of the labelled data"""
    folder = workdir / "runs" / point.name
    chosen = group.current().chosen
    with contextlib.ExitStack() as stack:
        claim = _locked(folder.parent / f".{point.name}.claim", wait=False)
        if not chosen(lambda: stack.enter_context(claim)):
            return BUSY
        if chosen(lambda: run_rows.row_of(point, workdir) is not None):
            return 0
        try:
            outcome = run_kinds.outcome(point, workdir, metrics, tasks, quiet)
        except UserError as error:
            run_rows.fail(point, workdir, " ".join(str(error).split()))
            return 1
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            advice = "out of memory; give the run a smaller batch or more devices"
            run_rows.fail(point, workdir, advice)
            return 1
        if outcome.stopped is not None:
            return 128 + outcome.stopped.signal
        values = outcome.values
        wrong = [
            name for name, value in values.items() if value is not None and not math.isfinite(value)
        ]
        odd = [metrics[0]] if values[metrics[0]] is None else wrong
        names = ", ".join(outcome.available) or "none"
        status = (
            f"failed: the held-out {odd[0]} is {values[odd[0]]}; there are {names}"
            if odd
            else "done"
        )
        runs = (folder, *sorted(folder.glob("stage_*.run")))
        seconds = sum(
            max((line["seconds"] for line in logs.read(place)), default=0.0) for place in runs
        )
        facts = {
            "status": status,
            "baseline": outcome.baseline,
            "seconds": seconds,
            **outcome.facts,
            **values,
        }
        run_rows.write(point, workdir, run_rows.new_row(point, **facts))
        return 1 if odd else 0


def run_after(
    runs: Sequence[Point], workdir: Path, metrics: Sequence[str], tasks: str | None = None
) -> int:
    """Runs the last of `found` in this process, once each of those before it has a row.

    It runs them, or waits for their processes. Returns the exit status of `run_one`.
    """
    for point in runs:
        status = run_one(point, workdir, metrics, quiet=False, tasks=tasks)
        while status == BUSY and point is not runs[-1]:
            time.sleep(POLL)
            status = run_one(point, workdir, metrics, quiet=False, tasks=tasks)
        if point is runs[-1] or status > 128:
            return status
        if (row := run_rows.row_of(point, workdir)) is None or row["status"] != "done":
            run_rows.write(
                runs[-1], workdir, run_rows.new_row(runs[-1], status=_without(point.name))
            )
            return 1
    return 0


def _without(name: str) -> str:
    return f"failed: it compresses the model of {name}, which has none; its row states why"


def check_data(study: Study, tasks: str | None) -> None:
    """Raises UserError where labelled data of the transfers are not below `tasks`."""
    for transfer in study.transfers:
        if tasks is None:
            raise UserError(
                f"{study.name} fine-tunes on {transfer.task}; give --tasks DIR, the folder "
                f"of {transfer.data}"
            )
        if not (Path(tasks) / transfer.data).exists():
            raise UserError(
                f"--tasks {tasks}: there is no {transfer.data}, on which {study.name} fine-tunes"
            )
    for source in study.base.data if study.task else ():
        if tasks is None and not Path(source).is_absolute():
            raise UserError(
                f"{study.name} fine-tunes on {study.task}; give --tasks DIR, the folder of {source}"
            )
        if not (Path(tasks or "") / source).exists():
            raise UserError(
                f"--tasks {tasks}: there is no {source}, on which {study.name} fine-tunes"
            )


def run_missing(
    runs: Sequence[Point], workdir: Path, command: Callable[[Point], list[str]], *,
    at_once: int = 1,
    say: Callable[[str], None] = lambda line: None, done: Callable[[], None] = lambda: None,
) -> int:  # fmt: skip
    """Runs the points without a row as child processes, `at_once` at a time.
    Returns 0, or the status of a signal.

    command  of a run: a process that calls `run_one` and exits with its status
    done     called after each run that ended"""
    waiting = [point for point in runs if run_rows.row_of(point, workdir) is None]
    known = {point.name: point for point in runs}

    def rows(name):
        return run_rows.row_of(known[name], workdir)

    running: dict[str, tuple[Point, subprocess.Popen]] = {}
    with _forwarding(running) as asked:
        while (waiting or running) and not (asked and not running):
            while (
                not asked and len(running) < at_once and (point := _next(waiting, rows)) is not None
            ):
                waiting.remove(point)
                if run_rows.row_of(point, workdir) is not None:
                    continue
                if point.after and rows(point.after)["status"] != "done":
                    run_rows.write(
                        point, workdir, run_rows.new_row(point, status=_without(point.after))
                    )
                    say(f"{point.name}: {_without(point.after)}")
                    continue
                say(
                    f"{point.name}: {point.steps:,} steps, {point.total('operations'):.3g} "
                    "operations"
                )
                running[point.name] = (
                    point,
                    subprocess.Popen(command(point), stdin=subprocess.DEVNULL),
                )
            time.sleep(POLL)
            for name, (point, process) in list(running.items()):
                if (status := process.poll()) is None:
                    continue
                del running[name]
                # Its other process may yet be killed; one that a signal ends has saved.
                if (status == BUSY or status > 128) and not asked:
                    waiting.append(point)
                    time.sleep(POLL)
                elif not asked and run_rows.row_of(point, workdir) is None:
                    why = f"status {status}"
                    why = f"signal {signal.Signals(-status).name}" if status < 0 else why
                    hint = "; out of memory, if nobody sent it" if status == -signal.SIGKILL else ""
                    run_rows.fail(point, workdir, f"its process ended with {why}{hint}")
                if (row := run_rows.row_of(point, workdir)) is not None:
                    say(f"{name}: {row['status']}")
                    done()
    return 128 + asked[0] if asked else 0


def _next(waiting: Sequence[Point], rows: Callable[[str], Any]) -> Point | None:
    """The first run that needs no model, or one that is there (or never will be)."""
    return next(
        (point for point in waiting if not point.after or rows(point.after) is not None), None
    )


@contextlib.contextmanager
def _forwarding(running: dict[str, tuple[Point, subprocess.Popen]]) -> Iterator[list[int]]:
    """Yields the signals that were received.
    SIGTERM and Ctrl-C reach the children as SIGTERM, so that they save."""
    asked: list[int] = []

    def hand_on(number, frame):
        asked.append(number)
        for _, process in running.values():
            process.send_signal(signal.SIGTERM)

    before = {number: signal.signal(number, hand_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Holds a lock file, or yields False where another process does and `wait` is off.
    The file stays."""
    with contextlib.ExitStack() as stack:
        with workdirs.writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = stack.enter_context(cache.locked(path, wait=wait))
        yield handle is not None
