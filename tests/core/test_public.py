"""Classes are imported from their room's top, and nothing before they are used."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import ptm_jax
from ptm_jax.core import System, spec
from ptm_jax.core.public import public, statements
from ptm_jax.systems import get

ROOMS = (
    "core",
    "corruptions",
    "objectives",
    "encoders",
    "adapt",
    "nn",
    "data.rows",
    "data.tokenizers",
)
ROOT = Path(ptm_jax.__file__).parent


@pytest.mark.parametrize("room", ROOMS)
def test_a_class_has_one_place_in_its_room(room):
    files = (ROOT / room.replace(".", "/")).rglob("*.py")
    names = [
        name for path in files for name in re.findall(r"^class ([A-Z]\w*)", path.read_text(), re.M)
    ]
    assert names and len(names) == len(set(names))


def test_names_are_imported_lazily():
    code = """
import sys, ptm_jax
import ptm_jax.objectives as room
assert "MLM" in dir(room)
assert not any(name.startswith("ptm_jax.objectives.") for name in sys.modules)
from ptm_jax.objectives import MLM, Joint
from ptm_jax.objectives.joint import Joint as own
from ptm_jax.objectives.text import language
assert Joint is own and language.MLM is MLM and "ptm_jax.objectives.tasks.hotpot" not in sys.modules
from ptm_jax.adapt import LoRA
from ptm_jax.core import Experiment, Recipe
for name in ("Jiont", "joints", "_index"):
    try:
        vars(room)["__getattr__"](name)
    except AttributeError as error:
        assert name in str(error)
    else:
        raise AssertionError(name)
from importlib.metadata import version
assert ptm_jax.__version__ == version("ptm_jax")
import ptm_jax.training.updates.schedules as schedules
import pickle
assert pickle.loads(pickle.dumps(ptm_jax.train)) is ptm_jax.train
assert callable(ptm_jax.train) and ptm_jax.training.updates.schedules is schedules
assert {"train", "finetune", "evaluate", "load", "__version__"} <= {*dir(ptm_jax)}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not done.returncode, done.stderr


def test_a_name_of_two_files_is_found_in_neither(tmp_path):
    for name, text in {
        "a.py": "class Two: ...",
        "in/b.py": "class Two: ...\nclass One: ...",
    }.items():
        (tmp_path / "pack/room" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pack/room" / name).write_text(text)
    assert statements([tmp_path], tmp_path) == {
        "Two": ["pack.room.a", "pack.room.in.b"],
        "One": ["pack.room.in.b"],
    }
    find, _ = public("pack.room", str(tmp_path / "pack/room"))
    with pytest.raises(
        AttributeError,
        match=r"no attribute 'Two'; import it from pack\.room\.a or pack\.room\.in\.b",
    ):
        find("Two")


def test_a_repr_is_a_few_lines():
    system = get("electra_mini")
    lines = repr(system).splitlines()
    assert len(lines) == 4 and all(len(line) <= 120 for line in lines)
    assert "'electra_mini'" in lines[0] and system.paper in lines[0]
    assert "generator: Transformer" in lines[1] and type(system.examples).__name__ in lines[1]
    assert type(system.objective).__name__ in lines[2]
    assert len(spec.to_text(system).splitlines()) > 30
    from ptm_jax.core import Experiment

    text = repr(Experiment(system=system, seed=3, data=("a.txt",)))
    assert (
        len(text.splitlines()) == 6
        and "  seed 3" in text
        and "a.txt" in text
        and "heldout" not in text
    )
    assert System.__name__ in text
