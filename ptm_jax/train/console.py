"""Output of a run on stderr, by process 0: lines, a bar for data preparation, and the progress of training."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from typing import Any

import jax

from ptm_jax.core.figures import figure


def say(text: str) -> None:
    """Prints a line on stderr in process 0."""
    if not jax.process_index():
        print(text, file=sys.stderr, flush=True)


def bar(stage: str, done: int, total: int) -> None:
    """Shows the progress of a stage on a terminal, in a line that is overwritten. `total` is 0 if it is unknown.

    A progress function of `data.text.sources`.
    """
    if sys.stderr.isatty() and not jax.process_index():
        share = f" {done / total:4.0%}" if total else f" {done:,}" if done else ""
        end = "\n" if total and done >= total else ""
        print(f"\r\x1b[K{stage}{share}", end=end, file=sys.stderr, flush=True)


class Progress:
    """Steps, loss, tokens/s, utilisation and time left on stderr: a bar on a terminal, else a line every `seconds`."""

    def __init__(self, total: int, done: int = 0, *, quiet: bool = False, seconds: float = 10.0):
        self.total, self.done, self._every = total, done, seconds
        self._quiet = quiet or jax.process_index() > 0
        self._first, self._start, self._shown, self._bar = done, time.monotonic(), -math.inf, None

    def __enter__(self) -> Progress:
        if not self._quiet and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=self.total, initial=self.done, unit="step", dynamic_ncols=True, file=sys.stderr)
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(
        self, done: int, values: Mapping[str, float], tokens_per_second: float, utilisation: float | None = None
    ) -> None:
        """Shows that `done` steps are finished, with the metrics since the last call."""
        facts = {"loss": figure(values["loss"])} if values.get("loss") is not None else {}
        facts["tokens/s"] = f"{tokens_per_second:,.0f}"
        if utilisation is not None:
            facts["utilisation"] = f"{utilisation:.0%}"
        step, self.done = done - self.done, done
        if self._bar is not None:
            self._bar.set_postfix(facts, refresh=False)
            self._bar.update(step)
            return
        now = time.monotonic()
        if self._quiet or (now - self._shown < self._every and done < self.total):
            return
        self._shown = now
        left = (now - self._start) / max(done - self._first, 1) * (self.total - done)
        described = "  ".join(f"{name} {value}" for name, value in facts.items())
        say(f"step {done}/{self.total}  {described}  {_clock(left)} left")


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
