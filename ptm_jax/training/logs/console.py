"""Output of process 0 on stderr: lines, a bar for data preparation, progress of training."""

from __future__ import annotations

import contextlib
import math
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from ptm_jax.training.logs.figures import figure


def say(text: str) -> None:
    """Prints a line on stderr in process 0; on a terminal in place of the line of progress."""
    if not jax.process_index():
        print(f"\r\x1b[K{text}" if sys.stderr.isatty() else text, file=sys.stderr, flush=True)


def bar(stage: str, done: int, total: int) -> None:
    """Shows the progress of a stage on a terminal, in a line that is overwritten.
    `total` is 0 if it is unknown.

    A progress function of `data.text.sources`.
    """
    if sys.stderr.isatty() and not jax.process_index():
        share = f" {done / total:4.0%}" if total else f" {done:,}" if done else ""
        end = "\n" if total and done >= total else ""
        print(f"\r\x1b[K{stage}{share}", end=end, file=sys.stderr, flush=True)


class Progress:
    """Steps, loss, tokens/s, utilisation and time left on stderr.
    A terminal has a line that is overwritten, other outputs a line every `seconds`. The time left
    is estimated from the steps so far, without `compiling`."""

    def __init__(self, total: int, done: int = 0, *, quiet: bool = False, seconds: float = 10.0):
        self.total, self.done, self._every = total, done, seconds
        self._quiet = quiet or jax.process_index() > 0
        self._terminal = not self._quiet and sys.stderr.isatty()
        self._first, self._start, self._shown = done, time.monotonic(), -math.inf
        self._compiled: int | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._terminal:
            print(file=sys.stderr)

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Shows that the training step is being compiled.
        This time does not count for the time left."""
        began = time.monotonic()
        if self._terminal:
            self._draw("compiling")
        elif not self._quiet and self._compiled != self.done:  # once for all shapes of a step
            say(f"step {self.done}/{self.total}  compiling")
        self._compiled = self.done
        try:
            yield
        finally:
            self._start += time.monotonic() - began

    def update(
        self,
        done: int,
        values: Mapping[str, float],
        tokens_per_second: float,
        utilisation: float | None = None,
    ) -> None:
        """Shows that `done` steps are finished, with the metrics since the last call.

        Tokens are real ones, without padding; `utilisation` is the share of the device's rate of
        products that the model's operations on them reach."""
        facts = {"loss": figure(values["loss"])} if values.get("loss") is not None else {}
        facts["tokens/s"] = f"{tokens_per_second:,.0f}"
        if utilisation is not None:
            facts["utilisation"] = f"{utilisation:.0%}"
        now, self.done = time.monotonic(), done
        if self._quiet or (
            not self._terminal and now - self._shown < self._every and done < self.total
        ):
            return
        self._shown = now
        left = (now - self._start) / max(done - self._first, 1) * (self.total - done)
        texts = [*(f"{name} {value}" for name, value in facts.items()), f"{_clock(left)} left"]
        if self._terminal:
            self._draw(*texts)
        else:
            say("  ".join([f"step {done}/{self.total}", *texts]))

    def _draw(self, *texts: str) -> None:
        """Overwrites the line of a terminal: the step, a bar as wide as there is room, and the
        texts; where they have no room, without the last but one."""
        head, columns = f"step {self.done}/{self.total} ", shutil.get_terminal_size().columns - 1
        text = "  ".join(texts)
        if len(texts) > 1 and len(head) + 1 + len(text) > columns:
            return self._draw(*texts[:-2], texts[-1])
        room = max(0, min(30, columns - len(head) - len(text) - 1))
        filled = round(room * self.done / self.total)
        line = f"{head}{'━' * filled}{'╌' * (room - filled)} {text}"
        print(f"\r\x1b[K{line[:columns]}", end="", file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
