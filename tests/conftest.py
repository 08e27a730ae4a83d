"""Shared by all tests: the status markers, and where the real data lies."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("PTM_CACHE", "off")  # programs of an earlier run are not what is tested
if os.environ.get("PTM_TEST_COMPILE") == "fast":
    # Compiling dominates the short tests; without optimisation they take a third of the time. Before JAX is imported.
    quick = ["--xla_backend_optimization_level=0"]
    if version("jaxlib") < "0.11":
        quick.append("--xla_cpu_use_fusion_emitters=false")
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *quick]).strip()

# Tracing makes millions of small objects that live on: looking through them for garbage takes a sixth of a test's time.
gc.set_threshold(100_000, 50, 50)

ROOT = Path(__file__).resolve().parents[1]
STATUS = ROOT / "ptm_jax" / "systems" / "status.json"
DATA = ROOT.parent / "shared" / "data"
# Files of long tests that share little: each test goes to whichever worker is free, where those of others stay together.
APART = ("tests/systems/test_training.py", "tests/systems/test_matrix.py")
WORDS = ("built", "trains", "matches", "reproduces")

MARKED, FILES = pytest.StashKey[set](), pytest.StashKey[set]()
_earned: set[tuple[str, str]] = set()
_lost: set[tuple[str, str]] = set()


def pytest_addoption(parser):
    parser.addoption("--write-status", action="store_true", help="write what passing markers earn into status.json")


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real data sets; a test that needs it is skipped where it is absent."""
    if not DATA.is_dir():
        pytest.skip("the real data sets (../shared/data) are not on this machine; make test-full runs this where they are")
    return DATA


@pytest.fixture(scope="session")
def on_tpu():
    """`on_tpu("v5e:2x2", function, *arguments)`: what a function of a test file returns in a process of its own, in which
    the TPU compiler stands for those chips; results and arguments are what JSON can hold."""
    from ptm_jax.mesh import chips

    if chips.libtpu() is None:
        pytest.skip("the TPU compiler (libtpu) is not installed; `make test-full` installs it beside the environment")

    def call(topology, function, *arguments):
        here = Path(function.__code__.co_filename)
        env = chips.environment(chips.topology(topology))
        env["PYTHONPATH"] = os.pathsep.join([str(here.parent), str(ROOT), env["PYTHONPATH"]])
        code = f"import json, {here.stem} as it; print(json.dumps(it.{function.__name__}(*{arguments!r})))"
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return call


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Before `-m` takes tests away: what the markers of all collected tests could earn."""
    config.stash[MARKED] = {mark.args for item in items for mark in item.iter_markers("status")}
    config.stash[FILES] = {item.path for item in items}


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
    """(system, word) of every status marker in this tree; a part of the tree cannot tell."""
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
    for name, claim in report.user_properties:
        if name == "status" and report.when == "call":
            _earned.add(tuple(claim))
        if name == "status-lost":
            _lost.add(tuple(claim))


def pytest_sessionfinish(session):
    if not session.config.getoption("--write-status") or hasattr(session.config, "workerinput"):
        return
    # Words of tests that did not run this time stay; a test of the catalogue refuses those whose marker is gone.
    before = json.loads(STATUS.read_text(encoding="utf8")) if STATUS.exists() else {}
    claims = {(system, word) for system, words in before.items() for word in words} | _earned
    table = defaultdict(list)
    for system, word in sorted(claims - _lost, key=lambda claim: (claim[0], WORDS.index(claim[1]))):
        table[system].append(word)
    STATUS.write_text(json.dumps(table, indent=1) + "\n", encoding="utf8")
