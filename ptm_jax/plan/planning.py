"""Plans an experiment on a topology: compiled, or modelled if there is no compiler (GPUs)."""

from __future__ import annotations

import dataclasses
import math
import os
from collections import defaultdict
from typing import Any

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.system import Experiment, in_phase
from ptm_jax.mesh import rules as tables
from ptm_jax.mesh import slices
from ptm_jax.mesh.chips import GIB, Topology, devices
from ptm_jax.mesh.collectives import collectives
from ptm_jax.plan import estimate, lowering, roofline
from ptm_jax.plan.crossing import Crossing, crossing, divided
from ptm_jax.plan.estimate import Traffic, Work
from ptm_jax.plan.links import Links, fitted, links


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A step on a topology.
    Bytes, FLOPs and seconds are per device; `source` is "compiled" or "modelled"."""

    name: str
    topology: Topology
    mesh: dict[str, int]
    rules: str
    source: str
    bytes_per_device: dict[str, int]
    needs: int
    hbm_bytes: int
    flops_per_device: float
    messages: tuple[Traffic, ...]
    times: roofline.Times
    program_times: roofline.Times | None
    model_flops: float
    tokens: int
    days: float
    utilisation: float
    compile_seconds: float
    from_cache: bool = False
    cpu: float = 0.0
    advice: tuple[str, ...] = ()
    crossing: Crossing | None = None

    @property
    def fits(self) -> bool:
        return self.needs <= self.hbm_bytes

    def document(self, price: float | None = None) -> dict[str, Any]:
        """Returns the plan as a JSON document, with the cost if `price` is given.
        The price is per chip and hour."""
        count = self.topology.count
        document = {
            "fits": self.fits,
            "devices": count,
            "bytes_per_device": dict(self.bytes_per_device),
            "hbm_bytes": self.hbm_bytes,
            "flops_per_device": self.flops_per_device,
            "collectives": [
                {
                    "kind": m.kind,
                    "axis": "+".join(m.axes) or "mixed",
                    "count": m.count,
                    "bytes": m.bytes,
                    "hidden_bytes": m.hidden,
                }
                for m in self.messages
            ],
            "step_seconds": self.times.step,
            "tokens_per_second": self.tokens / self.times.step,
            "utilisation": self.utilisation,
            "compile_seconds": self.compile_seconds,
            "bytes_needed": self.needs,
            "name": self.name,
            "topology": str(self.topology),
            "mesh": self.mesh,
            "rules": self.rules,
            "source": self.source,
            "seconds": {
                **dataclasses.asdict(self.times),
                "exposed": self.times.exposed,
                "exposed_without_overlap": self.times.blocking + self.times.hideable,
            },
            "program_seconds": self.program_times
            and {**dataclasses.asdict(self.program_times), "step": self.program_times.step},
            "compile_cpu_seconds": self.cpu,
            "from_cache": self.from_cache,
            "days": self.days,
            "advice": list(self.advice),
        }
        if self.crossing is not None:
            document["between_slices"] = dataclasses.asdict(self.crossing)
        return document if price is None else {**document, "cost": self.days * 24 * count * price}


def mesh_of(config: Experiment, topology: Topology) -> dict[str, int]:
    """Returns the experiment's mesh, or the default mesh, fitted to the topology."""
    default = tables.default_sizes(config.rules, topology.count, topology.slices)
    return fitted(dict(config.mesh) or default, topology.count, topology.slices)


def rules_of(config: Experiment, mesh: dict[str, int]) -> str:
    """Returns the name of the experiment's rules without emptied axes.

    Only the parts for axes that the fitting has emptied go. Other rules without their axis stay,
    and are refused as a run refuses them (`mesh.layout.layout_of`).
    """
    names = config.rules.removesuffix(tables.HALF)
    half = config.rules.removeprefix(names)
    asked, alone = dict(config.mesh), math.prod(mesh.values()) == 1

    def lost(*axes):
        return all(mesh.get(a, 1) == 1 for a in axes) and (
            alone or any(asked.get(a, 1) > 1 for a in axes)
        )

    if lost("model") and names.startswith("megatron"):
        names = {"fsdp": "fsdp", "zero": "zero"}.get(names.rpartition("_")[2], "replicated")
    if lost("fsdp") and names.endswith("fsdp"):
        names = names.removesuffix("fsdp").rstrip("_") or "replicated"
    if lost("data", "fsdp") and names.endswith("zero"):
        names = names.removesuffix("zero").rstrip("_") or "replicated"
    return names + half


def plan(
    config: Experiment,
    topology: Topology,
    *,
    phase: int | None = None,
    efficiency: float = 1.0,
    quick: bool = False,
) -> Plan:
    """Compiles the step of an experiment for a topology, or models it for GPUs.

    Compiling needs the environment variables of `mesh.chips.environment`. Raises UserError."""
    if topology.kind == "gpu":
        return modelled(config, topology, phase=phase, efficiency=efficiency)
    config, sizes, phase = prepared(config, topology, phase)
    mesh = tables.make_mesh(sizes, devices(topology), config.rules, topology.slices)
    step = lowering.step_of(config, mesh, phase)
    work = estimate.work_of(config, phase)
    program = lowering.compiled(step, str(topology), quick and topology.kind == "tpu")
    if program.text is None:
        parts, messages, limit = (
            estimate.memory(step, work),
            estimate.messages(step, work),
            program.limit,
        )
        remaining = max(0, program.needs - parts["parameters"] - parts["optimizer"])
        parts["activations"] = min(parts["activations"], remaining)
        parts["temporaries"] = remaining - parts["activations"]
    else:
        parts, messages, limit = (
            program.memory,
            _grouped(collectives(program.text, mesh, topology.slices)),
            None,
        )
    return _plan(
        config, topology, step, work, links(topology, mesh), phase=phase,
        efficiency=efficiency,
        source="compiled", bytes_per_device=parts, needs=program.needs, limit=limit,
        messages=messages, seconds=program.seconds,
        from_cache=program.from_cache, cpu=program.cpu,
    )  # fmt: skip


def modelled(
    config: Experiment, topology: Topology, *, phase: int | None = None, efficiency: float = 1.0
) -> Plan:
    """Models the plan without a compiler (`plan.estimate`).
    Raises UserError if mesh, rules and sizes do not fit."""
    config, sizes, phase = prepared(config, topology, phase)
    return model(
        config, topology, sizes, phase, estimate.work_of(config, phase), efficiency=efficiency
    )


def model(config, topology, sizes, phase, work, *, efficiency=1.0, mesh=None) -> Plan:
    """Like `modelled`, for known work. `mesh` is a mesh with devices, if known."""
    abstract = lowering.abstract_mesh(sizes)
    step = lowering.step_of(config, abstract, phase, (work.shapes, work.axes))
    parts = estimate.memory(step, work)
    return _plan(
        config, topology, step, work, links(topology, mesh or abstract), phase=phase,
        efficiency=efficiency,
        source="modelled", bytes_per_device=parts, needs=sum(parts.values()), limit=None,
        messages=estimate.messages(step, work), seconds=0.0,
    )  # fmt: skip


def prepared(config: Experiment, topology: Topology, phase: int | None):
    """Returns (the published experiment in a phase on a fitted mesh, the mesh, the phase).
    Raises UserError for an unknown phase.

    The default phase is the one with most tokens per batch. Its changes are applied."""
    config = lowering.published(config)
    sizes = mesh_of(config, topology)
    config = dataclasses.replace(
        config,
        mesh=tuple(sizes.items()),
        rules=rules_of(config, sizes),
        slices=topology.slices,
    )
    slices.check(sizes, tables.split_axes(config.rules), config.rules, topology.slices)
    phases = config.system.recipe.phases
    if phase is None:
        phase = max(
            range(len(phases)), key=lambda number: phases[number].batch * phases[number].length
        )
    if not 0 <= phase < len(phases):
        raise UserError(
            f"there is no phase {phase}; {config.system.name} has {len(phases)}, counted from 0"
        )
    return dataclasses.replace(config, system=in_phase(config.system, phase)), sizes, phase


def _plan(
    config,
    topology,
    step,
    work: Work,
    paths: Links,
    *,
    phase,
    efficiency,
    limit,
    messages,
    seconds,
    **known,
) -> Plan:
    count = topology.count

    def timed(by_program=False):
        return roofline.times(
            paths, messages, flops=work.flops / count, traffic=work.traffic / count,
            weights=estimate.weights(step),
            precision=config.precision, efficiency=efficiency, by_program=by_program,
        )  # fmt: skip

    modelled = divided(estimate.messages(step, work), paths)
    messages = divided(messages, paths)
    times, shown = timed(), all(one.hidden is not None for one in messages)
    peak = topology.chip.float32 if config.precision == "float32" else topology.chip.bfloat16
    phases = config.system.recipe.phases
    total = phases[phase].steps * times.step
    for number, other in enumerate(phases):
        if number != phase:  # scaled by its tokens, to save a compilation
            total += other.steps * times.step * other.batch * other.length / work.tokens
    result = Plan(
        name=config.system.name,
        topology=topology,
        mesh=dict(config.mesh),
        rules=config.rules,
        hbm_bytes=limit or _capacity(topology),
        flops_per_device=work.flops / count,
        messages=tuple(messages),
        times=times,
        program_times=timed(by_program=True) if messages and shown else None,
        model_flops=work.model_flops,
        tokens=work.tokens,
        days=total / 86400,
        utilisation=work.model_flops / (times.step * count * peak),
        crossing=crossing(paths, modelled, messages) if topology.slices > 1 else None,
        compile_seconds=seconds,
        **known,
    )
    return (
        result if result.fits else dataclasses.replace(result, advice=tuple(advice(result, config)))
    )


def _capacity(topology: Topology) -> int:
    if topology.kind == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // topology.count
    return int(topology.chip.hbm)


def _grouped(collectives) -> tuple[Traffic, ...]:
    """Sums a program's collectives by kind and axes."""
    sums: dict[tuple[str, tuple[str, ...]], np.ndarray] = defaultdict(lambda: np.zeros(3))
    for one in collectives:
        size = one.count * one.bytes
        sums[one.kind, one.axes] += (one.count, size, one.hidden * size)
    return tuple(Traffic(kind, axes, *map(float, row)) for (kind, axes), row in sums.items())


def advice(failing: Plan, config: Experiment) -> list[str]:
    """Returns suggestions that make a plan fit, the largest saving first."""
    parts, recipe = failing.bytes_per_device, config.system.recipe
    held = parts["parameters"] * 2 + parts["optimizer"]  # with gradients and copies
    over = (failing.needs - failing.hbm_bytes) / GIB
    lines = [
        f"needs {failing.needs / GIB:.1f} GiB of {failing.hbm_bytes / GIB:.1f}: {over:.1f} too many"
    ]
    ways = failing.mesh.get("data", 1) * failing.mesh.get("fsdp", 1)
    rules = failing.rules.removesuffix(tables.HALF)
    sliced = rules.endswith(("fsdp", "zero"))
    activations = []
    if any(stack.remat == "none" for stack in estimate.stacks(config)):
        activations.append("recompute activations: --remat full")
    rows = recipe.phases[0].batch // recipe.accumulate // ways
    if rows > 1:
        activations.append(
            f"micro-batches: --set recipe.accumulate={recipe.accumulate * 2} (rows of a "
            f"device: {rows})"
        )
    else:
        activations.append("a longer model axis, or sequence parallelism (--rules megatron_sp)")
    state = []
    if not sliced and ways > 1:
        base = "" if rules == "replicated" else rules + "_"
        state.append(f"slice parameters and optimizer state: --rules {base}zero")
    state.append("more chips, or a longer model axis: --search tries them")
    return lines + (state + activations if 2 * held > failing.needs else activations + state)
