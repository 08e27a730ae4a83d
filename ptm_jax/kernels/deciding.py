"""Selects an implementation by a measurement on the device, at first use of a class of shapes:

    1. compile every candidate, forward and backward, for drawn inputs of two shapes, all at once
    2. compare result and gradients with the definition, computed in float32 from the same numbers
    3. leave out a candidate that raises, is not finite or differs by more than `TOLERANCE`, with a
       line that names it; one that breaks the device is left out by the next process (`faults`)
    4. time the others on the larger shape: the median of `ROUNDS`
    5. keep the answer for this device, these versions and these sources of the kernels, in the
       folder of `kernels.program_cache`

An answer holds for the process and, by its file, for later ones. A damaged file counts as none;
where the folder is not writable or PTM_CACHE=off, the answer holds for the process. Process 0 of
several decides, and the others take its answer: programs that differ would wait for each other.
This needs what every collective needs: that all trace the same programs.

The question comes while a program is traced, for a mesh. The check runs in a thread of its own,
which has no trace, no mesh and no layout. It asks only about devices that are attached; for a
topology (`ptm plan`) and on a CPU `kernels.choice` has a table.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import datetime
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ptm_jax.core.constraint import current
from ptm_jax.core.errors import UserError
from ptm_jax.kernels import choice, faults, program_cache

TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}
"""Greatest error of a candidate, relative to the greatest number of an array.

bfloat16 rounds by up to 2^-9, and a gradient is rounded some five times on its way, which makes
1e-2. float32 leaves room for the order of sums and the exponentials of a chip (1e-5), and none for
products in tf32 or bfloat16 (1e-3)."""
# an array below this share of the greatest is zero by cancellation, and compared with the greatest
SMALL = 1e-3
ROUNDS, CALLS = 5, 4
FASTER = 0.95  # share of the definition's time that another candidate must stay below
MESSAGE = 1 << 14  # bytes of an answer between processes


@dataclasses.dataclass(frozen=True)
class Candidate:
    """An implementation that a device may take.

    name       its `impl`
    load       returns its module: `refusal(*arguments)` returns a reason or None
    platforms  where it may run; () is everywhere
    where      these platforms in words
    needs      a package that must be installed
    untried    extras of a question with which it has run on no device: "auto" refuses it there
    """

    name: str
    load: Callable[[], Any]
    platforms: tuple[str, ...] = ()
    where: str = "every platform"
    needs: str | None = None
    untried: tuple[str, ...] = ()

    def runs_on(self, platform: str) -> bool:
        """Whether it may run on a platform."""
        return not self.platforms or platform in self.platforms

    @property
    def installed(self) -> bool:
        """Whether the package that it needs is installed."""
        return self.needs is None or importlib.util.find_spec(self.needs) is not None


@dataclasses.dataclass(frozen=True)
class Case:
    """Drawn inputs and the computation.

    inputs    a tree of arrays
    call      (module, inputs) -> {name: result or gradient}
    right     inputs -> the same by the definition, in float32
    refusal   module -> why it does not compute this, or None
    """

    inputs: Any
    call: Callable[[Any, Any], dict[str, Any]]
    right: Callable[[Any], dict[str, Any]]
    refusal: Callable[[Any], str | None]


class Question:
    """A class of shapes: a frozen dataclass whose fields JSON can hold.

    kind         the computation
    compute      "float32" or "bfloat16"
    definition   name of the candidate to take if no other is better
    key          the class in words; equal for equal classes
    extras       names of what is added to the computation
    """

    kind: str
    definition: str
    compute: str
    key: str
    extras: tuple[str, ...] = ()

    def cases(self) -> list[Case]:
        """Returns drawn cases; the last is timed. A module may refuse the others."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Answer:
    """The result of a check: seconds of a call by name, and reasons of refusals and failures.

    The candidate to take is the first one. `took` is the duration of the check."""

    seconds: dict[str, float]
    refused: dict[str, str]
    left_out: dict[str, str]
    took: float
    date: str = dataclasses.field(default_factory=lambda: datetime.date.today().isoformat())

    def __post_init__(self):
        numbers = [*self.seconds.values(), self.took]
        words = [*self.seconds, *self.refused.values(), *self.left_out.values(), self.date]
        if not (
            self.seconds
            and all(type(x) is float for x in numbers)
            and all(type(x) is str for x in words)
        ):
            raise ValueError("not an answer")


@dataclasses.dataclass(frozen=True)
class Device:
    """An attached device: JAX's kind and platform, and the versions of what makes its programs."""

    kind: str
    platform: str
    versions: tuple[str, ...]

    @property
    def file(self) -> str:
        """Name of the document with its answers."""
        facts = [self.kind, *self.versions, _sources()]
        return f"kernels-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}"


def device() -> Device:
    """Returns the device on which this process checks."""
    first = jax.local_devices()[0]
    platform = "gpu" if first.platform in ("cuda", "rocm") else first.platform
    version_of = {name: _version(name) for name in ("jax", "jaxlib", "tokamax")}
    versions = [f"{name} {version}" for name, version in version_of.items() if version]
    return Device(
        first.device_kind, platform, (*versions, *first.client.platform_version.splitlines())
    )


def asks(platform: str) -> bool:
    """Whether "auto" asks the device: a TPU or GPU that is attached."""
    device = choice.first()
    return platform in ("tpu", "gpu") and (device in jax.devices() if current() else True)


_known: dict[str, Answer] = {}
_lock = threading.Lock()


def module_of(candidates: Sequence[Candidate], name: str, platform: str) -> Any:
    """Returns the module of an implementation for a platform."""
    return next(one for one in candidates if one.name == name and one.runs_on(platform)).load()


def ask(question: Question, candidates: Sequence[Candidate], platform: str) -> Answer:
    """Returns the answer to a question, from memory, the file, or a check of this platform."""
    candidates = [one for one in candidates if one.runs_on(platform) and one.installed]
    with _lock:
        if question.key not in _known:
            with concurrent.futures.ThreadPoolExecutor(1) as alone:
                _known[question.key] = alone.submit(
                    _agreed, lambda: _decided(question, candidates)
                ).result()
        return _known[question.key]


def answers(here: Device) -> dict[str, dict[str, Any]]:
    """Returns the documents in the file of a device: {key: {"kind", "question", "answer"}}."""
    documents = program_cache.read(here.file)
    return documents if isinstance(documents, dict) else {}


def forget() -> None:
    """Forgets the answers of this process and of its device's file."""
    _known.clear()
    program_cache.write(device().file, {})
    faults.forget(device().file)


def _agreed(make: Callable[[], Answer]) -> Answer:
    """Returns the answer of process 0."""
    if jax.process_count() == 1:
        return make()
    from jax.experimental import multihost_utils

    message = np.zeros(MESSAGE, np.uint8)
    if not jax.process_index():
        text = json.dumps(dataclasses.asdict(make())).encode()
        message[: len(text)] = np.frombuffer(text, np.uint8)
    return Answer(
        **json.loads(bytes(np.asarray(multihost_utils.broadcast_one_to_all(message))).rstrip(b"\0"))
    )


def _decided(question: Question, candidates: Sequence[Candidate]) -> Answer:
    here = device()
    try:
        answer = Answer(**answers(here)[question.key]["answer"])
        if {*answer.seconds} <= {one.name for one in candidates}:
            return answer
    except (KeyError, TypeError, ValueError):  # no answer, or a damaged one
        pass
    start = time.perf_counter()
    try:
        answer = checked(question, candidates)
    except UserError:  # the device is lost
        raise
    except Exception as error:  # the definition, or no memory: asked again in the next process
        none = {question.definition: 0.0}, {}, {"every candidate": _line(error)}
        answer = Answer(*none, round(time.perf_counter() - start, 3))
        say(question, answer, here)
        return answer
    document = {
        "kind": question.kind,
        "question": dataclasses.asdict(question),
        "answer": dataclasses.asdict(answer),
    }
    program_cache.write(here.file, {**answers(here), question.key: document})
    say(question, answer, here)
    return answer


def say(question: Question, answer: Answer, here: Device) -> None:
    """Prints the lines of an answer on stderr."""
    best, base = next(iter(answer.seconds)), answer.seconds.get(question.definition)
    faster = (
        f" ({base / answer.seconds[best]:.1f} times {question.definition})"
        if base and best != question.definition
        else ""
    )
    lines = [
        f"{question.key}: {name} is left out: {reason}" for name, reason in answer.left_out.items()
    ]
    took = f"checked in {answer.took:.1f} s; ptm doctor shows more"
    lines.append(f"{here.kind}, jax {jax.__version__}: {question.key}: {best}{faster}; {took}")
    start = "\r\x1b[K" if sys.stderr.isatty() else ""  # in place of a line of progress
    for line in lines:
        print(f"{start}kernels: {line}", file=sys.stderr, flush=True)


def checked(question: Question, candidates: Sequence[Candidate]) -> Answer:
    """Checks and times the candidates on the first local device; none right: the definition."""
    start = time.perf_counter()
    place = jax.local_devices()[0]
    with jax.default_device(place):
        cases = [
            dataclasses.replace(case, inputs=jax.device_put(case.inputs, place))
            for case in question.cases()
        ]
        rights = [
            jax.tree.map(np.asarray, _compiled(case.right, case.inputs)(case.inputs))
            for case in cases
        ]
    file, key = device().file, question.key
    lost = faults.broken(file, key)

    def built(one: Candidate) -> tuple[str, Any]:
        """Returns (name of the table, programs with their cases or a reason)."""
        if one.name in lost:
            return "left out", faults.REASON
        if untried := {*one.untried} & {*question.extras}:
            return "refused", f"no device has run it with {', '.join(sorted(untried))}"
        try:
            with jax.default_device(place):  # it holds for a thread
                module = one.load()
                reasons = [case.refusal(module) for case in cases]
                if reasons[-1]:
                    return "refused", reasons[-1]
                return "right", [
                    (_compiled(functools.partial(case.call, module), case.inputs), case, right)
                    for case, right, no in zip(cases, rights, reasons, strict=True)
                    if not no
                ]
        except Exception as error:
            return "left out", _line(error)

    tables: dict[str, dict[str, Any]] = {"right": {}, "refused": {}, "left out": {}}
    with concurrent.futures.ThreadPoolExecutor(len(candidates) or 1) as pool:
        outcomes = list(pool.map(built, candidates))
    for one, (table, result) in zip(candidates, outcomes, strict=True):
        if table == "right":
            try:
                with jax.default_device(place), faults.watched(file, key, one.name):
                    result = _right_program(result, TOLERANCE[question.compute])
            except UserError:
                raise
            except Exception as error:
                table = "left out"
                result = str(error) if isinstance(error, _Wrong) else _line(error)
        tables[table][one.name] = result
    with jax.default_device(place):
        seconds = _timed(tables["right"])
    named = question.definition
    order = sorted(seconds, key=lambda name: seconds[name] * (FASTER if name == named else 1.0))
    times = {name: seconds[name] for name in order} or {named: 0.0}
    took = round(time.perf_counter() - start, 3)
    return Answer(times, tables["refused"], tables["left out"], took)


def _compiled(function: Callable[..., Any], inputs: Any) -> Any:
    """Returns the program of a function.

    On a GPU XLA searches among cuBLAS's products alone. A search of Triton's too took 40 s for one
    class on an H200; without any search XLA takes Triton's smallest tiles, at 2% of its rate."""
    options = {"xla_gpu_enable_triton_gemm": False} if device().platform == "gpu" else None
    return jax.jit(function).lower(inputs).compile(compiler_options=options)


class _Wrong(Exception):
    """The reason why a candidate is left out."""


def _right_program(programs: Sequence[tuple[Any, Case, dict[str, Any]]], tolerance: float):
    """Returns a function that runs the last case. Raises `_Wrong` if a result or gradient is not
    right."""
    for program, case, right in programs:
        results = jax.tree.map(lambda x: np.asarray(x, np.float32), program(case.inputs))
        greatest = max(float(np.abs(x).max()) for x in right.values())
        for name in sorted(right, key=lambda name: (name != "result", name)):
            expected = right[name]
            if not np.isfinite(results[name]).all():
                raise _Wrong(f"its {name} is not finite")
            magnitude = float(np.abs(expected).max())
            error = float(np.abs(results[name] - expected).max()) / (
                magnitude if magnitude > SMALL * greatest else greatest
            )
            if error > tolerance:
                raise _Wrong(
                    f"its {name} is wrong by {error:.2g} of the greatest number (at most "
                    f"{tolerance:g} is allowed)"
                )
    return functools.partial(program, case.inputs)


def _timed(programs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Returns the median seconds of a call. All programs take turns in every round."""
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(ROUNDS):
        for name, program in programs.items():
            start = time.perf_counter()
            jax.block_until_ready([program() for _ in range(CALLS)])
            times[name].append((time.perf_counter() - start) / CALLS)
    return {name: statistics.median(several) for name, several in times.items()}


def _line(error: Exception) -> str:
    """An error in one short line."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:160]}{'...' if len(words) > 160 else ''}".rstrip(": ")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def _sources() -> str:
    """A hash of the sources of the kernels."""
    folder = Path(__file__).parent
    return hashlib.sha256(
        b"".join(path.read_bytes() for path in sorted(folder.rglob("*.py")))
    ).hexdigest()
