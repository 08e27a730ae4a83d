"""Mutants: does a test fail when one operator, comparison, constant or result of the code is wrong?

    python benchmarks/mutants.py --out FILE.json --rooms nn tasks --each 3 --seed 1
    python benchmarks/mutants.py --out FILE.json --planted      the faults of `PLANTED`
    python benchmarks/mutants.py --out FILE.json --again 4 7    mutants 4 and 7 of FILE, once more
    ... --list                                                  print them; run nothing

A room is a folder of ptm_jax. For each mutant it draws a line, then a change of this line
(`benchmarks/mutating.py`), and changes a copy of the checkout, never the checkout. Then it runs the
test files that reach the module through imports, the closest first, and in them the tests first
that mention a function or class around the line, until a test fails: one process with the selection
of `make test`, then one with the selection of `make test-full`. A failure counts
if the same test passes without the change. A mutant that no test finds within `--limit` seconds has
survived; the record says whether the limit ended its tests.

mutmut and cosmic-ray do not fit: they run one command, here a suite of an hour, for each mutant.

The environment is passed on: PTM_TEST_COMPILE=fast and a JAX_COMPILATION_CACHE_DIR of its own make
the tests quick. FILE.json is written after each mutant.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

if not __package__:  # run as a file
    sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks import house, mutating, reaching
from benchmarks.closest_first import RUNS

ROOT = Path(__file__).resolve().parents[1]
MARKS = "not training"
CLOSEST = 4
"""Number of test files whose tests run first."""
CHECK = 60
"""Seconds that a test may take without a change."""
OPTIONS = ("-vv", "-rfE", "--tb=no", "-p", "no:cacheprovider", "-p", "benchmarks.closest_first")
PLANTED = (
    ("corruptions/masking/gaps.py", "n * self.rate + 0.5", "n * self.rate - 0.5"),
    ("objectives/text/contrastive.py", "(down, 0) - matching) / 2", "(down, 0) + matching) / 2"),
    ("nn/halting.py", "else 1.0 - weight[..., None]", "else 1.0 + weight[..., None]"),
    ("encoders/transformer/xl.py", "(before < size)", "(before <= size)"),
    ("adapt/parameters/averaging.py", "due = (step + 1) %", "due = (step - 1) %"),
    ("compress/pruning/magnitude.py", ".sum(-1) >= count", ".sum(-1) > count"),
    ("convert/quantised.py", "np.log2(one + 1)", "np.log2(one - 1)"),
    ("inference/decoding/logits.py", "width - size + 1", "width - size - 1"),
    ("tasks/metrics/rouge.py", "i + SKIP + 2", "i + SKIP - 2"),
    ("training/updates/schedules.py", "1.0 - (t - cut)", "1.0 - (t + cut)"),
)
"""(file of the package, text that occurs in it once, text with one operator changed)."""


@dataclasses.dataclass(frozen=True)
class Mutant:
    """Lines of a file, before and after."""

    file: str
    line: int
    kind: str
    before: str
    after: str

    def applied(self, text: str) -> str:
        """Returns the text with the occurrence of `before` changed that is nearest to `line`."""
        places = [match.start() for match in re.finditer(re.escape(self.before), text)]
        if not places:
            raise SystemExit(f"{self.file}: no lines {self.before!r}")
        at = min(places, key=lambda place: abs(text.count("\n", 0, place) + 1 - self.line))
        return text[:at] + self.after + text[at + len(self.before) :]


def drawn(room: str, count: int, seed: int) -> list[Mutant]:
    """Returns `count` mutants of a room: first a line is drawn, then a kind, then a change."""
    generator = random.Random(f"{seed}/{room}")
    texts = {
        path: path.read_text("utf-8")
        for path in sorted((ROOT / house.PACKAGE / room).rglob("*.py"))
    }
    changes: dict[tuple[Path, int], list[mutating.Change]] = {}
    for path, text in texts.items():
        for change in mutating.changes(text):
            changes.setdefault((path, change.line), []).append(change)
    mutants = []
    for path, line in generator.sample(sorted(changes), count):
        kind = generator.choice(sorted({change.kind for change in changes[path, line]}))
        change = generator.choice([c for c in changes[path, line] if c.kind == kind])
        before, after = change.lines(texts[path])
        mutants.append(Mutant(path.relative_to(ROOT).as_posix(), line, kind, before, after))
    return mutants


def planted() -> list[Mutant]:
    mutants = []
    for name, before, after in PLANTED:
        file = f"{house.PACKAGE}/{name}"
        text = (ROOT / file).read_text("utf-8")
        if text.count(before) != 1:
            raise SystemExit(f"PLANTED: {before!r} stands {text.count(before)} times in {file}")
        line = text.count("\n", 0, text.index(before)) + 1
        mutants.append(Mutant(file, line, "planted", before, after))
    return mutants


class Copy:
    """A copy of the checkout `root` in an empty folder."""

    def __init__(self, root: Path, folder: Path):
        self.root, self.clock = folder, time.time()
        self.broken: set[str] = set()  # tests that fail without a change
        self.names: list[str] = []  # tests that mention one of them run first
        command = ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard", "-z"]
        listed = subprocess.run(command, capture_output=True, check=True).stdout.decode()
        for name in filter(None, listed.split("\0")):
            if (root / name).is_file() or (root / name).is_symlink():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name, follow_symlinks=False)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, "utf-8")
        self.clock += 2  # compiled files are compared by whole seconds
        os.utime(path, (self.clock, self.clock))

    @contextlib.contextmanager
    def changed(self, mutant: Mutant) -> Iterator[None]:
        path = self.root / mutant.file
        text = path.read_text("utf-8")
        self._write(path, mutant.applied(text))
        try:
            yield
        finally:
            self._write(path, text)

    def pytest(self, words: Sequence[str], seconds: float) -> tuple[int | None, str]:
        """Returns the status of pytest, None after `seconds`, and its output."""
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(self.root), str(ROOT)]),
            "PTM_CLOSEST": " ".join(self.names),
            "JAX_PLATFORMS": "cpu",
            "PYTHONUNBUFFERED": "1",
        }
        command = [sys.executable, "-m", "pytest", *OPTIONS, *words]
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                command,
                cwd=self.root,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = process.wait(max(seconds, 1))
            except subprocess.TimeoutExpired:
                status = None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # with its children
                process.wait()
            output.seek(0)
            return status, output.read()


def _failed(status: int | None, output: str) -> str | None:
    """Returns the name of the test, or of the file, that failed or in which the process died."""
    if status in (None, 0, 5):
        return None
    if match := re.search(r"^(?:FAILED|ERROR) (tests/\S+?\.py(?:::.+?)?)(?: - .*)?$", output, re.M):
        return match[1]
    begun = re.findall(r"^(tests/\S+?\.py::.+?)(?: [A-Z]+ .*)?$", output, re.M)
    if not begun:
        raise SystemExit(f"pytest ended with status {status}:\n{output[-2000:]}")
    return begun[-1]


def run(copy: Copy, mutant: Mutant, files: Sequence[str], limit: float) -> dict:
    """Runs the tests of a mutant; returns their result as a record."""
    begun, before, passed, ended = time.monotonic(), _cpu(), 0, False
    record = dataclasses.asdict(mutant) | {"found": None}
    for part, share in ((files[:CLOSEST], 0.5), (files[CLOSEST:], 1.0)):
        part = [file for file in part if file not in copy.broken]
        if not part:
            continue
        words = [word for name in sorted(copy.broken) for word in ("--deselect", name)]
        seconds = limit * share - (time.monotonic() - begun)
        with copy.changed(mutant):
            status, output = copy.pytest(["-x", "-m", MARKS, *words, *part], seconds)
        passed += output.count(" PASSED")
        ended |= status is None
        if test := _failed(status, output):
            reason = re.search(rf"^(?:FAILED|ERROR) {re.escape(test)} - (.*)$", output, re.M)
            command = re.search(rf"^{RUNS}(.+)$", output, re.M)
            record |= {"found": command[1] if command else "make test-full", "test": test}
            record["reason"] = reason[1][:200] if reason else ""
            break
    return record | {
        "limit": ended,
        "files": len(files),
        "passed": passed,
        "seconds": round(time.monotonic() - begun),
        "cpu": round(_cpu() - before),
    }


def broken(copy: Copy, records: Sequence[dict]) -> set[str]:
    """Returns the tests of the records that fail without a change too."""
    tests = sorted({record["test"] for record in records if record["found"]})
    if not tests:
        return set()
    _, output = copy.pytest(["-m", MARKS, *tests], len(tests) * CHECK)
    fine = set(re.findall(r"^(tests/\S+?\.py::.+?) PASSED", output, re.M))
    return {test for test in tests if not any(name.startswith(test) for name in fine)}


def _cpu() -> float:
    """Returns the CPU-seconds of the processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def table(records: Sequence[dict]) -> Iterator[str]:
    """Yields the lines of the Markdown table of the mutants."""
    yield "| | place | change | result |"
    yield "|---|---|---|---|"
    for number, record in enumerate(records):
        texts = [" ".join(record[key].split()).replace("|", "\\|") for key in ("before", "after")]
        result = "survived"
        if record["found"]:
            result = f"{record['found']}: `{record['test'].split('[')[0].split('/')[-1]}`".replace(
                "|", "\\|"
            )
        elif record["limit"]:
            result = "survived (ended by the limit)"
        place = f"{record['file'].removeprefix('ptm_jax/')}:{record['line']}"
        yield f"| {number} | {place} | `{texts[0]}` -> `{texts[1]}` | {result} |"


def shares(records: Sequence[dict]) -> Iterator[str]:
    """Yields the lines of the Markdown table of the rooms."""
    yield "| room | found | of |"
    yield "|---|---|---|"
    rooms = [record["file"].split("/")[1] for record in records]
    for room in dict.fromkeys(rooms):
        count = sum(
            bool(r["found"]) for r, name in zip(records, rooms, strict=True) if name == room
        )
        yield f"| {room} | {count} | {rooms.count(room)} |"


def _chosen(options: argparse.Namespace, records: Sequence[dict]) -> list[Mutant]:
    if options.again is not None:
        return [_mutant(records[number]) for number in options.again]
    if options.planted:
        return planted()
    by_room = [drawn(room, options.each, options.seed) for room in options.rooms]
    return [mutants[number] for number in range(options.each) for mutants in by_room]


def _mutant(record: dict) -> Mutant:
    return Mutant(**{field.name: record[field.name] for field in dataclasses.fields(Mutant)})


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the results")
    parser.add_argument("--rooms", nargs="+", default=[], help="folders of ptm_jax")
    parser.add_argument("--each", type=int, default=3, help="mutants of a room")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=360, help="seconds of a mutant's tests")
    parser.add_argument("--planted", action="store_true", help="the faults of PLANTED")
    parser.add_argument("--again", type=int, nargs="+", help="numbers of mutants in --out")
    parser.add_argument("--first", nargs="+", default=[], help="test files that run first")
    parser.add_argument("--list", action="store_true", help="print mutants and tests only")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    options = _options(words)
    records = json.loads(options.out.read_text()) if options.out.is_file() else []
    tree = reaching.Tree(ROOT)
    chosen = _chosen(options, records)
    done = {_mutant(record) for record in records} if options.again is None else set()
    if options.list:
        for mutant in chosen:
            print(mutant, *tree.tests(mutant.file, mutant.line), sep="\n  ")
        return
    with tempfile.TemporaryDirectory(prefix="ptm-mutants-") as folder:
        copy, waiting = Copy(ROOT, Path(folder).resolve()), [m for m in chosen if m not in done]
        while waiting:
            for mutant in waiting:
                print(f"{mutant.file}:{mutant.line}\n-{mutant.before}\n+{mutant.after}", flush=True)
                files = dict.fromkeys([*options.first, *tree.tests(mutant.file, mutant.line)])
                copy.names = sorted(tree.names(mutant.file, mutant.line))
                record = run(copy, mutant, list(files), options.limit)
                print(record["found"], record.get("test"), record["seconds"], flush=True)
                records = [r for r in records if _mutant(r) != mutant] + [record]
                options.out.write_text(json.dumps(records, indent=1) + "\n")
            copy.broken |= broken(copy, [r for r in records if _mutant(r) in waiting])
            waiting = [_mutant(r) for r in records if r.get("test") in copy.broken]
    print("\n".join([*table(records), "", *shares(records)]))
    print(f"{sum(bool(record['found']) for record in records)} of {len(records)} found")


if __name__ == "__main__":
    main()
