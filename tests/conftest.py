"""Shared by all tests: the status markers, the folder of the real data, the limit of compiled
programs in a process, seconds by folder.

Environment variables:
    PTM_DATA     folder of the real data sets (default: shared/data beside the checkout)
"""

from __future__ import annotations

import atexit
import dataclasses
import gc
import json
import os
import shutil
import tempfile
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from _pytest.skipping import evaluate_skip_marks

from support import compiled_once

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["XDG_STATE_HOME"] = states = tempfile.mkdtemp(prefix="ptm-states-")  # runs of the tests
atexit.register(shutil.rmtree, states, ignore_errors=True)
os.environ.setdefault("PTM_CACHE", "off")  # programs of an earlier run are not what is tested
if (worker := os.environ.get("PYTEST_XDIST_WORKER", "")) and hasattr(os, "sched_setaffinity"):
    # A core for each worker: the threads of several JAX processes wait for one another on shared
    # cores.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(worker[2:]) % len(cores)]})
if os.environ.get("PTM_TEST_COMPILE") == "fast":
    # Compiling dominates the short tests; without optimisation they take a third of the time.
    # Before JAX is imported.
    quick = ["--xla_backend_optimization_level=0"]
    if version("jaxlib") < "0.11":
        quick.append("--xla_cpu_use_fusion_emitters=false")
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *quick]).strip()
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    # Tests compile many programs twice: the workers and children of a run share theirs, and only
    # theirs.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = programs = tempfile.mkdtemp(prefix="ptm-programs-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    atexit.register(shutil.rmtree, programs, ignore_errors=True)
if "PTM_TEST_LIBRARIES" not in os.environ:  # as the programs: compiled once for all processes
    os.environ |= compiled_once.environment(tempfile.mkdtemp(prefix="ptm-libraries-"))
    atexit.register(shutil.rmtree, os.environ["PTM_TEST_LIBRARIES"], ignore_errors=True)

# Tracing makes millions of small objects that live on: looking through them for garbage takes a
# sixth of a test's time.
gc.set_threshold(100_000, 50, 50)

ROOT = Path(__file__).resolve().parents[1]
STATUS = ROOT / "ptm_jax" / "systems" / "survey" / "status.json"
DATA = Path(os.environ.get("PTM_DATA", ROOT.parent / "shared" / "data"))
# XLA maps the code of each program into memory, and the process dies near 65,530 maps (the kernel's
# vm.max_map_count). Between two files, and two cases of the laws, the programs are dropped if there
# are more maps than this.
MAPS = 10_000
# A file of long tests that share little: each test goes to whichever worker is free, where those of
# other files stay together.
APART = ("tests/systems/test_training.py",)
WORDS = ("built", "trains", "matches", "sized", "reproduces")

MARKED, FILES = pytest.StashKey[set](), pytest.StashKey[set]()
_earned: set[tuple[str, str]] = set()
_lost: set[tuple[str, str]] = set()
_seconds: defaultdict[str, float] = defaultdict(float)
_maps: list[int] = []


def pytest_addoption(parser):
    parser.addoption(
        "--write-status",
        action="store_true",
        help="write what passing markers earn into status.json",
    )


@pytest.fixture(scope="session", autouse=True)
def looped():
    """Stacks are loops over their layers, as on a TPU, unless they set `unroll`: two layers compile
    a fifth faster, four in half of the time."""
    from ptm_jax.nn import blocks

    blocks.UNROLLED = 0


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real data sets; a test that needs it is skipped where it is absent."""
    if not DATA.is_dir():
        pytest.skip(
            "the real data sets (../shared/data) are not on this machine; make test-full "
            "runs this where they are"
        )
    return DATA


@pytest.fixture(scope="session")
def on_tpu():
    """`on_tpu("v5e:2x2", function, *arguments)`: what a function of a test file returns in a
    process of its own, in which the TPU compiler stands for those chips; results and arguments are
    what JSON can hold."""
    from ptm_jax.mesh import chips
    from support import elsewhere

    if chips.libtpu() is None:
        pytest.skip(
            "the TPU compiler (libtpu) is not installed; `make test-full` installs it beside "
            "the environment"
        )

    def call(topology, function, *arguments):
        return elsewhere.call(function, *arguments, env=chips.environment(chips.topology(topology)))

    return call


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """The checkpoint of `support.tiny_checkpoint`, a Hugging Face directory; for reading only."""
    from support import tiny_checkpoint

    return tiny_checkpoint.write(tmp_path_factory.mktemp("tiny_checkpoint"))


@pytest.fixture(scope="session")
def models_of(published):
    """`models_of(examples, count, scale)`: models with the head of a task's examples and drawn
    parameters."""
    import ptm_jax
    from ptm_jax.inference.pretrained import Pretrained
    from ptm_jax.tuning import finetuning
    from support import tiny_models

    tokenizer = ptm_jax.load(published).tokenizer

    def made(examples, count=1, scale=0.5):
        system = dataclasses.replace(
            finetuning.with_head(str(published), examples), examples=examples
        )
        batch = {"input_ids": np.zeros((2 * examples.readings, 16), np.int32)}
        return [
            Pretrained(system, tiny_models.drawn(system, seed, scale, batch), tokenizer)
            for seed in range(count)
        ]

    return made


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Before `-m` deselects tests: what the markers of all collected tests can earn."""
    config.stash[MARKED] = {
        mark.args
        for item in items
        for mark in item.iter_markers("status")
        if evaluate_skip_marks(item) is None
    }
    config.stash[FILES] = {item.path for item in items}


def maps() -> int:
    """The memory maps of this process; 0 where the system does not list them."""
    try:
        with open("/proc/self/maps", "rb") as lines:
            return sum(1 for _ in lines)
    except OSError:
        return 0


def shares_programs(item, nextitem) -> bool:
    """Whether the next test may run the programs of this one: it is in the same file and, of a law,
    has the same case."""
    cases = [one.callspec.params if hasattr(one, "callspec") else {} for one in (item, nextitem)]
    of_a_law = item.path.parent.name == "laws"
    return item.path == nextitem.path and (not of_a_law or cases[0] == cases[1])


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """After the last test of a file or of a law's case: count the maps, and drop the programs if
    there are many."""
    if nextitem is not None and shares_programs(item, nextitem):
        return
    count = maps()
    item.user_properties.append(("maps", count))
    if count > MAPS:
        import jax

        jax.clear_caches()
        gc.collect()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """`--dist loadfile`, but for the files that are `APART`."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduler(LoadFileScheduling):
        def _split_scope(self, nodeid):
            scope = super()._split_scope(nodeid)
            return nodeid if scope in APART else scope

    return Scheduler(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture
def marked(pytestconfig) -> set[tuple[str, str]]:
    """(name, word) of every status marker in this tree; skips where only a part of the tests was
    collected."""
    everything = set((ROOT / "tests").rglob("test_*.py"))
    if not everything <= pytestconfig.stash[FILES]:
        pytest.skip("only a part of the tests was collected; make test collects all")
    return pytestconfig.stash[MARKED]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    claims = [mark.args for mark in item.iter_markers("status")]
    if report.when == "call" and report.passed:
        report.user_properties += [("status", list(claim)) for claim in claims]
    if report.failed:
        report.user_properties += [("status-lost", list(claim)) for claim in claims]


def pytest_runtest_logreport(report):
    """Runs in the controlling process too, so that it works with parallel workers."""
    _seconds["/".join(report.nodeid.split("/")[:2]).partition("::")[0]] += report.duration
    for name, claim in report.user_properties:
        if name == "maps":
            _maps.append(claim)
        if name == "status" and report.when == "call":
            _earned.add(tuple(claim))
        if name == "status-lost":
            _lost.add(tuple(claim))


def pytest_terminal_summary(terminalreporter):
    """Seconds by folder, so that a change knows what it adds; the most memory maps of a process."""
    rows = sorted(_seconds.items(), key=lambda row: -row[1])
    terminalreporter.write_line(
        "seconds by folder: " + ", ".join(f"{name} {seconds:.0f}" for name, seconds in rows)
    )
    terminalreporter.write_line(f"memory maps: at most {max(_maps, default=0):,} in one process")


def pytest_sessionfinish(session):
    if not session.config.getoption("--write-status") or hasattr(session.config, "workerinput"):
        return
    from support import commit, rewriting

    run = [*commit.today_and_commit()]
    rewriting.rewrite(STATUS, lambda text: _status(text, run))


def _status(text, run):
    """status.json with the words of this run, [date, commit].

    Words of tests that did not run this time stay; a test of the catalogue refuses those whose
    marker is gone.
    """
    before = json.loads(text or "{}")
    claims = {
        (system, word): earned for system, words in before.items() for word, earned in words.items()
    }
    claims |= dict.fromkeys(_earned, run)
    table = defaultdict(dict)
    for system, word in sorted(
        claims.keys() - _lost, key=lambda claim: (claim[0], WORDS.index(claim[1]))
    ):
        table[system][word] = claims[system, word]
    lines = [f" {json.dumps(system)}: {json.dumps(words)}" for system, words in table.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"
