"""Reads the collectives of a compiled program from the text of its optimized HLO.

    compiled = jax.jit(work.step).lower(state, batch).compile()
    for found in collectives(compiled.as_text(), mesh):
        print(found.kind, found.axes, found.count, found.bytes)

Supports the text of every backend: plain and asynchronous forms, the TPU compiler's chains of
fusions (a message that begins in one, goes on in fusions with products and ends in another), and
groups by number, by iota and by mesh. Reads the trip count of loops from their attributes (CPU,
GPU) or their condition (TPU); a loop of unknown length counts once. Recognises the TPU compiler's
reduce-scatter, a fusion around an all-reduce.

The TPU compiler's program for several slices is that of one slice. It divides a collective whose
group spans slices into collectives inside the slice and a transfer through the hosts, a `send` with
the kind of the collective, which has the axes `BETWEEN`.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from typing import Literal, get_args

import numpy as np
from jax.sharding import AbstractMesh, Mesh

from ptm_jax.mesh.instructions import Instruction, bytes_of, multiplies, program, trips

Kind = Literal[
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
]
Phase = Literal["forward", "backward", "recomputed", "other"]

KINDS = get_args(Kind)
BETWEEN = ("slices",)
"""The axes of a message that goes between slices alone."""


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective instruction of the program.

    kind         an entry of KINDS
    axes         the mesh axes of its groups of devices; () if the groups do not follow mesh axes;
                 `BETWEEN` if each group has one device of each slice, and the program is a slice's
    group        number of devices in a group
    count        runs per step, the product of `loops`
    bytes        size of the whole tensor per run and device: the result of an all-gather, else the
                 operand; several tensors are summed. A ring moves (group - 1) / group of it per
                 device, an all-reduce twice that, a permutation all
    loops        trip counts of the loops around it, outermost first
    shapes       result types, as "bf16[8192,3072]"
    phase        "forward", "backward", "recomputed" (rematerialised in the backward pass), or
                 "other" (corruption, optimizer, metrics); from `name`
    name         JAX's name of the operation
    overlapped   whether the compiler replaced a reduce-scatter or all-gather and its product by a
                 loop of permutations that overlap with partial products. It counts as the original
                 collective
    hidden       share of its bytes that are under way beside a product: 1 for an asynchronous pair
                 with a product between start and end, and for a part of a fusion with a product; 0
                 for others. Of a loop of permutations it is the share that has a product beside it
    """

    kind: Kind
    axes: tuple[str, ...]
    group: int
    count: int
    bytes: int
    loops: tuple[int, ...] = ()
    shapes: tuple[str, ...] = ()
    phase: Phase = "other"
    name: str = ""
    overlapped: bool = False
    hidden: float = 0.0


def collectives(text: str, mesh: Mesh | AbstractMesh, slices: int = 1) -> list[Collective]:
    """Returns the collectives of an optimized HLO module, in the order of the program.

    `mesh` is the mesh of the compilation, or {axis: size}. Devices are numbered in its order, in a
    program for one of several `slices` those of the slice."""
    sizes = dict(mesh if isinstance(mesh, Mapping) else mesh.shape)
    part = math.prod(sizes.values()) // slices
    if slices > 1 and f"num_partitions={part}," in text.partition("\n")[0]:
        sizes["data"] //= slices
    computations, entry = program(text)
    results, parts = [], _Parts()
    for instruction, kind, loops, window, hidden in _walk(computations, entry, ()):
        if instruction.opcode == "send":
            results.append(_between(instruction, kind, loops, slices))
            parts.begins(instruction, None, hidden)
            continue
        devices = _group(instruction.text, math.prod(sizes.values()))
        pairs = kind == "collective-permute"
        axes = _axes(devices, sizes, pairs)
        group = math.prod(sizes[axis] for axis in axes) if pairs else len(devices[0])
        name = instruction.operation()
        shapes = _results(instruction)
        size = sum(bytes_of(shape) for shape in shapes)
        if window:  # all permutations of the loop, and the one after it, have the product's name
            loops = loops[:-1]
            kind, size = {"rs": "reduce-scatter", "ag": "all-gather"}[window], size * group
        if parts.continues(instruction, pairs and (name, loops), hidden):
            continue
        parts.begins(instruction, window and (name, loops), hidden)
        if not window and kind == "reduce-scatter" and instruction.opcode != "all-reduce":
            # the result is a part of the tensor; an all-reduce inside a fusion has the whole tensor
            size *= group
        phase, count = _phase(name), math.prod(loops)
        results.append(
            Collective(kind, axes, group, count, size, loops, shapes, phase, name, bool(window))
        )
    results = [
        dataclasses.replace(one, hidden=float(np.mean(flags)))
        for one, flags in zip(results, parts.flags, strict=True)
    ]
    return [one for one in results if one.group > 1]


class _Parts:
    """The instructions that are parts of one message: the permutations of a loop with a product,
    and the TPU compiler's chains of fusions. `flags` has, for each part, whether a product runs
    beside it; of a chain, whether one runs beside any."""

    def __init__(self):
        self.flags: list[list[bool]] = []
        self._loops: dict[tuple[str, tuple[int, ...]], list[bool]] = {}
        self._chains: dict[str, list[bool]] = {}

    def continues(self, instruction: Instruction, loop, hidden: bool) -> bool:
        """Adds a part to its message; returns whether there is one."""
        chain = _chain(instruction)
        if chain in self._chains:
            self._chains[chain][0] |= hidden
        elif loop in self._loops:
            self._loops[loop].append(hidden)
        return chain in self._chains or loop in self._loops

    def begins(self, instruction: Instruction, loop, hidden: bool) -> None:
        """Adds a message, whose loop or chain may have more parts."""
        self.flags.append([hidden])
        if chain := _chain(instruction):
            self._chains[chain] = self.flags[-1]
        if loop:
            self._loops[loop] = self.flags[-1]


def _chain(instruction: Instruction) -> str | None:
    chain = re.search(r'channel_id=(\d+).*\bchain_id="\w+"', instruction.text)
    return chain and chain[1]


def _between(
    instruction: Instruction, kind: Kind, loops: tuple[int, ...], slices: int
) -> Collective:
    """Returns the transfer between slices that a `send` begins."""
    target = re.search(r'_xla_megascale_target="\{([\d,:]+)\}', instruction.text)
    group = slices
    if target:  # as {1,2} or {1:4}
        ends = [list(map(int, part.split(":"))) for part in target[1].split(",")]
        group = sum(end[-1] - end[0] + 1 for end in ends)
    shapes, name = _results(instruction)[:1], instruction.operation()
    size, count = sum(map(bytes_of, shapes)), math.prod(loops)
    return Collective(kind, BETWEEN, group, count, size, loops, shapes, _phase(name), name)


def _walk(
    computations, name, loops, window=None
) -> Iterator[tuple[Instruction, Kind, tuple[int, ...], str | None, bool]]:
    """Yields every collective with its kind, the loops around it, the kind of the windowed product
    around it, and whether products run beside it."""
    for number, instruction in enumerate(computations.get(name, ())):
        opcode = instruction.opcode
        if opcode == "while":
            body, condition = instruction.attribute("body"), instruction.attribute("condition")
            inner = re.search(r"windowed_dot_general_body_(rs|ag)", body)
            around = (*loops, trips(instruction, computations, condition))
            yield from _walk(computations, body, around, inner[1] if inner else None)
        elif opcode == "conditional":
            branches = re.search(r"branch_computations=\{([^}]*)\}", instruction.text)
            named = branches[1].replace("%", "").split(",") if branches else ()
            named = [part.strip() for part in named] or map(
                instruction.attribute, ("true_computation", "false_computation")
            )
            for branch in named:
                yield from _walk(computations, branch, loops, window)
        elif opcode in ("fusion", "async-start"):
            inside = instruction.attribute("calls")
            opcodes = [part.opcode for part in computations.get(inside, ())]
            scatters = "all-reduce" in opcodes and any(
                code.startswith("dynamic-slice") for code in opcodes
            )
            hidden = (
                multiplies(instruction, computations)
                if opcode == "fusion"
                else _beside(computations, name, number)
            )
            for part, kind, around, inner, _ in _walk(computations, inside, loops, window):
                if not part.operation():
                    text = f'{part.text}, op_name="{instruction.operation()}"'
                    part = part._replace(text=text)
                yield (
                    part,
                    "reduce-scatter" if scatters and kind == "all-reduce" else kind,
                    around,
                    inner,
                    hidden,
                )
        elif opcode == "call":
            yield from _walk(computations, instruction.attribute("to_apply"), loops, window)
        elif opcode == "send" and (
            kind := re.search(r'_xla_megascale_transfer_type="(\w+)"', instruction.text)
        ):
            kind = kind[1].lower().replace("_", "-")
            kind = kind if kind in KINDS else "collective-permute"
            yield instruction, kind, loops, window, _beside(computations, name, number)
        elif opcode.removesuffix("-start") in KINDS:
            hidden = opcode.endswith("-start") and _beside(computations, name, number)
            yield instruction, opcode.removesuffix("-start"), loops, window, hidden


def _beside(computations, name: str, number: int) -> bool:
    """Returns whether a product stands between an asynchronous start and its end.

    The instructions are in the order in which they run. The end is the last of the instructions
    that take the start, or an update of it, as an operand; a tuple that carries it to the next run
    of a loop is none. The transfer of a `send` between slices ends with the `recv-done` of its
    rendezvous: its `send-done` waits for the host alone.
    """
    start, *after = computations[name][number:]
    taken, products = {start.name}, False
    if start.opcode == "send" and (key := re.search(r'_rendezvous="[^"]*"', start.text)):
        taken = {one.name for one in after if one.opcode == "recv" and key[0] in one.text}
    for instruction in after:
        if taken.isdisjoint(instruction.operands):
            products = products or multiplies(instruction, computations)
            continue
        if instruction.opcode.endswith("-done"):
            return products
        taken.add(instruction.name)
    return False


def _results(instruction: Instruction) -> tuple[str, ...]:
    """Returns the types of the results.
    The type of an asynchronous start lists its operands first."""
    shapes = re.findall(r"\b[a-z]+\d*[a-z0-9]*\[[\d,]*\]", instruction.type)
    if instruction.opcode in ("all-gather-start", "collective-permute-start"):
        shapes = [shape for shape in shapes if shape not in ("u32[]", "s32[]")]
        shapes = shapes[len(shapes) // 2 :]
    return tuple(shapes)


def _group(attributes: str, count: int) -> list[list[int]]:
    """Returns the groups of devices, or the (source, target) pairs of a permutation."""
    listed = re.search(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{} ]*\})\}", attributes)
    if listed:
        return [
            [int(i) for i in group.split(",")] for group in re.findall(r"\{([\d, ]+)\}", listed[1])
        ]
    iota = re.search(r"replica_groups=\[([\d,]+)\]<=(\[[\d,]+\](?:T\([\d,]+\))?)", attributes)
    if iota:
        return _iota(iota[2]).reshape(_ints(iota[1])).tolist()
    named = re.search(
        r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(([^{]*)\))? \{([^}]*)\}", attributes
    )
    if named:
        return _named(*named.groups())
    return [list(range(count))]


def _ints(text: str) -> list[int]:
    return [int(i) for i in text.split(",")]


def _iota(text: str) -> np.ndarray:
    """Parses `[64,8]T(1,0)`: the numbers 0, 1, .. reshaped, transposed and flattened."""
    shape, order = re.match(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text).groups()
    numbers = np.arange(math.prod(_ints(shape))).reshape(_ints(shape))
    return (numbers.transpose(_ints(order)) if order else numbers).reshape(-1)


def _named(axes: str, ids: str | None, chosen: str) -> list[list[int]]:
    """Parses `mesh['a'=64,'b'=8], device_ids=([64,8]T(1,0)) {'a','b':(1)4}`: groups along the
    chosen axes or their parts."""
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", axes)}
    cuts: dict[str, list[tuple[int, int]]] = {}  # {axis: [(parts before it, size)]}
    for name, before, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", chosen):
        cuts.setdefault(name, []).append((int(before), int(size)) if size else (1, sizes[name]))
    shape, moved = [], []
    for name, size in sizes.items():
        done = 1
        for before, part in sorted(cuts.get(name, [])):
            shape += [before // done, part]
            moved.append(len(shape) - 1)
            done = before * part
        shape.append(size // done)
    numbers = np.arange(math.prod(sizes.values())) if not ids else _iota(ids)
    fixed = [i for i in range(len(shape)) if i not in moved]
    return (
        numbers.reshape(shape)
        .transpose(fixed + moved)
        .reshape(-1, math.prod(shape[i] for i in moved))
        .tolist()
    )


def _axes(groups: list[list[int]], sizes: Mapping[str, int], pairs: bool) -> tuple[str, ...]:
    """Returns the axes along which the devices of a group differ, or () if a group does not cover
    these axes fully."""
    shape = tuple(sizes.values())
    differ = np.zeros(len(shape), bool)
    for group in groups:
        places = np.stack(np.unravel_index(np.array(group), shape))
        differ |= (places != places[:, :1]).any(1)
        if not pairs:
            break
    axes = tuple(name for name, moves in zip(sizes, differ, strict=True) if moves)
    complete = pairs or math.prod(sizes[axis] for axis in axes) == len(groups[0])
    return axes if complete else ()


def _phase(name: str) -> Phase:
    if "rematted_computation" in name:
        return "recomputed"
    if "transpose(" in name:
        return "backward"
    return "forward" if "jvp(" in name else "other"
