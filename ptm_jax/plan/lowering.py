"""Lowers and compiles the real training step for the devices of a topology.
Reads the compiler's memory and messages.

The step is that of `training.steps.step.Program`, with the mesh, rules, donation and micro-batches
of `training.loop`. Its inputs are shapes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import math
import os
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh

from ptm_jax.core import facts, spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten
from ptm_jax.core.system import Experiment
from ptm_jax.core.types import Vocab
from ptm_jax.kernels import integers, program_cache
from ptm_jax.mesh import rules
from ptm_jax.mesh.axes import ParameterAxes
from ptm_jax.mesh.layout import layout_of
from ptm_jax.mesh.padding import padding_of, stored
from ptm_jax.nn.blocks import Stack
from ptm_jax.training.start import differing
from ptm_jax.training.steps.building import building
from ptm_jax.training.steps.step import Program, TrainState, argument, jitted, program

if TYPE_CHECKING:
    from ptm_jax.core.types import Params


def published(config: Experiment) -> Experiment:
    """Returns the experiment with vocabulary, precision and `impl` in every slot.
    Corpus facts have stand-ins."""
    resolved = differing.resolve(config, vocab_of(config))
    return dataclasses.replace(resolved, system=facts.stand_ins(resolved.system, vocab_of(config)))


def vocab_of(config: Experiment) -> Vocab:
    """Returns the first vocabulary in a tower. Raises UserError if there is none."""
    for _, part in spec.walk(config.system.towers):
        if isinstance(part, Vocab):
            return part
    raise UserError(
        f"{config.system.name} names no vocabulary; a plan needs one in one of its towers"
    )


def batch_of(
    config: Experiment, phase: int, mesh: Mesh | AbstractMesh | None = None
) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes of a phase's batch, sharded if a mesh is given."""
    shape = config.system.recipe.phases[phase]
    fields = config.system.examples.batch_spec(shape.length, vocab_of(config))
    sharding = None if mesh is None else rules.batch_sharding(mesh)
    shapes = {
        name: jax.ShapeDtypeStruct((shape.batch, *dims), dtype, sharding=sharding)
        for name, (dims, dtype) in fields.items()
    }
    return {**shapes, "rows": jax.ShapeDtypeStruct((shape.batch,), jnp.int32, sharding=sharding)}


def abstract_mesh(sizes: dict[str, int]) -> AbstractMesh:
    """Returns a mesh without devices."""
    shape = tuple(sizes.get(name, 1) for name in rules.AXES)
    return AbstractMesh(shape, rules.AXES, axis_types=(AxisType.Auto,) * len(shape))


@dataclasses.dataclass(frozen=True)
class Step:
    """A step on a mesh: its program and the shapes of its state and batch there."""

    config: Experiment
    mesh: Mesh
    program: Program
    state: TrainState
    batch: Any

    @functools.cached_property
    def lowered(self) -> Any:
        """The lowered step, jitted as in `training.loop`.
        Raises UserError if the system refuses it."""
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.state)
        step = jitted(
            self.program,
            shardings,
            rules.replicated(self.mesh),
            self.config.system.recipe.accumulate,
        )
        # One chip has no layout from which kernels for a CPU would see that it is none.
        platforms = {device.platform for device in self.mesh.devices.flat}
        here = contextlib.nullcontext() if platforms == {"cpu"} else integers.portable()
        with jax.set_mesh(self.mesh), building(self.config.system), here:
            return step.lower(self.state, self.batch, argument(self.config.seed))

    def held(self) -> dict[str, int]:
        """Returns bytes per device of `parameters` and `optimizer`.
        The optimizer has moments, counters, memories."""
        params = sum(map(_local_bytes, jax.tree.leaves(self.state.params)))
        return {
            "parameters": params,
            "optimizer": sum(map(_local_bytes, jax.tree.leaves(self.state))) - params,
        }


def step_of(
    config: Experiment,
    mesh: Mesh | AbstractMesh,
    phase: int,
    known: tuple[TrainState, ParameterAxes] | None = None,
) -> Step:
    """Returns the step of a published experiment (`published`) on a mesh.

    `known` is the result of `Program.abstract`, to save time in a search. Raises UserError if
    experiment and mesh do not fit."""
    rules.check_batch(
        config.system.recipe.phases[phase].batch // config.system.recipe.accumulate, mesh
    )
    if known is not None:  # as `Program.on`
        work, (state, axes) = program(config.system, config.seed), known
        layout = layout_of(mesh, config.rules)
        padding = padding_of(state, axes, layout.rules, mesh)
        local = isinstance(mesh, jax.sharding.AbstractMesh) or mesh.devices.flat[0] in jax.devices()
        alone = (
            mesh.size == 1 and local
        )  # one chip of a topology needs the layout, which chooses its kernels
        work = dataclasses.replace(work, layout=None if alone else layout, padding=padding)
        return Step(
            config,
            mesh,
            work,
            stored(state, padding, axes, layout.rules, mesh),
            batch_of(config, phase, mesh),
        )
    with building(config.system):
        work, state = program(config.system, config.seed).on(
            mesh, config.rules, batch_of(config, phase)
        )
    return Step(config, mesh, work, state, batch_of(config, phase, mesh))


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A compiled step.

    text     the program, or None if it does not fit
    memory   bytes per device by kind
    needs    total bytes that the compiler asks for
    limit    bytes of the device, if the program does not fit
    from_cache   whether an earlier process compiled it
    cpu      CPU seconds of the compilation
    """

    seconds: float
    text: str | None
    memory: dict[str, int]
    needs: int
    limit: int | None = None
    from_cache: bool = False
    cpu: float = 0.0


def compiled(step: Step, target: str, quick: bool = False) -> Compiled:
    """Compiles a step for a target, or reads the result of an earlier process.

    `quick` uses the compiler's least effort, a sixth of the time. The messages are the same;
    temporaries may be larger.

    JAX's cache does not return programs for topologies, so results are kept in files, by the hash
    of the program, the target and the compiler's version (`kernels.program_cache`). Also returns a
    result for a program that does not fit its device. Raises other failures."""
    lowered, began = step.lowered, time.perf_counter()
    version = step.mesh.devices.flat[0].client.platform_version
    options = {"exec_time_optimization_effort": -1.0} if quick else {}
    flags = os.environ.get("LIBTPU_INIT_ARGS", "")
    facts = (
        target,
        version,
        *([flags] if flags else []),
        jax.__version__,
        *map(str, options.items()),
        lowered.as_text(),
    )
    name = hashlib.sha256("\n".join(facts).encode()).hexdigest()
    result = program_cache.read(name)
    cached = result is not None
    if result is None:
        began_cpu = time.process_time()
        result = _compile(lowered, options)
        result["cpu"] = time.process_time() - began_cpu
        program_cache.write(name, result)
    seconds, held = time.perf_counter() - began, step.held()
    if result["text"] is None:  # if temporaries exceed the device, the compiler reports only them
        needs = result["needs"] + (0 if result["whole"] else sum(held.values()))
        return Compiled(seconds, None, held, needs, result["limit"], cached, result.get("cpu", 0.0))
    working = result["needs"] - sum(held.values())
    activations = min(residuals(result["text"], step.state.params), working)
    memory = {**held, "activations": activations, "temporaries": working - activations}
    return Compiled(
        seconds, result["text"], memory, result["needs"], None, cached, result.get("cpu", 0.0)
    )


def _compile(lowered: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the program's text (None if it does not fit) and the bytes that it needs."""
    try:
        program = lowered.compile(dict(options))
    except jax.errors.JaxRuntimeError as error:
        excess = exceeded(str(error))
        if excess is None:
            raise
        return {
            "text": None,
            "needs": excess[0],
            "limit": excess[1],
            "whole": "HLO temporaries" not in str(error),
        }
    facts = program.memory_analysis()
    extra = facts.output_size_in_bytes - facts.alias_size_in_bytes
    total = facts.argument_size_in_bytes + facts.temp_size_in_bytes + extra
    return {"text": program.as_text(), "needs": total, "limit": None, "whole": True}


def residuals(text: str, params: Params) -> int:
    """Returns the bytes that a compiled step keeps for the backward pass.

    Counts the stacked results [N, ...] of its loops over layers, except for gradients of stacked
    parameters."""
    stacked = {tuple(leaf.sharding.shard_shape(leaf.shape)) for leaf in flatten(params).values()}
    total = 0
    for line in text.splitlines():
        if (loop := re.search(r"= (\(.*\)) while\(.*\bbody=%?([\w.-]+)", line)) is None:
            continue
        changed = _changed(text, loop[2])
        for number, (dtype, dims) in enumerate(_shapes(loop[1])):
            if (
                number in changed
                and len(dims) > 2
                and dims[0] > 1
                and dims not in stacked
                and dtype[0] in "bf"
            ):
                total += math.prod(dims) * _width(dtype)
    return total


def _changed(text: str, body: str) -> set[int]:
    """Returns the indices of a loop's tuple that its body changes."""
    start = re.search(rf"^%?{re.escape(body)} .*\{{$", text, re.M)
    if start is None:
        return set()
    lines = text[start.end() : text.index("\n}", start.end())].splitlines()
    passed = {}
    for line in lines:
        if element := re.match(r"\s*%?([\w.-]+) = .*get-tuple-element\(.*\), index=(\d+)", line):
            passed[element[1]] = int(element[2])
    root = next((line for line in lines if line.lstrip().startswith("ROOT")), "")
    names = re.findall(r"%([\w.-]+)", root.partition(" tuple(")[2].partition(")")[0])
    return {number for number, name in enumerate(names) if passed.get(name) != number}


def _shapes(text: str) -> list[tuple[str, tuple[int, ...]]]:
    shapes = re.findall(r"\b(pred|bf16|f\d+|[su]\d+)\[([\d,]*)\]", text)
    return [(dtype, tuple(int(dim) for dim in dims.split(",") if dim)) for dtype, dims in shapes]


def _width(dtype: str) -> int:
    return 1 if dtype == "pred" else max(1, int(re.sub(r"\D", "", dtype)) // 8)


def _local_bytes(leaf: Any) -> int:
    shape = leaf.shape if leaf.sharding is None else leaf.sharding.shard_shape(leaf.shape)
    return math.prod(shape) * jnp.dtype(leaf.dtype).itemsize


def exceeded(message: str) -> tuple[int, int | None] | None:
    """Parses an out-of-memory message to (bytes needed, bytes of the device).
    Returns None for other messages."""
    unit = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}

    def number(quantity):
        return int(float(quantity[0]) * unit[quantity[1]])

    size = r"([\d.]+)([KMGTP]?)"
    for pattern in (
        rf"Used {size}B? of {size}B? hbm",
        rf"memory required .*?\({size}B?\) exceeds .*?\({size}B?\)",
    ):
        if used := re.search(pattern, message):
            return number(used.groups()[:2]), number(used.groups()[2:])
    return None


def with_remat(config: Experiment, remat: str) -> Experiment:
    """Returns the experiment with this value of `remat` in every stack."""
    system = spec.respell(
        config.system, Stack, lambda stack: dataclasses.replace(stack, remat=remat)
    )
    return dataclasses.replace(config, system=system)
