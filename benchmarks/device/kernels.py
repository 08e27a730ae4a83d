"""Part (a): every kernel and candidate against the definition, forward and backward.

An item is a class of attention, cross-entropy or softmax (`kernels.deciding`). Its programs are the
candidates of this platform. A program is right if result and gradients differ from the
definition in float32 by at most `deciding.TOLERANCE` of the greatest number of an array. The first
classes are checked in odd sizes and in whole ones, the others in odd ones, or in whole ones where a
candidate refuses these.
"""

from __future__ import annotations

import functools
import itertools
import threading
from typing import Any

import numpy as np

NAMES = ("pallas", "xla", "cudnn", "reference", "tokamax")
CUBLAS = {"xla_gpu_enable_triton_gemm": False}
"""XLA searches among cuBLAS's products alone, which takes seconds. Without any search it takes
products of Triton with the smallest tiles, at 2% of the rate of the card."""
FIXED: tuple[dict[str, Any], ...] = (
    {},
    {"extras": ["order"]},
    {"extras": ["distances"]},
    {"extras": ["bias"]},
    {"extras": ["bias of rows"]},
    {"extras": ["types"]},
    {"extras": ["values"]},
    {"extras": ["dropout"]},
    {"extras": ["strict", "group"]},
    {"extras": ["window"]},
    {"extras": ["allow"]},
    {"extras": ["distances", "dropout", "order"]},
    {"relative": 64},
    {"relative": 64, "extras": ["types", "order", "dropout"]},
    {"relative": 64, "extras": ["values"]},
    {"width": 128},
    {"width": 256},
    {"width": 80, "extras": ["bias", "dropout"]},
    {"queries": 1},
    {"queries": 64, "keys": 64},
    {"queries": 128, "keys": 1024, "extras": ["distances"]},
    {"queries": 2048, "keys": 2048, "extras": ["order", "distances"]},
    {"queries": 4096, "keys": 4096},
    {"compute": "float32", "dtype": "float32"},
    {"dtype": "float32", "extras": ["order"]},
    {"relative": 64, "extras": ["by_key"]},
    {"relative": 64, "extras": ["by_key", "dropout"], "queries": 2048, "keys": 2048},
)
PLAIN = {"compute": "bfloat16", "dtype": "bfloat16", "width": 64, "queries": 512, "keys": 512}
EXTRAS = ("bias", "distances", "types", "values", "order", "strict", "group", "allow", "dropout")
BOTH, DRAWN, SEED = 4, 12, 43  # classes that are checked in whole sizes too; drawn; seed
SMALL = {"queries": 16, "keys": 16, "width": 16}
TINY: tuple[dict[str, Any], ...] = (
    {},
    {"extras": ["order", "distances", "dropout"]},
    {"extras": ["strict", "group", "bias"]},
    {"extras": ["window", "values", "bias of rows"]},
    {"relative": 16, "extras": ["types", "allow"]},
    {"relative": 16, "extras": ["by_key", "dropout"]},
)
"""The classes of a dry run: every extra of `FIXED` once, forward and backward."""
VOCABULARIES = (
    {"compute": "bfloat16", "width": 768, "tokens": 1024, "words": 32768},
    {"compute": "float32", "width": 768, "tokens": 1024, "words": 32768},
    {"compute": "bfloat16", "width": 1024, "tokens": 256, "words": 4096},
)
SOFTMAXES = ({"compute": "float32", "keys": 512}, {"compute": "float32", "keys": 2048})
_dry = False


def begin(dry: bool) -> None:
    """Sets the sizes of this process."""
    global _dry
    _dry = dry


def items(dry: bool) -> list[dict[str, Any]]:
    """Returns the classes."""
    attention = [PLAIN | fields for fields in FIXED]
    attention += list(itertools.islice(_drawn(np.random.default_rng(SEED)), DRAWN))
    if dry:
        attention = [PLAIN | SMALL | fields for fields in TINY]
    words = [one | ({"tokens": 16, "words": 256} if dry else {}) for one in VOCABULARIES]
    words = words[: 1 if dry else None]
    lines = [one | ({"keys": 16} if dry else {}) for one in SOFTMAXES[: 1 if dry else None]]
    kinds = {"attention": attention, "cross-entropy": words, "softmax": lines}
    both = range(0 if dry else BOTH)
    return [
        {"kind": kind, "fields": one, "odd": kind == "attention" and i not in both}
        for kind, several in kinds.items()
        for i, one in enumerate(several)
    ]


def _drawn(draw):
    """Yields random classes that contradict neither themselves nor each other."""
    while True:
        extras = {*draw.choice(EXTRAS, draw.integers(0, 4), replace=False).tolist()}
        if {"order", "strict"} <= extras:
            continue
        lengths = {name: int(draw.choice([64, 128, 256, 1024])) for name in ("queries", "keys")}
        width = int(draw.choice([32, 64, 72, 128]))
        relative = width if draw.random() < 0.25 else 0
        yield PLAIN | lengths | {"width": width, "relative": relative, "extras": sorted(extras)}


def names(item: dict[str, Any]) -> list[str]:
    """Returns the candidates of a class."""
    if item["kind"] == "attention":
        return list(NAMES)
    return ["reference" if item["kind"] == "softmax" else "xla", "pallas"]


def prepare(item: dict[str, Any]) -> dict[str, Any]:
    """Draws the cases of a class: one of odd sizes, then one of whole sizes."""
    question = question_of(item)
    return {"question": question, "cases": question.cases(), "rights": {}, "lock": threading.Lock()}


def _right(context: dict[str, Any], number: int) -> Any:
    """Returns the results of a case by the definition, computed once."""
    import jax

    with context["lock"]:
        if number not in context["rights"]:
            case = context["cases"][number]
            arrays = compiled(case.right, case.inputs)(case.inputs)
            context["rights"][number] = jax.tree.map(np.asarray, arrays)
        return context["rights"][number]


def compiled(function: Any, *given: Any) -> Any:
    """Returns the program of a function, with cuBLAS's products."""
    import jax

    options = CUBLAS if jax.default_backend() == "gpu" else None
    return jax.jit(function).lower(*given).compile(compiler_options=options)


def question_of(item: dict[str, Any]) -> Any:
    """Returns the question of `kernels.deciding` for an item."""
    from ptm_jax.kernels.attention import candidates as attention
    from ptm_jax.kernels.cross_entropy import candidates as cross_entropy
    from ptm_jax.kernels.softmax import candidates as softmax

    rooms = {"attention": attention, "cross-entropy": cross_entropy, "softmax": softmax}
    fields = {k: tuple(x) if isinstance(x, list) else x for k, x in item["fields"].items()}
    return rooms[item["kind"]].Class(**fields)


def build(item: dict[str, Any], context: dict[str, Any], name: str) -> Any:
    """Returns (case, definition, program) for each case that a candidate computes, or a row."""
    from benchmarks.device.worker import line

    cases = context["cases"]
    try:
        module = module_of(item["kind"], name)
    except Exception as error:
        return {"status": "not there", "reason": line(error)}
    if reason := cases[-1].refusal(module):
        return {"status": "refused", "reason": reason}
    refused = [case.refusal(module) for case in cases]
    chosen = [i for i, reason in enumerate(refused) if not reason]
    programs = []
    for number in chosen[: 1 if item["odd"] else None]:
        case = cases[number]
        call = functools.partial(case.call, module)
        interpreted = _dry and name == "pallas" and item["kind"] == "attention"
        run = functools.partial(in_interpreter, call) if interpreted else None
        program = run or compiled(call, case.inputs)
        programs.append((case, _right(context, number), program))
    return programs


def module_of(kind: str, name: str) -> Any:
    """Returns the module of a candidate."""
    import importlib

    import jax

    from ptm_jax.kernels.attention import candidates
    from ptm_jax.kernels.cross_entropy import blocked
    from ptm_jax.kernels.softmax import plain

    if kind != "attention":
        if name == "pallas":
            raise ModuleNotFoundError(f"the kernel of {kind} is for TPUs")
        return blocked if kind == "cross-entropy" else plain
    if name == "pallas":
        return importlib.import_module("ptm_jax.kernels.attention.gpu")
    platform = "cpu" if jax.default_backend() == "cpu" else "gpu"
    several = [one for one in candidates.CANDIDATES if one.name == name]
    one = next((one for one in several if one.runs_on(platform)), None)
    if one is None:
        raise ModuleNotFoundError(f"{name} runs on {several[0].where}, and this is a {platform}")
    if not one.installed:
        raise ModuleNotFoundError(f"{one.needs} is not installed")
    return one.load()


def measure(item: dict[str, Any], context: dict[str, Any], name: str, programs: Any) -> dict:
    """Runs a candidate; returns its greatest errors by array."""
    from ptm_jax.kernels import deciding

    limit = deciding.TOLERANCE[context["question"].compute]
    errors: dict[str, float] = {}
    for case, right, run in programs:
        for key, error in _errors(run(case.inputs), right).items():
            errors[key] = max(errors.get(key, 0.0), error)
    worst = max(errors, key=errors.get)
    row = {"status": "right", "errors": {key: float(f"{x:.2e}") for key, x in errors.items()}}
    if not errors[worst] <= limit:
        row["status"] = "wrong"
        row["reason"] = f"{worst} by {errors[worst]:.2g} (at most {limit:g})"
    return row


def _errors(result, right) -> dict[str, float]:
    """Returns the greatest error of each array over its greatest number; inf if not finite."""
    from ptm_jax.kernels.deciding import SMALL

    greatest = max(float(np.abs(x).max()) for x in right.values())
    errors = {}
    for key, wanted in right.items():
        got = np.asarray(result[key], np.float32)
        size = float(np.abs(wanted).max())
        error = float(np.abs(got - wanted).max()) / (size if size > SMALL * greatest else greatest)
        errors[key] = error if np.isfinite(got).all() else float("inf")
    return errors


def in_interpreter(call, *inputs):
    """Runs a program with a GPU kernel in JAX's interpreter, on a CPU."""
    import sys

    import jax

    from benchmarks.device.isolate import ROOT

    sys.path.append(str(ROOT / "tests" / "kernels"))
    import mosaic_interpreter

    if mosaic_interpreter.absent():
        raise RuntimeError(mosaic_interpreter.absent())
    with mosaic_interpreter.interpreted():
        return jax.block_until_ready(jax.jit(call)(*inputs))
