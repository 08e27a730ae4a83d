"""The environment of launchers, variables that contradict each other, and the messages between
processes that met."""

import contextlib
import io
import socket
import sys
import threading
import time

import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.training.hosts import arrivals, group, hanging, hosts
from ptm_jax.training.hosts.arrivals import Mark
from ptm_jax.training.hosts.hosts import HostProcess, detect

EXPLICIT = {
    "JAX_COORDINATOR_ADDRESS": "10.0.0.1:1234",
    "JAX_NUM_PROCESSES": "4",
    "JAX_PROCESS_ID": "3",
}
SLURM = {
    "SLURM_JOB_ID": "100",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "6",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "node[003-005]",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3)",
}
MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1,10.108.0.1:34911",
}
TPU = {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "t0.x,t1.x,t2.x,t3.x"}
SLICES = {
    "MEGASCALE_NUM_SLICES": "2",
    "MEGASCALE_SLICE_ID": "1",
    "MEGASCALE_COORDINATOR_ADDRESS": "job-0-0.job:8080",
}
POD = {
    "JOB_COMPLETION_INDEX": "2",
    "JAX_COORDINATOR_ADDRESS": "job-0.pods:1234",
    "JAX_NUM_PROCESSES": "3",
}


PLACES = {
    "explicit": (EXPLICIT, HostProcess("environment", "10.0.0.1:1234", 4, 3)),
    "ours": (
        {k.replace("JAX", "PTM"): v for k, v in EXPLICIT.items()},
        HostProcess("environment", "10.0.0.1:1234", 4, 3),
    ),
    "explicit-inside-slurm": (SLURM | EXPLICIT, HostProcess("environment", "10.0.0.1:1234", 4, 3)),
    "slurm": (SLURM, HostProcess("Slurm", None, 6, 5, (1,), "slurm")),
    "slurm-one-task-a-node": (
        SLURM | {"SLURM_STEP_TASKS_PER_NODE": "1(x6)", "SLURM_LOCALID": "0"},
        HostProcess("Slurm", None, 6, 5, (), "slurm"),
    ),
    "slurm-eight-gpus-for-two": (
        SLURM | {"SLURM_GPUS_ON_NODE": "8"},
        HostProcess("Slurm", None, 6, 5, (4, 5, 6, 7), "slurm"),
    ),
    "slurm-bound-gpus": (
        SLURM | {"CUDA_VISIBLE_DEVICES": "3"},
        HostProcess("Slurm", None, 6, 5, (), "slurm"),
    ),
    "slurm-elsewhere": (
        SLURM | {"JAX_COORDINATOR_ADDRESS": "ib3:9"},
        HostProcess("Slurm", "ib3:9", 6, 5, (1,), "slurm"),
    ),
    "mpi": (MPI, HostProcess("Open MPI", None, 4, 2, (0,), "ompi")),
    "mpi-inside-slurm": (SLURM | MPI, HostProcess("Open MPI", None, 4, 2, (0,), "ompi")),
    "tpu": (TPU, HostProcess("Cloud TPU", count=4)),
    "tpu-slices": (TPU | SLICES, HostProcess("Cloud TPU", count=8)),
    "pod": (POD, HostProcess("Kubernetes", "job-0.pods:1234", 3, 2)),
    "auto": ({"PTM_HOSTS": "auto"}, HostProcess("PTM_HOSTS=auto")),
    "alone": ({}, None),
    "alone-on-a-tpu": ({"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}, None),
    "alone-in-a-pod": ({"JOB_COMPLETION_INDEX": "7"}, None),
    "one-of-one": (EXPLICIT | {"JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"}, None),
    "batch-script": ({k: v for k, v in SLURM.items() if "STEP" not in k}, None),
    "one-task": (SLURM | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, None),
}


@pytest.mark.parametrize("case", PLACES)
def test_the_place_of_a_process(case):
    environ, place = PLACES[case]
    assert detect(environ) == place


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("explicit", ("10.0.0.1:1234", 4, 3, None)),
        ("slurm", ("node003:61540", 6, 5, [1])),
        ("slurm-one-task-a-node", ("node003:61540", 6, 5, None)),
        ("mpi", ("10.96.0.1:62624", 4, 2, [0])),
        ("pod", ("job-0.pods:1234", 3, 2, None)),
    ],
)
def test_jax_finds_what_is_left_open(case, expected, monkeypatch):
    """The client that `jax.distributed.initialize` opens, and the GPUs that it leaves visible."""
    distributed = pytest.importorskip("jax._src.distributed")
    environ, place = PLACES[case]
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    seen = []

    def client(address, index, **options):
        seen.append((address, index))
        raise ConnectionError

    def update(name, value):
        return seen.append(value) if name == "jax_cuda_visible_devices" else None

    monkeypatch.setattr(distributed._jax, "get_distributed_runtime_client", client)
    monkeypatch.setattr(distributed.config, "update", update)
    state = distributed.State()
    with pytest.raises(ConnectionError):
        state.initialize(**hosts.options_of(place))
    address, count, index, gpus = expected
    assert (
        seen == [*([",".join(map(str, gpus))] if gpus else []), (address, index)]
        and state.num_processes == count
    )


def test_open_mpi_5_names_an_address_only_on_one_machine():
    environ = {k: v for k, v in MPI.items() if "orte" not in k}
    here = environ | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_NAMESPACE": "prterun-host-77@1"}
    place = detect(here)
    assert place.address.startswith("127.0.0.1:") and place == detect(here)
    with pytest.raises(
        UserError, match="Open MPI started 4 processes and names no address; set JAX_COORDINATOR"
    ):
        detect(environ)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (
            EXPLICIT | {"PTM_PROCESS_ID": "2"},
            "PTM_PROCESS_ID=2 and JAX_PROCESS_ID=3 contradict each other; unset one",
        ),
        (
            {"JAX_NUM_PROCESSES": "2"},
            "JAX_NUM_PROCESSES without JAX_COORDINATOR_ADDRESS and JAX_PROCESS_ID; set all",
        ),
        (
            EXPLICIT | {"JAX_PROCESS_ID": "4"},
            "process 4 of 4 .environment.: processes count from 0",
        ),
        (EXPLICIT | {"JAX_PROCESS_ID": "x"}, "JAX_PROCESS_ID is 'x'; expected a whole number"),
        (
            EXPLICIT | {"JAX_COORDINATOR_ADDRESS": "here"},
            "the address of the coordinator is 'here'; expected HOST:PORT",
        ),
        (
            SLURM | {"JAX_NUM_PROCESSES": "3"},
            "JAX_NUM_PROCESSES=3 contradicts Slurm, which has 6; unset JAX_NUM_PROC",
        ),
        (SLURM | {"SLURM_PROCID": ""}, "srun did not set SLURM_PROCID"),
        ({"PTM_HOSTS": "4"}, "PTM_HOSTS is '4'; the only value is auto"),
    ],
)
def test_variables_that_contradict(environ, words):
    with pytest.raises(UserError, match=words):
        detect(environ)


class Ended(Exception):
    pass


@pytest.fixture
def three(monkeypatch):
    """Three groups in this process, connected as those of three processes; `ended` collects their
    last lines."""
    ended = []

    def quit_with(text, status):
        ended.append((threading.current_thread().name, text, status))
        threading.current_thread().stopped = True
        raise Ended

    monkeypatch.setattr(group, "quit_with", quit_with)
    monkeypatch.setattr(hosts, "on_abort", lambda call: None)
    monkeypatch.setattr(group, "_SETTLE", 0.3)
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    first, second = socket.socketpair(), socket.socketpair()
    made = [
        group._Several(0, 3, {1: (first[0], "b"), 2: (second[0], "c")}),
        group._Several(1, 3, {0: (first[1], "a")}),
        group._Several(2, 3, {0: (second[1], "a")}),
    ]
    yield made, ended
    for each in made:
        each._closing = True
        each._thread.join(
            1.0
        )  # one that waits for its main thread to end the process never ends here
        for link in each._links.values():
            link.close()


def at_once(*calls):
    """The results of calls, each in a thread of its own."""
    results = [None] * len(calls)
    threads = [
        threading.Thread(target=lambda i=i, call=call: results.__setitem__(i, call()))
        for i, call in enumerate(calls)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    return results


def test_values_of_all_processes(three):
    groups, ended = three
    for turn in range(3):
        found = at_once(
            *(lambda g=g, turn=turn: g.gathered({"cursor": [turn, g.index]}) for g in groups)
        )
        assert found == [[{"cursor": [turn, i]} for i in range(3)], [], []]
        assert (
            at_once(*(lambda g=g, turn=turn: g.chosen(lambda: [turn, g.index]) for g in groups))
            == [[turn, 0]] * 3
        )
    at_once(*(g.close for g in groups))
    assert not ended


@pytest.mark.parametrize("asked", [0, 2])
def test_all_stop_at_the_same_step(three, asked):
    """One is slow, one is asked to stop: each ends before the same step, which all of them
    reach."""
    groups, ended = three

    def run(g):
        done = 5
        while done < 1000 and not g.stop(done):
            time.sleep(0.002 * (1 + g.index))
            done += 1
            if g.index == asked and done == 20:
                g.ask()
        return done

    steps = at_once(*(lambda g=g: run(g) for g in groups))
    assert len(set(steps)) == 1 and 20 <= steps[0] < 1000 and not ended


def until(condition):
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


def test_one_that_is_gone_is_named_by_all_others(three):
    groups, ended = three
    groups[2]._closing = True  # its thread ends in silence, as that of a killed process
    groups[2]._thread.join()
    groups[2]._links[0].close()
    until(lambda: len(ended) == 2)
    for _, text, status in ended:
        assert status == group.LOST == 75
        assert text.startswith(
            "process 2 of 3 on c is gone (killed, or out of memory), so all stop; run the "
            "same command"
        )


def test_one_that_is_silent_is_given_up(three):
    groups, ended = three
    groups[0]._patience = 0.5
    until(lambda: len(ended) >= 2)
    assert "is gone (silent for 0 s)" in ended[0][1] or "is gone (silent for 1 s)" in ended[0][1]


def test_an_error_of_one_ends_all_with_its_words(three):
    groups, ended = three
    groups[1].fail(UserError("the disk is full"))
    until(lambda: len(ended) == 2)
    assert {text for _, text, _ in ended} == {"process 1 of 3 on b has stopped: the disk is full"}
    assert {status for _, _, status in ended} == {1}


def test_a_step_that_does_not_end_is_reported_with_its_place(monkeypatch):
    monkeypatch.setenv("PTM_HANG_SECONDS", "0.2")
    monkeypatch.setattr(sys, "stderr", printed := io.StringIO())

    def waits_for_its_rows():
        group.current().stop(30)
        until(lambda: "step 31 has not ended" in printed.getvalue())

    with hanging.watching():
        waits_for_its_rows()
    report = printed.getvalue()
    assert "waits_for_its_rows" in report and report.count("process 0 of 1 on ") == 1


def test_the_process_that_is_behind_is_named(three, monkeypatch):
    groups, _ = three
    for each, rows in zip(groups, (True, True, False), strict=True):
        each._patience = 0.5
        each.stop(31)
        with each.arrivals.reading() if rows else contextlib.nullcontext():
            pass
    until(lambda: sum(mark.has_rows for mark in groups[0].marks().values()) == 2)
    until(lambda: len(groups[0].marks()) == 3)
    text = hanging.described(31, 600.0, threading.get_ident(), groups[0].marks())
    first, *frames, last = text.splitlines()
    assert first.endswith("step 32 has not ended for 600 s; the process is at")
    assert any("test_the_process_that_is_behind_is_named" in line for line in frames)
    assert last == "behind: process 2 of 3 on c has no rows for step 32; others have its rows"


def test_what_is_behind_and_what_is_silent():
    marks = {"a": Mark(31, True), "b": Mark(29, True, 7.2), "c": Mark(31, False)}
    assert arrivals.behind(marks) == [
        "behind: b is in step 30; others have finished 31 steps",
        "silent: b, for 7 s",
    ]
    assert arrivals.behind({"a": Mark(3, True), "b": Mark(3, True)}) == []


def test_the_process_that_the_others_wait_for(capsys):
    """Four processes of ten steps: one reads 0.3 s for each, the others about 0.1 s."""
    records = {"a": (10, 1.0), "b": (10, 1.2), "c": (10, 3.0), "d": (10, 0.8)}
    delay = arrivals.last_of(records, 10.0)
    assert delay == ("c", pytest.approx(0.3), pytest.approx(0.1), pytest.approx(0.2))
    for before in (None, delay, delay._replace(process="a"), delay._replace(share=0.01)):
        arrivals.noted(delay, before)
    said = capsys.readouterr().err.splitlines()
    assert said == 3 * [
        "c reads the rows of a step in 0.3 s, the median process in 0.1 s: the others wait 20% of "
        "the time"
    ]
    assert arrivals.last_of({"a": (10, 1.0)}, 1.0) is None
