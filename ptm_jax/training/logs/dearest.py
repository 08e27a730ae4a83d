"""The dearest operations of a profiled part of a run, from JAX's trace and the compiled steps."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

INPUT = "ptm_input"
"""The annotation of the time in which a process waits for its rows."""
STEP = "ptm_step"
"""The annotation of one step."""
KINDS = ("products", "messages", "kernels", "other")
"""Matrix products, collectives between devices, custom kernels, and all other operations."""

_PRODUCTS = {"dot", "convolution", "ragged-dot"}
_MESSAGES = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-", "send", "recv",
    "ragged-all-to-all",
)  # fmt: skip
_CONTROL = ("while", "conditional", "call")
_LIBRARIES = ("matmul", "gemm", "dot", "conv")
"""Parts of the names of custom calls that are matrix products of a library."""
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (?:\(.*?\)|\S+) ([\w\-]+)\(")
_CALLED = re.compile(r"calls=%?([\w.\-]+)")
_SOURCE = re.compile(r'op_name="([^"]*)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation of a compiled program: its kind, and the operation of the model it comes
    from."""

    kind: str
    source: str


@dataclasses.dataclass(frozen=True)
class Event:
    """One execution of an operation, in nanoseconds."""

    name: str
    start: float
    duration: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trace:
    """The part of a trace that concerns some steps.

    events   executions of operations on the devices of this process
    devices  the number of these devices
    steps    (start, end) of each step, in nanoseconds
    waiting  nanoseconds in which the process waited for rows
    """

    events: tuple[Event, ...]
    devices: int
    steps: tuple[tuple[float, float], ...]
    waiting: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """Times of the steps of a trace.

    seconds  seconds of a step
    shares   {kind: share of the time in which the devices computed}, and "idle" and "input": shares
             of the time of the steps
    rows     (operation, kind, source, seconds in a step, share of the computing time), the dearest
             first
    """

    seconds: float
    shares: Mapping[str, float]
    rows: tuple[tuple[str, str, str, float, float], ...]


def operations(text: str) -> dict[str, Operation]:
    """Returns {name: operation} of the HLO text of a compiled program.

    A fusion is a product if it contains one."""
    inside: dict[str, set[str]] = defaultdict(set)
    named: dict[str, tuple[str, str]] = {}
    computation = ""
    for line in text.splitlines():
        if (begins := _COMPUTATION.match(line)) is not None:
            computation = begins[1]
        elif (parsed := _INSTRUCTION.match(line)) is not None:
            name, opcode = parsed.groups()
            kind = _kind(opcode, line)
            inside[computation].add(kind)
            named[name] = kind, line
    return {
        name: Operation(_of_fusion(kind, line, inside), _source(line))
        for name, (kind, line) in named.items()
    }


def _kind(opcode: str, line: str) -> str:
    if opcode in _PRODUCTS:
        return "products"
    if opcode.startswith(_MESSAGES):
        return "messages"
    if opcode == "custom-call":
        target = _TARGET.search(line)
        library = target is not None and any(word in target[1].lower() for word in _LIBRARIES)
        return "products" if library else "kernels"
    return "control" if opcode in _CONTROL else "other"


def _of_fusion(kind: str, line: str, inside: Mapping[str, set[str]]) -> str:
    called = _CALLED.search(line)
    if kind != "other" or called is None:
        return kind
    kinds = inside[called[1]]
    return next((kind for kind in ("products", "messages") if kind in kinds), kind)


def _source(line: str) -> str:
    """Returns the end of the path of names of the model in an instruction."""
    source = _SOURCE.search(line)
    names = source[1].split("/") if source is not None else []
    plain = [
        name.strip("()")  # names of transforms hold a path in parentheses
        for name in names
        if not re.search(r"jit|jvp|while|body|closed_call|checkpoint", name)
    ]
    return "/".join(plain[-3:])


def read(folder: Path) -> Trace:
    """Returns the trace that the profiler wrote last in a folder."""
    import jax

    file = max(folder.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    planes = list(jax.profiler.ProfileData.from_file(str(file)).planes)
    events, devices, steps, waiting = [], 0, [], 0.0
    for plane in planes:
        accelerator = plane.name.startswith("/device:") and "CUSTOM" not in plane.name
        devices += accelerator
        for line in plane.lines:
            for event in line.events:
                if event.name == STEP:
                    steps.append((event.start_ns, event.start_ns + event.duration_ns))
                elif event.name == INPUT:
                    waiting += event.duration_ns
                elif (
                    name := _operation(event, accelerator and line.name == "XLA Ops")
                ) is not None:
                    events.append(Event(name, event.start_ns, event.duration_ns))
    return Trace(
        events=tuple(events), devices=max(devices, 1), steps=tuple(sorted(steps)), waiting=waiting
    )


def _operation(event, of_accelerator: bool) -> str | None:
    """Returns the name of the operation that an event executes, or None."""
    name = next((value for key, value in event.stats if key == "hlo_op"), None)
    if name is None and of_accelerator:
        name = event.name
    if name is None or event.name.startswith("end: "):
        return None
    return str(name).split(" = ")[0].lstrip("%")


def summarised(trace: Trace, known: Mapping[str, Operation], number: int = 10) -> Summary:
    """Returns the summary of a trace. `known` are the operations of its programs.

    A loop is not counted, because its operations are."""
    began, ended = trace.steps[0][0], max(end for _, end in trace.steps)
    last = max((event.start + event.duration for event in trace.events), default=ended)
    wall, steps = max(ended, last) - began, len(trace.steps)
    sums: Counter[str] = Counter()
    spans = []
    for event in trace.events:
        operation = known.get(event.name)
        control = operation is not None and operation.kind == "control"
        if not control and not event.name.startswith(_CONTROL) and event.duration:
            sums[event.name] += event.duration
            spans.append((event.start, event.start + event.duration))
    busy = sum(sums.values()) or 1.0
    kinds: Counter[str] = Counter()
    rows = []
    for name, time in sums.most_common():
        operation = known.get(name, Operation(_kind(re.sub(r"[.\d]+$", "", name), ""), ""))
        kinds[operation.kind] += time
        seconds = time / 1e9 / steps / trace.devices
        rows.append((name, operation.kind, operation.source, seconds, time / busy))
    shares = {kind: kinds[kind] / busy for kind in KINDS}
    shares |= {"idle": 1.0 - min(1.0, _covered(spans) / wall), "input": trace.waiting / wall}
    return Summary(seconds=wall / 1e9 / steps, shares=shares, rows=tuple(rows[:number]))


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """Returns the length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def lines(summary: Summary, first: int, last: int) -> list[str]:
    """Returns the lines of a summary for the terminal."""
    shares = "  ".join(f"{kind} {share:.0%}" for kind, share in summary.shares.items())
    width = max((len(name) for name, *_ in summary.rows), default=0)
    return [
        f"profile of steps {first} to {last}: {1e3 * summary.seconds:,.1f} ms a step",
        f"  {shares}",
        *(
            f"  {1e3 * seconds:9.2f} ms {share:6.1%}  {name:<{width}}  {kind:<8}  {source}".rstrip()
            for name, kind, source, seconds, share in summary.rows
        ),
    ]


def markdown(summary: Summary, first: int, last: int) -> str:
    """Returns the section of a report."""
    head, shares, *_ = lines(summary, first, last)
    rows = [
        f"| {name} | {kind} | {source} | {1e3 * seconds:.2f} | {share:.1%} |"
        for name, kind, source, seconds, share in summary.rows
    ]
    table = ["| operation | kind | from | ms in a step | share |", "|---|---|---|---|---|", *rows]
    return "\n".join([f"## {head[0].upper()}{head[1:]}", "", shares.strip(), "", *table, ""])


def merged(texts: Sequence[str]) -> dict[str, Operation]:
    """Returns the operations of several compiled programs. Equal names are of the last."""
    return {name: operation for text in texts for name, operation in operations(text).items()}
