"""Ranks meshes and rules for an experiment on a topology.
Models all of them and compiles the best."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from ptm_jax.core.errors import UserError
from ptm_jax.core.system import Experiment
from ptm_jax.mesh import rules as tables
from ptm_jax.mesh.chips import Topology, devices
from ptm_jax.plan import estimate, planning
from ptm_jax.plan.planning import Plan

WAYS = 64
"""Longest model axis."""


def candidates(count: int, slices: int = 1) -> Iterator[tuple[dict[str, int], str]]:
    """Yields (mesh, rules) for every split of the chips into `data`, `fsdp` and `model`.
    Of several slices each holds the same part of `data`."""
    if slices > 1:
        for sizes, rules in candidates(count // slices):
            if "data" not in tables.split_axes(rules):
                yield {**sizes, "data": sizes["data"] * slices}, rules
        return
    divisors = [size for size in range(1, count + 1) if count % size == 0]
    for model in (size for size in divisors if size <= WAYS):
        replicas = count // model
        prefixes = ("megatron", "megatron_sp") if model > 1 else ("",)
        for prefix in prefixes:

            def join(name, prefix=prefix):
                return f"{prefix}_{name}" if prefix else name

            yield {"data": replicas, "model": model}, prefix or "replicated"
            if replicas > 1:
                yield {"data": replicas, "model": model}, join("zero")
            for fsdp in (
                size
                for size in divisors
                if size > 1 and replicas % size == 0 and size in (8, 16, 64, replicas)
            ):
                yield {"data": replicas // fsdp, "fsdp": fsdp, "model": model}, join("fsdp")


SPARE = 4
"""Compiled plans that may turn out not to fit, because modelled memory is slightly below the
compiler's."""


def search(
    config: Experiment,
    topology: Topology,
    *,
    phase: int | None = None,
    efficiency: float = 1.0,
    best: int = 1,
    quick: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> list[Plan]:
    """Returns plans by step time, those that fit first.

    With a compiler, compiles plans in this order until `best` of them fit, at most `best + SPARE`.
    `quick` uses the compiler's least effort. Raises UserError if the experiment fits no mesh."""
    config, _, phase = planning.prepared(config, topology, phase)
    work = estimate.work_of(config, phase)
    targets = devices(topology) if topology.kind == "tpu" else None
    results, reason = [], ""
    for sizes, rules in candidates(topology.count, topology.slices):
        here = dataclasses.replace(config, mesh=tuple(sizes.items()), rules=rules)
        try:
            mesh = None
            if targets is not None:
                mesh = tables.make_mesh(sizes, targets, rules, topology.slices)
            results.append(
                (
                    planning.model(
                        here, topology, sizes, phase, work, efficiency=efficiency, mesh=mesh
                    ),
                    here,
                )
            )
        except (
            UserError,
            NotImplementedError,
        ) as error:  # NotImplementedError: no such axis on this torus
            reason = str(error)
    if not results:
        raise UserError(f"no mesh of {topology} can take {config.system.name}: {reason}")
    results.sort(
        key=lambda pair: (not pair[0].fits, pair[0].times.step if pair[0].fits else pair[0].needs)
    )
    say(f"{len(results)} meshes and rules modelled; compiling the best {best}")
    if topology.kind == "gpu":
        return [plan for plan, _ in results]
    tried: list[Plan] = []
    while (
        len(tried) < len(results)
        and sum(plan.fits for plan in tried) < best
        and len(tried) < best + SPARE
    ):
        here = results[len(tried)][1]
        tried.append(planning.plan(here, topology, phase=phase, efficiency=efficiency, quick=quick))
    plans = tried + [plan for plan, _ in results[len(tried) :]]
    return sorted(
        plans, key=lambda plan: (not plan.fits, plan.source != "compiled", plan.times.step)
    )
