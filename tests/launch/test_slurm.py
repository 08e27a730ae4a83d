"""Jobs under a real Slurm with two nodes on this machine: what is preempted, killed or cancelled
does what the script says, and a run that was broken twice has the bits of an unbroken one."""

import os
import signal
import sys
from pathlib import Path

import pytest
import rendering

from ptm_jax.cli.main import main
from ptm_jax.tuning.studies import points, studies
from support import deaths, slurm_cluster, tiny_models
from support import tiny_runs as tiny

STUDY = rendering.ROOT / "configs" / "studies" / "tiny.py"
pytestmark = pytest.mark.full
# A command that saves after SIGTERM, for a second, and ends when the file `over` is there.
SAVES = """exec 2> /dev/null
echo "start $JAX_PROCESS_ID"
trap 'sleep 1; echo "saved $JAX_PROCESS_ID"; exit 143' TERM
touch "waiting.$SLURM_JOB_ID.$JAX_PROCESS_ID"
while [ ! -f over ]; do sleep 0.1; done"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    packages = slurm_cluster.packages()
    with slurm_cluster.Cluster(tmp_path_factory.mktemp("slurm"), packages).running() as value:
        yield value


@pytest.fixture
def submit(cluster, tmp_path, monkeypatch, capfd):
    """Submits a job by `ptm launch slurm --run` in `tmp_path`; returns its number."""
    monkeypatch.chdir(tmp_path)
    for name, value in tiny.environment(tmp_path / "compiled").items():
        monkeypatch.setenv(name, value)
    for name in ("LD_LIBRARY_PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, cluster.environment[name])
    programs = (tmp_path / "bin", Path(sys.executable).parent, cluster.environment["PATH"])
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, programs)))

    def call(target: str, workdir: str, *more: str) -> str:
        words = ["launch", "slurm", target, "--hosts", "2", "--workdir", workdir, "--run", *more]
        assert main(words) == 0
        out = capfd.readouterr().out
        assert out.startswith("Submitted batch job "), out
        return out.split()[-1]

    yield call
    cluster.clear()


@pytest.fixture
def saves(submit, tmp_path):
    """Submits a job whose command is SAVES, and waits for both tasks."""
    rendering.executable(tmp_path / "bin", "ptm", SAVES)

    def call(cluster, *more: str) -> str:
        number = submit("bert_base", "run", *more)
        waiting(cluster, tmp_path, number)
        return number

    return call


def waiting(cluster, folder: Path, number: str) -> None:
    """Waits until both tasks of a job wait for SIGTERM; forgets it."""
    files = [folder / f"waiting.{number}.{host}" for host in (0, 1)]
    cluster.wait(lambda: all(file.exists() for file in files))
    for file in files:
        file.unlink()


def again(cluster, number: str) -> None:
    """Waits until a job is in the queue again, and lets it start at once. Slurm holds it for two
    minutes; it refuses to start it in the second in which it ended."""
    cluster.wait(lambda: {"PENDING", "BeginTime"} <= set(cluster.job(number).values()))
    cluster.call("scontrol", "update", f"JobId={number}", "StartTime=now+2")


def log(folder: Path, number: str) -> str:
    [path] = folder.glob(f"*-{number}.log")
    return path.read_text()


def steps(workdir: Path) -> int:
    path = workdir / "metrics.jsonl"
    return path.read_text().count('"train"') if path.exists() else 0


def kill(number: str, host: int) -> None:
    """SIGKILL to the process of `ptm train` of one task."""
    wanted = {f"SLURM_JOB_ID={number}".encode(), f"JAX_PROCESS_ID={host}".encode()}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            variables = set((process / "environ").read_bytes().split(b"\0"))
        except OSError:  # it has ended, or belongs to somebody else
            continue
        if wanted <= variables and b"train" in words and b"python" in words[0]:
            os.kill(int(process.name), signal.SIGKILL)
            return
    raise AssertionError(f"task {host} of job {number} has no process")


def test_a_run_that_is_preempted_and_killed_has_the_bits_of_an_unbroken_one(
    cluster, submit, tmp_path
):
    text = tiny.write_text(tmp_path / "text.txt")
    more = ["--data", text, "--set", "recipe.phases=(Phase(steps=40, batch=8, length=16),)"]
    unbroken, broken = (submit(tiny.FILE, run, *more) for run in ("unbroken", "broken"))
    cluster.wait(lambda: cluster.state(unbroken) == "COMPLETED")
    assert log(tmp_path, unbroken).endswith(" done\n")

    cluster.wait(lambda: steps(tmp_path / "broken") >= 3)
    cluster.call("scontrol", "requeue", broken)
    again(cluster, broken)
    saved = log(tmp_path, broken)
    assert "DUE TO JOB REQUEUE" in saved and "saved; Slurm ended the job" in saved
    reached = steps(tmp_path / "broken")
    cluster.wait(lambda: steps(tmp_path / "broken") >= reached + 12)  # a checkpoint every 11
    kill(broken, 1)
    again(cluster, broken)
    assert "failed; queued again" in log(tmp_path, broken)
    cluster.wait(lambda: cluster.state(broken) == "COMPLETED")

    assert cluster.job(broken)["Restarts"] == "2" and log(tmp_path, broken).endswith(" done\n")
    host = (tmp_path / "broken" / "launch" / "host-0.log").read_text()
    assert f"stopped by SIGTERM after step {reached} of 40" in host, host
    assert f"from step {reached} of 40" in host and host.count("resuming") == 2
    tiny.assert_same_run(tmp_path / "unbroken", tmp_path / "broken")


def test_a_cancelled_job_saves_and_stays_away(cluster, saves, tmp_path):
    number = saves(cluster)
    cluster.call("scancel", number)
    cluster.wait(lambda: cluster.state(number) == "CANCELLED")
    assert cluster.job(number)["Restarts"] == "0"
    host = (tmp_path / "run" / "launch" / "host-1.log").read_text()
    assert host == "start 1\nsaved 1\n" and "saved; Slurm ended the job" in log(tmp_path, number)


@pytest.mark.parametrize("words", [["--signal=TERM"], ["--batch", "--signal=TERM"]])
def test_sigterm_saves_and_queues_again(cluster, saves, tmp_path, words):
    """To the tasks alone, as before the time limit; to the batch shell alone, as `sbatch
    --signal=B:TERM` sends it."""
    number = saves(cluster)
    cluster.call("scancel", *words, number)
    again(cluster, number)
    waiting(cluster, tmp_path, number)
    (tmp_path / "over").touch()
    cluster.wait(lambda: cluster.state(number) == "COMPLETED")
    out = log(tmp_path, number)
    assert out.count("saved; queued again") == 1 and out.endswith(" done\n"), out
    for host in "01":
        lines = (tmp_path / "run" / "launch" / f"host-{host}.log").read_text()
        assert lines == f"start {host}\nsaved {host}\nstart {host}\n"


def test_a_job_of_a_higher_partition_preempts(cluster, saves, submit, tmp_path):
    number = saves(cluster)
    urgent = submit("bert_base", "urgent", "--partition", "urgent")
    cluster.wait(lambda: cluster.state(urgent) == "RUNNING")
    assert "DUE TO PREEMPTION" in log(tmp_path, number)
    assert (tmp_path / "run" / "launch" / "host-0.log").read_text() == "start 0\nsaved 0\n"
    assert cluster.job(number)["Restarts"] == "1" and cluster.state(number) == "PENDING"
    (tmp_path / "over").touch()
    cluster.wait(lambda: cluster.state(urgent) == "COMPLETED")


def test_only_the_run_of_a_study_that_saved_starts_again(cluster, submit, tmp_path):
    """The number of the last task of an array is also the number of the array: `scontrol requeue`
    with it queues every run again."""
    last = (
        '[ "$SLURM_JOB_ID" = "$SLURM_ARRAY_JOB_ID" ] && [ ! -f once.$JAX_PROCESS_ID ] && '
        "{ touch once.$JAX_PROCESS_ID; exit 143; }"
    )
    ran = 'echo "$SLURM_ARRAY_TASK_ID" >> "ran.$JAX_PROCESS_ID"'
    rendering.executable(tmp_path / "bin", "ptm", f"{last}\n{ran}")
    count = len(points.names(studies.load(str(STUDY))))
    number = submit(str(STUDY), "study")
    again(cluster, f"{number}_{count - 1}")
    cluster.wait(lambda: not cluster.call("squeue", "-hr"))
    for host in (0, 1):
        tasks = (tmp_path / f"ran.{host}").read_text().split()
        assert sorted(map(int, tasks)) == list(range(count))


def test_a_prediction_goes_on_with_the_shards_of_a_killed_task(
    cluster, submit, tmp_path, monkeypatch
):
    model = tiny_models.save_run(tmp_path / "model", tiny_models.build("bert"))
    (tmp_path / "texts.txt").write_text("the king sees [MASK]\nthe hat\nof [MASK]\n" * 20)
    words = [str(model), "--task", "fill-mask", "--input", str(tmp_path / "texts.txt")]
    assert main(["predict", *words, "--output", str(tmp_path / "one.jsonl")]) == 0
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(deaths.DIES)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}:{os.environ['PYTHONPATH']}")
    monkeypatch.setenv("PTM_TEST_DIED", str(tmp_path / "died"))
    more = ["--block", "5", "--shards", "4", "--output", str(tmp_path / "out" / "rows.jsonl")]
    number = submit("predict", "out", "--", *words, *more)
    again(cluster, number)
    assert "failed; queued again" in log(tmp_path, number)
    cluster.wait(lambda: cluster.state(number) == "COMPLETED")
    assert log(tmp_path, number).endswith(" done\n")
    rows = b"".join(path.read_bytes() for path in sorted((tmp_path / "out").glob("rows-*.jsonl")))
    assert rows == (tmp_path / "one.jsonl").read_bytes() and rows.count(b"\n") == 60
    hosts = [(tmp_path / "out" / "launch" / f"host-{host}.log").read_text() for host in (0, 1)]
    assert "of 4 shards were there" in hosts[0] + hosts[1], hosts
