"""The training loop: starts or resumes a run, logs, evaluates, and saves checkpoints.
It stops on SIGTERM or Ctrl-C.

A run starts in this order:

    1. compare the experiment with WORKDIR/config.json, if it exists
    2. open the corpus, or prepare it in WORKDIR/data (which resumes too), and resolve the
       experiment with its vocabulary
    3. restore the newest intact checkpoint of WORKDIR/checkpoints, saved from any mesh; if there is
       none, initialise the state under `jit` into its shardings
    4. move the stream to the position in the checkpoint, and cut the log at its step
    5. train until the recipe is done; after SIGTERM or Ctrl-C, finish the step, save a checkpoint
       and exit

A checkpoint contains the state, the data position and the sums of the current log window, so
interrupted and uninterrupted runs write the same log and parameters.

Several processes (`training.hosts.hosts`, `training.hosts.group`) share the devices, the rows of
every batch and the workdir, which process 0 writes. All start, save and stop at the same steps. A
run may resume with another number of processes.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ptm_jax.adapt.base import listeners
from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.system import Experiment
from ptm_jax.data.corpora.stream import merge
from ptm_jax.data.stores import working
from ptm_jax.mesh import rules
from ptm_jax.mesh.layout import layout_of
from ptm_jax.training import workdirs
from ptm_jax.training.checkpoints import Checkpoints
from ptm_jax.training.hosts import arrivals, devices, group, hanging, shared_programs
from ptm_jax.training.logs import console, evaluation, logs, results, writers
from ptm_jax.training.logs.figures import figure
from ptm_jax.training.logs.goodput import Goodput
from ptm_jax.training.logs.profile import Profiler
from ptm_jax.training.logs.results import Result
from ptm_jax.training.start import features, initial, longer, setup
from ptm_jax.training.start.init_models import opened
from ptm_jax.training.steps import fitting, flops
from ptm_jax.training.steps.building import building
from ptm_jax.training.steps.phase_work import Phases
from ptm_jax.training.steps.step import TrainState, argument, jitted, jitted_init
from ptm_jax.training.updates import schedules, spikes

Callback = Callable[[int, str, Mapping[str, float]], Any]
"""Called as `callback(step, split, values)` with every line of the log: split "train" after every
`log_every` steps, "heldout" after an evaluation, values {metric: number} (the mean since the last
line). True ends the run after this step, as SIGTERM does. With several processes each calls its
own. `Writer.write` of `training.logs.writers` is one."""
Watch = Callable[[int, Any, Any], bool]
"""Called as `watch(step, program, params)` at every evaluation; True ends the run there, as SIGTERM
does."""


class Training:
    """A run in progress, for `train`."""

    def __init__(self, config: Experiment, workdir: Path, progress: Callable | None = None):
        self.workdir, self.goodput = workdir, Goodput()
        self.mesh = rules.make_mesh(dict(config.mesh), rules=config.rules, slices=config.slices)
        layout_of(self.mesh, config.rules)  # refuses before a corpus is prepared
        writers.check(config.metrics)
        self.profiler = Profiler(workdir, config.profile)
        self.share = rules.share(self.mesh)
        for phase in config.system.recipe.phases:
            rules.check_batch(phase.batch, self.mesh)
        self.init = opened(config.init)
        config, corpus = setup.begin(config, workdir, progress, self.init)
        self.config, self.corpus = config, corpus
        self.recipe, self.seed = config.system.recipe, argument(config.seed)
        self.phases = Phases(config, self.mesh, functools.partial(setup.example, config, corpus))
        self.program, self.abstract = self.phases.base.program, self.phases.base.state
        self._per_token = {}
        if not workdirs.steps_of(workdir):  # check all phases before anything is written
            for phase in range(len(self.recipe.phases)):
                self.per_token(phase)
        self.shardings = jax.tree.map(lambda leaf: leaf.sharding, self.abstract)
        setup.keep(config, workdir, corpus, self.init)
        heldout = corpus.counts("heldout")
        self.has_heldout = bool(heldout.sum())
        self.watch: Watch | None = None
        self.callbacks: Sequence[Callback] = ()
        self.hold = workdirs.Hold(workdir)
        self.ended, self.parts, self.returned, self.barren = False, {}, None, 0
        self.delay: arrivals.Delay | None = None
        self.baseline = evaluation.unigram_baseline(
            corpus.counts("train"), heldout, corpus.uncounted, config.system.corruption
        )
        self.stable = schedules.stable_steps(self.recipe.schedule, self.recipe.steps)
        self.checkpoints = Checkpoints(workdir, config.keep)
        self.checkpoints.pinned = self.stable
        self.log = logs.RunLog(workdir, config.metrics, config.system.name)
        self.tokens, self.seconds, self.window = 0.0, 0.0, evaluation.Window()

    def per_token(self, phase: int) -> float:
        """Returns the operations of a step of a phase for each token that its batch has room for.
        Raises UserError if the system refuses its rows."""
        if phase not in self._per_token:
            first, batch = (
                setup.example(self.config, self.corpus, number) for number in (None, phase)
            )
            work = self.phases.at(phase).plain
            with building(work.system):
                state = jax.eval_shape(self.phases.base.plain.init, first)
                count = flops.flops(work.defined().step, state, batch)
            self._per_token[phase] = count / flops.places(batch)
        return self._per_token[phase]

    def start(self) -> tuple[TrainState, dict[str, Any], int | None]:
        """Returns the restored or initialised state, its data position, and the restored step.
        The step is None for a new run."""
        if self.checkpoints.latest() is not None:
            spent = logs.seconds(self.workdir)
            restored = self.restored()
            self.goodput.resume(self.spent, max(0.0, spent - self.seconds))
            return restored
        if self.checkpoints.steps():
            console.say(f"no checkpoint in {self.workdir} is whole; starting again from step 0")
        with jax.set_mesh(self.mesh):
            init = jitted_init(self.program, self.shardings)
            state = init(setup.example(self.config, self.corpus))
            if self.config.init is not None:
                begun = initial.begun(
                    state.params, self.init, self.config, self.program,
                    shardings=self.shardings.params, tokenizer=self.corpus.tokenizer,
                )  # fmt: skip
                state = dataclasses.replace(state, params=begun)
        self.log.resume(0)
        return state, {"phase": 0, "stream": None}, None

    def restored(self) -> tuple[TrainState, dict[str, Any], int]:
        """Returns (state, data position, step) of the last checkpoint, and cuts the log there."""
        state, meta, step = self.checkpoints.restore(
            like=self.abstract, true=self.program.padding.true
        )
        workdirs.check_tokenizer(self.workdir, meta["tokenizer"])
        self.tokens, self.seconds = meta["tokens"], meta["seconds"]
        self.parts = meta.get("parts", {})
        self.window, self.spent = evaluation.Window(meta["window"]), meta.get("goodput", {})
        self.log.resume(step)
        return state, meta["position"], step

    def save(self, state: TrainState, position: Mapping, done: int, last: bool = False) -> None:
        """Starts saving a checkpoint, the `last` one without a copy of the state.
        Raises UserError for a state that is not finite, or if the workdir is no longer there."""
        self.hold.check()
        shared_programs.push(console.say)
        self.check_finite(done)
        # Each process has only the position of its own rows.
        streams = group.current().gathered(position["stream"])
        self.delay = arrivals.noted(group.current().slowest(), self.delay)
        meta = {
            "position": dict(position) | ({"stream": merge(streams)} if streams else {}),
            "tokens": self.tokens,
            "seconds": self.seconds,
            "goodput": self.goodput.record(),
            "window": self.window.sums(),
            **({"parts": self.parts} if self.parts else {}),
            "tokenizer": self.corpus.manifest["tokenizer"]["hash"],
        }
        with self.goodput.losing("saving"):
            self.checkpoints.save(done, state, meta, true=self.program.padding.true, last=last)

    def evaluate(self, state: TrainState, phase: int, batches: int = 0) -> dict[str, float]:
        """Returns the means of the metrics over the held-out text, or its first `batches`."""
        streams = setup.held_out(self.config, self.corpus, phase, share=self.share)
        work = self.phases.at(phase)
        carry = work.program.initial_carry(
            state.params, setup.example(self.config, self.corpus, phase)
        )
        settings = {"mesh": self.mesh, "carry": carry, "batches": batches}
        with self.goodput.losing("evaluating"):
            return evaluation.of_parts(work.evaluate, state.params, streams, **settings)[0]

    def heard(self, state: TrainState, values: Mapping[str, float]) -> TrainState:
        """Returns the state after the adaptations were given the loss of an evaluation."""
        name, params = slots.objective(self.config.system.objective).baseline, state.params
        for wrapper in listeners(self.program.system.wrappers):
            change = jax.jit(wrapper.on_heldout, out_shardings=self.shardings.params)
            params = change(params, values[name if name in values else "loss"])
        return dataclasses.replace(state, params=params)

    def write(self, step: int, split: str, values: Mapping[str, float]) -> None:
        """Logs the metrics of a step, and calls the callbacks.
        Raises UserError if the workdir is no longer there."""
        self.hold.check()
        share = self.goodput.share()
        self.log.write(step, split, values, tokens=self.tokens, seconds=self.seconds, goodput=share)
        for callback in self.callbacks:
            self.ended |= callback(step, split, values) is True

    def compiled(
        self, phase: int, state: TrainState, batch: Mapping[str, Any], shapes: str
    ) -> Callable:
        """Returns the compiled step of a phase and of batches of these shapes.
        It has as many micro-batches as it needs."""

        def make(parts):
            work = self.phases.at(phase).program
            return jitted(work, self.shardings, rules.replicated(self.mesh), parts)

        rows, readings = self.recipe.phases[phase].batch, self.config.system.examples.readings
        parts = fitting.parts_of(self.recipe, rows, self.parts.get(shapes), readings, self.mesh)
        arguments = (state, batch, self.seed)
        step, used = fitting.compiled(make, arguments, parts, fitting.room_of(self.mesh))
        if used > self.recipe.accumulate:
            self.parts[shapes] = used
        return step

    def after_skips(self, state: TrainState, skipped: int, steps: range, phase: int) -> TrainState:
        """Returns the state after steps of which updates were left out (`core.recipe.SkipSpikes`):
        this state, or the last checkpoint's. Raises UserError where neither helps."""
        settings = spikes.settings_of(self.recipe)
        console.say(spikes.described(settings, skipped, steps))
        self.barren = self.barren + skipped if skipped == len(steps) else 0
        if not spikes.is_stuck(settings, skipped, self.barren):
            return state
        self.barren = 0
        last, spent = self._last(), self.seconds
        spikes.check_return(settings, skipped, steps, last, self.returned)
        state, position, self.returned = self.restored()
        if position["phase"] != phase:
            raise UserError(f"the checkpoint of step {last} is of an earlier phase")
        self.goodput.repeat(spent - self.seconds)
        console.say(f"going on from step {last} with the rows after step {steps[-1]}")
        return state

    def _last(self) -> int | None:
        """Returns the step of the newest checkpoint."""
        self.checkpoints.wait()
        return self.checkpoints.latest()

    def check_finite(self, done: int) -> None:
        """Raises UserError if a metric since the last line of the log is NaN or infinite.
        Nothing of it is kept."""
        name = self.window.infinite("loss", "grad_norm")
        if name is not None:
            raise spikes.not_finite(name, done, self._last())


def train(
    config: Experiment, workdir: str | Path, *, quiet: bool = False, watch: Watch | None = None,
    callbacks: Sequence[Callback] = (),
) -> Result:  # fmt: skip
    """Runs an experiment in a workdir, or resumes the run there. Returns its result.

    Raises UserError for errors that the user can correct. The workdir then has the last intact
    checkpoint.
    """
    if (absent := devices.absent_platform()) is not None:
        raise absent
    with group.together(), working.opening(workdir, "workdir") as folder:
        progress = None if quiet else console.bar
        with workdirs.alone(folder, jax.process_index() == 0) as hold:
            config = longer.continued(config, folder)
            if (result := results.finished(config, folder, progress)) is not None:
                return result
            run = Training(config, folder, progress)
            run.watch, run.callbacks, run.hold = watch, callbacks, hold
            return _train(run, quiet)


def _train(run: Training, quiet: bool) -> Result:
    state, position, resumed = run.start()
    done = int(state.step)
    if resumed is not None and not quiet:
        console.say(f"resuming {run.workdir} from step {resumed} of {run.recipe.steps}")
    with group.listening(), hanging.watching(), jax.set_mesh(run.mesh), run.log:
        state, done, position = _phases(run, state, done, position, quiet)
        stopped = done < run.recipe.steps
        if done != resumed:
            run.save(state, position, done, last=True)
        heldout = {} if stopped else _final(run, state)
        run.checkpoints.wait()
        run.hold.check_complete(done)
    name, compared = run.corpus.baseline, slots.objective(run.config.system.objective).baseline
    compared = results.compared_with(run.baseline, compared)
    ends = (run.baseline, resumed, stopped, name, compared, group.current().received)
    result = Result(run.workdir, done, run.recipe.steps, heldout, *ends)
    if not stopped:
        line = run.baseline if compared else None
        logs.curve(run.workdir, baseline=line, name=name, metric=compared or "loss")
        totals = (run.tokens, run.seconds, run.goodput.record())
        result = results.with_facts(result, run.config.system, *totals)
        heldout = {f"held-out {name}": figure(value) for name, value in result.heldout.items()}
        delay = {"slowest input": run.delay.described()} if run.delay else {}
        logs.report(run.workdir, result.facts | delay | heldout)
    if not group.current().index:
        working.push(run.workdir)
    run.hold.check()
    return result


def _final(run, state):
    """Returns the held-out metrics of the finished run, from its log, or measured and logged
    now."""
    logged = group.current().chosen(lambda: logs.find(run.workdir, run.recipe.steps, "heldout"))
    if logged is not None or not run.has_heldout:
        return logged or {}
    values = run.evaluate(state, len(run.recipe.phases) - 1)
    run.write(run.recipe.steps, "heldout", values)
    return values


def _phases(run, state, done, position, quiet):
    recipe = run.recipe
    ends = np.cumsum([phase.steps for phase in recipe.phases])
    bar = console.Progress(recipe.steps, done, quiet=quiet)
    with bar:
        for phase in range(position["phase"], len(recipe.phases)):
            if done >= ends[phase]:
                continue
            stream = setup.stream(run.config, run.corpus, phase, share=run.share)
            if position["phase"] == phase and position["stream"] is not None:
                stream.restore(position["stream"])
            elif recipe.phases[phase].continues:
                stream.follow(position["stream"])
            stream = features.kept(run.program, state.params, stream, run.workdir, run.mesh)
            state, done = _steps(run, state, done, int(ends[phase]), phase, stream=stream, bar=bar)
            position = {"phase": phase, "stream": stream.state()}
            if done < ends[phase]:
                break
    return state, done, position


def _steps(run, state, done, end, phase, *, stream, bar):
    """Runs steps of one phase, until `end` or until a process receives the signal."""
    config, batches, compiled = run.config, iter(stream), {}
    crowded = run.mesh.size > 1 and run.mesh.devices.flat[0].platform == "cpu"
    work, since, clock, metrics = run.per_token(phase), 0, time.perf_counter(), ()
    run.goodput.started()
    us = group.current()
    while done < end and not run.ended and not us.stop(done):
        run.profiler.before(done)
        with run.profiler.waiting(), run.goodput.waiting(metrics), us.arrivals.reading():
            rows = next(batches)
        batch = rules.place_batch(rows, run.mesh)
        shapes = str(
            [leaf.shape for leaf in jax.tree.leaves(batch)]
        )  # rows of a task may be shorter in one batch
        if shapes not in compiled:
            began = time.perf_counter()
            with bar.compiling(), run.goodput.losing("compiling"):
                compiled[shapes] = run.compiled(phase, state, batch, shapes)
                shared_programs.push(console.say)
            clock += time.perf_counter() - began
        with run.profiler.step(done):
            state, metrics = compiled[shapes](state, batch, run.seed)
        if crowded:  # two concurrent steps would compete for threads and deadlock
            jax.block_until_ready(metrics)
        done, since = done + 1, since + 1
        run.window.add(metrics)
        run.profiler.after(done, metrics, compiled.values())
        if (config.log_every and done % config.log_every == 0) or done == end:
            run.check_finite(done)
            values, steps, tokens = run.window.close()
            skipped = round(values.get("skipped", 0.0) * steps)
            # A clock may stand still between two readings.
            seconds, clock = max(time.perf_counter() - clock, 1e-9), time.perf_counter()
            run.tokens, run.seconds = run.tokens + tokens, run.seconds + seconds
            run.write(done, "train", values)
            real, chips = tokens * since / steps, list(run.mesh.devices.flat)
            use = devices.utilisation(work * real, seconds, chips, config.precision)
            bar.update(done, values, real / seconds, use)
            since = 0
            if skipped:
                span, before = range(done - steps + 1, done + 1), done
                state = run.after_skips(state, skipped, span, phase)
                if (done := int(state.step)) < before:
                    continue
        if (
            config.eval_every
            and done % config.eval_every == 0
            and done < run.recipe.steps
            and run.has_heldout
        ):
            values = run.evaluate(state, phase, config.eval_batches)
            run.write(done, "heldout", values)
            state = run.heard(state, values)
            run.ended |= run.watch is not None and run.watch(done, run.program, state.params)
        regular = config.save_every and done % config.save_every == 0 and done < end
        if regular or done == run.stable < run.recipe.steps:
            run.save(state, {"phase": phase, "stream": stream.state()}, done)
    return state, done
