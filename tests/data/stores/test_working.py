"""Object stores without a server: fsspec's file system in memory stands for gs://."""

import os
import shutil

import jax
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from jax.experimental.compilation_cache import compilation_cache

from ptm_jax.cli.main import main
from ptm_jax.core import cache as core_cache
from ptm_jax.core.errors import UserError
from ptm_jax.data.corpora import prepare, store
from ptm_jax.data.stores import fetched, lease, objects, working
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.training import checkpoints, shelves, workdirs
from ptm_jax.training.hosts import shared_programs as programs
from support import tiny_runs as tiny

URL = "gs://bucket/run"
SPEC = TokenizerSpec(kind="wordpiece", vocab=200)


class Memory(MemoryFileSystem):
    """gs://bucket, in this process."""

    @classmethod
    def _strip_protocol(cls, path):
        return "/" + str(path).removeprefix("gs://").strip("/")


@pytest.fixture
def bucket(monkeypatch, tmp_path):
    """The store, empty, and a new set of working copies."""
    system = Memory(skip_instance_cache=True)
    system.store, system.pseudo_dirs = {}, ["", "/bucket"]
    monkeypatch.setattr(objects, "_system", lambda url: system)
    monkeypatch.setenv("PTM_CACHE", str(tmp_path / "cache"))
    another_process(monkeypatch, tmp_path)
    return system


def another_process(monkeypatch, tmp_path):
    """Forgets the working copies, as a process that begins."""
    home = tmp_path / f"home_{len(list(tmp_path.iterdir()))}"
    home.mkdir()
    monkeypatch.setattr(working, "_copies", {})
    monkeypatch.setattr(working, "_names", {})
    monkeypatch.setattr(working, "_home", lambda: home)


def test_files_reach_the_store_and_come_back(bucket, monkeypatch, tmp_path):
    folder = working.opened(URL)
    assert not folder.exists() and working.url_of(folder / "a") == f"{URL}/a"
    for name in ("config.json", "tokenizer/t.json", "a.txt", ".config.draft", "b.draft/c", ".lock"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    order = []
    monkeypatch.setattr(objects, "put", lambda path, url, put=objects.put: order.append(url))
    working.push(folder)
    assert order == [f"{URL}/{name}" for name in ("a.txt", "tokenizer/t.json", "config.json")]
    monkeypatch.undo()
    monkeypatch.setattr(objects, "_system", lambda url: bucket)
    another_process(monkeypatch, tmp_path)
    objects.write(f"{URL}/.lock", b"of a run that was killed")
    folder = working.opened(URL)
    folder.mkdir(parents=True)
    (folder / "a.txt").write_text("new")
    working.push(folder)
    (folder / "a.txt").unlink()
    (folder / "b.txt").write_text("b")
    working.push(folder)
    assert sorted(objects.listed(URL)) == [".lock", "b.txt"]
    assert working.named(f"wrote {folder}/b.txt") == f"wrote {URL}/b.txt"


def test_a_log_is_written_in_parts(bucket, monkeypatch, tmp_path):
    def log():
        return working.opened(URL) / "metrics.jsonl"

    log().parent.mkdir(parents=True)
    for text in ("one\n", "one\ntwo\n", "one\ntwo\nthree\n"):
        log().write_text(text)
        working.push(log())
    parts = sorted(objects.listed(f"{URL}/metrics.jsonl.parts"))
    assert parts == ["000000000000", "000000000004", "000000000008"]
    another_process(monkeypatch, tmp_path)
    assert log().read_text() == "one\ntwo\nthree\n"
    log().write_text("one\nTWO\n")  # a run that resumed before the last lines
    working.push(log())
    assert list(objects.listed(f"{URL}/metrics.jsonl.parts")) == ["000000000000"]
    objects.write(f"{URL}/metrics.jsonl.parts/000000000004", b"old\n")  # deleted too late
    another_process(monkeypatch, tmp_path)
    assert log().read_text() == "one\nTWO\n"


def test_a_corpus_is_fetched_once_and_the_cache_is_bounded(bucket, monkeypatch, tmp_path):
    text = tiny.write_text(tmp_path / "text.txt")
    made = prepare.prepare([text], "gs://bucket/corpus", tokenizer=SPEC)
    assert prepare.prepare([text], "gs://bucket/corpus", tokenizer=SPEC).manifest == made.manifest
    another_process(monkeypatch, tmp_path)
    here = store.open_corpus("gs://bucket/corpus")
    assert here.manifest == made.manifest and here.dir.is_relative_to(tmp_path / "cache")
    bucket.store.pop(next(name for name in bucket.store if name.endswith("array_record")))
    assert store.open_corpus("gs://bucket/corpus").dir == here.dir  # nothing is fetched again
    handle = fetched._handles.pop(here.dir)
    size = sum(path.stat().st_size for path in here.dir.rglob("*") if path.is_file())
    monkeypatch.setenv("PTM_STORE_GB", str(1.5 * size / 1e9))
    prepare.prepare([text], "gs://bucket/other", tokenizer=SPEC, seed=1)
    another_process(monkeypatch, tmp_path)

    def folders():
        return {path for path in (tmp_path / "cache/stores").iterdir() if path.is_dir()}

    other = store.open_corpus("gs://bucket/other")
    assert folders() == {here.dir, other.dir}  # this process uses the first one
    shutil.rmtree(other.dir)
    os.close(handle)
    assert store.open_corpus("gs://bucket/other").dir == other.dir and folders() == {other.dir}
    monkeypatch.setenv("PTM_STORE_GB", "1e-6")
    with pytest.raises(UserError, match="gs://bucket/corpus has .* GB, more than PTM_STORE_GB"):
        fetched.corpus("gs://bucket/corpus")


def test_a_checkpoint_is_complete_by_its_record(bucket):
    folder = working.opened(URL)
    folder.mkdir(parents=True)
    shelf = shelves.shelf_of(folder)
    for step in (4, 8):
        objects.write(f"{URL}/checkpoints/step_{step:08d}/d/1", b"array")
    body = {"step": 4, "meta": {}, "tree": {"params/a": [[2], "float32"]}}
    shelf.complete(4, body)
    assert shelf.steps() == workdirs.steps_of(folder) == [4] and shelf.verify(4)["step"] == 4
    shelf.sweep()
    assert {name.split("/")[1] for name in objects.listed(URL)} == {"step_00000004"}
    objects.write(f"{URL}/checkpoints/step_00000004/d/1", b"arra")
    with pytest.raises(shelves.Damaged, match="d/1 has 4 bytes instead of 5"):
        shelf.verify(4)
    record = f"{URL}/checkpoints/step_00000004/record.json"
    objects.write(record, objects.read(record).replace(b'"step": 4', b'"step": 5'))
    with pytest.raises(shelves.Damaged, match="does not have its checksum"):
        shelf.record(4)
    checkpoints.Checkpoints(folder)._make_free(4)  # before it is saved again
    assert not objects.listed(f"{URL}/checkpoints")


def test_the_last_that_begins_has_the_workdir(bucket, monkeypatch):
    monkeypatch.setattr(lease, "SECONDS", 0)
    first = lease.Lease(URL)
    first.check()
    second = lease.Lease(URL)
    with pytest.raises(UserError, match=f"{URL} was removed, or another run writes there now"):
        first.check()
    first.release()
    second.check()
    second.release()
    assert not objects.listed(URL)


def test_a_package_that_is_missing_is_one_line(monkeypatch, capsys):
    import fsspec

    def absent(*args, **options):
        raise ImportError

    monkeypatch.setattr(fsspec, "filesystem", absent)
    assert main(["train", "bert_mini", "--data", "x.txt", "--workdir", "s3://b/x"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "needs the package s3fs" in said and "ptm_jax[store]" in said


@pytest.fixture
def compile_on(monkeypatch, tmp_path):
    """Compiles one program on a machine: returns whether it was compiled, and the lines said."""
    new = dict.fromkeys(("jax_compilation_cache_dir",)) | {
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
        "jax_persistent_cache_enable_xla_caches": "xla_gpu_per_fusion_autotune_cache_dir",
    }
    before, hits, said = {name: jax.config.values[name] for name in new}, [], []

    def hear(event, **more):
        hits.extend([event] if event.endswith("/cache_hits") else [])

    jax.monitoring.register_event_listener(hear)

    def compiled(machine, workdir):
        monkeypatch.setenv("PTM_CACHE", str(tmp_path / machine))
        monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")  # `use` keeps it
        for name, value in new.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        hits.clear(), said.clear()
        programs.use(workdir, said.append)
        jax.jit(lambda x: x * 3 + 7).lower(2.0).compile()
        programs.push(said.append)
        return not hits, [*said]

    yield compiled
    programs.use(tmp_path, said.append)
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    jax.monitoring.unregister_event_listener(hear)


def test_another_machine_does_not_compile_again(bucket, compile_on):
    folder = working.opened(URL)
    assert compile_on("first", folder) == (True, [])
    (name,) = objects.listed(f"{URL}/programs")
    place = f"{URL}/programs/{name.partition('/')[0]}"
    assert compile_on("second", folder) == (False, [f"1 compiled program of {place}"])
    assert compile_on("first", folder) == (False, [])


def test_a_store_that_refuses_programs_is_one_line(bucket, compile_on, monkeypatch, tmp_path):
    def refuses(*words):
        raise UserError("cannot write: the store refuses it")

    with monkeypatch.context() as patch:
        patch.setattr(objects, "put", refuses)
        line = "compiled programs are not shared: cannot write: the store refuses it"
        assert compile_on("first", working.opened(URL)) == (True, [line])
        programs.push(pytest.fail)
    monkeypatch.setattr(objects, "listed", refuses)
    assert compile_on("second", working.opened(URL)) == (True, [line])
    assert compile_on("third", tmp_path) == (True, [])  # a workdir on a disk


def test_a_url_as_ptm_cache_shares_the_programs_of_all_runs(monkeypatch):
    monkeypatch.setenv("PTM_CACHE", "gs://bucket/caches/")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert core_cache.shared() == "gs://bucket/caches"
    assert str(core_cache.home()) == "/somewhere/ptm_jax"
    monkeypatch.setenv("PTM_CACHE", "/disk")
    assert core_cache.shared() is None and str(core_cache.home()) == "/disk"
