"""Models a training step from its config, without a compiler: for GPUs, and to rank meshes.

FLOPs are counted in the step's own jaxpr (`training.steps.flops`), with and without recomputation.
Memory and messages follow from the sharding of each parameter. With T tokens per device, width D,
length L, H heads, N layers and bfloat16 activations:

    messages    over `model`: an all-reduce of 2 T D bytes for each pair of column- and row-parallel
                products and direction (Shoeybi et al. 2019, section 3), and one more for attention
                if layers are recomputed; with sequence parallelism a gather and a reduce-scatter
                instead (Korthikanti et al. 2022, section 4.2.2) over `fsdp`: gathers of 2 bytes a
                parameter in both directions, a reduce-scatter of its gradient of 4 over `data` and
                `fsdp`, if they do not split a parameter: an all-reduce of its gradient
    activations T D N 2 bytes if layers are recomputed, else T D N (34 + 5 H L / D) (Korthikanti
                et al. 2022, Eq. 1), split over `model` except for 10 of the 34; for towers with
                other layers: the residuals of the forward pass's jaxpr on one device, divided by
                the parts of rows and positions
    temporaries gradients (4 bytes a parameter), a copy in bfloat16 (2), logits and the loss (12
                bytes a logit), and the activations of one layer
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator

import jax
import numpy as np

from ptm_jax.adapt.parameters import levels
from ptm_jax.core import spec
from ptm_jax.core.paths import flatten
from ptm_jax.core.system import Experiment
from ptm_jax.core.types import Batch, Vocab
from ptm_jax.mesh.axes import ParameterAxes
from ptm_jax.mesh.rules import HALF
from ptm_jax.nn.blocks import Stack
from ptm_jax.nn.stacks import stacks_in
from ptm_jax.plan.lowering import Step, batch_of, vocab_of, with_remat
from ptm_jax.training.steps.building import building
from ptm_jax.training.steps.flops import Product, products
from ptm_jax.training.steps.step import TrainState, program


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of one step, on all devices together.

    flops, model_flops   2 m n k of every product, with and without recomputed ones
    body_flops           of the latter those of products without the vocabulary
    traffic              bytes that the products read and write, without weights
    scores               number of logits over the vocabulary in the largest product
    tokens               tokens of a batch with padding
    residuals                 bytes of residuals of the forward pass; 0 if the module's formula for
                         activations applies
    shapes, axes         of the state on one device (`Program.abstract`)
    """

    flops: float
    model_flops: float
    body_flops: float
    traffic: float
    scores: float
    tokens: int
    residuals: float
    shapes: TrainState
    axes: ParameterAxes


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Messages of one kind along mesh axes: count per step, total bytes of a device's tensors.

    `hidden` is the part of the bytes that a compiled program has under way beside products; None in
    a model, which assumes it by the axes.
    """

    kind: str
    axes: tuple[str, ...]
    count: float
    bytes: float
    hidden: float | None = None


def with_rows(config: Experiment, rows: int, phase: int = 0) -> Experiment:
    """Returns the experiment with only this phase and this batch, without accumulation."""
    recipe = config.system.recipe
    shape = dataclasses.replace(recipe.phases[phase], batch=rows)
    recipe = dataclasses.replace(recipe, phases=(shape,), accumulate=1)
    return dataclasses.replace(config, system=dataclasses.replace(config.system, recipe=recipe))


def work_of(config: Experiment, phase: int) -> Work:
    """Returns the work of a step of a published experiment (`plan.lowering.published`).

    One trace has a prime number of times as many rows: a dimension that counts rows is a multiple
    of that number, and no other is.
    """
    shape = config.system.recipe.phases[phase]
    config = with_rows(config, shape.batch, phase)
    shapes, axes = abstract_of(config)
    times = next(_primes(1000, {*_sizes(shapes), *_sizes(batch_of(config, 0))}))
    many = with_rows(config, times * shape.batch)
    # The state may have the memory of each row.
    known = None if jax.tree.leaves(shapes.carry) else (shapes, axes)
    many_rows, _ = _trace(many, known)
    recomputes = any(stack.remat != "none" for stack in _stacks(config.system.towers))
    bare = _trace(with_remat(many, "none"), known)[0] if recomputes else many_rows

    def of_rows(size):
        return size % times == 0

    def alone(size):
        return size // times if of_rows(size) else size

    traced = [product.resized(alone) for product in many_rows]
    bare_ones = [product.resized(alone) for product in bare] if recomputes else traced
    vocab = vocab_of(config).size
    scores = [math.prod(p.shape) for p in traced if p.shape[-1:] == (vocab,)]
    return Work(
        flops=sum(p.times * p.flops for p in traced),
        model_flops=sum(p.times * p.flops for p in bare_ones),
        body_flops=_of_body(bare_ones, vocab),
        traffic=sum(
            p.times * width * math.prod(map(alone, shape))
            for p in many_rows
            for shape, width in p.arrays
            if any(map(of_rows, shape))
        ),
        scores=max(scores, default=0),
        tokens=shape.batch * shape.length,
        residuals=0
        if _formula_holds(config)
        else sum(
            leaf.dtype.itemsize * math.prod(map(alone, leaf.shape))
            for leaf in _kept(many)
            if any(map(of_rows, leaf.shape))
        ),
        shapes=shapes,
        axes=axes,
    )


def without_vocabulary(config: Experiment, work: Work) -> tuple[TrainState, float]:
    """Returns shapes and operations of an experiment of known work without products with the
    vocabulary.

    The shapes are those of the state of the published experiment. The products are logits, and
    their gradients to weights and input. The vocabulary gets the next size that is a prime number:
    no other tensor has it by chance.
    """
    vocab = vocab_of(config)
    size = next(_primes(vocab.size + 1))
    config = dataclasses.replace(
        config, system=spec.respell(config.system, Vocab, dataclasses.replace(vocab, size=size))
    )
    abstract = abstract_of(config)
    others = {*_sizes(abstract[0]), *_sizes(batch_of(config, 0))}
    if vocab.size not in others:
        return abstract[0], work.body_flops
    return abstract[0], _of_body(_trace(with_remat(config, "none"), abstract)[0], size)


def _of_body(traced: list[Product], vocab: int) -> float:
    """Returns the operations of products without those with the vocabulary."""
    # The gradient to the input has no vocabulary in its shape: a third of the three products of a
    # head.
    return sum(p.times * p.flops * (-0.5 if vocab in p.shape else 1.0) for p in traced)


def _sizes(tree: TrainState | Batch) -> Iterator[int]:
    """Yields the sizes of the dimensions of arrays."""
    return (size for leaf in jax.tree.leaves(tree) for size in leaf.shape)


def _primes(least: int, divided: Collection[int] = ()) -> Iterator[int]:
    """Yields the prime numbers from `least` on that divide none of the sizes `divided`."""
    for number in itertools.count(least):
        is_prime = all(number % k for k in range(2, math.isqrt(number) + 1))
        if is_prime and all(size % number for size in divided if size):
            yield number


def scaled(work: Work, times: float) -> Work:
    """Returns the work for `times` as many rows."""
    fixed = ("shapes", "axes")
    return Work(
        **{name: value if name in fixed else value * times for name, value in vars(work).items()}
    )


def abstract_of(config: Experiment) -> tuple[TrainState, ParameterAxes]:
    """Returns the shapes and the logical axes of the state of a published experiment."""
    with building(config.system):
        return program(config.system, config.seed).abstract(batch_of(config, 0))


def _trace(config, abstract=None):
    """Returns (products of the step, the result of `abstract_of`, where it is not known)."""
    abstract = abstract_of(config) if abstract is None else abstract
    with building(config.system):
        step = program(config.system, config.seed).defined().step
        return products(step, abstract[0], batch_of(config, 0)), abstract


def _kept(config: Experiment) -> list[jax.ShapeDtypeStruct]:
    """Returns the residuals of a batch's forward pass, with parameters, without logits over the
    vocabulary."""
    batch, work = batch_of(config, 0), program(config.system, config.seed).defined()

    def residuals(params, batch, carry):
        def loss(params):
            return work.evaluate(params, batch, 0, carry)[0]["loss"].value().sum()

        return jax.tree.leaves(jax.vjp(loss, params)[1])

    with building(config.system):
        state = jax.eval_shape(work.init, batch)
        leaves = jax.eval_shape(residuals, state.params, batch, state.carry)
    size = vocab_of(config).size
    return [leaf for leaf in leaves if leaf.shape[-1:] != (size,)]


def _formula_holds(config: Experiment) -> bool:
    """Returns whether every tower consists of stacks of blocks with attention."""
    for tower in config.system.towers.values():
        every = _stacks(tower)
        if not every or len(_of_attention(every)) < len(every):
            return False
    return True


def _stacks(value: object) -> list[Stack]:
    """Returns the stacks inside a value."""
    return list(stacks_in(value).values())


def _of_attention(stacks: list[Stack]) -> list[Stack]:
    """Returns the stacks of blocks with attention."""
    return [stack for stack in stacks if stack.attends]


def memory(step: Step, work: Work) -> dict[str, int]:
    """Returns bytes per device by kind."""
    mesh, shape = step.mesh.shape, step.config.system.recipe.phases[0]
    micro = step.config.system.recipe.accumulate
    ways, model = mesh["data"] * mesh["fsdp"] * mesh["seq"], _parts(step, "heads")
    tokens, length = work.tokens / ways / micro, shape.length
    activations, working = work.residuals / ways / micro, 0.0
    for stack in stacks(step.config) if not activations else ():
        width = stack.block.attention.width
        replicated = 10 / _parts(step, "positions") * mesh["seq"]
        layer = (
            tokens
            * width
            * (replicated + (24 + 5 * stack.block.attention.heads * length / width) / model)
        )
        recomputed = stack.remat != "none"
        activations += stack.layers * (
            tokens * width * 2 / _parts(step, "positions") * mesh["seq"] if recomputed else layer
        )
        working = max(working, layer if recomputed else layer / 2)
    parameters = sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape))
        for leaf in jax.tree.leaves(step.state.params)
    )
    scores = 12 * work.scores / ways / micro / _parts(step, "vocab")
    temporaries = 6 * parameters + scores + 2 * working
    return {**step.held(), "activations": int(activations), "temporaries": int(temporaries)}


def _split_axes(leaf) -> set[str]:
    """Returns the names of the mesh axes over which an array is split."""
    entries = [entry for entry in leaf.sharding.spec if entry]
    return {axis for entry in entries for axis in ((entry,) if isinstance(entry, str) else entry)}


def messages(step: Step, work: Work) -> list[Traffic]:
    """Returns the messages of a step."""
    mesh = step.mesh.shape
    traffic: dict[tuple[str, tuple[str, ...]], list[float]] = defaultdict(lambda: [0.0, 0.0])

    def add(kind, axes, count, size):
        axes = tuple(
            axis for axis in ("data", "fsdp", "seq", "model") if axis in axes and mesh[axis] > 1
        )
        if axes and size:
            before, combined = (
                traffic[kind, axes][0],
                "model" not in axes,
            )  # a layer's gradients are one message
            traffic[kind, axes][0] = max(before, count) if combined else before + count
            traffic[kind, axes][1] += count * size

    ways = mesh["data"] * mesh["fsdp"] * mesh["seq"]
    tokens, micro = work.tokens / ways, step.config.system.recipe.accumulate
    sums = 2 if step.config.rules.endswith(HALF) else 4  # bytes of a number of a gradient
    recomputed = any(stack.remat != "none" for stack in stacks(step.config))
    split = _parts(step, "positions") > mesh["seq"]
    layered = levels.stacked(step.state.params, step.config.system.towers)
    for path, leaf in flatten(step.state.params).items():
        axes = {axis for axis in _split_axes(leaf) if mesh[axis] > 1}
        if "model" in axes and (row := re.search(r"/(out|down)/kernel$", path)):
            layers = leaf.shape[0] if leaf.ndim == (4 if row[1] == "out" else 3) else 1
            times, size = micro * layers, tokens / micro * leaf.shape[-1] * 2
            again = recomputed and row[1] == "out"
            if split:
                add("all-gather", ["model"], (2 + recomputed) * times, size)
                add("reduce-scatter", ["model"], (2 + again) * times, size)
            else:
                add("all-reduce", ["model"], (2 + again) * times, size)
        size = math.prod(leaf.sharding.shard_shape(leaf.shape))
        layers = leaf.shape[0] if layered[path] else 1
        slices = [axis for axis in ("data", "fsdp") if axis in axes]
        gathered = size * math.prod(mesh[axis] for axis in slices)
        if slices:
            add("all-gather", slices, 2 * micro * layers, 2 * gathered / layers)
            add("reduce-scatter", slices, micro * layers, sums * gathered / layers)
        add(
            "all-reduce",
            [axis for axis in ("data", "fsdp") if axis not in axes],
            layers,
            sums * size / layers,
        )
    if _parts(step, "vocab") > 1:
        width = max((stack.block.attention.width for stack in stacks(step.config)), default=0)
        add("all-reduce", ["model"], micro, tokens / micro * width * 4)
        add(
            "all-reduce",
            ["model"],
            micro,
            work.scores / ways / micro / vocab_of(step.config).size * width * 2,
        )
    return [Traffic(kind, axes, count, size) for (kind, axes), (count, size) in traffic.items()]


def weights(step: Step) -> float:
    """Returns the bytes of parameters and optimizer state that a device reads and writes per step.

    Counts bfloat16 copies in each direction (and for recomputation), and the optimizer's read and
    write of the state."""
    gathered = 0.0
    for leaf in jax.tree.leaves(step.state.params):
        entries = [
            axis
            for entry in leaf.sharding.spec
            if entry
            for axis in np.ravel(entry)
            if axis not in ("data", "fsdp")
        ]
        gathered += math.prod(leaf.shape) / math.prod(step.mesh.shape[axis] for axis in entries)
    passes = 2 + any(stack.remat != "none" for stack in stacks(step.config))
    micro = step.config.system.recipe.accumulate
    return micro * gathered * (2 * passes + 4) + 2 * sum(step.held().values())


def stacks(config: Experiment) -> list[Stack]:
    """Returns the towers' stacks of blocks with attention."""
    return _of_attention(_stacks(config.system.towers))


def _parts(step: Step, name: str) -> int:
    return 1 if step.program.layout is None else step.program.layout.parts(name)
