"""What a run tells: metrics.jsonl and TensorBoard while it goes, loss.png and report.md at its end, a bar on stderr.

A line of metrics.jsonl is {"step", "split": "train" or "heldout", "values": {name: number}, "tokens", "seconds"}, with
tokens and seconds since the start of the run. A resumed run first drops the lines after its step, so that the file of a
run that was killed equals that of one that was not, timing apart. With several processes, process 0 writes.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from ptm_jax.core.errors import UserError

_FILE = "metrics.jsonl"


class MetricLog:
    """The metrics of a run, appended to WORKDIR/metrics.jsonl and to TensorBoard (WORKDIR/tensorboard)."""

    def __init__(self, workdir: str | os.PathLike, *, tensorboard: bool = True):
        self.workdir = Path(workdir)
        self._tensorboard, self._board, self._file = tensorboard, None, None
        self._step = 0

    def __enter__(self) -> MetricLog:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def resume(self, step: int) -> None:
        """Go on from `step`: lines of later steps, and a last line that was torn, are dropped."""
        self.close()
        self._step = step
        if jax.process_index():
            return
        path = self.workdir / _FILE
        try:
            kept = [json.dumps(line) + "\n" for line in read(self.workdir) if line["step"] <= step]
            self.workdir.mkdir(parents=True, exist_ok=True)
            _replace(path, "".join(kept).encode())
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise _unwritable(path, error) from error

    def write(self, step: int, split: str, values: Mapping[str, float], *, tokens: float, seconds: float) -> None:
        """Append one line; it is with the operating system when this returns, so a kill does not lose it."""
        if jax.process_index():
            return
        if self._file is None:
            self.resume(max((line["step"] for line in read(self.workdir)), default=0))
        numbers = {name: _number(value) for name, value in values.items()}
        line = {"step": step, "split": split, "values": numbers, "tokens": int(tokens), "seconds": round(seconds, 3)}
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except OSError as error:
            raise _unwritable(self.workdir / _FILE, error) from error
        board = self._writer()
        for name, value in numbers.items():
            if board is not None and value is not None:
                board.add_scalar(f"{split}/{name}", value, step)

    def find(self, step: int, split: str) -> dict[str, float] | None:
        """The values of a line that is there already, or None."""
        lines = [line for line in read(self.workdir) if (line["step"], line["split"]) == (step, split)]
        return lines[-1]["values"] if lines else None

    def close(self) -> None:
        """Close the files; `write` opens them again."""
        for file in (self._file, self._board):
            if file is not None:
                file.close()
        self._file = self._board = None

    def _writer(self):
        """TensorBoard's writer, which hides what came after the resumed step; None without tensorboardX."""
        if self._tensorboard and self._board is None:
            try:
                from tensorboardX import SummaryWriter
            except ImportError:
                self._tensorboard = False
                return None
            self._board = SummaryWriter(str(self.workdir / "tensorboard"), purge_step=self._step + 1)
        return self._board


def read(workdir: str | os.PathLike) -> Iterator[dict[str, Any]]:
    """The lines of a run's metrics.jsonl; a torn last line is left out."""
    try:
        lines = (Path(workdir) / _FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return
    for number, text in enumerate(lines):
        try:
            line = json.loads(text)
            line["step"], line["split"], line["values"]
        except (ValueError, KeyError, TypeError):
            if number + 1 < len(lines):
                say(f"line {number + 1} of {Path(workdir) / _FILE} is not readable and left out")
            continue
        yield line


def curve(
    workdir: str | os.PathLike, *, baseline: float | None = None, name: str = "unigram baseline", unit: str = "nats"
) -> Path | None:
    """Draw WORKDIR/loss.png, train and held-out loss over steps, and return its path; None where nothing is logged."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = [line for line in read(workdir) if line["values"].get("loss") is not None]
    if not lines or jax.process_index():
        return None
    figure = Figure(figsize=(7.0, 4.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    train = [(line["step"], line["values"]["loss"]) for line in lines if line["split"] == "train"]
    heldout = [(line["step"], line["values"]["loss"]) for line in lines if line["split"] == "heldout"]
    if train:
        axes.plot(*zip(*train, strict=True), color="#9ecae1", linewidth=1, label="train")
        if len(train) >= 30:
            axes.plot(*zip(*_smoothed(train), strict=True), color="#2171b5", linewidth=2, label="train, smoothed")
    if heldout:
        marker = "o" if len(heldout) <= 40 else None
        axes.plot(*zip(*heldout, strict=True), color="#d94801", marker=marker, markersize=5, label="held-out", zorder=3)
        step, loss = heldout[-1]
        axes.annotate(f"{loss:.3f}", (step, loss), (-6, 8), textcoords="offset points", ha="right", color="#d94801")
    if baseline is not None and math.isfinite(baseline):
        axes.axhline(baseline, color="#636363", linestyle="--", linewidth=1.2, label=f"{name} {baseline:.3f}")
    axes.set(xlabel="step (updates)", ylabel=f"loss ({unit})", title=Path(workdir).absolute().name)
    axes.set_xlim(left=0)
    axes.grid(color="#e5e5e5", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    path = Path(workdir) / "loss.png"
    draft = path.with_name(".loss.draft.png")
    try:
        figure.savefig(draft, metadata={"Software": "ptm_jax"})
        os.replace(draft, path)
    except OSError as error:
        raise _unwritable(path, error) from error
    return path


def _smoothed(points, share: float = 0.05):
    """A running mean over about a `share` of the points, centred, so that it does not lag behind."""
    reach, means = max(int(len(points) * share / 2), 1), []
    for middle, (step, _) in enumerate(points):
        side = min(reach, middle, len(points) - 1 - middle)
        window = points[middle - side : middle + side + 1]
        means.append((step, sum(loss for _, loss in window) / len(window)))
    return means


def report(workdir: str | os.PathLike, summary: Mapping[str, Any]) -> Path | None:
    """Write WORKDIR/report.md: the summary, the last metrics of each split, where everything is. Returns its path."""
    if jax.process_index():
        return None
    workdir = Path(workdir)
    last = {line["split"]: line for line in read(workdir)}
    rows = lambda pairs: [f"| {_cell(name)} | {_cell(value)} |" for name, value in pairs]
    text = [f"# {summary.get('system', workdir.absolute().name)}", "", "| | |", "|---|---|", *rows(summary.items())]
    for split, line in last.items():
        text += ["", f"## Last {split} metrics, step {line['step']}", "", "| metric | value |", "|---|---|"]
        text += rows((name, f"{value:.6g}" if value is not None else "") for name, value in line["values"].items())
    if (workdir / "loss.png").exists():
        text += ["", "![Loss over steps](loss.png)"]
    text += ["", "## Files", "", "| | |", "|---|---|"]
    newest = sorted((workdir / "checkpoints").glob("step_*"))[-1:]
    files = {"config": "config.json", "metrics": _FILE, "TensorBoard": "tensorboard", "tokenizer": "tokenizer"}
    there = [*((name, workdir / file) for name, file in files.items()), *(("checkpoint", path) for path in newest)]
    text += rows((name, f"`{path.relative_to(workdir)}`") for name, path in there if path.exists())
    path = workdir / "report.md"
    try:
        _replace(path, ("\n".join(text) + "\n").encode())
    except OSError as error:
        raise _unwritable(path, error) from error
    return path


def say(text: str) -> None:
    """One line on stderr, from process 0."""
    if not jax.process_index():
        print(text, file=sys.stderr, flush=True)


def bar(stage: str, done: int, total: int) -> None:
    """Progress of a stage, total 0 where its end is not known: a line that is written over, on a terminal only.

    It has the signature of `data`'s progress functions.
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
        self._first, self._start, self._said, self._bar = done, time.monotonic(), -math.inf, None

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
        """Show that `done` steps lie behind, with the metrics since the last call."""
        facts = {"loss": f"{values['loss']:.4f}"} if values.get("loss") is not None else {}
        facts["tokens/s"] = f"{tokens_per_second:,.0f}"
        if utilisation is not None:
            facts["utilisation"] = f"{utilisation:.0%}"
        step, self.done = done - self.done, done
        if self._bar is not None:
            self._bar.set_postfix(facts, refresh=False)
            self._bar.update(step)
            return
        now = time.monotonic()
        if self._quiet or (now - self._said < self._every and done < self.total):
            return
        self._said = now
        left = (now - self._start) / max(done - self._first, 1) * (self.total - done)
        described = "  ".join(f"{name} {value}" for name, value in facts.items())
        say(f"step {done}/{self.total}  {described}  {_clock(left)} left")


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _number(value: Any) -> float | None:
    """A JSON number; JSON has no word for infinities and NaN, which become null."""
    value = float(value)
    return value if math.isfinite(value) else None


def _cell(value: Any) -> str:
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return " ".join(text.split()).replace("|", "\\|")


def _replace(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(data)
    os.replace(draft, path)


def _unwritable(path: Path, error: OSError) -> UserError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    return UserError(f"cannot write {path}: {reason}; free space there or name a workdir that can be written")
