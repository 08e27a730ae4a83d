"""Kinds of the package and of a user's own file: found again from a record, and when they must not be."""

import json
import subprocess
import sys

import jax
import pytest

import ptm_jax
from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.spec import classes as kinds
from ptm_jax.core.spec import own_code as sources
from ptm_jax.core.spec.rebuild import rebuild
from ptm_jax.core.towers import init
from ptm_jax.runs import run

FILE = """
import dataclasses
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer import Transformer, transformer
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.systems import get

class Mine(Transformer):
    pass

plain = transformer(vocab=Vocab(size=20, pad=0), layers=1, width=8, heads=2)
mine = Mine(embed=plain.embed, stack=plain.stack)
config = dataclasses.replace(get("bert_tiny"), name="mine", towers={"main": Model(encoder=mine, heads={"lm": LMHead()})})
"""


@pytest.fixture
def workdir(tmp_path):
    """A run of a system of the user's own file, which is not imported any more."""
    file, folder = tmp_path / "mine.py", tmp_path / "run"
    file.write_text(FILE)
    system = sources.import_file(file).config
    params = init(system.towers, jax.random.key(0), {"input_ids": jax.numpy.zeros((1, 4), "int32")})
    record = {"config": {"system": spec.to_json(system)}, "own": sources.sources_of(system, folder)}
    assert record["own"]["classes"] == {"Mine": {"name": "Mine", "file": str(file)}}
    run.write(folder, record, None, params)
    del sys.modules["config_mine"]
    return folder


def test_a_run_of_ones_own_encoder_is_loaded_again(workdir):
    model = ptm_jax.load(workdir)
    assert type(model.module.encoder).__name__ == "Mine"
    assert model([[1, 2, 3]]).hidden.shape == (1, 3, 8)


def test_a_run_that_was_moved_imports_nothing(workdir, tmp_path):
    moved = workdir.rename(tmp_path / "moved")
    with pytest.raises(UserError, match="Mine is of .*mine.py, which a run that was moved .* import it first"):
        ptm_jax.load(moved)
    assert "config_mine" not in sys.modules
    sources.import_file(tmp_path / "mine.py")
    assert type(ptm_jax.load(moved).module.encoder).__name__ == "Mine"
    del sys.modules["config_mine"]


def test_a_file_that_is_gone_or_lies_in_the_run_is_one_line(workdir, tmp_path):
    file = tmp_path / "mine.py"
    file.rename(workdir / "mine.py")
    with pytest.raises(UserError, match="Mine was defined in .*mine.py, which is gone"):
        ptm_jax.load(workdir)
    record = json.loads((workdir / "config.json").read_text())
    record["own"]["classes"]["Mine"]["file"] = str(workdir / "mine.py")
    assert "no file that you gave" in sources.own_kinds(record, workdir).lost["Mine"]
    assert "config_mine" not in sys.modules


def test_a_kind_imports_its_own_module_alone():
    code = """
import sys
from ptm_jax.core.spec.classes import kinds_of
assert kinds_of()["TokenMasking"].__module__ == "ptm_jax.corruptions.token"
assert "Nope" not in kinds_of()
rooms = {name.split(".")[1] for name in sys.modules if name.startswith("ptm_jax.")}
assert not rooms & {"nn", "encoders", "tasks"}, rooms
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_name_of_two_rooms_is_written_with_its_room(monkeypatch):
    from ptm_jax.data.corpora.store import Block as Data
    from ptm_jax.nn.blocks import Block as Layer

    monkeypatch.setattr(kinds, "_index", lambda: {"Block": (Layer.__module__, Data.__module__)})
    kinds._classes.cache_clear()
    assert (kinds.kind_of(Layer), kinds.kind_of(Data)) == ("nn.Block", "data.Block")
    assert kinds.kinds_of()["data.Block"] is Data and list(kinds.kinds_of()) == ["nn.Block", "data.Block"]
    with pytest.raises(UserError, match="Block is the name of several classes: nn.Block, data.Block"):
        rebuild({"kind": "Block"}, kinds.kinds_of())
    monkeypatch.undo()
    kinds._classes.cache_clear()
    assert kinds.kind_of(Layer) == "Block"
