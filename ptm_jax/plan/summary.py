"""Formats plans as text and plots scaling curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ptm_jax.mesh.chips import GIB
from ptm_jax.tuning.studies.planned_runs import dollars


def text(plan: Mapping[str, Any], price: float | None = None) -> str:
    """Returns the text of a plan's document for `ptm plan`."""
    mesh = ",".join(f"{axis}={size}" for axis, size in plan["mesh"].items())
    how = "compiled" if plan["source"] == "compiled" else "modelled (no compiler for GPUs)"
    held, limit, needs = plan["bytes_per_device"], plan["hbm_bytes"], plan["bytes_needed"]
    lines = [
        f"{plan['name']} on {plan['topology']} ({plan['devices']} devices), mesh {mesh}, "
        f"rules {plan['rules']}: {how}"
    ]
    lines.append("memory of a device")
    lines += [f"  {kind:<12} {_size(size):>10}" for kind, size in held.items()]
    verdict = "fits" if plan["fits"] else "DOES NOT FIT"
    lines.append(
        f"  {'total':<12} {_size(needs):>10} of {_size(limit)} ({needs / limit:.0%}): {verdict}"
    )
    lines += [f"  {line}" for line in plan["advice"]]
    lines.append(f"operations of a device {plan['flops_per_device']:.3e} a step")
    if plan["collectives"]:
        lines.append("messages of a device in a step")
        lines += map(_message, plan["collectives"])
    if between := plan.get("between_slices"):
        lines.append(
            f"a chip sends {_size(between['bytes'])} to other slices in a step (by arithmetic "
            f"{_size(between['modelled_bytes'])}): {between['seconds'] * 1e3:.1f} ms at "
            f"{between['rate'] / 1e9:.3g} GB/s"
        )
    seconds = plan["seconds"]
    parts = ", ".join(
        f"{name} {seconds[name] * 1e3:.1f}" for name in ("products", "memory", "weights", "exposed")
    )
    lines += [
        f"step {plan['step_seconds'] * 1e3:.1f} ms at least ({parts}; communication not overlapped "
        f"{seconds['exposed_without_overlap'] * 1e3:.1f})",
        f"tokens/s {plan['tokens_per_second']:,.0f}, utilisation {plan['utilisation']:.1%}, "
        f"days {plan['days']:{'.2f' if plan['days'] >= 0.1 else '.2g'}} at least",
    ]
    lines += _overlap(plan)
    if "measured_step_seconds" in plan:
        few = ", ".join(
            f"{seconds * 1e3:.1f} of {rows} rows" for rows, seconds in plan["measured_rows"].items()
        )
        lines.append(
            f"step {plan['measured_step_seconds'] * 1e3:.1f} ms on this device, by steps of "
            f"fewer rows (ms: {few})"
        )
    if price is not None:
        cost = dollars(plan["cost"])
        lines.append(f"cost at least {cost} dollars at {price:g} for a chip and hour")
    if plan["compile_seconds"]:
        how = (
            "an earlier compilation, read"
            if plan["from_cache"]
            else "compiled"
            if plan["fits"]
            else "refused"
        )
        lines.append(f"{how} in {plan['compile_seconds']:.1f} s")
    return "\n".join(lines)


def _overlap(plan: Mapping[str, Any]) -> list[str]:
    """Returns the line of a step with the overlap of its program, if it was compiled."""
    if not plan["program_seconds"]:
        return []
    hidden, size = (sum(m[k] for m in plan["collectives"]) for k in ("hidden_bytes", "bytes"))
    milliseconds = plan["program_seconds"]["step"] * 1e3
    return [
        f"step {milliseconds:.1f} ms with the program's overlap: {hidden / size:.0%} of the bytes "
        "are under way beside products"
    ]


def _message(message: Mapping[str, Any]) -> str:
    """Returns the line of a message, with the share of its bytes that a compiled program sends
    beside products."""
    line = (
        f"  {message['kind']:<19} over {message['axis']:<10} {message['count']:>6.0f} times  "
        f"{_size(message['bytes']):>10}"
    )
    if message["hidden_bytes"] is None or not message["bytes"]:
        return line
    return f"{line}  {message['hidden_bytes'] / message['bytes']:>4.0%} beside products"


def ranking(plans: Sequence[Mapping[str, Any]], limit: int = 20) -> str:
    """Returns the table of a search."""
    lines = [
        f"{'mesh':<32} {'rules':<18} {'memory':>10} {'fits':>5} {'step ms':>9} "
        f"{'utilisation':>12}  source"
    ]
    for plan in plans[:limit]:
        mesh = ",".join(f"{axis}={size}" for axis, size in plan["mesh"].items())
        size, fits = _size(plan["bytes_needed"]), "yes" if plan["fits"] else "no"
        step, use = plan["step_seconds"] * 1e3, plan["utilisation"]
        lines.append(
            f"{mesh:<32} {plan['rules']:<18} {size:>10} {fits:>5} {step:>9.1f} {use:>12.1%}  "
            f"{plan['source']}"
        )
    if len(plans) > limit:
        lines.append(f"and {len(plans) - limit} more (--json has them all)")
    if plans and not plans[0]["fits"]:
        lines += ["none of them fits; of the first:", *(f"  {line}" for line in plans[0]["advice"])]
    return "\n".join(lines)


def curve(
    points: Sequence[tuple[int, float]],
    path: str,
    title: str,
    more: Mapping[str, Sequence] | None = None,
) -> None:
    """Plots (chips, share of ideal) to a file; `more` are other curves by name."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for name, series in {title: points, **(more or {})}.items():
        axes.plot([x for x, _ in series], [100 * y for _, y in series], marker="o", label=name)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("chips")
    axes.set_ylabel("weak scaling, % of one chip's rate")
    axes.set_ylim(0, 110)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)


def _size(size: float) -> str:
    for unit, scale in (("GiB", GIB), ("MiB", 2**20)):
        if size >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size / 1024:.1f} KiB"
