"""Values that follow from the files of the package: made once for each state of them."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from ptm_jax.cli import derived
from ptm_jax.core import cache

MAKE = """
import json, sys
from pathlib import Path
from ptm_jax.cli import derived
derived.PACKAGE = Path(sys.argv[1])
calls = []
def make():
    calls.append(1)
    return {"pair": (1, "a")}
print(json.dumps([derived.derived("value", make, sys.argv[2]), len(calls), "jax" in sys.modules]))
"""
VALUE = {"pair": [1, "a"]}


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Calls `derived` for a package of one file in this process, as if JAX were not loaded."""
    monkeypatch.setenv("PTM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(derived, "PACKAGE", tmp_path / "package")
    monkeypatch.delitem(sys.modules, "jax")
    derived.PACKAGE.mkdir()
    (derived.PACKAGE / "a.py").write_text("x = 1\n")

    def call(name="value", depends=""):
        derived._state.cache_clear()
        calls = []
        value = derived.derived(name, lambda: calls.append(1) or {"pair": (1, "a")}, depends)
        assert value == VALUE
        return len(calls)

    yield call
    derived._state.cache_clear()


def test_a_value_is_made_once_for_each_state_of_the_package(made):
    assert [made(), made()] == [1, 0]
    file = derived.PACKAGE / "a.py"
    status = file.stat()
    file.write_text("x = 2\n")  # as long, and as old
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert [made(), made()] == [1, 0]
    file.rename(derived.PACKAGE / "b.py")
    assert [made(), made()] == [1, 0]
    (derived.PACKAGE / "data.json").write_text("{}")
    assert [made(), made()] == [1, 0]
    (derived.PACKAGE / "__pycache__").mkdir()
    (derived.PACKAGE / "__pycache__" / "a.pyc").write_text("compiled")
    assert made() == 0
    assert [made("other"), made("value", "HEAD"), made("value", "HEAD"), made()] == [1, 1, 0, 0]


def test_versions_of_the_libraries_count(made, monkeypatch):
    assert [made(), made()] == [1, 0]
    monkeypatch.setattr(derived, "version", lambda library: "9.9")
    assert [made(), made()] == [1, 0]


def test_damaged_absent_or_foreign_entries_are_made_again(made, monkeypatch):
    made()
    (path,) = derived.folder().iterdir()
    path.write_bytes(path.read_bytes()[:-9])
    assert [made(), made()] == [1, 0]
    shutil.rmtree(derived.folder())
    assert [made(), made()] == [1, 0]
    monkeypatch.setattr(cache, "trusted", lambda folder: folder.name != "derived")
    assert [made(), made()] == [1, 1]
    monkeypatch.setenv("PTM_CACHE", "off")
    assert [made(), made()] == [1, 1]


def test_a_process_with_jax_makes_the_value_itself(made, monkeypatch):
    made()
    monkeypatch.setitem(sys.modules, "jax", sys)  # its catalogue may have other systems
    assert [made(), made()] == [1, 1]


def test_old_states_are_removed(made):
    for number in range(derived.STATES + 3):
        (derived.PACKAGE / "a.py").write_text(f"x = {number}\n")
        assert made() == 1
        os.utime(derived.folder(), (number, number))
    assert len(list(derived.folder().parent.iterdir())) == derived.STATES and made() == 0


def test_two_processes_write_the_same_entry(tmp_path):
    (tmp_path / "package").mkdir()
    words = [sys.executable, "-c", MAKE, str(tmp_path / "package"), ""]
    environment = {**os.environ, "PTM_CACHE": str(tmp_path / "cache")}
    both = [
        subprocess.Popen(words, stdout=subprocess.PIPE, env=environment, text=True)
        for _ in range(2)
    ]
    answers = [json.loads(process.communicate()[0]) for process in both]
    assert all(value == VALUE and not loaded for value, _, loaded in answers)
    again = subprocess.run(words, capture_output=True, env=environment, text=True, check=True)
    assert json.loads(again.stdout) == [VALUE, 0, False]
    (folder,) = (tmp_path / "cache" / "derived").iterdir()
    assert [file.suffix for file in folder.iterdir()] == [".gz"]
