"""The profile of some steps of a run: a trace for xprof, and a table of the dearest operations."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax

from ptm_jax.core.errors import UserError
from ptm_jax.training import workdirs
from ptm_jax.training.logs import console, dearest

FOLDER = "profile"
PAGE = "profile.md"


def steps_of(text: str) -> tuple[int, int]:
    """Returns (first, last) of FIRST:LAST. Raises UserError."""
    parsed = re.fullmatch(r"(\d+):(\d+)", text)
    if parsed is None:
        raise UserError(f"--profile takes the first and the last step, as in 20:25; given {text!r}")
    return int(parsed[1]), int(parsed[2])


class Profiler:
    """Traces steps FIRST to LAST of a run. Each process writes its own trace.

    span  (first, last), or None: nothing is traced. Raises UserError for other pairs
    """

    def __init__(self, workdir: Path, span: tuple[int, int] | None):
        self.workdir, self.span = workdir, span
        self._on, self._began = False, 0
        if span is not None and not 1 <= span[0] <= span[1]:
            raise UserError(
                f"profile is {span}; it must be the first and the last step, counted from 1"
            )

    def before(self, done: int) -> None:
        """Begins the trace before its first step. `done` is the number of finished steps."""
        if self.span is not None and not self._on and self.span[0] <= done + 1 <= self.span[1]:
            jax.profiler.start_trace(self.workdir / FOLDER)
            self._on, self._began = True, done + 1

    def step(self, done: int) -> contextlib.AbstractContextManager[Any]:
        """Marks a step."""
        if not self._on:
            return contextlib.nullcontext()
        return jax.profiler.StepTraceAnnotation(dearest.STEP, step_num=done + 1)

    def waiting(self) -> contextlib.AbstractContextManager[Any]:
        """Marks the time in which rows are awaited."""
        if not self._on:
            return contextlib.nullcontext()
        return jax.profiler.TraceAnnotation(dearest.INPUT)

    def after(self, done: int, metrics: object, programs: Iterable[Callable[..., Any]]) -> None:
        """Ends the trace after its last step; then process 0 prints and writes its table."""
        if self._on and done >= self.span[1]:
            jax.block_until_ready(metrics)
            self.close()
            if not jax.process_index():
                self._report(done, [program.as_text() for program in programs])

    def close(self) -> None:
        """Ends the trace, if there is one."""
        if self._on:
            self._on = False
            jax.profiler.stop_trace()

    def _report(self, done: int, texts: list[str]) -> None:
        folder = self.workdir / FOLDER
        trace = dearest.read(folder)
        if not trace.events:
            console.say(f"the profile is in {folder}; it names no operations")
            return
        summary = dearest.summarised(trace, dearest.merged(texts))
        for line in dearest.lines(summary, self._began, done):
            console.say(line)
        console.say(f"  the trace is in {folder}: xprof --logdir {folder}")
        page = dearest.markdown(summary, self._began, done)
        with workdirs.writing(self.workdir / PAGE):
            workdirs.replace(self.workdir / PAGE, page.encode())
