"""Mutants: the changes of a source, the tests that reach a line, and what becomes of a fault."""

import ast
import subprocess
from pathlib import Path

import pytest

from benchmarks import mutants, mutating, reaching

ROOT = Path(__file__).resolve().parents[2]
SOURCE = '''"""1 + 1 in a docstring."""

LIMIT: int = 3


def middle(low: "int | None" = 0, high=10.5, both=True):
    """Returns 1 + 2."""
    if low < 0 and not both or low not in (high,):
        raise ValueError(f"{low + 1} is below 0", 1 + 1)
    print(low + high)
    assert low < high
    text = "a" + low
    return (low +  # the first
            -high) // LIMIT


def pair(first, second):
    print(first, max(first, second))
    return middle(first, second)


class Value:
    def __repr__(self):
        return 1 + 1
'''


def test_each_change_of_a_source():
    changed = [
        (change.line, change.kind, change.new, SOURCE.encode()[change.start : change.end].decode())
        for change in mutating.changes(SOURCE)
    ]
    assert changed == [
        (3, "constant", "4", "3"),
        (6, "constant", "1", "0"),
        (6, "constant", "11.5", "10.5"),
        (6, "constant", "False", "True"),
        (8, "comparison", "<=", "<"),
        (8, "constant", "1", "0"),
        (8, "and/or", "or", "and"),
        (8, "not", "", "not"),
        (8, "and/or", "and", "or"),
        (8, "comparison", "in", "not in"),
        (13, "return", "None", "(low +  # the first\n            -high) // LIMIT"),
        (14, "sign", "+", "-"),
        (14, "arithmetic", "*", "//"),
        (19, "return", "None", "middle(first, second)"),
        (19, "arguments", "second, first", "first, second"),
    ]


def test_a_changed_source_is_python_with_the_same_lines():
    text = (ROOT / "ptm_jax/nn/halting.py").read_text()
    changes = mutating.changes(text)
    assert len(changes) > 50
    for change in changes[::5]:
        after = change.applied(text)
        assert ast.dump(ast.parse(after)) != ast.dump(ast.parse(text))
        pairs = zip(text.split("\n"), after.split("\n"), strict=True)
        different = [number for number, (old, new) in enumerate(pairs, 1) if old != new]
        assert change.line in different
        before, new = change.lines(text)
        mutant = mutants.Mutant("ptm_jax/nn/halting.py", change.line, change.kind, before, new)
        assert mutant.applied(text) == after


def test_the_seed_decides_what_is_drawn():
    first = mutants.drawn("corruptions", 5, seed=1)
    assert first == mutants.drawn("corruptions", 5, seed=1) != mutants.drawn("corruptions", 5, 2)
    assert len(set(first)) == 5
    assert all(mutant.file.startswith("ptm_jax/corruptions/") for mutant in first)


FILES = {
    "ptm_jax/__init__.py": "",
    "ptm_jax/nn/__init__.py": "",
    "ptm_jax/nn/adding.py": (
        "class Adding:\n    def __call__(self, a, b):\n        return a + b\n\n\n"
        "def _turns(count):\n    while count > 0:\n        count -= 1\n    return 7\n\n\n"
        "def turned():\n    return _turns(2)\n"
    ),
    "ptm_jax/tasks/__init__.py": "",
    "ptm_jax/tasks/uses.py": "from ptm_jax import nn\n\ndef use():\n    return nn.Adding\n",
    "tests/nn/test_adding.py": (
        "import pytest\nfrom ptm_jax.nn.adding import Adding\n\n"
        "def test_always_fails():\n    assert 0\n\n"
        "def test_zero():\n    assert Adding()(1, 0) == 1\n\n"
        "@pytest.mark.full\ndef test_three():\n    assert Adding()(1, 2) == 3\n"
    ),
    "tests/tasks/test_uses.py": "from ptm_jax.tasks import uses\n",
    "tests/nn/test_layers.py": "import ptm_jax.nn.adding\n",
    "tests/nn/test_else.py": "import ptm_jax.nn\n# Adding\n",
    "tests/nn/test_turns.py": "from ptm_jax.nn.adding import turned\n\nturned()\n",
    "pytest.ini": "[pytest]\nmarkers =\n    full: x\n    training: x\npythonpath = .\n",
}


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "tree"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "ptm_jax/configs").symlink_to("../configs")
    subprocess.run(["git", "init", "-q", root], check=True)
    return root


def test_the_closest_tests_come_first(tree):
    """A test that names the class, then one that imports only its file, then one of the
    room, then one through a file of another room."""
    paths = reaching.Tree(tree).tests("ptm_jax/nn/adding.py", 3)
    assert paths == [
        "tests/nn/test_adding.py",
        "tests/nn/test_layers.py",
        "tests/nn/test_turns.py",
        "tests/nn/test_else.py",
        "tests/tasks/test_uses.py",
    ]
    paths = reaching.Tree(tree).tests("ptm_jax/nn/adding.py", 8)  # `_turns`, which `turned` calls
    assert paths[0] == "tests/nn/test_turns.py"


@pytest.mark.full
def test_a_fault_is_found_and_one_without_a_test_survives(tree, tmp_path):
    """A sum of 1 and 0 does not tell + from -; the marked test of 1 and 2 does. A test that always
    fails finds nothing, and a loop without an end is ended."""
    copy = mutants.Copy(tree, tmp_path / "copy")
    assert (copy.root / "ptm_jax/configs").readlink() == Path("../configs")
    file, files = "ptm_jax/nn/adding.py", ["tests/nn/test_adding.py", "tests/nn/test_turns.py"]

    def run(line, before, after, limit=60):
        return mutants.run(copy, mutants.Mutant(file, line, "planted", before, after), files, limit)

    assert run(3, "a + b", "a - b")["test"] == f"{files[0]}::test_always_fails"
    copy.broken |= mutants.broken(copy, [run(3, "a + b", "a - b")])
    assert copy.broken == {f"{files[0]}::test_always_fails"}
    minus = run(3, "a + b", "a - b")
    assert (minus["found"], minus["test"]) == ("make test-full", f"{files[0]}::test_three")
    times = run(3, "a + b", "a * b")
    assert (times["found"], times["test"]) == ("make test", f"{files[0]}::test_zero")
    assert "assert 0 == 1" in times["reason"]
    assert mutants.broken(copy, [minus, times]) == set()
    result = run(9, "return 7", "return 8")
    assert (result["found"], result["limit"], result["passed"]) == (None, False, 2)
    endless = run(8, "count -= 1", "count -= 0", limit=4)
    assert (endless["found"], endless["limit"]) == (None, True)
    assert (tree / file).read_text() == (copy.root / file).read_text() == FILES[file]
    lines = list(mutants.table([minus, endless]))
    assert "| 0 | nn/adding.py:3 | `a + b` -> `a - b` | make test-full: `test_adding" in lines[2]
    assert "survived (ended by the limit)" in lines[3]
    assert list(mutants.shares([minus, endless]))[2:] == ["| nn | 1 | 2 |"]
