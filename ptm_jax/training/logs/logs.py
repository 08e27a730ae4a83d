"""Logs of a run: metrics.jsonl and other writers during the run, loss.png and report.md after it.
The writers are in `training.logs.writers`.

A line of metrics.jsonl is {"step", "split": "train" or "heldout", "values": {name: number},
"tokens", "seconds", "goodput"}. Tokens and seconds are those since the start of the run; goodput is
the share of its time in which it trained (`training.logs.goodput`). A resumed run first drops the
lines after its step, so the files of interrupted and uninterrupted runs are equal except for
timing. With several processes, process 0 writes.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ptm_jax.training import workdirs
from ptm_jax.training.logs import writers
from ptm_jax.training.logs.console import say
from ptm_jax.training.logs.figures import figure
from ptm_jax.training.logs.profile import PAGE

_FILE = "metrics.jsonl"
_NUMBERS = {int, float, type(None)}


class RunLog(contextlib.AbstractContextManager):
    """The metrics of a run: `resume` at a step and `write` lines.
    `metrics` are names of `training.logs.writers.WRITERS`."""

    def __init__(
        self, workdir: str | os.PathLike, metrics: Sequence[str] = ("tensorboard",), name: str = ""
    ):
        self.workdir, self.metrics, self.name = Path(workdir), metrics, name
        self._file, self._writers, self._step = None, None, 0

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def resume(self, step: int) -> None:
        """Resumes at `step`: drops lines of later steps and an incomplete last line."""
        self.close()
        self._step = step
        if jax.process_index():
            return
        path = self.workdir / _FILE
        with workdirs.writing(path):
            lines = [json.dumps(line) + "\n" for line in read(self.workdir) if line["step"] <= step]
            self.workdir.mkdir(parents=True, exist_ok=True)
            workdirs.replace(path, "".join(lines).encode())
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115

    def write(
        self, step: int, split: str, values: Mapping[str, float], *, tokens: float, seconds: float,
        goodput: float | None = None,
    ) -> None:  # fmt: skip
        """Appends one line and flushes it, so a kill does not lose it."""
        if jax.process_index():
            return
        if self._file is None:
            self.resume(max((line["step"] for line in read(self.workdir)), default=0))
        # JSON has no infinities and no NaN; they become null.
        numbers = {
            name: float(value) if math.isfinite(value) else None for name, value in values.items()
        }
        line = {
            "step": step,
            "split": split,
            "values": numbers,
            "tokens": int(tokens),
            "seconds": round(seconds, 3),
            **({"goodput": round(goodput, 3)} if goodput is not None else {}),
        }
        with workdirs.writing(self.workdir / _FILE):
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        if self._writers is None:
            self._writers = writers.opened(self.metrics, self.workdir, self._step, self.name)
        for writer in self._writers:
            writer.write(
                step, split, {name: value for name, value in numbers.items() if value is not None}
            )

    def close(self) -> None:
        """Closes the files. `write` opens them again."""
        for file in filter(None, (self._file, *(self._writers or ()))):
            file.close()
        self._file = self._writers = None


def read(workdir: str | os.PathLike) -> Iterator[dict[str, Any]]:
    """Yields the lines of a run's metrics.jsonl, without an incomplete last line."""
    try:
        lines = (Path(workdir) / _FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return
    for number, text in enumerate(lines):
        try:
            line = json.loads(text)
            kinds = {type(value) for value in line["values"].values()}
            if (type(line["step"]), type(line["split"])) != (int, str) or kinds - _NUMBERS:
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            if number + 1 < len(lines):
                say(f"line {number + 1} of {Path(workdir) / _FILE} is not readable and left out")
            continue
        yield line


def seconds(workdir: str | os.PathLike) -> float:
    """Returns the seconds of training in the last line of the log; 0.0 without a log."""
    return max((line.get("seconds", 0.0) for line in read(workdir)), default=0.0)


def find(workdir: str | os.PathLike, step: int, split: str) -> dict[str, float] | None:
    """Returns the values of the last line of a step and split, or None."""
    lines = [line for line in read(workdir) if (line["step"], line["split"]) == (step, split)]
    return lines[-1]["values"] if lines else None


def curve(
    workdir: str | os.PathLike,
    *,
    baseline: float | None = None,
    name: str = "baseline",
    metric: str = "loss",
) -> Path | None:
    """Draws WORKDIR/loss.png, train and held-out loss over steps.
    Returns its path, or None if nothing is logged.

    baseline  the loss of predicting frequencies, drawn as a line with the comparable `metric`. A
              metric that is only a part of the loss gets a picture of its own"""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = [line for line in read(workdir) if line["values"].get("loss") is not None]
    if not lines or jax.process_index():
        return None
    pictures = drawn_metrics(lines, metric, baseline)
    canvas = Figure(figsize=(7.0, 4.2 * len(pictures)), dpi=150, layout="constrained")
    FigureCanvasAgg(canvas)
    every = canvas.subplots(len(pictures), squeeze=False)[:, 0]
    for axes, (field, line) in zip(every, pictures.items(), strict=True):
        _picture(axes, lines, field)
        if line is not None:
            axes.axhline(
                line, color="#636363", linestyle="--", linewidth=1.2,
                label=f"{name} {figure(line)}",
            )  # fmt: skip
        axes.legend(frameon=False)
    every[0].set_title(Path(workdir).absolute().name)
    canvas.savefig(drawn := io.BytesIO(), metadata={"Software": "ptm_jax"})
    path = Path(workdir) / "loss.png"
    with workdirs.writing(path):
        workdirs.replace(path, drawn.getvalue())
    return path


def drawn_metrics(
    lines: Sequence[Mapping[str, Any]], metric: str, baseline: float | None
) -> dict[str, float | None]:
    """Returns {metric of the log: its baseline, or None} of the pictures.
    They show the loss, and `metric` if the loss has other parts too."""
    line = baseline if baseline is not None and math.isfinite(baseline) else None
    both = [
        (one["values"]["loss"], one["values"][metric])
        for one in lines
        if one["values"].get(metric) is not None
    ]
    if all(math.isclose(loss, value, rel_tol=1e-3) for loss, value in both):
        return {"loss": line if both else None}
    return {"loss": None, metric: line}


def _picture(axes: Any, lines: Sequence[Mapping[str, Any]], field: str) -> None:
    def of(split):
        return [
            (line["step"], line["values"][field])
            for line in lines
            if line["split"] == split and line["values"].get(field) is not None
        ]

    train, heldout = of("train"), of("heldout")
    if train:
        axes.plot(*zip(*train, strict=True), color="#9ecae1", linewidth=1, label="train")
        if len(train) >= 30:
            axes.plot(*_smoothed(train), color="#2171b5", linewidth=2, label="train, smoothed")
    if heldout:
        axes.plot(
            *zip(*heldout, strict=True), color="#d94801", markersize=5, label="held-out", zorder=3,
            marker="o" if len(heldout) <= 40 else None,
        )  # fmt: skip
        step, loss = heldout[-1]
        axes.annotate(
            figure(loss), (step, loss), (-6, 8), textcoords="offset points", ha="right",
            color="#d94801",
        )  # fmt: skip
    axes.set(xlabel="step (updates)", ylabel=f"{field} (nats)")
    axes.set_xlim(left=0)
    axes.grid(color="#e5e5e5", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)


def _smoothed(points, share: float = 0.05):
    """Returns a centred running mean over about a `share` of the points."""
    steps, losses = zip(*points, strict=True)
    places, sums = np.arange(len(points)), np.cumsum([0.0, *losses])
    side = np.minimum(max(int(len(points) * share / 2), 1), np.minimum(places, places[::-1]))
    return steps, (sums[places + side + 1] - sums[places - side]) / (2 * side + 1)


def report(
    workdir: str | os.PathLike,
    summary: Mapping[str, Any],
    splits: Sequence[str] = ("train", "heldout"),
) -> Path | None:
    """Writes WORKDIR/report.md: the summary, the last metrics of the splits, the run's files.
    Returns its path."""
    if jax.process_index():
        return None
    workdir = Path(workdir)
    last = {line["split"]: line for line in read(workdir) if line["split"] in splits}

    def rows(pairs):
        return [f"| {_cell(name)} | {_cell(value)} |" for name, value in pairs]

    text = [
        f"# {summary.get('system', workdir.absolute().name)}",
        "",
        "| | |",
        "|---|---|",
        *rows(summary.items()),
    ]
    for split, line in last.items():
        text += [
            "",
            f"## Last {split} metrics, step {line['step']}",
            "",
            "| metric | value |",
            "|---|---|",
        ]
        text += rows((name, figure(value)) for name, value in line["values"].items())
    if (workdir / PAGE).exists():
        text += ["", (workdir / PAGE).read_text(encoding="utf-8").rstrip()]
    if (workdir / "loss.png").exists():
        text += ["", "![Loss over steps](loss.png)"]
    text += ["", "## Files", "", "| | |", "|---|---|"]
    files = {
        "config": "config.json",
        "metrics": _FILE,
        "TensorBoard": "tensorboard",
        "tokenizer": "tokenizer",
    }
    paths = [(name, workdir / file) for name, file in files.items() if (workdir / file).exists()]
    newest = workdirs.steps_of(workdir)[-1:]
    paths += [("checkpoint", workdirs.checkpoint_of(workdir, step)) for step in newest]
    text += rows((name, f"`{path.relative_to(workdir)}`") for name, path in paths)
    path = workdir / "report.md"
    with workdirs.writing(path):
        workdirs.replace(path, ("\n".join(text) + "\n").encode())
    return path


def _cell(value: Any) -> str:
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return " ".join(text.split()).replace("|", "\\|")
