"""Kinds of the package and of a user's own file: found again from a record, and when they must not
be."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.spec import classes as kinds
from ptm_jax.core.spec import own_code as sources
from ptm_jax.core.spec.rebuild import rebuild
from ptm_jax.core.towers import init
from ptm_jax.runs import writing


@pytest.fixture
def workdir(tmp_path):
    """A run of a system of the user's own file, which is not imported any more."""
    file = Path(
        shutil.copy(Path(__file__).parents[1] / "support" / "own_encoder.py", tmp_path / "mine.py")
    )
    system, folder = sources.import_file(file).system, tmp_path / "run"
    batch = {name: jnp.ones((1, 4), "int32") for name in ("input_ids", "segment_ids")}
    record = {"config": {"system": spec.to_json(system)}, "own": sources.sources_of(system, folder)}
    assert record["own"]["classes"] == {
        name: {"name": name, "file": str(file)} for name in ("Neighbours", "Words")
    }
    writing.write(folder, record, None, init(system.towers, jax.random.key(0), batch))
    del sys.modules["config_mine"]
    return folder


def test_a_run_that_was_moved_imports_nothing(workdir, tmp_path):
    moved = workdir.rename(tmp_path / "moved")
    with pytest.raises(
        UserError, match="Words is of .*mine.py, which a run that was moved .* import it first"
    ):
        ptm_jax.load(moved)
    assert "config_mine" not in sys.modules
    sources.import_file(tmp_path / "mine.py")
    assert type(ptm_jax.load(moved).module.encoder).__name__ == "Neighbours"
    del sys.modules["config_mine"]


def test_a_file_that_is_gone_or_lies_in_the_run_is_one_line(workdir, tmp_path):
    file = tmp_path / "mine.py"
    file.rename(workdir / "mine.py")
    with pytest.raises(UserError, match="Words was defined in .*mine.py, which is gone"):
        ptm_jax.load(workdir)
    record = json.loads((workdir / "config.json").read_text())
    record["own"]["classes"]["Words"]["file"] = str(workdir / "mine.py")
    assert "was moved or downloaded" in sources.own_kinds(record, workdir).lost["Words"]
    sources.remember(record["own"], workdir)
    assert "no file that you gave" in sources.own_kinds(record, workdir).lost["Words"]
    assert "config_mine" not in sys.modules


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize(
    "form",
    ["plain", "//", "/proc/self/root", "x/..", "symlink", "module", "folder link", "./", "os"],
)
def test_nothing_in_the_folder_of_a_run_is_imported(workdir, tmp_path, monkeypatch, form, listed):
    """Whatever its record says of where it was made, and though it were on the user's list."""
    ran = tmp_path / "ran"
    (workdir / "evil.py").write_text(f"open({str(ran)!r}, 'w').close()\nclass Words: pass\n")
    file = {
        "plain": f"{workdir}/evil.py", "//": f"/{workdir}/evil.py", "module": "",
        "/proc/self/root": f"/proc/self/root{workdir}/evil.py", "./": f"{workdir}/./evil.py",
        "x/..": f"{tmp_path}/x/../run/evil.py", "symlink": f"{tmp_path}/link.py",
        "folder link": f"{tmp_path}/other/evil.py", "os": "",
    }[form]  # fmt: skip
    (tmp_path / "x").mkdir()
    (tmp_path / "link.py").symlink_to(workdir / "evil.py")
    (tmp_path / "other").symlink_to(workdir)
    record = json.loads((workdir / "config.json").read_text())
    source = {"name": "Words", "file": file}
    if form == "module":
        monkeypatch.syspath_prepend(str(workdir))
        source = {"name": "Words", "module": "evil"}
    if form == "os":
        source = {"name": "system", "module": "os"}
    record["own"] = {"folder": str(workdir), "classes": {"Words": source}}
    (workdir / "config.json").write_text(json.dumps(record))
    if listed:
        sources.remember(record["own"], workdir)
    with pytest.raises(UserError, match="Words is of|Words was defined in"):
        ptm_jax.load(workdir)
    assert not ran.exists()


def test_a_list_that_others_may_write_is_not_read(workdir):
    record = json.loads((workdir / "config.json").read_text())
    assert sources.made_here(record, workdir)
    sources._list().chmod(0o666)
    assert not sources.made_here(record, workdir)
    sources._list().chmod(0o600)
    changed = json.loads(json.dumps(record))
    changed["own"]["classes"]["Words"]["name"] = "Others"
    assert not sources.made_here(changed, workdir)


def test_trust_imports_what_a_moved_run_names(workdir, tmp_path, capsys):
    moved = workdir.rename(tmp_path / "moved")
    assert main(["export", str(moved), "--out", str(tmp_path / "a")]) == 1
    assert "give --trust" in capsys.readouterr().err
    try:
        main(["export", str(moved), "--out", str(tmp_path / "b"), "--trust"])
        assert "give --trust" not in capsys.readouterr().err and "config_mine" in sys.modules
    finally:
        sources._trusted.clear()
        sys.modules.pop("config_mine", None)


def test_a_class_that_the_system_does_not_use_is_not_imported(workdir, tmp_path):
    ran = tmp_path / "ran"
    (tmp_path / "more.py").write_text(f"open({str(ran)!r}, 'w').close()\nclass More: pass\n")
    record = json.loads((workdir / "config.json").read_text())
    record["own"]["classes"]["More"] = {"name": "More", "file": str(tmp_path / "more.py")}
    sources.remember(record["own"], workdir)
    assert set(sources.own_kinds(record, workdir)) >= {"Words"} and not ran.exists()


def test_a_kind_imports_its_own_module_alone():
    code = """
import sys
from ptm_jax.core.spec.classes import kinds_of
assert kinds_of()["TokenMasking"].__module__ == "ptm_jax.corruptions.masking.token"
assert "Nope" not in kinds_of()
rooms = {name.split(".")[1] for name in sys.modules if name.startswith("ptm_jax.")}
assert not rooms & {"nn", "encoders", "tasks"}, rooms
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_name_of_two_rooms_is_written_with_its_room(monkeypatch):
    from ptm_jax.data.corpora.block_records import Block as Data
    from ptm_jax.nn.blocks import Block as Layer

    monkeypatch.setattr(kinds, "_index", lambda: {"Block": (Layer.__module__, Data.__module__)})
    kinds._classes.cache_clear()
    assert (kinds.kind_of(Layer), kinds.kind_of(Data)) == ("nn.Block", "data.Block")
    assert kinds.kinds_of()["data.Block"] is Data and list(kinds.kinds_of()) == [
        "nn.Block",
        "data.Block",
    ]
    with pytest.raises(
        UserError, match="Block is the name of several classes: nn.Block, data.Block"
    ):
        rebuild({"kind": "Block"}, kinds.kinds_of())
    monkeypatch.undo()
    kinds._classes.cache_clear()
    assert kinds.kind_of(Layer) == "Block"


def test_a_new_class_takes_no_name_that_records_already_use():
    """A record of yesterday names a class without its folder. A second class of that name makes the
    record unreadable."""
    shared = {
        name
        for name, modules in kinds._index().items()
        if len(modules) > 1 and len(kinds._classes(name)) > 1
    }
    assert shared == {"Recurrent", "Source"}, (
        "rename the newer class: runs on disk name the older one"
    )


@pytest.mark.parametrize(
    ("kind", "room"),
    [
        ("core.Huffman", "statistics"),
        ("core.Triples", "knowledge"),
        ("nn.HashedNGrams", "statistics"),
    ],
)
def test_an_old_kind_names_the_room_that_its_class_has_left(kind, room):
    value = rebuild({"kind": kind, "corpus_sha256": "0"}, kinds.kinds_of())
    assert type(value).__module__.split(".")[1] == room and value.corpus_sha256 == "0"
    assert spec.to_json(value)["kind"] == kind.partition(".")[2]
    with pytest.raises(UserError, match="unknown kind 'objectives.Huffman'"):
        rebuild({"kind": "objectives.Huffman"}, kinds.kinds_of())
