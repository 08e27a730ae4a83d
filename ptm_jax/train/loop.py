"""A run: resumes by itself, logs, evaluates, saves, and stops cleanly.

The order of a start, once and for all:

    1. the corpus is opened, or prepared in WORKDIR/data (which resumes too)
    2. the experiment is resolved with the corpus's vocabulary and compared with WORKDIR/config.json
    3. the newest whole checkpoint of WORKDIR/checkpoints is restored, whatever the mesh it was saved from;
       without one the state is initialised under `jit` into its shardings
    4. the stream goes to the position that lies in the checkpoint; the log is cut at its step
    5. steps, until the recipe is done or SIGTERM asks for the end of this step, a checkpoint and an exit

A checkpoint holds the state, the data position and the sums of the log window under way, so that an interrupted run
writes the log and the parameters of an uninterrupted one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.system import Experiment
from ptm_jax.core.types import Ratio
from ptm_jax.data.stream import Stream
from ptm_jax.mesh import tables
from ptm_jax.train import devices, flops, logs, setup
from ptm_jax.train.checkpoints import Checkpoints
from ptm_jax.train.step import Program, TrainState, program


@dataclasses.dataclass(frozen=True)
class Result:
    """How a run ended. `heldout` are the metrics on the held-out text, `baseline` its unigram loss, in nats per token."""

    workdir: Path
    step: int
    steps: int
    heldout: Mapping[str, float]
    baseline: float
    resumed_from: int | None
    stopped: bool

    @property
    def done(self) -> bool:
        return self.step >= self.steps


class Run:
    """The state of a run in progress; `train` is what calls it."""

    def __init__(self, config: Experiment, workdir: Path, progress: Callable | None = None):
        self.workdir = workdir
        self.corpus = setup.corpus_of(config, workdir, progress)
        self.config = config = setup.resolve(config, self.corpus.vocab)
        self.recipe = config.system.recipe
        setup.agree(config, workdir, self.corpus)
        if not (workdir / "tokenizer").exists():
            shutil.copytree(self.corpus.dir / "tokenizer", workdir / "tokenizer")
        self.mesh = tables.make_mesh(dict(config.mesh))
        self.rules = tables.table(config.rules)
        self.program = program(config.system, config.seed)
        self.baseline = setup.unigram_baseline(self.corpus, self.corpus.vocab)
        self.checkpoints = Checkpoints(workdir, config.keep)
        self.log = logs.MetricLog(workdir)
        self.tokens, self.seconds, self.window = 0.0, 0.0, _Window()
        self.abstract = jax.eval_shape(self.program.init, self.example())
        self.shardings = tables.place(self.abstract, self.rules, self.mesh)

    def stream(self, phase: int, split: str = "train", epochs: int | None = None) -> Stream:
        """Rows of a phase; every phase has a shuffle of its own."""
        shape = self.recipe.phases[phase]
        return Stream(
            self.corpus,
            split,
            self.config.system.examples,
            length=shape.length,
            batch=shape.batch,
            seed=self.config.seed + phase,
            epochs=epochs,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
        )

    def example(self, phase: int = 0) -> dict[str, jax.Array]:
        """A batch of zeros: the shapes that a phase's stream gives."""
        shape = self.recipe.phases[phase]
        fields = self.config.system.examples.spec(shape.length, self.corpus.vocab)
        batch = {name: jnp.zeros((shape.batch, *dims), dtype) for name, (dims, dtype) in fields.items()}
        return {**batch, "rows": jnp.arange(shape.batch, dtype=jnp.int32)}

    def start(self) -> tuple[TrainState, dict[str, Any], int | None]:
        """The restored or initialised state, its data position, and the step it was restored from."""
        like = jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            self.abstract,
            self.shardings,
        )
        if self.checkpoints.latest() is not None:
            state, meta, step = self.checkpoints.restore(like=like)
            self.tokens, self.seconds = meta["tokens"], meta["seconds"]
            self.window = _Window(meta["window"])
            self.log.resume(step)
            return state, meta["position"], step
        with jax.set_mesh(self.mesh):
            state = jax.jit(self.program.init, out_shardings=self.shardings)(self.example())
        self.log.resume(0)
        return state, {"phase": 0, "stream": None}, None

    def save(self, state: TrainState, position: Mapping[str, Any], done: int) -> None:
        """Start saving everything that a restart needs."""
        self.checkpoints.save(
            done,
            state,
            {
                "position": dict(position),
                "tokens": self.tokens,
                "seconds": self.seconds,
                "window": self.window.sums(),
                "tokenizer": self.corpus.manifest["tokenizer"]["hash"],
            },
        )

    def evaluate(self, state: TrainState, phase: int, batches: int = 0) -> dict[str, float]:
        """Means of the metrics over the held-out text, or its first `batches` batches."""
        stream = self.stream(phase, "heldout", epochs=1)
        return evaluate(self.program, state.params, stream, self.mesh, self.example(phase), batches)


def train(config: Experiment, workdir: str | Path, *, quiet: bool = False) -> Result:
    """Run an experiment in a workdir, or go on with the run there. Returns how it ended.

    Raises UserError for anything that the user can mend; the workdir then holds the last whole checkpoint.
    """
    run = Run(config, Path(workdir), None if quiet else logs.bar)
    state, position, resumed = run.start()
    done = int(state.step)
    if resumed is not None and not quiet:
        logs.say(f"resuming {run.workdir} from step {resumed} of {run.recipe.steps}")
    with _sigterm() as asked, jax.set_mesh(run.mesh), run.log:
        state, done, position = _phases(run, state, done, position, asked, quiet)
        stopped = done < run.recipe.steps
        run.save(state, position, done)
        heldout = {} if stopped else _final(run, state)
    run.checkpoints.wait()
    result = Result(run.workdir, done, run.recipe.steps, heldout, run.baseline, resumed, stopped)
    if not stopped:
        logs.curve(run.workdir, baseline=run.baseline)
        _report(run, result)
    return result


def _final(run, state):
    """The held-out metrics of the finished run: from its log, or measured and logged now."""
    there = run.log.find(run.recipe.steps, "heldout")
    if there is not None:
        return there
    values = run.evaluate(state, len(run.recipe.phases) - 1)
    run.log.write(run.recipe.steps, "heldout", values, tokens=run.tokens, seconds=run.seconds)
    return values


def _phases(run, state, done, position, asked, quiet):
    recipe = run.recipe
    ends = np.cumsum([phase.steps for phase in recipe.phases])
    bar = logs.Progress(recipe.steps, done, quiet=quiet)
    with bar:
        for phase in range(position["phase"], len(recipe.phases)):
            if done >= ends[phase]:
                continue
            stream = run.stream(phase)
            if position["phase"] == phase and position["stream"] is not None:
                stream.restore(position["stream"])
            state, done = _steps(run, state, done, int(ends[phase]), phase, stream, asked, bar)
            position = {"phase": phase, "stream": stream.state()}
            if asked.is_set():
                break
    return state, done, position


def _steps(run, state, done, end, phase, stream, asked, bar):
    """Steps of one phase, until `end` or until the signal comes."""
    config, batches = run.config, iter(stream)
    step = jax.jit(
        functools.partial(run.program.step, accumulate=run.recipe.accumulate),
        donate_argnums=0,
        out_shardings=(run.shardings, tables.replicated(run.mesh)),
    )
    work = None
    clock = time.perf_counter()
    while done < end and not asked.is_set():
        batch = tables.place_batch(next(batches), run.mesh)
        if work is None:
            work = flops.flops(run.program.step, run.abstract, jax.eval_shape(lambda b: b, batch))
        state, metrics = step(state, batch)
        done += 1
        run.window.add(metrics)
        if done % config.log_every == 0 or done == end:
            values, steps, tokens = run.window.close()
            _finite(values, done, run)
            seconds, clock = time.perf_counter() - clock, time.perf_counter()
            run.tokens, run.seconds = run.tokens + tokens, run.seconds + seconds
            run.log.write(done, "train", values, tokens=run.tokens, seconds=run.seconds)
            use = devices.utilisation(work * steps, seconds, list(run.mesh.devices.flat), config.precision)
            bar.update(done, values, tokens / seconds, use)
        if config.eval_every and done % config.eval_every == 0 and done < run.recipe.steps:
            values = run.evaluate(state, phase, config.eval_batches)
            run.log.write(done, "heldout", values, tokens=run.tokens, seconds=run.seconds)
        if config.save_every and done % config.save_every == 0 and done < end:
            run.save(state, {"phase": phase, "stream": stream.state()}, done)
    return state, done


def evaluate(work: Program, params, stream, mesh, example, batches: int = 0) -> dict[str, float]:
    """Means of the objective's metrics over a stream of one epoch; at most `batches` batches where that is not 0.

    `example` is a batch of the stream's shapes.

    The corruption of batch i is drawn from i, so that two evaluations of one model agree."""
    total = _Window()
    step = jax.jit(work.evaluate)
    carry = work.initial_carry(params, example)
    for index, batch in enumerate(stream):
        if batches and index >= batches:
            break
        metrics, carry = step(params, tables.place_batch(batch, mesh), index, carry)
        total.add(metrics)
    return total.close()[0]


class _Window:
    """Sums of metrics since the last line of the log; they lie on the device until somebody asks."""

    def __init__(self, sums: Mapping[str, Any] | None = None):
        self._sums = dict(sums or {})
        self._pending: list[Mapping[str, Any]] = []

    def add(self, metrics: Mapping[str, Any]) -> None:
        self._pending.append(metrics)

    def sums(self) -> dict[str, list[Any]]:
        """{name: [sums, weights]} in float64, and the number of steps under ''."""
        for metrics in jax.device_get(self._pending):
            self._sums[""] = self._sums.get("", 0) + 1
            for name, value in metrics.items():
                pair = (value.sum, value.weight) if isinstance(value, Ratio) else (value, 1.0)
                new = [np.atleast_1d(np.asarray(x, np.float64)) for x in pair]
                old = self._sums.get(name, [0.0, 0.0])
                self._sums[name] = [(np.asarray(a) + b).tolist() for a, b in zip(old, new, strict=True)]
        self._pending = []
        return self._sums

    def close(self) -> tuple[dict[str, float], int, float]:
        """(means, steps, tokens) since the last call; the loss is the sum of its terms' means."""
        sums, self._sums = self.sums(), {}
        steps = int(sums.pop("", 0))
        tokens = sum(sums.pop("tokens", [[0.0]])[0])
        means = {
            name: sum(s / w if w else 0.0 for s, w in zip(total, weight, strict=True))
            for name, (total, weight) in sums.items()
        }
        return means, steps, tokens


def _finite(values, step, run):
    if not math.isfinite(values.get("loss", 0.0)):
        kept = run.checkpoints.latest()
        raise UserError(
            f"the loss is {values['loss']} at step {step}; the checkpoint of step {kept} is kept: "
            "lower recipe.lr, set recipe.clip, or compute in float32 (--set precision=float32)"
        )


def _report(run, result):
    logs.report(
        run.workdir,
        {
            "system": run.config.system.name,
            "paper": run.config.system.paper,
            "steps": result.step,
            "tokens": int(run.tokens),
            "hours": round(run.seconds / 3600, 3),
            "unigram baseline (nats/token)": round(result.baseline, 4),
            **{f"held-out {name}": round(value, 4) for name, value in result.heldout.items()},
        },
    )


@contextlib.contextmanager
def _sigterm() -> Iterator[threading.Event]:
    """An event that SIGTERM sets (in the main thread; elsewhere nothing does)."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, before)
