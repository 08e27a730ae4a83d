"""Runs in object stores, against the servers of .venv/store on loopback. A run that is killed or
disturbed ends with the bits of an unbroken one on a disk."""

import importlib.util
import json
import os
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tyro

from ptm_jax.cli.machine import launch
from ptm_jax.core import paths
from ptm_jax.data.stores import objects, working
from ptm_jax.training import checkpoints, workdirs
from support import buckets, counted, furnished
from support import tiny_runs as tiny
from support.jobs import Job

pytestmark = pytest.mark.full
ROOT = Path(tiny.FILE).parents[2]
PATIENCE = 1200
"""Seconds until a command counts as hanging."""
WORDS = [word for word in tiny.SMALL if not word.startswith("objective")]
WORDS.append("recipe.schedule=Constant(warmup=2)")  # a run that --more makes longer


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with tiny.compiling(tmp_path_factory.getbasetemp() / "compiled") as folder:
        yield folder


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
def text(tmp_path_factory):
    return tiny.write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="module")
def train(server, text, cache, tmp_path_factory):
    """Starts `ptm train` in two processes: two new hosts, with nothing in their caches."""

    def start(workdir):
        command = [sys.executable, "-m", "support.counted", "train", tiny.FILE]
        command += ["--data", text, "--workdir", str(workdir)]
        more = tiny.environment(cache, JAX_PLATFORMS="cpu", **server[1])
        more |= {"PYTHONPATH": f"{more['PYTHONPATH']}:{buckets.folder()}"}
        more |= {"JAX_COMPILATION_CACHE_DIR": ""}
        base = tmp_path_factory.mktemp("hosts")
        caches = {host: {"PTM_CACHE": str(base / f"cache_{host}")} for host in (0, 1)}
        return Job([*command, "--set", *WORDS], 2, faults=caches, **more)

    return start


@pytest.fixture(scope="module")
def on_disk(train, tmp_path_factory):
    """An unbroken run of two processes on a disk."""
    workdir = tmp_path_factory.mktemp("disk") / "run"
    ends = train(workdir).end(PATIENCE)
    assert [status for status, _, _ in ends] == [0, 0], ends
    return workdir


@pytest.fixture(scope="module")
def in_bucket(server, train):
    """A run of two processes, one of which is killed, in a bucket that is slow and refuses or cuts
    a tenth of the requests; the requests by what became of them; how the two starts ended."""
    proxy, url = server[0], "gs://bucket/run"
    faulty = buckets.drawn(0.1, 0, buckets.BUSY, buckets.CUT)
    proxy.fault = lambda method, path: faulty(method, path) or 0.01
    job = train(url)
    while "run/checkpoints/step_00000004/record.json" not in proxy.objects():
        assert all(process.poll() is None for process in job.processes), job.end()
        time.sleep(0.1)
    job.kill(1, signal.SIGKILL)
    first = job.end(PATIENCE)
    assert first[0][0] == 75
    proxy.put("run/checkpoints/step_00000011/d/torn", b"half of an array")
    ends = train(url).end(PATIENCE)
    assert [status for status, _, _ in ends] == [0, 0], ends
    proxy.fault = lambda method, path: None
    return url, dict(proxy.counts), first, ends


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


def test_killed_in_a_faulty_bucket_it_ends_with_the_bits_of_the_disk(in_bucket, on_disk, bucket):
    """No token is lost or read twice, and a torn checkpoint is never chosen."""
    url, counts, _, ends = in_bucket
    print(f"requests: {counts}")
    assert min(counts[buckets.BUSY], counts[buckets.CUT]) >= 5
    assert [out.count("done: 9 steps") for _, out, _ in ends] == [1, 0]
    err = ends[0][2]
    assert f"resuming {url} from step" in err and "ptm_jax_store" not in err
    folder = working.opened(url)
    assert workdirs.steps_of(folder) == workdirs.steps_of(on_disk)
    assert not any("step_00000011" in name for name in objects.listed(url))
    assert_same(folder, on_disk)
    lines = [line for line in tiny.metrics(folder) if line["split"] == "train"]
    assert [line["step"] for line in lines] == list(range(1, 10))
    record = json.loads(objects.read(f"{url}/config.json"))
    assert record["corpus"]["path"] == f"{url}/data"


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


def test_a_start_on_other_hosts_reads_the_compiled_programs(in_bucket):
    """JAX tells of compilations in process 0 alone."""
    _, _, *starts = in_bucket
    counts = [(e[0][2].count(counted.COMPILED), e[0][2].count(counted.READ)) for e in starts]
    print(f"(compiled, read) by start: {counts}")
    (first, none), (second, read) = counts
    assert first > 0 and none == 0 and read >= 10 and second < first
    assert "compiled programs of gs://bucket/run/programs/" in starts[1][0][2]


def printed(capsys, *words):
    capsys.readouterr()
    assert tiny.ptm(*words) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_the_commands_read_and_write_a_bucket(
    in_bucket, on_disk, bucket, published, tmp_path, capsys
):
    """They print and write the same as on the disk."""
    url, here, there = in_bucket[0], "gs://bucket/made", tmp_path
    (texts := tmp_path / "texts.txt").write_text("The old ban sees it.\nThe small kelin breaks.\n")
    for words in (
        ("evaluate", "{run}", "--batches", 2),
        ("average", "{run}/checkpoints/step_00000004", "{run}", "--out", "{out}/mean"),
        ("import", published, "--out", "{out}/imported"),
        ("export", "{out}/imported", "--out", "{out}/hf"),
        ("predict", "{out}/mean", "--task", "embed", "--input", texts, "--output", "{out}/v.npy"),
        ("predict", "{out}/hf", "--task", "embed", "--input", texts, "--output", "{out}/w.jsonl"),
    ):
        outs = [
            printed(capsys, *(str(word).format(run=run, out=out) for word in words)).replace(
                str(run), "RUN"
            ).replace(str(out), "OUT")
            for run, out in ((url, here), (on_disk, there))
        ]  # fmt: skip
        assert outs[0] == outs[1], words
    for name in ("v.npy", "w.jsonl", "hf/model.safetensors", "hf/config.json"):
        assert objects.read(f"{here}/{name}") == (there / name).read_bytes(), name


def test_more_steps_of_a_run_in_a_bucket(in_bucket, on_disk, bucket, text, tmp_path, capsys):
    url, disk = "gs://bucket/longer", shutil.copytree(on_disk, tmp_path / "longer")
    objects.copy_below(in_bucket[0], url)
    for workdir in (url, disk):
        words = ["train", tiny.FILE, "--data", text, "--workdir", workdir, "--more", "2"]
        assert tiny.ptm(*words, "--set", *WORDS) == 0, capsys.readouterr().err
    assert workdirs.steps_of(disk)[-1] == 11
    assert_same(working.opened(url), disk)


def test_the_best_checkpoint_of_a_task_in_a_bucket(in_bucket, on_disk, bucket, tmp_path, capsys):
    table = tmp_path / "rows.csv"
    rows = [f"The old ban sees the kelin {n}.,{'ab'[n % 2]}" for n in range(24)]
    table.write_text("\n".join(["text,label", *rows]) + "\n")
    choices = []
    for init, workdir in ((in_bucket[0], "gs://bucket/task"), (on_disk, tmp_path / "task")):
        words = ("--data", table, "--text-column", "text", "--label-column", "label", "--epochs", 3)
        words += ("--batch", 8, "--length", 16, "--best", "--workdir", workdir)
        document = json.loads(printed(capsys, "train", "--init", init, *words, "--json"))
        choices.append((document["metrics"], document["checkpoint"].replace(str(workdir), "")))
        assert tiny.ptm("evaluate", workdir, "--data", table) == 0
    assert choices[0] == choices[1]


def test_predictions_are_shards_of_a_bucket(on_disk, bucket, monkeypatch, tmp_path, capsys):
    """Two hosts, one after the other, write the shards of their numbers; a third command none."""
    text = tmp_path / "texts.txt"
    text.write_text("".join(f"the list of {number}\n" for number in range(10)))
    objects.put(text, "gs://bucket/texts.txt")
    task = ("--task", "embed", "--truncate")
    one = tmp_path / "one.jsonl"
    assert tiny.ptm("predict", on_disk, *task, "--input", text, "--output", one) == 0
    words = ("predict", on_disk, *task, "--input", "gs://bucket/texts.txt", "--output",
        "gs://bucket/out/rows.jsonl", "--shards", 3)  # fmt: skip
    for name, value in (("NUM_PROCESSES", "2"), ("COORDINATOR_ADDRESS", "127.0.0.1:1")):
        monkeypatch.setenv(f"JAX_{name}", value)
    said = []
    for index in (1, 0, 0):
        monkeypatch.setenv("JAX_PROCESS_ID", str(index))
        assert tiny.ptm(*words) == 0, capsys.readouterr().err
        said.append(capsys.readouterr().err)
    assert "1 of 3 shards are complete" in said[0] and "1 of 3 shards were there" in said[1]
    assert said[2] == "3 of 3 shards were there\nall 3 shards are complete: 10 rows\n"
    names = [f"gs://bucket/out/rows-{number:05d}-of-00003.jsonl" for number in range(3)]
    assert b"".join(map(objects.read, names)) == one.read_bytes()
    assert tiny.ptm(*words, "--top", 3) == 1
    assert "was begun with other options" in capsys.readouterr().err


def walk():
    """The commands of the walk in docs/pod.md, with bert_mini in place of bert_base."""
    page = (ROOT / "docs" / "pod.md").read_text(encoding="utf8")
    section = page.partition("## From an allocation")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("ptm ")]
    return [shlex.split(line.replace("bert_base", "bert_mini"))[1:] for line in lines]


def test_the_walk_of_the_page(bucket, tmp_path, monkeypatch, capsys):
    """Each command but `ptm plan`, in this order; the job is the command of one host."""
    monkeypatch.chdir(tmp_path)
    furnished.furnish(tmp_path, tmp_path, set())
    commands, names = walk(), []
    for words in commands:
        names.append(words[0])
        if "--runner" in words and importlib.util.find_spec("apache_beam") is None:
            words = words[: words.index("--runner")]
        if words[0] == "plan":
            continue
        said = printed(capsys, *words)
        assert said or words[0] == "launch"
        if words[0] == "launch":
            job = launch.describe(tyro.cli(launch.Args, args=words[1:]))
            line = shlex.join(job.command())
            assert line in (tmp_path / "base.sh").read_text()
            said = printed(capsys, *job.command()[1:], "--set", "recipe.phases.0.steps=6")
            assert "done: 6 steps" in said
    assert names == "prepare plan train launch show evaluate export predict".split()
    assert objects.exists("gs://bucket/profiled/profile.md")


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
