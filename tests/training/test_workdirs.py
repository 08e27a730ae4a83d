"""The folder of a run while the run writes there: removed, renamed, reached by a link, locked."""

import dataclasses
import fcntl
import os
import shutil
import time

import pytest

from ptm_jax.core import cache
from ptm_jax.core.errors import UserError
from ptm_jax.objectives.text.language import MLM
from ptm_jax.training import loop, workdirs
from support import tiny_runs as tiny


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory):
    with tiny.compiling(tmp_path_factory.getbasetemp() / "compiled") as folder:
        yield folder


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A run of nine steps that saves after 4, 8 and 9."""
    text = tiny.write_text(tmp_path_factory.mktemp("text") / "text.txt")
    recipe = tiny.system.recipe
    phases = [
        dataclasses.replace(phase, steps=n) for phase, n in zip(recipe.phases, (6, 3), strict=True)
    ]
    system = dataclasses.replace(
        tiny.system,
        objective=MLM(),
        recipe=dataclasses.replace(recipe, phases=tuple(phases)),
    )
    return dataclasses.replace(tiny.config, system=system, data=(text,), save_every=4, eval_every=0)


DAMAGES = {
    "removed": shutil.rmtree,
    "renamed": lambda folder: folder.rename(folder.with_name("elsewhere")),
    "replaced": lambda folder: (folder.rename(folder.with_name("elsewhere")), folder.mkdir()),
    "emptied": lambda folder: [
        path.unlink() if path.is_file() else shutil.rmtree(path)
        for path in folder.iterdir()
        if not path.name.startswith(".")
    ],
    "without its record": lambda folder: (folder / "config.json").unlink(),
    "without its tokenizer": lambda folder: shutil.rmtree(folder / "tokenizer"),
}


@pytest.mark.parametrize(
    "damage",
    [name if name == "renamed" else pytest.param(name, marks=pytest.mark.full) for name in DAMAGES],
)
def test_a_workdir_that_changes_under_a_run_ends_it_with_an_error(config, tmp_path, damage):
    seen = []

    def callback(step, split, values):
        seen.append(step)
        if step == 5 and split == "train":
            saved = tmp_path / "run/checkpoints"
            while [path.name for path in saved.iterdir()] != ["step_00000004"]:
                time.sleep(0.01)
            DAMAGES[damage](tmp_path / "run")

    with pytest.raises(UserError) as error:
        loop.train(config, tmp_path / "run", quiet=True, callbacks=[callback])
    assert "\n" not in str(error.value) and str(tmp_path / "run") in str(error.value)
    if damage in ("removed", "renamed", "replaced"):
        assert "removed, renamed or replaced" in str(error.value) and max(seen) == 5


def test_every_name_of_a_workdir_has_one_lock(config, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    (tmp_path / "further").symlink_to(tmp_path / "link")
    with workdirs.alone(tmp_path / "link", True):
        for name in ("run", "further", "link"):
            with pytest.raises(UserError, match="another process is training"):
                loop.train(config, tmp_path / name, quiet=True)
    assert not list((tmp_path / "run").iterdir())


@pytest.mark.full
def test_the_folder_above_is_not_written(config, tmp_path):
    """A mounted volume is writable, and the folder in which it is mounted is not."""
    (tmp_path / "volume").mkdir()
    names = []
    loop.train(
        config,
        tmp_path / "volume",
        quiet=True,
        callbacks=[lambda *_: names.append(sorted(os.listdir(tmp_path))) or False],
    )
    assert names and all(name == ["volume"] for name in names)
    assert not (tmp_path / "volume" / workdirs.LOCK).exists()


def test_a_lock_is_no_link_and_keeps_what_it_holds(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / workdirs.LOCK).symlink_to(precious)
    (tmp_path / "entry.lock").symlink_to(precious)
    with pytest.raises(UserError, match=r"cannot write"), workdirs.alone(tmp_path / "run", True):
        pass
    with pytest.raises(OSError), cache.alone(tmp_path / "entry.lock", False):
        pass
    with cache.locked(precious, wait=False) as handle:
        assert handle is not None
    assert precious.read_text() == "kept"


def test_a_folder_that_was_made_and_stays_empty_goes(tmp_path):
    with pytest.raises(KeyError), workdirs.alone(tmp_path / "a/run", True):
        raise KeyError
    assert not (tmp_path / "a/run").exists()
    (tmp_path / "a/run").mkdir()
    with workdirs.alone(tmp_path / "a/run", True):
        pass
    assert not list((tmp_path / "a/run").iterdir())


@pytest.mark.full
def test_a_clock_that_stands_still_ends_no_run(config, tmp_path, monkeypatch):
    monkeypatch.setattr(loop.time, "perf_counter", lambda: 7.0)
    monkeypatch.setattr(loop.time, "monotonic", lambda: 7.0)
    assert loop.train(config, tmp_path / "run").done


def test_a_waiting_process_gets_the_file_that_has_the_name(tmp_path):
    """The holder removes its file when it ends; a lock on that file would hold nothing."""
    path = tmp_path / "lock"
    with path.open("w") as ended:
        path.unlink()
        fcntl.flock(ended, fcntl.LOCK_EX)
        with cache.locked(path, wait=True) as handle:
            assert handle is not None and cache.same_file(path, handle)
