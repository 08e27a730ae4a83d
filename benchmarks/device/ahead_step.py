"""Compiles a training step of `steps` for an H100 on a machine without a GPU, and counts its bytes.

    python -m benchmarks.device.ahead_step large 512 full              # needs what `ahead` needs
    python -m benchmarks.device.ahead_step large 512 full --loop       # the layers in a loop

It prints the bytes that the kernels of a step read and write by kind (products by cuBLAS, our
kernels, fusions of elementwise operations), copies into and out of the arrays of a loop over
layers, the number of kernels, and the compiler's temporary memory. Bytes over the rate of the
memory are the least time of the fusions, which nothing overlaps; what lies in the cache is counted
too, so blocks of scores may take less. It is no measurement of time.
"""

from __future__ import annotations

import argparse
import collections
import os
import re
import sys
from collections.abc import Iterator

from ptm_jax.mesh.instructions import Instruction, bytes_of, program, trips

FREE = ("parameter", "tuple", "get-tuple-element", "constant", "bitcast", "copy-start")
COPIES = ("loop_dynamic_slice", "loop_dynamic_update_slice")


def bytes_by_kind(text: str) -> tuple[dict[str, float], int]:
    """Returns ({kind: bytes of a step}, number of kernels) of an optimized program."""
    computations, entry = program(text)
    sums: dict[str, float] = collections.defaultdict(float)
    kernels = 0
    for one, around, times in _kernels(computations, entry, 1):
        kind = one.attribute("custom_call_target") or re.sub(r"[\d.]*$", "", one.opcode)
        target = re.search(r'custom_call_target="([^"]*)"', one.text)
        if target:
            kind = target[1].removeprefix("__").replace("$", " ")
        elif one.name.startswith(COPIES):
            kind = "copies into and out of stacked arrays"
        sums[kind] += times * _moved(one, around, computations)
        kernels += times
    return dict(sums), kernels


def _kernels(computations, name, times) -> Iterator[tuple[Instruction, dict[str, str], int]]:
    """Yields (kernel, types of its computation, runs in a step)."""
    around = {one.name: one.type for one in computations[name]}
    for one in computations[name]:
        if one.opcode == "while":
            count = trips(one, computations, one.attribute("condition"))
            yield from _kernels(computations, one.attribute("body"), times * count)
        elif one.opcode == "call":
            yield from _kernels(computations, one.attribute("to_apply"), times)
        elif one.opcode not in (*FREE, "conditional"):
            yield one, around, times


def _size(types: str) -> int:
    return sum(map(bytes_of, re.findall(r"\b[a-z]+\d*[a-z0-9]*\[[\d,]*\]", types)))


def _moved(one: Instruction, around: dict[str, str], computations) -> int:
    """Returns the bytes that a kernel reads and writes; of a sliced array, those of the slice."""
    inside = computations.get(one.attribute("calls") or "", [])
    uses = collections.defaultdict(list)
    for part in inside:
        for name in part.operands:
            uses[name].append(part)
    parameters = {
        part.text.partition(")")[0]: part.name for part in inside if part.opcode == "parameter"
    }
    total = _size(one.type)
    for number, operand in enumerate(one.operands):
        readers, size = uses[parameters.get(str(number), "")], _size(around.get(operand, ""))
        codes = {reader.opcode for reader in readers}
        if codes and codes <= {"dynamic-slice", "slice", "gather"}:
            size = min(size, sum(_size(reader.type) for reader in readers))
        total += 0 if codes == {"dynamic-update-slice"} else size
    types = {part.name: part.type for part in inside}
    for part in inside:  # the rest of the array stays where it is
        if part.opcode == "dynamic-update-slice":
            total += _size(types.get(part.operands[1], "")) - _size(part.type)
    return max(total, 0)


def main(words: list[str] | None = None) -> None:
    """Compiles a step and prints its bytes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device.ahead_step")
    parser.add_argument("model", choices=("base", "large"))
    parser.add_argument("length", type=int)
    parser.add_argument("layout", choices=("full", "packed"))
    parser.add_argument("--loop", action="store_true", help="the layers in a loop")
    args = parser.parse_args(words)
    import jax

    from benchmarks.device import ahead, kernels, steps

    item = {"model": args.model, "length": args.length, "layout": args.layout}
    context, place = steps.prepare(item), ahead.place()

    def shapes(tree):
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), tree)

    with steps.on_gpu():
        work = steps.work_of(context, f"pallas{steps.LOOP}" if args.loop else "pallas")
        batch = context["batch"]
        state = jax.eval_shape(work.init, batch)
        traced = jax.jit(work.step, donate_argnums=0).trace(shapes(state), shapes(batch))
        compiled = traced.lower(lowering_platforms=("cuda",)).compile(kernels.CUBLAS)
    sums, count = bytes_by_kind(compiled.as_text())
    for kind, size in sorted(sums.items(), key=lambda pair: -pair[1]):
        print(f"{kind:40} {size / 1e9:8.1f} GB")
    temporary = compiled.memory_analysis().temp_size_in_bytes
    print(f"{'all':40} {sum(sums.values()) / 1e9:8.1f} GB in {count} kernels")
    print(f"{'temporary memory':40} {temporary / 2**30:8.1f} GiB")


if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    sys.exit(main())
