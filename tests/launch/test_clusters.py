"""The scripts for Slurm and for Cloud TPU, run here against stand-ins for srun, scontrol and
gcloud: what is preempted goes on, what fails starts again so often and no more, signals reach the
run, and every text arrives as it was given."""

import dataclasses
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import rendering
from rendering import HOSTILE, job, words
from test_rendering import GIVEN, as_given, received

from ptm_jax.launch import scripts

# Tasks on "nodes" that are processes here; SIGTERM goes to all, and when one fails Slurm ends the
# others.
SRUN = """shift; pids=(); echo $$ > srun.pid
for ((i = 0; i < SLURM_NTASKS; i++)); do SLURM_PROCID=$i "$@" & pids+=($!); done
trap 'kill -TERM "${pids[@]}"' TERM
failed=0
while [ ${#pids[@]} -gt 0 ]; do
  left=()
  for pid in "${pids[@]}"; do
    if kill -0 "$pid" 2> /dev/null; then left+=("$pid"); else wait "$pid" || failed=1; fi
  done
  pids=("${left[@]}")
  [ $failed = 0 ] || kill -TERM "${pids[@]}" 2> /dev/null
  command sleep 0.02
done
exit $failed"""
SCONTROL = """case "$1 $2" in
  "show hostnames") printf "node7\\nnode8\\n" ;;
  "show job") cat state 2> /dev/null || echo "   JobState=RUNNING Reason=None" ;;
  "requeue "*) echo "$2" >> requeued ;;
esac"""
SCANCEL = '[ "$1" = --signal=TERM ] && echo "$2" >> signalled; kill -TERM "$(cat srun.pid)"'

# A command that ends as the file `outcome` has it: a status, or a wait for SIGTERM, after which it
# takes a moment to save.
TRAIN = """echo "host $JAX_PROCESS_ID at $JAX_COORDINATOR_ADDRESS of $JAX_NUM_PROCESSES"
how=$(cat outcome)
case $how in
  wait)
    trap 'sleep 0.2; echo saved; exit 143' TERM
    touch "waiting.$JAX_PROCESS_ID"
    while :; do sleep 0.02; done ;;
  one) [ "$JAX_PROCESS_ID" = 1 ] && exit 3; trap 'exit 143' TERM; while :; do sleep 0.02; done ;;
  *) exit "$how" ;;
esac"""


@pytest.fixture
def slurm(tmp_path):
    """A folder with a rendered job and the stand-ins; calls give its exit status."""
    bin = tmp_path / "bin"
    for name, text in (
        ("srun", SRUN),
        ("scontrol", SCONTROL),
        ("scancel", SCANCEL),
        ("ptm", TRAIN),
    ):
        rendering.executable(bin, name, text)
    value = dataclasses.replace(job(words("slurm", "bert_base", "--retries", "1")), workdir="run")
    given = {"SLURM_JOB_ID": "4711", "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "node[7-8]"}

    def call(outcome: str, **more: str):
        (tmp_path / "outcome").write_text(outcome)
        return rendering.bash(scripts.slurm(value), tmp_path, bin, **given, **more)

    call.folder, call.bin, call.given, call.value = tmp_path, bin, given, value
    return call


def requeued(folder: Path) -> int:
    path = folder / "requeued"
    return len(path.read_text().split()) if path.exists() else 0


def test_slurm_runs_to_the_end(slurm):
    done = slurm("0")
    assert (
        done.returncode == 0
        and "done" in done.stdout
        and not done.stderr
        and not requeued(slurm.folder)
    )
    for host in "01":
        log = (slurm.folder / "run" / "launch" / f"host-{host}.log").read_text()
        assert log == f"host {host} at node7:24711 of 2\n"


def test_slurm_queues_again_what_saved(slurm):
    for count in (1, 2, 3):  # a preemption is no failure, however many there are
        done = slurm("143")
        assert (
            done.returncode == 0
            and "saved; queued again" in done.stdout
            and requeued(slurm.folder) == count
        )
    assert (slurm.folder / "run" / "launch" / "host-0.log").read_text().count("\n") == 3


@pytest.mark.parametrize("outcome", ["1", "one", "137"])
def test_slurm_gives_up_what_fails_again(slurm, outcome):
    first, second = slurm(outcome), slurm(outcome)
    assert "failed; queued again" in first.stdout
    assert re.search(
        "host [01] at", first.stdout
    )  # the second to fail may be ended before it prints
    assert (
        second.returncode == 1
        and "failed more than 1 times" in second.stdout
        and requeued(slurm.folder) == 1
    )
    assert (
        slurm("0").returncode == 0 and slurm("1").returncode == 0
    )  # after a success it counts from the start


def test_slurm_hands_sigterm_on_and_waits_for_the_save(slurm):
    (slurm.folder / "outcome").write_text("wait")
    batch = rendering.started(scripts.slurm(slurm.value), slurm.folder, slurm.bin, **slurm.given)
    out = rendering.interrupted(batch, *(slurm.folder / f"waiting.{host}" for host in "01"))
    assert batch.returncode == 0 and "saved; queued again" in out and requeued(slurm.folder) == 1
    assert (slurm.folder / "signalled").read_text() == "4711\n"
    for host in "01":
        assert (
            (slurm.folder / "run" / "launch" / f"host-{host}.log").read_text().endswith("saved\n")
        )


@pytest.mark.parametrize(
    ("state", "ours"),
    [("COMPLETING Reason=None", False), ("COMPLETING Reason=TimeLimit", True)],
)
def test_slurm_leaves_what_slurm_itself_ends(slurm, state, ours):
    """After `scancel`, `scontrol requeue` or a preemption the job is no longer RUNNING, and Slurm
    alone decides. (tests/launch/test_slurm.py has the real states.)"""
    (slurm.folder / "state").write_text(f"   JobState={state}\n")
    for outcome, word in (("143", "saved"), ("1", "failed")):
        done = slurm(outcome)
        end = "; queued again" if ours else "; Slurm ended the job, and queues it again unless"
        assert f"{word}{end}" in done.stdout and done.returncode == (0 if ours else 143)
        assert (slurm.folder / "run" / "launch" / "failures").exists() == (ours and outcome == "1")
    assert requeued(slurm.folder) == (2 if ours else 0)


def test_the_status_is_that_of_a_command_that_ends_at_the_signal(tmp_path):
    """Slurm sends SIGTERM to the shell and its command at once. `wait` of bash loses the status of
    about half of them."""
    ends = "trap 'exit 7' TERM; touch ready; while :; do sleep 0.01; done"
    text = f'log={tmp_path}/log\n{scripts.template("host.sh")}\nexit "$status"'
    for _ in range(12):
        with subprocess.Popen(
            ["bash", "-c", text, "host", "bash", "-c", ends],
            cwd=tmp_path,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as shell:
            while not (tmp_path / "ready").exists():
                time.sleep(0.005)
            (tmp_path / "ready").unlink()
            os.killpg(shell.pid, signal.SIGTERM)
            assert shell.wait(30) == 7


def test_slurm_queues_one_task_of_an_array_again(slurm):
    slurm("143", SLURM_ARRAY_JOB_ID="4711", SLURM_ARRAY_TASK_ID="2")
    assert (slurm.folder / "requeued").read_text() == "4711_2\n"


def test_hostile_texts_reach_slurms_tasks_unchanged(slurm):
    value = rendering.hostile(slurm.value, slurm.folder / HOSTILE[1], config=HOSTILE[2])
    rendering.executable(slurm.bin, "ptm", GIVEN.replace("$GIVEN", "$GIVEN.$JAX_PROCESS_ID"))
    more = {"GIVEN": str(slurm.folder / "received"), **slurm.given}
    done = rendering.bash(scripts.slurm(value), slurm.folder, slurm.bin, **more)
    assert done.returncode == 0 and "done" in done.stdout and not done.stderr
    for host in "01":
        as_given(value, received(slurm.folder / f"received.{host}"), slurm.folder)


# A queued resource is the file `state`, its workers are folders: of one node all of them, of the
# node NAME-1 the folder 1.
GCLOUD = """workers() {
  case ${1%%:*} in *-[0-9]) echo "$FAKE/worker/${1##*-}" | tr -d : ;; *) echo "$FAKE"/worker/* ;; esac
}
echo "$*" | head -n 1 >> "$FAKE/calls"
service=$3 verb=$4
shift 4
case $service-$verb in
  queued-resources-describe) [ -f "$FAKE/state" ] && cat "$FAKE/state" || exit 1 ;;
  queued-resources-create) echo ACTIVE > "$FAKE/state"; mkdir -p "$FAKE"/worker/{0,1} ;;
  queued-resources-delete)
    for pid in "$FAKE"/worker/*/ptm.pid; do
      [ -f "$pid" ] && kill -KILL -- -"$(cat "$pid")" 2> /dev/null
    done
    rm -rf "$FAKE/state" "$FAKE/worker" ;;
  tpu-vm-ssh)
    for word in "$@"; do case $word in --command=*) command=${word#--command=} ;; esac; done
    for worker in $(workers "$1"); do (cd "$worker" && HOME=$worker bash -c "$command") & done
    wait ;;
  tpu-vm-scp)
    files=() to= which=all
    for word in "$@"; do
      case $word in --worker=*) which=${word#--worker=} ;; --*) ;; *) files+=("$to"); to=$word ;; esac
    done
    if [ "$which" = all ]; then
      for worker in $(workers "$to"); do cp "${files[@]:1}" "$worker"; done
    else
      folders=($(workers "${files[1]%:*}"))
      cp "${folders[which]}/${files[1]#*:}" "$to"
    fi ;;
esac"""
# Each line of `fates` is what becomes of one attempt.
FATE = """attempts=$FAKE/attempts.${PWD##*/}  # each worker counts its own: one may start late
echo x >> "$attempts"
fate=$(sed -n "$(wc -l < "$attempts")p" "$FAKE/fates")
echo "fate $fate"
case $fate in
  preempted) [ "${PWD##*/}" = 0 ] && { sleep 0.3; echo SUSPENDED > "$FAKE/state"; }; while :; do sleep 0.05; done ;;
  lost) [ "${PWD##*/}" = 1 ] && kill -KILL "$PPID"; exit 143 ;;
  wait) trap 'echo saved; exit 143' TERM; touch "$FAKE/waiting.${PWD##*/}"; while :; do sleep 0.02; done ;;
  one) [ "${PWD##*/}" = 1 ] && exit 3; trap 'exit 143' TERM; while :; do sleep 0.02; done ;;
  *) exit "$fate" ;;
esac"""


@pytest.fixture
def cloud(tmp_path):
    """A folder with a rendered script and the stand-ins."""
    bin, fake = tmp_path / "bin", tmp_path / "fake"
    fake.mkdir()
    stand_ins = {
        "gcloud": f"{rendering.documented()}\n{GCLOUD}",
        "ptm": FATE,
        "mountpoint": "exit 1",
        "sudo": 'echo "$@" >> "$FAKE/sudo"',
        "curl": "exit 1",
    }
    stand_ins["sleep"] = f'exec {shutil.which("sleep")} "${{1/#1/0.1}}"'  # a second takes a tenth
    for name, text in stand_ins.items():
        rendering.executable(bin, name, text)
    arguments = words(
        "tpu-vm",
        "bert_base",
        "--topology",
        "v6e:2x4",
        "--hosts",
        "2",
        "--retries",
        "1",
        "--grace",
        "5",
    )
    value = dataclasses.replace(
        job(arguments),
        workdir=str(tmp_path / "mount" / "run"),
        mount=("server:/x", str(tmp_path / "mount")),
    )

    def call(*fates: str, value=value):
        (fake / "fates").write_text("\n".join(fates) + "\n")
        done = rendering.bash(scripts.tpu_vm(value), tmp_path, bin, FAKE=str(fake), PTM_POLL="0.1")
        calls = (fake / "calls").read_text()
        assert not (fake / "state").exists(), "the slice was not given back"
        return (
            done,
            calls.count("queued-resources create"),
            sorted(p.name for p in (tmp_path / "bert-base-logs").iterdir()),
        )

    call.folder, call.bin, call.fake, call.value = tmp_path, bin, fake, value
    yield call
    assert not (fake / "refused").exists(), (fake / "refused").read_text()


def logs(attempts: int) -> list[str]:
    return [
        f"attempt-{attempt}-host-{host}.log"
        for attempt in range(1, attempts + 1)
        for host in (0, 1)
    ]


def test_a_slice_runs_to_the_end(cloud):
    done, created, found = cloud("0")
    assert done.returncode == 0 and created == 1 and found == logs(1), done.stdout + done.stderr
    assert (cloud.folder / "bert-base-logs" / "attempt-1-host-0.log").read_text() == "fate 0\n"
    assert f"mount -t nfs server:/x {cloud.folder}/mount" in (cloud.fake / "sudo").read_text()
    call = next(
        line for line in (cloud.fake / "calls").read_text().splitlines() if "create" in line
    )
    assert call == (
        "compute tpus queued-resources create bert-base --project=mine --zone=us-east5-b "
        "--quiet --node-id=bert-base "
        "--accelerator-type v6e-8 --runtime-version v2-alpha-tpuv6e --spot"
    )


def test_a_host_that_starts_slowly_is_started_once(cloud):
    """Its script begins after several questions for its state."""
    slow = f'{shutil.which("sleep")} 1; exec {shutil.which("setsid")} "$@"'
    rendering.executable(cloud.bin, "setsid", slow)
    done, _, names = cloud("0")
    assert done.returncode == 0 and names == logs(1), done.stdout + done.stderr


def test_two_slices_are_two_nodes_that_run_save_and_go_on(cloud):
    several = job(
        words("tpu-vm", "bert_base", "--topology", "v6e:2x4*2", "--retries", "1", "--grace", "5")
    )
    value = dataclasses.replace(several, workdir=cloud.value.workdir, mount=cloud.value.mount)
    mine = 'echo x >> attempts; exit "$(sed -n "$(wc -l < attempts)p" "$FAKE/fates")"'
    rendering.executable(cloud.bin, "ptm", mine)  # the nodes start one after the other
    done, created, names = cloud("143", "0", value=value)
    assert done.returncode == 0 and created == 1, done.stdout + done.stderr
    assert names == [
        f"attempt-{attempt}-slice-{number}-host-0.log" for attempt in (1, 2) for number in (0, 1)
    ]
    calls = (cloud.fake / "calls").read_text()
    assert "--node-count=2 --node-prefix=bert-base --accelerator-type v6e-8" in calls
    assert "tpu-vm ssh bert-base-0 " in calls and "tpu-vm ssh bert-base-1 " in calls
    assert "--node-id" not in calls
    logs_there = sorted(path.name for path in (cloud.folder / "mount/run/launch").iterdir())
    assert [name.partition("-host-")[0] for name in logs_there] == ["slice-0", "slice-1"]
    assert "--slices 2" in scripts.tpu_vm(value) and "PTM_HOSTS=auto" in scripts.tpu_vm(value)


@pytest.mark.parametrize(
    ("old", "new", "refused"),
    [
        ("--spot", "--spots", "queued-resources create --spots"),
        ("--spot", "--spot=yes", "queued-resources create --spot="),
        (
            "--spot",
            "--node-count=2",
            "queued-resources create needs one of --node-id= --node-count=",
        ),
        ("--runtime-version", "--version", "queued-resources create --version"),
        ("delete --force", "destroy", "no command queued-resources destroy"),
    ],
)
def test_the_stand_in_refuses_what_gcloud_does_not_have(cloud, old, new, refused):
    """tests/launch/gcloud_flags.json has the flags; every call of this file is compared."""
    (cloud.fake / "fates").write_text("0\n")
    text = scripts.tpu_vm(cloud.value).replace(old, new)
    rendering.bash(text, cloud.folder, cloud.bin, FAKE=str(cloud.fake), PTM_POLL="0.1")
    assert (cloud.fake / "refused").read_text().splitlines()[0] == refused
    (cloud.fake / "refused").unlink()


def test_a_preempted_slice_is_asked_for_again(cloud):
    done, created, found = cloud("preempted", "0")
    assert done.returncode == 0 and created == 2 and "preempted" in done.stdout, (
        done.stdout + done.stderr
    )


@pytest.mark.full
def test_a_lost_worker_and_a_save_are_no_failures(cloud):
    done, created, found = cloud("lost", "143", "0")
    assert done.returncode == 0 and created == 1 and found == logs(3), done.stdout + done.stderr


@pytest.mark.full
def test_a_run_that_fails_again_is_given_up(cloud):
    done, created, found = cloud("one", "1")
    assert (
        done.returncode == 1
        and created == 1
        and "failed more than 1 times" in done.stdout
        and found == logs(2)
    )


def test_an_interrupt_saves_and_gives_the_slice_back(cloud):
    (cloud.fake / "fates").write_text("wait\n")
    script = rendering.started(
        scripts.tpu_vm(cloud.value), cloud.folder, cloud.bin, FAKE=str(cloud.fake), PTM_POLL="0.1"
    )
    out = rendering.interrupted(script, *(cloud.fake / f"waiting.{host}" for host in "01"))
    assert (
        script.returncode == 143
        and "stopping: the run saves" in out
        and not (cloud.fake / "state").exists()
    )
    assert (
        (cloud.folder / "bert-base-logs" / "attempt-1-host-1.log").read_text().endswith("saved\n")
    )


def test_hostile_texts_reach_the_workers_unchanged(cloud):
    mount = cloud.folder / HOSTILE[1]
    value = rendering.hostile(
        cloud.value, mount, mount=(HOSTILE[3], str(mount)), text="\n".join(HOSTILE)
    )
    rendering.executable(
        cloud.bin, "ptm", f'cp ptm-config.py "$FAKE"; GIVEN=$FAKE/received.${{PWD##*/}}\n{GIVEN}'
    )
    done = rendering.bash(
        scripts.tpu_vm(value), cloud.folder, cloud.bin, FAKE=str(cloud.fake), PTM_POLL="0.1"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for host in "01":
        as_given(
            value, received(cloud.fake / f"received.{host}"), cloud.folder, config="ptm-config.py"
        )
    assert (cloud.fake / "ptm-config.py").read_text().rstrip() == value.text.rstrip()
