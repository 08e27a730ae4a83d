"""`make test-full`: the full tests in parts, each in a process of its own.

    python tests/run.py                       every part, two at a time
    python tests/run.py tests/nn tests/mesh   these parts
    python tests/run.py --jobs 1 --markers "not full"
    PTM_TEST_MINUTES=50 python tests/run.py    begins no part after 50 minutes

A part is a folder of tests/, or several short ones. Its process ends with it, so that no test
depends on the number of programs that other folders compiled. Every part runs, whatever became of
the others. The status is 1 if a part failed, or ran longer than LIMIT. The last lines give status,
tests, wall time, CPU time of the processes, and memory maps of each part.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from support import compiled_once

ROOT = Path(__file__).resolve().parents[1]
MARKERS = "full and not training"
OPTIMISED = ("tests/bench", "tests/convert/test_minilm.py")
"""Parts that compute for longer than they compile: XLA optimises their programs, as it does those
of the trainings."""
BEAM = ("tests/data/corpora/test_pipeline.py", "tests/inference/test_beam_predictions.py")
"""Need the packages of .venv/beam, which other tests must not see."""
FIRST = (
    *("tests/training", "tests/convert", "tests/systems", "tests/kernels", "tests/test_*.py"),
    *("tests/launch", "tests/mesh", "tests/tuning", "tests/core", "tests/compress", "tests/laws"),
)
"""The longest parts, by CPU time. They begin first, so that the last ones to end are short."""
TOGETHER = (
    ("tests/core", "tests/corruptions", "tests/knowledge", "tests/nn", "tests/objectives"),
    (
        "tests/launch",
        "tests/plan",
        "tests/pressure",
        "tests/runs",
        "tests/statistics",
        "tests/tasks",
    ),
)
"""Short folders that are one part: a process imports and compiles once what all of them need."""
LIMIT = 40 * 60
"""Seconds after which a part is killed."""
LAST = "PTM_TEST_MINUTES"
"""Minutes after which no part begins, for a machine that must be free at a certain time. The last
lines name the parts that did not run; they do not count as failed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """One process of pytest."""

    name: str
    words: tuple[str, ...]
    environment: dict[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    part: Part
    status: int
    seconds: float
    cpu: float
    output: str
    began: bool = True

    @property
    def good(self) -> bool:
        return self.status in (0, 5)  # 5: the part has no test with these markers

    def line(self) -> str:
        counts = re.findall(
            r"^(?:=+ )?(\d+ (?:passed|failed|skipped|error).*?)(?: =+)?$", self.output, re.M
        )
        maps = re.search(r"memory maps: at most ([\d,]+)", self.output)
        word = "ok" if self.good else f"FAILED ({self.status})"
        return (
            f"{word if self.began else 'NOT RUN':<12} {self.part.name:<32} "
            f"{self.seconds:6.0f} s {self.cpu:6.0f} CPU-s {maps[1] if maps else '-':>7} maps  "
            f"{counts[-1] if counts else 'no tests'}"
        )


def parts(together: tuple[tuple[str, ...], ...] = TOGETHER) -> list[Part]:
    """Returns the parts, the longest first. The folders of a group of `together` are one."""
    folders = {file.relative_to(ROOT).parts[1] for file in (ROOT / "tests").rglob("test_*.py")}
    names = sorted(f"tests/{name}" for name in folders if (ROOT / "tests" / name).is_dir())
    grouped = {name for group in together for name in group}
    groups = {name: (name,) for name in names if name not in grouped}
    groups |= {f"{group[0]}, {len(group) - 1} more": group for group in together}
    apart = [*BEAM, *(name for name in OPTIMISED if name.endswith(".py"))]
    ignored = [word for name in apart for word in ("--ignore", name)]
    beam = os.pathsep.join([str(ROOT / ".venv" / "beam"), os.environ.get("PYTHONPATH", "")])
    fast = {"PTM_TEST_COMPILE": "fast"}
    found = [
        Part(name=name, words=(*group, *ignored), environment={} if name in OPTIMISED else fast)
        for name, group in groups.items()
    ]
    found += [Part(name=name, words=(name,), environment={}) for name in apart if name not in BEAM]
    found += [Part(name=name, words=(name,), environment={"PYTHONPATH": beam}) for name in BEAM]
    files = tuple(str(file.relative_to(ROOT)) for file in (ROOT / "tests").glob("test_*.py"))
    found.append(Part(name="tests/test_*.py", words=tuple(sorted(files)), environment=fast))
    order = dict(zip(FIRST, range(len(FIRST)), strict=True))
    return sorted(found, key=lambda part: order.get(part.name.partition(",")[0], len(FIRST)))


def run(part: Part, command: list[str], environment: dict[str, str], core: int) -> Result:
    """Runs a part on a core, and prints the end of its output if it is not good."""
    begin = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [*command, *part.words], cwd=ROOT, env={**environment, **part.environment},
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(process.pid, {core})
        status, cpu = wait(process, LIMIT)
        output.seek(0)
        text = output.read().decode(errors="replace")
    result = Result(
        part=part, status=status, seconds=time.monotonic() - begin, cpu=cpu, output=text
    )
    print(result.line() if result.good else f"{text[-20_000:]}\n{result.line()}", flush=True)
    return result


def wait(process: subprocess.Popen, limit: float) -> tuple[int, float]:
    """Returns the status of a process and its CPU seconds; after `limit` seconds it is killed."""
    end = time.monotonic() + limit
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
        if time.monotonic() > end:
            os.killpg(process.pid, signal.SIGKILL)
        time.sleep(0.2)


def main(words: list[str]) -> int:
    """Run the parts and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="folders or files of tests/ (default: all parts)")
    parser.add_argument("--jobs", type=int, default=2, help="parts at a time (default: 2)")
    parser.add_argument("--markers", default=MARKERS, help=f"pytest -m (default: {MARKERS!r})")
    args = parser.parse_args(words)
    chosen = parts(() if args.names else TOGETHER)
    chosen = [part for part in chosen if not args.names or part.name in args.names]
    if unknown := {*args.names} - {part.name for part in chosen}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", args.markers]
    return run_all(chosen, command, args.jobs)


def run_all(chosen: list[Part], command: list[str], jobs: int) -> int:
    """Runs each part and prints the summary. Returns 0 if all are good, else 1."""
    cores: queue.Queue[int] = queue.Queue()
    known = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    for number in range(jobs):
        cores.put(known[number % len(known)])
    begin = time.monotonic()
    last = begin + 60 * float(os.environ.get(LAST) or "inf")
    with (
        tempfile.TemporaryDirectory(prefix="ptm-programs-") as programs,
        tempfile.TemporaryDirectory(prefix="ptm-libraries-") as libraries,
        concurrent.futures.ThreadPoolExecutor(jobs) as pool,
    ):
        # The parts share the programs that they compile, and share them with nobody else.
        environment = {
            "JAX_COMPILATION_CACHE_DIR": programs,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            **os.environ,
            **compiled_once.environment(libraries),
        }

        def next_part(part: Part) -> Result:
            if time.monotonic() > last:
                return Result(part=part, status=0, seconds=0, cpu=0, output="", began=False)
            core = cores.get()
            try:
                return run(part, command, environment, core)
            finally:
                cores.put(core)

        results = [*pool.map(next_part, chosen)]
    print(f"\n{len(results)} parts of {' '.join(command[1:])}")
    print("\n".join(result.line() for result in results))
    cpu = sum(result.cpu for result in results) / 60
    late = ", ".join(result.part.name for result in results if not result.began)
    if late:
        print(f"NOT RUN, as {LAST}={os.environ[LAST]} was over: {late}")
    bad = " ".join(result.part.name for result in results if not result.good) or "none"
    print(f"{time.monotonic() - begin:.0f} s, {cpu:.1f} CPU-minutes; failed: {bad}")
    return 0 if bad == "none" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
