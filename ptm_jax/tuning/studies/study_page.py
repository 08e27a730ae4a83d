"""The results of a study: results.csv, study.md with table and fitted laws, pictures.

A run that failed or was refused is a row with its status; it is in no mean, no fit and no picture.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.training import workdirs
from ptm_jax.training.logs import logs
from ptm_jax.training.logs.figures import figure
from ptm_jax.tuning.scaling import scaling_laws
from ptm_jax.tuning.scaling.scaling_laws import Fit
from ptm_jax.tuning.studies.studies import Law, Picture, Study

COUNTS = ("parameters", "body", "steps", "tokens", "operations", "body_operations")
PRICES = ("steps", "operations", "seconds")
"""Columns whose means stand beside the metrics in the table over seeds."""
Row = Mapping[str, Any]
Groups = dict[tuple[str, ...], list[Row]]


def columns(study: Study) -> list[str]:
    return [
        "name",
        *(axis.name for axis in study.axes),
        *COUNTS,
        *study.columns,
        "baseline",
        "seconds",
        "status",
    ]


def cells(study: Study, rows: Sequence[Row]) -> list[list[str]]:
    """The cells of the table, as text."""
    return [[_cell(row.get(name), name) for name in columns(study)] for row in rows]


def _cell(value: Any, name: str) -> str:
    if value is None or isinstance(value, str):
        return (value or "").replace("|", "\\|")
    if name.endswith("operations"):
        return f"{value:.3g}"
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:.1f}"
        if name == "seconds"
        else figure(value)
    )


def write(study: Study, rows: Sequence[Row], workdir: Path, command: str) -> Path:
    """Writes results.csv, the pictures and study.md. Returns the path of the page."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns(study), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    failed = [row for row in rows if row["status"] != "done"]
    page = [
        f"# Study {study.name}",
        "",
        f"`{command}`",
        "",
        _budget(study),
        "",
        *([study.remark, ""] if study.remark else []),
    ]
    page += _markdown(columns(study)[1:], [line[1:] for line in cells(study, rows)])
    page += (
        ["", f"{len(failed)} of {len(rows)} runs have no result; `status` has the reason.", ""]
        if failed
        else [""]
    )
    page += [
        *_methods(study),
        *_seeds(study, rows),
        *_published(study, rows),
        *_curves(study, rows, workdir),
    ]
    for number, picture in enumerate(study.pictures):
        page += _picture(study, picture, rows, workdir, f"picture_{number}.png")
    for number, law in enumerate(study.laws):
        page += _law(study, law, rows, workdir, f"law_{number}.png")
    with workdirs.writing(workdir):
        workdirs.replace(workdir / "results.csv", text.getvalue().encode())
        workdirs.replace(workdir / "study.md", ("\n".join(page).rstrip() + "\n").encode())
    return workdir / "study.md"


def _budget(study: Study) -> str:
    if study.budget is None:
        return "Steps are those of the recipe."
    amount = (
        "its axis"
        if any(axis.name == "budget" for axis in study.axes)
        else f"{study.budget.amount:.3g}"
    )
    return (
        f"Every run has equal {study.budget.kind}: {amount}. Operations are 2 m n k of every "
        "product of the real step."
    )


def _markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    return [
        "| " + " | ".join(header) + " |",
        "|" + " --- |" * len(header),
        *("| " + " | ".join(line) + " |" for line in lines),
    ]


def _methods(study: Study) -> list[str]:
    """The table that describes the values of a compression axis."""
    values = [
        (label, value)
        for axis in study.axes
        if axis.name == "compression"
        for label, value in axis.labelled.items()
    ]
    lines = [
        [label, f"`{value.methods}`", value.losses] for label, value in values if value is not None
    ]
    return (
        ["## Methods", "", *_markdown(["compression", "method", "loss"], lines), ""]
        if lines
        else []
    )


def _picture(
    study: Study, picture: Picture, rows: Sequence[Row], workdir: Path, name: str
) -> list[str]:
    """A column over another: a point for each label, the mean of its runs, with the deviation over
    them."""
    groups: dict[str, list[tuple[float, float]]] = {}
    for row in done(rows):
        if row.get(picture.x) is not None and row.get(picture.y) is not None:
            groups.setdefault(row[picture.by], []).append((row[picture.x], row[picture.y]))
    if not groups:
        return []
    canvas, axes = _axes()
    for label, points in groups.items():
        x, y = np.mean(points, 0)
        spread = np.std([value for _, value in points], ddof=1) if len(points) > 1 else 0.0
        axes.errorbar(x, y, yerr=spread, fmt="o", markersize=5, linewidth=1.0)
        axes.annotate(label, (x, y), xytext=(4, 3), textcoords="offset points", fontsize=6)
    axes.set(
        xlabel=picture.x,
        ylabel=picture.y,
        title=study.name,
        xscale="log" if picture.log else "linear",
    )
    return _saved(canvas, axes, workdir, name, f"{picture.y} over {picture.x}", legend=False)


def done(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["status"] == "done"]


def _seeds(study: Study, rows: Sequence[Row]) -> list[str]:
    """The table of means and standard deviations (n - 1) over the axis of seeds."""
    others, groups = _without_seeds(study, rows)
    if len(others) == len(study.axes):
        return []
    lines = []
    for labels, group in groups.items():
        values = [
            [row[metric] for row in group if row.get(metric) is not None]
            for metric in study.columns
        ]
        spread = [
            f"{np.mean(v):.4f} ± {np.std(v, ddof=1):.4f}" if len(v) > 1 else figure(*v or (None,))
            for v in values
        ]
        prices = [_cell(_mean(group, name), name) for name in PRICES]
        lines.append([*labels, str(len(group)), *spread, *prices])
    header = [*others, "seeds", *study.columns, *PRICES]
    return ["## Over seeds", "", *_markdown(header, lines), ""]


def _without_seeds(study: Study, rows: Sequence[Row]) -> tuple[list[str], Groups]:
    """(axes without the seed, {their labels: the runs that are done})."""
    names = [axis.name for axis in study.axes if axis.name != "seed"]
    groups: Groups = {}
    for row in done(rows):
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return names, groups


def _mean(rows: Sequence[Row], name: str) -> float | None:
    """The mean of a column in the column's type, or None if no run has it."""
    values = [row[name] for row in rows if row.get(name) is not None]
    return type(values[0])(np.mean(values)) if values else None


def _published(study: Study, rows: Sequence[Row]) -> list[str]:
    """The table of published figures and ours: the mean of the runs with these labels."""
    lines = []
    for one in study.published:
        fits = [
            row
            for row in done(rows)
            if all(row[name] == label for name, label in one.labels.items())
        ]
        measured = [row[one.measure] for row in fits if row.get(one.measure) is not None]
        mean = f"{figure(float(np.mean(measured)))} ({len(measured)})" if measured else ""
        lines.append(
            [
                ", ".join(one.labels.values()),
                one.measure,
                mean,
                figure(one.value),
                one.source,
                one.differs,
            ]
        )
    if not lines:
        return []
    header = ["runs", "measure", "here (runs)", "published", "source", "what differs there"]
    return ["## Published figures", "", *_markdown(header, lines), ""]


def _curves(study: Study, rows: Sequence[Row], workdir: Path) -> list[str]:
    """The picture of the training losses of the runs that are done, in a colour for the seeds of
    one run."""
    metric = study.metrics[0] if study.metrics[0].endswith("nll") else "loss"
    canvas, axes = _axes()
    _, groups = _without_seeds(study, rows)
    for number, (labels, group) in enumerate(groups.items()):
        style = {"color": f"C{number % 10}", "linestyle": ("-", "--", ":")[number // 10 % 3]}
        label = ", ".join(labels) or study.name
        for row in group:
            read = logs.read(workdir / "runs" / row["name"])
            lines = [line for line in read if line["split"] == "train"]
            losses = [line["values"].get(metric) for line in lines]
            work = [line["step"] * row["operations"] / row["steps"] for line in lines]
            if losses and None not in losses:
                axes.plot(work, losses, linewidth=1.0, label=label, **style)
                label = "_"
    if not axes.get_lines():
        return []
    axes.set(xlabel="operations", ylabel="training loss (nats)", title=study.name, xscale="log")
    return _saved(canvas, axes, workdir, "curves.png", "Training losses", legend=len(groups) <= 12)


def laws(
    study: Study, law: Law, rows: Sequence[Row]
) -> list[tuple[str, list[Row], list[Row], Fit | str]]:
    """Returns the fitted law of each label of `law.by`.

    [(label, runs of the fit, runs that are held out, the fit or why there is none)].
    """
    fits, groups = [], {}
    for row in done(rows):
        groups.setdefault(row[law.by] if law.by else "all runs", []).append(row)
    for label, group in groups.items():
        group = sorted(group, key=lambda row: row["operations"])
        fitted, held = group[: len(group) - law.hold], group[len(group) - law.hold :]
        try:
            losses = [row[law.metric] for row in fitted]
            made = scaling_laws.fit(law.form, variables(law, fitted), losses, draws=law.draws)
        except (UserError, KeyError) as error:
            made = f"no column {error} in the table" if isinstance(error, KeyError) else str(error)
        fits.append((label, fitted, held, made))
    return fits


def variables(law: Law, rows: Sequence[Row]) -> np.ndarray:
    """The form's variables of the rows, [R, K]."""
    return np.array(
        [[row[name] for name in law.form.variables] for row in rows], np.float64
    ).reshape(len(rows), len(law.form.variables))


def _law(study: Study, law: Law, rows: Sequence[Row], workdir: Path, picture: str) -> list[str]:
    kind, names = type(law.form).__name__, ", ".join(law.form.variables)
    page = [f"## {kind} law of {law.metric} over {names}", ""]
    fits = laws(study, law, rows)
    lines, predictions = [], []
    for label, fitted, held, made in fits:
        if isinstance(made, str):
            lines.append([label, str(len(fitted)), "", "", "", made])
            continue
        for name, value in made.constants.items():
            low, high = made.intervals.get(name, (math.nan, math.nan))
            lines.append(
                [
                    label,
                    str(made.points),
                    name,
                    f"{value:.4g}",
                    f"{low:.4g} to {high:.4g}",
                    f"{made.error:.2%}",
                ]
            )
        for row, value in zip(
            held, made.predict(variables(law, held)) if held else (), strict=True
        ):
            difference = value / row[law.metric] - 1
            predictions.append(
                [
                    label,
                    row["name"],
                    figure(float(value)),
                    figure(row[law.metric]),
                    f"{difference:+.2%}",
                ]
            )
    page += [*_markdown(["runs", "count", "constant", "fit", "95% interval", "error"], lines), ""]
    if predictions:
        page += [
            "Held out of the fit:",
            "",
            *_markdown(["runs", "run", "predicted", "measured", "difference"], predictions),
            "",
        ]
    return page + (
        _drawn(law, fits, workdir, picture) if any(isinstance(one[3], Fit) for one in fits) else []
    )


def _drawn(law: Law, fits: Sequence[Any], workdir: Path, picture: str) -> list[str]:
    """The picture of the laws: runs over the first variable, and the law's line for each value of
    the others."""
    canvas, axes = _axes()
    for number, (label, fitted, held, made) in enumerate(fits):
        if isinstance(made, str):
            continue
        color = f"C{number}"
        x = variables(law, [*fitted, *held])
        for place, others in enumerate(np.unique(x[:, 1:], axis=0)):
            line = x[(x[:, 1:] == others).all(1)]
            line = line[np.argsort(line[:, 0])]
            legend = {"label": f"{label}, fit"} if place == 0 else {}
            axes.plot(
                line[:, 0],
                made.predict(line),
                color=color,
                linewidth=1.2,
                marker="_",
                markersize=9,
                **legend,
            )

        def at(rows):
            return (variables(law, rows)[:, 0], [row[law.metric] for row in rows])

        axes.plot(*at(fitted), "o", color=color, markersize=5)
        if held:
            axes.plot(
                *at(held),
                "o",
                color=color,
                markersize=7,
                fillstyle="none",
                label=f"{label}, held out",
            )
    axes.set(
        xlabel=law.form.variables[0],
        ylabel=f"held-out {law.metric} (nats)",
        xscale="log",
        yscale="log",
    )
    return _saved(canvas, axes, workdir, picture, "The law and its runs", legend=True)


def _axes() -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(7.0, 4.2), dpi=150, layout="constrained")
    FigureCanvasAgg(canvas)
    return canvas, canvas.add_subplot()


def _saved(
    canvas: Any, axes: Any, workdir: Path, name: str, title: str, *, legend: bool
) -> list[str]:
    axes.grid(color="#e5e5e5", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_yscale() == "log":  # less than a decade: plain numbers
        for set_formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            set_formatter(lambda value, _: f"{value:g}")
    if legend:
        axes.legend(frameon=False, fontsize=7)
    canvas.savefig(drawn := io.BytesIO(), metadata={"Software": "ptm_jax"})
    with workdirs.writing(workdir / name):
        workdirs.replace(workdir / name, drawn.getvalue())
    return [f"![{title}]({name})", ""]
