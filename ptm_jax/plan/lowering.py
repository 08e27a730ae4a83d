"""The real training step for devices that are only described: lowered, compiled, and what the compiler says of it.

The step is `train.step.Program`'s with the mesh, rules, donation and micro-batches of `train.loop`; its inputs are shapes.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType

from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten
from ptm_jax.core.system import Experiment
from ptm_jax.core.types import Vocab
from ptm_jax.mesh import tables
from ptm_jax.mesh.layout import layout_of
from ptm_jax.mesh.padding import padding_of, stored
from ptm_jax.nn.blocks import Stack
from ptm_jax.train import cache, setup
from ptm_jax.train.step import Program, TrainState, jitted, program


def published(config: Experiment) -> Experiment:
    """The experiment with its precision in every slot, and the vocabulary that its record has."""
    return setup.resolve(config, vocab_of(config))


def vocab_of(config: Experiment) -> Vocab:
    """The first vocabulary that a tower names. Raises UserError where none does."""
    for part in parts(config.system.towers):
        if isinstance(part, Vocab):
            return part
    raise UserError(f"{config.system.name} names no vocabulary; a plan needs one in one of its towers")


def parts(value: Any) -> Iterator[Any]:
    """A spec's parts, itself first, depth first."""
    yield value
    if spec.is_spec(value):
        inner = [getattr(value, name) for name in spec.field_names(value)]
    elif isinstance(value, Mapping):
        inner = list(value.values())
    else:
        inner = list(value) if isinstance(value, tuple) else []
    for part in inner:
        yield from parts(part)


def batch_of(config: Experiment, phase: int, mesh: Any = None) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes of a phase's batch, on a mesh where one is given."""
    shape = config.system.recipe.phases[phase]
    fields = config.system.examples.spec(shape.length, vocab_of(config))
    sharding = None if mesh is None else tables.batch_sharding(mesh)
    found = {
        name: jax.ShapeDtypeStruct((shape.batch, *dims), dtype, sharding=sharding)
        for name, (dims, dtype) in fields.items()
    }
    return {**found, "rows": jax.ShapeDtypeStruct((shape.batch,), jnp.int32, sharding=sharding)}


def abstract_mesh(sizes: dict[str, int]) -> AbstractMesh:
    """A mesh without devices."""
    shape = tuple(sizes.get(name, 1) for name in tables.AXES)
    return AbstractMesh(shape, tables.AXES, axis_types=(AxisType.Auto,) * len(shape))


@dataclasses.dataclass(frozen=True)
class Step:
    """A step on a mesh: its program and the shapes of its state and batch there."""

    config: Experiment
    mesh: Any
    program: Program
    state: TrainState
    batch: Any

    @functools.cached_property
    def lowered(self) -> Any:
        """The step, as `train.loop` jits it. Raises UserError for what the system refuses."""
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.state)
        step = jitted(self.program, shardings, tables.replicated(self.mesh), self.config.system.recipe.accumulate)
        with jax.set_mesh(self.mesh), setup.building(self.config.system):
            return step.lower(self.state, self.batch)

    def held(self) -> dict[str, int]:
        """Bytes of a device: `parameters` and `optimizer` (moments, counters, memories)."""
        params = sum(map(_local_bytes, jax.tree.leaves(self.state.params)))
        return {"parameters": params, "optimizer": sum(map(_local_bytes, jax.tree.leaves(self.state))) - params}


def step_of(config: Experiment, mesh: Any, phase: int, shapes: TrainState | None = None) -> Step:
    """The step of a published experiment (`published`) on a mesh. `shapes` is its state on one device, where that is known:
    a search asks for many meshes. Raises UserError where the two do not fit."""
    tables.check_batch(config.system.recipe.phases[phase].batch // config.system.recipe.accumulate, mesh)
    if shapes is not None:  # as `Program.on`
        work, state = program(config.system, config.seed), shapes
        layout = layout_of(mesh, config.rules)
        padding = padding_of(state, layout.rules, mesh)
        work = dataclasses.replace(work, layout=layout if mesh.size > 1 else None, padding=padding)
        return Step(config, mesh, work, stored(state, padding, layout.rules, mesh), batch_of(config, phase, mesh))
    with setup.building(config.system):
        work, state = program(config.system, config.seed).on(mesh, config.rules, batch_of(config, phase))
    return Step(config, mesh, work, state, batch_of(config, phase, mesh))


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What a compiler made of a step. `memory` are bytes of a device by kind; without a program (it did not fit), `needs`
    are the bytes that the compiler asked for, and `limit` what it has. `kept`: it was compiled in an earlier process; `cpu`:
    the processor's seconds that this took, then or now."""

    seconds: float
    text: str | None
    memory: dict[str, int]
    needs: int
    limit: int | None = None
    kept: bool = False
    cpu: float = 0.0


def compiled(step: Step, target: str, quick: bool = False) -> Compiled:
    """Compile a step for a target, or take what an earlier process was told of it. `quick`: with the TPU compiler's least
    effort, a sixth of its time; the messages are the same, temporaries may be more.

    JAX's own cache does not hand out programs for devices that are only described, so what the compiler said lies in a file
    of ours, under the hash of the program, the target and the compiler's version (`train.cache`). A program too large
    for its device is a result as well; other failures are raised."""
    lowered, began = step.lowered, time.perf_counter()
    version = getattr(step.mesh.devices.flat[0].client, "platform_version", "")
    options = {"exec_time_optimization_effort": -1.0} if quick else {}
    facts = (target, version, jax.__version__, *map(str, options.items()), lowered.as_text())
    name = hashlib.sha256("\n".join(facts).encode()).hexdigest()
    told = cache.read(name)
    kept = told is not None
    if told is None:
        began_cpu = time.process_time()
        told = _told(lowered, options)
        told["cpu"] = time.process_time() - began_cpu
        cache.write(name, told)
    seconds, held = time.perf_counter() - began, step.held()
    if told["text"] is None:  # where temporaries alone are too large, they are all that the compiler tells
        needs = told["needs"] + (0 if told["whole"] else sum(held.values()))
        return Compiled(seconds, None, held, needs, told["limit"], kept, told.get("cpu", 0.0))
    rest = told["needs"] - sum(held.values())
    activations = min(residuals(told["text"], step.state.params), rest)
    memory = {**held, "activations": activations, "temporaries": rest - activations}
    return Compiled(seconds, told["text"], memory, told["needs"], None, kept, told.get("cpu", 0.0))


def _told(lowered: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """What the compiler says of a program: its text, or None where it does not fit, and the bytes that it needs."""
    try:
        program = lowered.compile(dict(options))
    except jax.errors.JaxRuntimeError as error:
        found = exceeded(str(error))
        if found is None:
            raise
        return {"text": None, "needs": found[0], "limit": found[1], "whole": "HLO temporaries" not in str(error)}
    facts = program.memory_analysis()
    extra = facts.output_size_in_bytes - facts.alias_size_in_bytes
    total = facts.argument_size_in_bytes + facts.temp_size_in_bytes + extra
    return {"text": program.as_text(), "needs": total, "limit": None, "whole": True}


def residuals(text: str, params: Any) -> int:
    """Bytes that a compiled step keeps of every layer for the backward pass: the stacked results [N, ...] of its loops that
    are no gradients of stacked parameters."""
    stacked = {tuple(leaf.sharding.shard_shape(leaf.shape)) for leaf in flatten(params).values()}
    total = 0
    for line in text.splitlines():
        if (found := re.search(r"= (\(.*\)) while\(.*\bbody=%?([\w.-]+)", line)) is None:
            continue
        changed = _changed(text, found[2])
        for number, (dtype, dims) in enumerate(_shapes(found[1])):
            if number in changed and len(dims) > 2 and dims[0] > 1 and dims not in stacked and dtype[0] in "bf":
                total += math.prod(dims) * _width(dtype)
    return total


def _changed(text: str, body: str) -> set[int]:
    """Places of a loop's tuple that its body does not hand on as they are."""
    start = re.search(rf"^%?{re.escape(body)} .*\{{$", text, re.M)
    if start is None:
        return set()
    lines = text[start.end() : text.index("\n}", start.end())].splitlines()
    passed = {}
    for line in lines:
        if found := re.match(r"\s*%?([\w.-]+) = .*get-tuple-element\(.*\), index=(\d+)", line):
            passed[found[1]] = int(found[2])
    root = next((line for line in lines if line.lstrip().startswith("ROOT")), "")
    names = re.findall(r"%([\w.-]+)", root.partition(" tuple(")[2].partition(")")[0])
    return {number for number, name in enumerate(names) if passed.get(name) != number}


def _shapes(text: str) -> list[tuple[str, tuple[int, ...]]]:
    found = re.findall(r"\b(pred|bf16|f\d+|[su]\d+)\[([\d,]*)\]", text)
    return [(dtype, tuple(int(dim) for dim in dims.split(",") if dim)) for dtype, dims in found]


def _width(dtype: str) -> int:
    return 1 if dtype == "pred" else max(1, int(re.sub(r"\D", "", dtype)) // 8)


def _local_bytes(leaf: Any) -> int:
    shape = leaf.shape if leaf.sharding is None else leaf.sharding.shard_shape(leaf.shape)
    return math.prod(shape) * jnp.dtype(leaf.dtype).itemsize


def exceeded(message: str) -> tuple[int, int | None] | None:
    """(bytes asked for, bytes there are) of the compiler's complaint, or None for another one."""
    unit = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
    number = lambda found: int(float(found[0]) * unit[found[1]])
    size = r"([\d.]+)([KMGTP]?)"
    for pattern in (rf"Used {size}B? of {size}B? hbm", rf"memory required .*?\({size}B?\) exceeds .*?\({size}B?\)"):
        if used := re.search(pattern, message):
            return number(used.groups()[:2]), number(used.groups()[2:])
    return None


def with_remat(config: Experiment, remat: str) -> Experiment:
    """The experiment with every stack's activations recomputed so."""
    system = spec.respell(config.system, Stack, lambda stack: dataclasses.replace(stack, remat=remat))
    return dataclasses.replace(config, system=system)
