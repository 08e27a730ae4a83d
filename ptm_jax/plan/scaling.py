"""Weak scaling: chips and rows grow together; efficiency is the share of one chip's rate that is
left.

`family` is Megatron-LM's study (Shoeybi et al. 2019, section 5.1): 1.2, 2.5, 4.2 and 8.3 billion
parameters divided over 1, 2, 4 and 8 chips with 8 rows of 1,024 tokens, then the largest with more
rows, to 64 times as many. Efficiency is the FLOP/s of a chip (without recomputation) over those of
the 1.2 billion on one chip. All points are modelled by `plan.roofline`.

Columns: `paper` is Megatron-LM's (77% on 8 GPUs, 76% on 512); `v100` is the same formula on the
paper's machine, with the measured rate of its one GPU (39 TFLOP/s, 30% of its peak), as a check of
the formula. `megatron` divides like the paper; `best` is the fastest mesh and rules that fit for
the same model and rows; `8 rows a chip` is the same with the rows of the first chip on every chip
(the paper's 512 GPUs: one row each).
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptm_jax.core.errors import UserError
from ptm_jax.core.system import Experiment
from ptm_jax.mesh import chips
from ptm_jax.mesh.chips import Topology
from ptm_jax.plan import estimate, planning, summary
from ptm_jax.plan.planning import Plan
from ptm_jax.plan.search import candidates
from ptm_jax.systems.survey import pods

ROWS = 8
PAPER = {8: 0.77, 512: 0.76}
"""Chips: efficiency in the paper (section 5.1)."""

MEASURED = 39e12
V100 = dataclasses.replace(
    next(chip for chip in chips.CHIPS if chip.name == "v100"), bfloat16=MEASURED
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """One model on a number of chips.

    `rate` is FLOP/s per chip; `*_efficiency` is relative to one chip.
    """

    system: str
    chips: int
    mesh: dict[str, int]
    step_seconds: float
    rate: float
    efficiency: float
    best_mesh: dict[str, int]
    best_rules: str
    best_step_seconds: float
    best_efficiency: float
    wide_efficiency: float
    wide_mesh: dict[str, int]
    wide_rules: str
    v100_efficiency: float
    paper: float | None


def family(where: Topology) -> list[Point]:
    """Megatron-LM's sizes on 1, 2, 4 and 8 chips, then the largest with 2, 4, ... times the rows up
    to the topology."""
    if where.count < 8:
        raise UserError(f"the scaling study begins with 1 to 8 chips; {where} has {where.count}")
    groups = [(name, ways, 1) for name, ways in pods.FAMILY]
    name, ways = pods.FAMILY[-1]
    copies = 2
    while ways * copies <= where.count:
        groups.append((name, ways, copies))
        copies *= 2
    points: list[Point] = []
    base = None
    for name, ways, copies in groups:
        config = estimate.with_rows(pods.experiment(name), ROWS * copies)
        if copies == 1:
            one = estimate.work_of(planning.prepared(config, _slice(where, 1), 0)[0], 0)
        work = estimate.scaled(one, copies)
        mesh = {axis: size for axis, size in (("data", copies), ("model", ways)) if size > 1} or {
            "data": 1
        }
        slice_, gpus = _slice(where, ways * copies), Topology(V100, (ways * copies,))
        rules = "megatron_sp" if ways > 1 else "replicated"
        ours = _point(config, slice_, mesh, rules, work)
        old = _point(config, gpus, mesh, "megatron" if ways > 1 else "replicated", work)
        best = min(_all(config, slice_, work), key=lambda plan: plan.times.step, default=ours)
        wide = estimate.with_rows(config, ROWS * slice_.count)
        full = min(
            _all(wide, slice_, estimate.scaled(one, slice_.count)),
            key=lambda plan: plan.times.step,
            default=best,
        )

        def rate(plan):
            return plan.model_flops / plan.times.step / plan.topology.count

        base = base or (rate(ours), rate(old), rate(best))
        points.append(
            Point(
                system=name,
                chips=slice_.count,
                mesh=mesh,
                step_seconds=ours.times.step,
                rate=rate(ours),
                efficiency=rate(ours) / base[0],
                best_mesh=best.mesh,
                best_rules=best.rules,
                best_step_seconds=best.times.step,
                best_efficiency=rate(best) / base[2],
                wide_efficiency=rate(full) / base[2],
                wide_mesh=full.mesh,
                wide_rules=full.rules,
                v100_efficiency=rate(old) / base[1],
                paper=PAPER.get(slice_.count),
            )
        )
    return points


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strong:
    """The largest model with equal rows on a number of chips, by the fastest mesh.

    `speedup` is over the fewest chips that hold it, `efficiency` that speedup over the ratio of
    chips.
    """

    system: str
    chips: int
    mesh: dict[str, int]
    rules: str
    step_seconds: float
    speedup: float
    efficiency: float


def strong(where: Topology, rows: int = 512) -> list[Strong]:
    """Strong scaling of 8.3 billion parameters: 512 rows of 1,024 tokens, the paper's batch, on 8
    chips and more."""
    (name, ways), points = pods.FAMILY[-1], []
    config = estimate.with_rows(pods.experiment(name), rows)
    one = estimate.work_of(planning.prepared(config, _slice(where, 1), 0)[0], 0)
    count = ways
    while count <= where.count:
        fastest = min(
            _all(config, _slice(where, count), one), key=lambda plan: plan.times.step, default=None
        )
        if fastest is not None:
            first = points[0] if points else None
            speedup = first.step_seconds / fastest.times.step if first else 1.0
            share = speedup * first.chips / count if first else 1.0
            points.append(Strong(
                system=name, chips=count, mesh=fastest.mesh, rules=fastest.rules,
                step_seconds=fastest.times.step,
                speedup=speedup, efficiency=share,
            ))  # fmt: skip
        count *= 2
    return points


def tried(where: Topology, rows: int = 512) -> list[Plan]:
    """The plans of 8.3 billion parameters on the whole topology, the fastest of each rules, and
    with the rows' tokens on two chips (the axis `seq`)."""
    config = estimate.with_rows(pods.experiment(pods.FAMILY[-1][0]), rows)
    one = estimate.work_of(planning.prepared(config, _slice(where, 1), 0)[0], 0)
    fastest: dict[str, Plan] = {}
    for plan in sorted(_all(config, where, one), key=lambda plan: plan.times.step):
        fastest.setdefault(plan.rules, plan)
    split = _point(config, where, {"data": where.count // 2, "seq": 2}, "zero", one)
    return sorted([*fastest.values(), split], key=lambda plan: plan.times.step)


def curve(config: Experiment, where: Topology, phase: int | None = None) -> list[tuple[int, float]]:
    """Returns (chips, efficiency) of a config, from the fewest chips for its `model` x `seq`.

    Rows grow with the chips.
    """
    config, sizes, phase = planning.prepared(config, where, phase)
    ways = sizes.get("model", 1) * sizes.get("seq", 1)
    rows = config.system.recipe.phases[phase].batch // (where.count // ways)
    rates, copies = [], 1
    work = estimate.work_of(estimate.with_rows(config, max(1, rows), phase), 0)
    while ways * copies <= where.count:
        slice_ = _slice(where, ways * copies)
        here, sizes, _ = planning.prepared(
            estimate.with_rows(config, max(1, rows) * copies, phase), slice_, 0
        )
        plan = planning.model(here, slice_, sizes, 0, estimate.scaled(work, copies))
        rates.append((slice_.count, plan.tokens / plan.times.step / slice_.count))
        copies *= 2
    return [(count, rate / rates[0][1]) for count, rate in rates]


def _slice(where: Topology, count: int) -> Topology:
    """Returns a topology with `count` of the chips. It fills the last axis of a torus first, so 8
    chips are one ring."""
    if not where.chip.torus:
        return Topology(where.chip, (count,))
    shape, left = [], count
    for size in reversed(where.shape):
        shape.append(min(size, left))
        left = -(-left // shape[-1])
    return Topology(where.chip, tuple(reversed(shape)))


def _point(
    config: Experiment, where: Topology, mesh: dict[str, int], rules: str, work: Any
) -> Plan:
    config = dataclasses.replace(config, mesh=tuple(mesh.items()), rules=rules)
    config, sizes, phase = planning.prepared(config, where, 0)
    return planning.model(config, where, sizes, phase, work)


def _all(config: Experiment, where: Topology, work: Any) -> list[Plan]:
    plans = []
    for mesh, rules in candidates(where.count):
        try:
            plans.append(_point(config, where, mesh, rules, work))
        except UserError:  # does not divide
            continue
    return [plan for plan in plans if plan.fits]


COLUMNS = (
    "size",
    "chips",
    "mesh",
    "step ms",
    "TFLOP/s",
    "megatron",
    "best",
    "by",
    "8 rows a chip",
    "by",
    "v100",
    "paper",
)


def rows(points: Sequence[Point]) -> list[tuple[str, ...]]:
    """Returns the cells of the table."""
    return [
        (
            point.system,
            str(point.chips),
            _words(point.mesh),
            f"{point.step_seconds * 1e3:.0f}",
            f"{point.rate / 1e12:.0f}",
            f"{point.efficiency:.0%}",
            f"{point.best_efficiency:.0%}",
            f"{_words(point.best_mesh)} {point.best_rules}",
            f"{point.wide_efficiency:.0%}",
            f"{_words(point.wide_mesh)} {point.wide_rules}",
            f"{point.v100_efficiency:.0%}",
            f"{point.paper:.0%}" if point.paper else "",
        )
        for point in points
    ]


STRONG = ("size", "chips", "mesh", "rules", "step ms", "speed-up", "efficiency")


def strong_rows(points: Sequence[Strong]) -> list[tuple[str, ...]]:
    """Returns the cells of the table of strong scaling."""
    return [
        (
            point.system, str(point.chips), _words(point.mesh), point.rules,
            f"{point.step_seconds * 1e3:.0f}",
            f"{point.speedup:.1f}", f"{point.efficiency:.0%}",
        )
        for point in points
    ]  # fmt: skip


def strong_markdown(points: Sequence[Strong]) -> str:
    """Returns the section of strong scaling."""
    table = [
        "| " + " | ".join(row) + " |"
        for row in (STRONG, ("---",) * len(STRONG), *strong_rows(points))
    ]
    head = [
        "## Strong scaling",
        "",
        *(strong.__doc__ or "").split("\n"),
        "Each line has the fastest mesh that fits.",
        "",
    ]
    return "\n".join([*head, *table, ""])


def tried_markdown(plans: Sequence[Plan]) -> str:
    """Returns the section of where the time of a step goes, by rules."""
    parts = ("products", "weights", "blocking", "hideable", "exposed")
    lines = [("mesh", "rules", "step ms", *parts), ("---",) * (3 + len(parts))]
    for plan in plans:
        figures = [operator.attrgetter(name)(plan.times) for name in ("step", *parts)]
        lines.append((_words(plan.mesh), plan.rules, *(f"{1e3 * value:.0f}" for value in figures)))
    rows = round(plans[0].tokens / 1024)
    head = [
        f"## Where a step goes on {plans[0].topology.count} chips, {rows} rows", "",
        "Milliseconds by part (`plan.roofline`): products, reading and writing of "
        "parameters, messages between products,",
        "messages beside products, and what of all messages is exposed. Each line is the "
        "fastest mesh of its rules.", "",
    ]  # fmt: skip
    return "\n".join([*head, *("| " + " | ".join(line) + " |" for line in lines), ""])


def _words(mesh: dict[str, int]) -> str:
    return ",".join(f"{axis}={size}" for axis, size in mesh.items() if size > 1) or "1 chip"


def markdown(points: Sequence[Point], where: Topology, picture: str | None) -> str:
    """Returns the page: method (from the module's docstring), constants and table."""
    chip, old = where.chip, V100
    constants = [
        f"{chip.name}: {chip.bfloat16 / 1e12:.0f} TFLOP/s bfloat16, "
        f"{chip.hbm_rate / 1e9:.0f} GB/s of HBM, "
        f"{chip.link / 1e9:.0f} GB/s in each direction of each of {chip.torus} x 2 links",
        f"v100: {old.bfloat16 / 1e12:.0f} TFLOP/s as measured by the paper, "
        f"{old.hbm_rate / 1e9:.0f} GB/s, "
        f"{old.link / 1e9:.0f} GB/s each way within a host of {old.host}, "
        f"{old.network / 1e9:.2f} GB/s a GPU between hosts",
    ]
    lines = [
        f"# Modelled weak scaling of Megatron-LM's GPT-2, 1 to {points[-1].chips} chips ({where})",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + " --- |" * len(COLUMNS),
        *("| " + " | ".join(row) + " |" for row in rows(points)),
        "",
        *([f"![weak scaling]({Path(picture).name})", ""] if picture else []),
        "Written by `ptm plan --scaling --table FILE` or `ptm reproduce megatron`, "
        f"--topology {where}.",
        "It is a model, not a measurement.",
        "",
        *(__doc__ or "").strip().splitlines()[2:],
        "",
        *(f"- {line}" for line in constants),
        "",
    ]
    return "\n".join(lines)


def plot(points: Sequence[Point], where: Topology, path: str) -> None:
    """Plots the curves of the table."""

    def column(name):
        return [(p.chips, vars(p)[name]) for p in points if vars(p)[name] is not None]

    others = {
        f"{where.chip.name}, best mesh": column("best_efficiency"),
        f"{where.chip.name}, best mesh, 8 rows a chip": column("wide_efficiency"),
        "v100, same formula": column("v100_efficiency"),
        "Megatron-LM, measured": [(1, 1.0), *column("paper")],
    }
    summary.curve(column("efficiency"), path, f"{where.chip.name}, divided like the paper", others)
