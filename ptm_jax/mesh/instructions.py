"""The instructions of a compiled program, read from the text of its optimized HLO."""

from __future__ import annotations

import math
import re
from typing import NamedTuple


class Instruction(NamedTuple):
    """One line of a computation. `text` is the line after the opcode's bracket."""

    name: str
    type: str
    opcode: str
    text: str

    def attribute(self, key: str) -> str | None:
        """Returns the computation or word of `key=`, or None."""
        match = re.search(rf"\b{key}=%?([\w.-]+)", self.text)
        return match[1] if match else None

    @property
    def operands(self) -> list[str]:
        """The names of its operands."""
        depth = 0
        for end, letter in enumerate(self.text):
            depth += (letter == "(") - (letter == ")")
            if depth < 0:
                return re.findall(r"%([\w.-]+)", self.text[:end])
        return []

    def operation(self) -> str:
        """Returns JAX's name of the operation."""
        match = re.search(r'op_name="([^"]*)"', self.text)
        return match[1] if match else ""


# A type has nested brackets, of tuples and layouts, but no word between a blank and "(" as the
# opcode after it.
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.-]+) = (\S.*?) ([\w-]+)\((.*)")


def program(text: str) -> tuple[dict[str, list[Instruction]], str]:
    """Returns ({name: instructions}, name of the entry computation)."""
    parts: dict[str, list[Instruction]] = {}
    entry, inside = "", None
    for line in text.splitlines():
        if inside is None:
            head = re.match(r"(ENTRY )?%?([\w.-]+) \(.*\{$", line)
            if head:
                inside = parts.setdefault(head[2], [])
                entry = head[2] if head[1] else entry
        elif line.startswith("}"):
            inside = None
        elif instruction := _INSTRUCTION.match(line):
            inside.append(Instruction(*instruction.groups()))
    return parts, entry


def trips(instruction: Instruction, computations, condition: str | None) -> int:
    """Returns how often a loop runs; 1 if the text does not say it."""
    known = re.search(r'known_trip_count"?:\{"?n"?:"?(\d+)', instruction.text)
    if known:
        return int(known[1])
    constants = [part for part in computations.get(condition, ()) if part.opcode == "constant"]
    bounds = [
        re.match(r"\d+", part.text)
        for part in constants
        if part.type.startswith(("s32", "s64", "u32"))
    ]
    return int(bounds[0][0]) if len(bounds) == 1 and bounds[0] else 1


_PRODUCTS = ("convolution", "dot", "ragged-dot")
_INSIDE = ("calls", "body", "to_apply")


def multiplies(instruction: Instruction, computations: dict[str, list[Instruction]]) -> bool:
    """Returns whether an instruction is a product of matrices, or a fusion or loop with one."""
    if instruction.opcode in _PRODUCTS:
        return True
    if instruction.opcode == "custom-call":
        target = instruction.text.partition('custom_call_target="')[2].partition('"')[0]
        return "matmul" in target or "gemm" in target
    if instruction.opcode not in ("fusion", "while", "call"):
        return False
    named = filter(None, map(instruction.attribute, _INSIDE))
    return any(
        multiplies(part, computations) for name in named for part in computations.get(name, ())
    )


_BITS = {"pred": 8, "bf16": 16, "token": 0, "s4": 4, "u4": 4}


def bytes_of(shape: str) -> int:
    """Returns the bytes of a type, as "bf16[8192,3072]"."""
    kind, dims = shape.rstrip("]").split("[")
    bits = _BITS.get(kind) or int(re.search(r"\d+", kind)[0])
    return bits * math.prod(int(dim) for dim in dims.split(",") if dim) // 8
