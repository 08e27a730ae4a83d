"""Several hosts on this machine: their output is marked, signals reach them, one that fails ends
the others, and two really train together."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ptm_jax.launch import local
from ptm_jax.launch.hardware import Hardware
from ptm_jax.launch.job import Job


def hosts(tmp_path, script: str, count: int = 2, **more) -> Job:
    """A job whose hosts run `script`, of bash."""
    fields = {"grace": 5, "retries": 0, **more}
    program = ("bash", "-c", f"n=$JAX_PROCESS_ID\n{script}", "host")
    here = Hardware(hosts=count, devices=1)
    return Job(
        name="test",
        config="none",
        workdir=str(tmp_path / "run"),
        hardware=here,
        program=program,
        **fields,
    )


def test_output_is_marked_and_kept(tmp_path, capfd):
    job = hosts(
        tmp_path,
        'echo "$n of $JAX_NUM_PROCESSES, $JAX_PLATFORMS, $A, $B, $1"; echo error >&2',
        environment=(("A", "a b"),),
    )
    assert local.run(job) == 0
    out, err = capfd.readouterr()
    lines = [
        line
        for host in "01"
        for line in (f"[host {host}] {host} of 2, cpu, a b, , train", f"[host {host}] error")
    ]
    assert sorted(out.splitlines()) == sorted(lines) and not err
    assert (
        tmp_path / "run" / "launch" / "host-1.log"
    ).read_text() == "1 of 2, cpu, a b, , train\nerror\n"


def test_setup_comes_before_the_command(tmp_path, capfd):
    assert local.run(hosts(tmp_path, 'echo "$A"', setup="A='from setup'\nexport A")) == 0
    assert sorted(capfd.readouterr().out.splitlines()) == [
        "[host 0] from setup",
        "[host 1] from setup",
    ]


@pytest.mark.full
@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("[ $n = 1 ] && exit 3; sleep 60", 3),
        ("[ $n = 0 ] && kill -KILL $$; sleep 60", 137),
        ("[ $n = 2 ] && { sleep 0.3; exit 5; }; exit 75", 5),  # 75: another one is gone
        ("exit 75", 75),
        ("[ $n = 1 ] && exit 0; sleep 0.2; exit 4", 4),
    ],
)
def test_the_first_failure_ends_all(tmp_path, script, status):
    """A host that is not ended leaves a file after its sleep, for which the run would wait."""
    script = script.replace("sleep 60", f"sleep 60; touch {tmp_path}/survived")
    assert local.run(hosts(tmp_path, script, count=3), settle=1.0) == status
    assert not (tmp_path / "survived").exists()


def test_what_a_host_started_ends_with_it(tmp_path):
    """Host 1 fails once host 0 has a child that ignores SIGTERM; the child is gone soon after."""
    child = tmp_path / "child"
    fails = f"[ $n = 1 ] && {{ until [ -s {child} ]; do sleep 0.02; done; exit 3; }}"
    job = hosts(tmp_path, f'{fails}; (trap "" TERM; sleep 120) & echo $! > {child}; wait')
    assert local.run(job, settle=0.5) == 3
    state, end = Path(f"/proc/{int(child.read_text())}/stat"), time.monotonic() + 30
    while (
        state.exists() and state.read_text().split()[2] != "Z"
    ):  # the kernel ends it some time after the signal
        assert time.monotonic() < end, state.read_text()
        time.sleep(0.02)


def test_a_failure_is_tried_again(tmp_path, capfd):
    job = hosts(
        tmp_path,
        f'echo x >> {tmp_path}/tries; [ "$(wc -l < {tmp_path}/tries)" -lt 6 ] && exit 1; exit 0',
        retries=4,
    )
    assert local.run(job, settle=0.5) == 0
    assert capfd.readouterr().err.count("a host failed with status 1; starting again") >= 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_the_hosts_as_sigterm(tmp_path, number):
    save = (
        f'trap "sleep 0.2; echo saved; exit 143" TERM; touch {tmp_path}/ready.$n; while '
        ":; do sleep 0.02; done"
    )
    code = (
        "import sys; from ptm_jax.launch import local, job, hardware; names = "
        "{**vars(job), **vars(hardware)}; "
    )
    code += "sys.exit(local.run(eval(sys.argv[1], names)))"
    launcher = subprocess.Popen(
        [sys.executable, "-c", code, repr(hosts(tmp_path, save))], stdout=subprocess.PIPE, text=True
    )
    end = time.monotonic() + 30
    while len(list(tmp_path.glob("ready.*"))) < 2:
        assert time.monotonic() < end
        time.sleep(0.02)
    launcher.send_signal(number)
    out, _ = launcher.communicate(timeout=30)
    assert launcher.returncode == 143 and sorted(out.splitlines()) == [
        "[host 0] saved",
        "[host 1] saved",
    ]


@pytest.mark.full
def test_two_hosts_train_stop_and_go_on(tmp_path):
    """`ptm launch local --hosts 2 --run`: SIGTERM saves, the same command goes on, and every step
    is there once."""
    from support import tiny_runs as tiny

    more = [
        "--data",
        tiny.write_text(tmp_path / "text.txt"),
        "--workdir",
        str(tmp_path / "run"),
        "--grace",
        "60",
    ]
    phases = "recipe.phases=(Phase(steps=60, batch=8, length=16),)"
    line = [
        *tiny.PTM,
        "launch",
        "local",
        tiny.FILE,
        "--hosts",
        "2",
        "--run",
        *more,
        "--set",
        phases,
        "save_every=40",
    ]
    environment = tiny.environment(tmp_path / "compiled")

    def launch():
        return subprocess.Popen(
            line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    first = launch()
    log, end = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 120
    while not log.exists() or log.read_text().count("\n") < 3:
        assert first.poll() is None and time.monotonic() < end, first.communicate()[0]
        time.sleep(0.02)
    first.send_signal(signal.SIGTERM)
    out, _ = first.communicate(timeout=120)
    assert first.returncode == 143 and "[host 0] stopped by SIGTERM after step" in out, out
    second = launch()
    out, _ = second.communicate(timeout=240)
    assert second.returncode == 0 and "[host 0] done: 60 steps" in out and "resuming" in out, out
    steps = [entry["step"] for entry in tiny.metrics(tmp_path / "run") if entry["split"] == "train"]
    assert steps == list(range(1, 61)), steps
    assert (tmp_path / "run" / "launch" / "host-1.log").exists()
