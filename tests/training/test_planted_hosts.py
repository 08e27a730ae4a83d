"""Two processes with planted faults: a NaN in the rows of one host, rows that come late, a process
that is stopped. The run goes on, or is started again, and its bits do not change."""

import shutil
import signal
import sys

import pytest

from support import planted
from support import tiny_runs as tiny
from support.jobs import Job

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    base = tmp_path_factory.mktemp("planted")
    text = tiny.write_text(base / "text.txt")
    cache = tmp_path_factory.getbasetemp() / "compiled"

    def start(workdir, fault="", **more):
        """Starts two processes, of which the second one has the fault."""
        more |= {"PTM_HANG_SECONDS": "3", "PTM_PEER_SECONDS": "10"}
        environment = tiny.environment(cache, JAX_PLATFORMS="cpu", **more)
        command = [sys.executable, "-m", "support.planted", str(workdir), text]
        return Job(command, 2, faults={1: {"PLANT": fault}}, **environment)

    return start


@pytest.fixture(scope="module")
def late(start, tmp_path_factory):
    """The workdir and the ends of a run in which the rows of the second process come late once."""
    workdir = tmp_path_factory.mktemp("late") / "run"
    return workdir, start(workdir, "sleep:12").end()


def lines(text, word):
    return [line for line in text.splitlines() if word in line]


def test_a_nan_on_one_host_leaves_out_the_same_update_on_both(late):
    _, ends = late
    for status, out, err in ends:
        assert status == 0, err
        assert lines(out, "left out") == ["left out 0.25 of the updates to 32"]
        assert f"done: {planted.STEPS} steps" in out
    sums = [lines(out, "parameters") for _, out, _ in ends]
    assert sums[0] == sums[1] and len(sums[0]) == 2
    (line,) = lines(ends[0][2], "left out in the steps")
    assert line.startswith("1 update was left out in the steps 29 to 32: the norm of the gradient")
    assert not lines(ends[1][2], "left out in the steps")


def test_rows_that_come_late_are_reported_by_both_and_the_run_goes_on(late):
    _, ends = late
    for index, (_, _, err) in enumerate(ends):
        print(err)
        (first,) = lines(err, "step 12 has not ended for 3 s")
        assert first.startswith(f"process {index} of 2 on ")
        (end,) = lines(err, "step 12 has ended")
        assert end.startswith(f"process {index} of 2 on ")
    behind = [line for line in lines(ends[0][2], "behind: ") if "step 12;" in line]
    assert len(behind) == 1 and behind[0].startswith("behind: process 1 of 2 on ")
    assert behind[0].endswith("has no rows for step 12; others have its rows")
    assert lines(ends[1][2], "time.sleep(LATE)") and not lines(ends[1][2], "behind")
    assert lines(ends[0][2], "block_until_ready")


def test_a_stopped_process_ends_the_run_and_it_resumes_to_the_bit(start, late, tmp_path):
    """It resumes before the step of the NaN, which is left out again."""
    whole, ends = late
    shutil.copytree(whole, workdir := tmp_path / "run")
    for step in (24, 32, 40):
        shutil.rmtree(workdir / "checkpoints" / f"step_{step:08d}")
    (workdir / "report.md").unlink()
    job = start(workdir, "stop:4")
    first, second = job.processes
    assert first.wait(240) == 75
    job.kill(1, signal.SIGKILL)
    (_, _, err), _ = job.end()
    print(err)
    assert lines(err, "step 20 has not ended for 3 s")
    assert lines(err, "silent: process 1 of 2 on ")
    (gone,) = lines(err, "is gone")
    assert "process 1 of 2" in gone and "(silent for 10 s), so all stop" in gone
    again = start(workdir).end()
    for status, out, err in again:
        assert status == 0, err
        assert lines(out, "left out") == ["left out 0.25 of the updates to 32"]
    assert lines(again[0][2], "resuming") and "from step 16 of 40" in again[0][2]
    assert lines(again[0][1], "parameters") == lines(ends[0][1], "parameters")[1:]
    tiny.assert_same_run(whole, workdir)
