"""Runs in object stores, against the servers of .venv/store on loopback. A run that is killed or
disturbed ends with the bits of an unbroken one on a disk."""

import json
import os
import signal
import time

import numpy as np
import pytest

from ptm_jax.core import paths
from ptm_jax.data.stores import objects, working
from ptm_jax.training import checkpoints, workdirs
from support import buckets
from support import tiny_runs as tiny
from support.jobs import Job

pytestmark = pytest.mark.full
PATIENCE = 1200
"""Seconds until a command counts as hanging."""
WORDS = [word for word in tiny.SMALL if not word.startswith("objective")]


@pytest.fixture(scope="module")
def server():
    with buckets.google() as (proxy, environment):
        yield proxy, environment


@pytest.fixture
def bucket(server, monkeypatch, tmp_path):
    """The proxy, with clients in this process too."""
    proxy, environment = server
    proxy.fault, proxy.counts = (lambda method, path: None), {}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(str(buckets.folder()))
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{before}:{buckets.folder()}")  # of the children of ptm plan
    monkeypatch.setenv("PTM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(working, "_copies", {})
    return proxy


@pytest.fixture(scope="module")
def train(server, tmp_path_factory):
    """Starts `ptm train` in processes of its own."""
    base = tmp_path_factory.mktemp("buckets")
    text = tiny.write_text(base / "text.txt")

    def start(workdir, count=1):
        command = [*tiny.PTM, "train", tiny.FILE, "--data", text, "--workdir", str(workdir)]
        more = tiny.environment(base / "compiled", JAX_PLATFORMS="cpu", **server[1])
        more |= {"PYTHONPATH": f"{more['PYTHONPATH']}:{buckets.folder()}"}
        more |= {"PTM_CACHE": str(base / "cache")}
        more |= {"JAX_NUM_PROCESSES": "1"} if count == 1 else {}
        return Job([*command, "--set", *WORDS], count, **more)

    return start


@pytest.fixture(scope="module")
def on_disk(train, tmp_path_factory):
    """An unbroken run on a disk."""
    workdir = tmp_path_factory.mktemp("disk") / "run"
    ((status, _, err),) = train(workdir).end(PATIENCE)
    assert status == 0, err
    return workdir


def state(folder):
    """{path: array} of the newest checkpoint, its position and its tokens."""
    flat = {}
    for name in ("params", "opt_state"):
        tree, meta, step = checkpoints.restore_params(folder, name=name)
        flat |= {f"{name}/{key}": np.asarray(leaf) for key, leaf in paths.flatten(tree).items()}
    return flat, (meta["position"], meta["tokens"], step)


def assert_same(folder, disk):
    """Log, parameters, optimizer, position and tokens, bit for bit."""
    assert tiny.metrics(folder) == tiny.metrics(disk)
    (here, facts), (there, wanted) = state(folder), state(disk)
    assert facts == wanted and here.keys() == there.keys()
    for key, array in there.items():
        assert array.tobytes() == here[key].tobytes(), key


def test_killed_in_a_faulty_bucket_it_ends_with_the_bits_of_the_disk(train, on_disk, bucket):
    """Of the requests 5% are answered 503 and 5% are cut. A torn checkpoint is never chosen."""
    url = "gs://bucket/faulty"
    bucket.fault = buckets.drawn(0.1, 0, buckets.BUSY, buckets.CUT)
    job = train(url)
    (process,) = job.processes
    while not objects.exists(f"{url}/checkpoints/step_00000004/record.json"):
        assert process.poll() is None, process.communicate()
        time.sleep(0.2)
    job.kill(0, signal.SIGKILL)
    job.end(PATIENCE)
    objects.write(f"{url}/checkpoints/step_00000011/d/torn", b"half of an array")
    ((status, _, err),) = train(url).end(PATIENCE)
    assert status == 0, err
    assert "resuming gs://bucket/faulty from step" in err and "ptm_jax_store" not in err
    faults = {kind: bucket.counts[kind] for kind in (buckets.BUSY, buckets.CUT)}
    print(f"{bucket.counts['passed']} requests passed, {faults}")
    assert min(faults.values()) >= 5
    bucket.fault = lambda method, path: None
    folder = working.opened(url)
    assert workdirs.steps_of(folder) == workdirs.steps_of(on_disk)
    assert not any("step_00000011" in name for name in objects.listed(url))
    assert_same(folder, on_disk)
    record = json.loads(objects.read(f"{url}/config.json"))
    assert record["corpus"]["path"] == f"{url}/data"


def test_two_processes_write_one_workdir_in_a_slow_bucket(train, on_disk, bucket):
    """Each has a working copy of its own, writes its part of the arrays, and fetches the corpus."""
    bucket.fault = lambda method, path: 0.02
    url = "gs://bucket/two"
    ends = train(url, 2).end(PATIENCE)
    assert [status for status, _, _ in ends] == [0, 0], ends
    assert [out.count("done: 9 steps") for _, out, _ in ends] == [1, 0]
    here, there = tiny.metrics(working.opened(url)), tiny.metrics(on_disk)
    assert [line["tokens"] for line in here] == [line["tokens"] for line in there]
    for a, b in zip(here, there, strict=True):
        assert a["values"] == pytest.approx(b["values"], rel=1e-4)
    (params, facts), (wanted, others) = state(working.opened(url)), state(on_disk)
    assert facts[1:] == others[1:]
    for key, array in wanted.items():
        np.testing.assert_allclose(params[key], array, rtol=1e-3, atol=1e-4, err_msg=key)


def test_a_bucket_that_refuses_is_one_line_before_anything_is_prepared(
    bucket, tmp_path, capsys, monkeypatch
):
    text = tiny.write_text(tmp_path / "text.txt")
    words = ["train", tiny.FILE, "--data", text, "--workdir", "gs://bucket/refused"]
    for fault in (
        lambda method, path: buckets.REFUSED,
        lambda method, path: buckets.REFUSED if method in ("POST", "PUT") else None,
    ):
        bucket.fault = fault
        assert tiny.ptm(*words) == 1
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "the store refuses it" in said, said
        assert "gs://bucket" in said and "check the rights" in said
    bucket.fault = lambda method, path: None
    assert not objects.listed("gs://bucket/refused")
    assert tiny.ptm(*words[:-1], "gs://absent/x") == 1
    assert "there is no bucket gs://absent" in capsys.readouterr().err


def test_the_commands_read_a_bucket(on_disk, bucket, capsys):
    """A run of the disk, copied as `gcloud storage cp -r` does: the commands print the same."""
    url = "gs://bucket/copied"
    for path in on_disk.rglob("*"):
        if path.is_file():
            objects.put(path, f"{url}/{path.relative_to(on_disk).as_posix()}")

    def printed(*words):
        assert tiny.ptm(*words) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    for words in (("evaluate", "--batches", 2), ("show",)):
        here, there = (printed(words[0], run, *words[1:]) for run in (url, on_disk))
        assert here == there.replace(str(on_disk), url)


def test_s3_keeps_objects_and_checkpoints(monkeypatch, tmp_path):
    with buckets.amazon() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.syspath_prepend(str(buckets.folder()))
        monkeypatch.setattr(working, "_copies", {})
        url = "s3://bucket/run"
        folder = working.opened(url)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        working.push(folder)
        objects.write(f"{url}/a/b", b"b")
        objects.copy_below(f"{url}/a", f"{url}/c")
        assert list(objects.listed(url)) == ["a/b", "c/b", "config.json"]
        objects.delete_below(f"{url}/c")
        objects.delete_below(f"{url}/a")
        assert objects.names(url) == ["config.json"] and not objects.listed("s3://bucket/none")
        assert objects.listed(url)["config.json"].checksum
        saved = {"params": {"a": np.arange(6.0, dtype=np.float32)}}
        store = checkpoints.Checkpoints(folder)
        store.save(3, saved, {"tokens": 1})
        store.wait()
        tree, meta, step = checkpoints.restore_params(folder)
        assert (meta, step) == ({"tokens": 1}, 3) and np.array_equal(
            tree["a"], saved["params"]["a"]
        )
