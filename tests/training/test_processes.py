"""Several processes on this machine are several hosts: what they train, and what happens when one
of them ends."""

import signal
import sys
import time

import pytest

from support import tiny_runs as tiny
from support.jobs import Job

LAST = 40
WORDS = (
    f"recipe.phases=(Phase(steps={LAST}, batch=8, length=16),)",
    "recipe.lr=1e-3",
    "save_every=4",
    "eval_every=20",
    "keep=100",
)
TALK = """
import sys, time
import jax
from jax.experimental import multihost_utils
from ptm_jax.training.hosts import group, hosts
hosts.join()
with group.together() as us:
    chosen, gathered = us.chosen(lambda: {"from": us.index}), us.gathered([us.index])
    print(chosen, gathered, len(jax.devices()), flush=True)
    while True:
        multihost_utils.process_allgather(us.index)
"""
DECIDE = """
import dataclasses, types
import jax, numpy as np
from jax.sharding import PartitionSpec as P
from ptm_jax.kernels import deciding
from ptm_jax.training.hosts import hosts
hosts.join()

@dataclasses.dataclass(frozen=True)
class Double(deciding.Question):
    kind, definition, compute, key = "double", "reference", "float32", "doubles"

    def cases(self):
        call = lambda module, x: {"result": module.double(x)}
        return [deciding.Case(np.ones(3), call, lambda x: {"result": x + x}, lambda module: None)]

kernel = types.SimpleNamespace(double=lambda x: 2 * x)
double = lambda name: deciding.Candidate(name, lambda: kernel)
other = {0: 1.0, 1: 3.0}[jax.process_index()]
deciding._timed = lambda programs: {"reference": 2.0, "other": other}

def step(x):
    candidates = [double("reference"), double("other")]
    taken = next(iter(deciding.ask(Double(), candidates, "tpu").seconds))
    print(taken, flush=True)
    return x.sum() * (10 if taken == "other" else 1)

mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
with jax.set_mesh(mesh):
    ones = lambda index: np.ones(1, np.float32)
    x = jax.make_array_from_callback((2,), jax.NamedSharding(mesh, P("data")), ones)
    print(float(jax.jit(step)(x)), flush=True)
"""


@pytest.mark.full
@pytest.mark.parametrize("gone", [1, 0])
def test_when_one_is_killed_the_others_print_it_and_end(gone):
    job = Job([sys.executable, "-c", TALK], 2, JAX_PLATFORMS="cpu")
    lines = [
        process.stdout.readline() for process in job.processes
    ]  # a greeting of gloo is on the line, too
    lines = [
        line if "from" in line else p.stdout.readline()
        for line, p in zip(lines, job.processes, strict=True)
    ]
    job.kill(gone, signal.SIGKILL)
    status, _, err = job.end(60)[1 - gone]
    assert [line.strip() for line in lines] == ["{'from': 0} [[0], [1]] 2", "{'from': 0} [] 2"]
    assert status == 75
    last = err.splitlines()[-1]
    assert (
        f"process {gone} of 2 on " in last
        and "is gone (killed, or out of memory), so all stop" in last
    )
    assert "run the same command again" in last


@pytest.mark.full
def test_the_first_decides_for_all_which_kernel_a_program_has():
    """Each would find another one faster, while it traces a program for the devices of both."""
    ends = Job([sys.executable, "-c", DECIDE], 2, JAX_PLATFORMS="cpu", PTM_CACHE="off").end(60)
    assert [status for status, _, _ in ends] == [0, 0], ends
    assert all(out.split()[-2:] == ["other", "20.0"] for _, out, _ in ends)
    assert [err.count("kernels: ") for _, _, err in ends] == [1, 0]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A text of several blocks: the processes read lanes of their own."""
    return tiny.write_text(tmp_path_factory.mktemp("text") / "text.txt", documents=800)


@pytest.fixture(scope="module")
def train(tmp_path_factory, text):
    cache = tmp_path_factory.getbasetemp() / "compiled"

    def start(workdir, count, devices=1, *, mesh=None, more=()):
        words = [*WORDS, *([f"mesh=({mesh},)"] if mesh else [])]
        command = [
            *tiny.PTM,
            "train",
            tiny.FILE,
            "--data",
            text,
            "--workdir",
            str(workdir),
            "--set",
            *words,
            *more,
        ]
        alone = {"JAX_NUM_PROCESSES": "1"} if count == 1 else {}
        return Job(command, count, devices, **tiny.environment(cache, JAX_PLATFORMS="cpu"), **alone)

    return start


@pytest.fixture(scope="module")
def whole(train, tmp_path_factory):
    """The run of one process."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    ((status, out, err),) = train(workdir, 1).end()
    assert status == 0, err
    position = tiny.checkpoint(workdir, 24)["meta"]["position"]["stream"]
    assert position["lanes"] == len(position["cursors"]) == 4
    return workdir


def assert_same_run(whole, workdir):
    """The rows of every step, the log and the position of every checkpoint; losses to 1e-5."""
    there, here = tiny.metrics(whole), tiny.metrics(workdir)

    def facts(lines):
        return [(x["step"], x["split"], x["tokens"], x["values"]["read"]) for x in lines]

    assert facts(there) == facts(here) and len(there) == LAST + 2
    for a, b in zip(there, here, strict=True):
        assert b["values"] == pytest.approx(a["values"], rel=1e-5), a["step"]
    for path in sorted((workdir / "checkpoints").glob("step_*")):
        step = int(path.name.removeprefix("step_"))
        if (whole / "checkpoints" / path.name).exists():
            a, b = tiny.checkpoint(whole, step), tiny.checkpoint(workdir, step)
            assert a["meta"]["position"] == b["meta"]["position"] and a["tree"] == b["tree"]


def newest(workdir):
    """The step of the newest checkpoint."""
    return max(
        int(path.name.removeprefix("step_")) for path in (workdir / "checkpoints").glob("step_*")
    )


def wait_for(workdir, job, step):
    """Until a checkpoint of a step has its name, or a process has ended."""
    path = workdir / "checkpoints" / f"step_{step:08d}"
    while not path.exists() and all(process.poll() is None for process in job.processes):
        time.sleep(0.01)


def assert_done(ends, resumed=None):
    for index, (status, out, err) in enumerate(ends):
        assert status == 0, err
        assert (f"done: {LAST} steps" in out) == (index == 0), out
        assert (f"from step {resumed} of" in err) == (index == 0 and resumed is not None), err


@pytest.mark.full
def test_two_processes_train_the_run_of_one(train, whole, tmp_path):
    """Two devices each; process 0 alone prepares the corpus and writes the workdir."""
    assert_done(train(tmp_path / "run", 2, 2).end())
    assert_same_run(whole, tmp_path / "run")

    def named(workdir):
        return {path.name for path in workdir.iterdir()}

    assert named(tmp_path / "run") == named(whole)


@pytest.mark.full
def test_two_processes_are_two_slices(train, whole, tmp_path):
    """Four devices each, which hold the parameters in four parts: the rows and losses of one
    device, up to a SIGTERM."""
    slices = ("--mesh", "data=2,fsdp=4", "--rules", "fsdp", "--slices", "2")
    workdir = tmp_path / "run"
    job = train(workdir, 2, 4, more=slices)
    wait_for(workdir, job, 4)
    job.kill(1, signal.SIGTERM)
    ends = job.end()
    assert [status for status, _, _ in ends] == [143, 143], ends
    here = tiny.metrics(workdir)
    assert 4 <= len(here) == here[-1]["step"]
    for a, b in zip(tiny.metrics(whole), here, strict=False):
        assert (a["step"], a["tokens"]) == (b["step"], b["tokens"])
        assert b["values"] == pytest.approx(a["values"], rel=1e-5), a["step"]


@pytest.mark.full
def test_four_lose_one_two_go_on_until_sigterm_and_one_ends_it(train, whole, tmp_path):
    """Every part of the run is that of the unbroken one, whatever the number of processes and the
    mesh."""
    workdir = tmp_path / "run"
    job = train(workdir, 4)
    wait_for(workdir, job, 12)
    job.kill(2, signal.SIGKILL)
    ends = job.end(60)
    assert [status for status, _, _ in ends] == [75, 75, -signal.SIGKILL, 75], ends
    for index in (0, 1, 3):
        (line,) = [line for line in ends[index][2].splitlines() if "is gone" in line]
        assert "process 2 of 4 on " in line and "all stop; run the same command again" in line
    kept = newest(workdir)
    assert 12 <= kept < LAST

    job = train(workdir, 2, mesh="('model', 2)")  # the model is split over the two
    wait_for(workdir, job, kept + 4)
    job.kill(1, signal.SIGTERM)
    first, second = job.end()
    assert first[0] == second[0] == 143, (first, second)
    step = newest(workdir)
    assert f"from step {kept} of {LAST}" in first[2] and kept + 4 <= step < LAST
    assert f"stopped by SIGTERM after step {step} of {LAST}; the checkpoint is complete" in first[1]
    assert tiny.metrics(workdir)[-1]["step"] == step

    assert_done(train(workdir, 1).end(), step)
    assert_same_run(whole, workdir)


@pytest.mark.full
def test_a_batch_that_cannot_be_shared_is_one_error(train, tmp_path):
    """Three processes for eight rows."""
    ends = train(tmp_path / "run", 3).end()
    for index, (status, _, err) in enumerate(ends):
        (line,) = [line for line in err.splitlines() if line.startswith("ptm: ")]
        assert (
            status == 1
            and "a batch of 8 rows" in line
            and (index == 0 or f"process {index} of 3: " in line)
        )
    assert not (tmp_path / "run").exists()
