"""The ratchet: the figures of `benchmarks/house.py` may fall and never rise.

Where one has fallen, lower its bound in `BOUNDS`; the test prints which (`pytest -rP`).
"""

import configparser
import re
from pathlib import Path

import pytest

from benchmarks import habits, house

ROOT = Path(__file__).parents[1]

# The largest value of each figure that is allowed. A figure that falls takes its bound along.
BOUNDS = {
    "getattr": 12,
    "hasattr": 6,
    "module circles": 0,
    "room circles": 0,
    "words of speech": 2,
    "longest file": 400,
    "files over 400 lines": 0,
    "longest function": 60,
    "functions over 60 lines": 0,
    "facts with one overrider": 4,
    "isinstance over rooms": 49,
    "rooms in strings": 0,
    "parameters of type Any": 390,
    "functions over 5 positional": 0,
    "vague names": 6,
    "lines over 100 columns": 0,
    "folders over 15 files": 5,
    "files in core": 30,
}
# A figure may lie so far below its bound, as a share of it, before the test says so.
MARGIN = 0.02


def sizes_of(modules: list[house.Module], root: Path) -> dict[str, tuple[int, list]]:
    """{figure: (value, where it comes from)} of lines, calls and words."""
    sizes, circles = house.sizes(modules, root), house.import_figures(modules)
    return {
        "getattr": (sizes["calls"]["getattr"], []),
        "hasattr": (sizes["calls"]["hasattr"], []),
        "module circles": listed(circles["module_circles_with_functions"]),
        "room circles": listed(circles["room_circles_with_functions"]),
        "words of speech": (sum(sizes["words"].values()), [sizes["words"]]),
        "longest file": (sizes["longest_file"][0], [sizes["longest_file"][1]]),
        "files over 400 lines": listed(
            [module.where for module in modules if module.lines > house.LONG_FILE]
        ),
        "longest function": (sizes["longest_function"][0], [sizes["longest_function"][1]]),
        "functions over 60 lines": listed(
            [
                place
                for module in modules
                for lines, place in house.functions(module)
                if lines > house.LONG_FUNCTION
            ]
        ),
    }


def habits_of(modules: list[house.Module]) -> dict[str, tuple[int, list]]:
    """{figure: (value, where it comes from)} of `benchmarks.habits`."""
    figures = habits.habits(modules)
    vague = figures["vague_names"]
    names = [f"{name} {place}" for name, places in vague.items() for place in places]
    return {
        "facts with one overrider": listed(figures["facts_with_one_overrider"]),
        "isinstance over rooms": listed(figures["foreign_isinstances"]),
        "rooms in strings": listed(figures["named_rooms"]),
        "parameters of type Any": listed(figures["any_parameters"]),
        "functions over 5 positional": listed(figures["positional"]),
        "vague names": listed(names),
        "lines over 100 columns": listed(figures["long_lines"]),
        "folders over 15 files": listed(figures["crowded_folders"]),
        "files in core": listed(figures["files_in_core"]),
    }


def listed(places: list) -> tuple[int, list]:
    return len(places), places


@pytest.fixture(scope="module")
def figures() -> dict[str, tuple[int, list]]:
    modules = house.modules_of(ROOT)
    return {**sizes_of(modules, ROOT), **habits_of(modules)}


def by_file(places: list) -> str:
    """The places, a few of each file, so that a file that was just edited is easy to see."""
    return "\n".join(f"    {place}" for place in places[:400])


@pytest.mark.parametrize("figure", BOUNDS)
def test_no_figure_rises(figures, figure):
    value, places = figures[figure]
    bound = BOUNDS[figure]
    assert value <= bound, (
        f"{figure}: {value}, and {bound} are allowed. Compare with "
        f"`python benchmarks/house.py --json` of the parent commit:\n{by_file(places)}"
    )
    if value < bound - MARGIN * bound:
        print(f"{figure} has fallen to {value}: lower its bound of {bound} in {__file__}")


def test_every_figure_has_a_bound(figures):
    assert figures.keys() == BOUNDS.keys()


def module(tmp_path: Path, where: str, text: str) -> house.Module:
    path = tmp_path / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return house.Module(path, tmp_path)


def test_each_habit_is_counted(tmp_path):
    """A package of four files that has each habit a known number of times."""
    long = "#" * (habits.COLUMNS + 1)
    texts = {
        "ptm_jax/core/slots.py": (
            "class Encoder:\n    ponders: bool = False\n    start = None\n"
            "    def table(self): ...\n    def __call__(self): ...\n"
        ),
        "ptm_jax/nn/layers.py": (
            "from ptm_jax.core import slots\n"
            "class Base(slots.Encoder):\n    ponders = True\n    def table(self): ...\n"
            "    def _inner(self): ...\n"
            f"{long}\n"
        ),
        "ptm_jax/encoders/tower.py": (
            '"""ptm_jax.nn is named in a docstring."""\n'
            "from ptm_jax.nn.layers import Base as Layer\n"
            "class Tower(Layer):\n    start = 1\n    def table(self): ...\n"
            "def f(a, b, c, d, e, g: Any, *rest: Any, own: Any = None): ...\n"
            "found = isinstance(0, Layer)\n"
            "name = 'ptm_jax.nn.layers'\n"
            "own_name = isinstance(0, Tower) and 'ptm_jax.encoders'\n"
        ),
        "ptm_jax/encoders/__init__.py": "",
    }
    modules = [module(tmp_path, where, text) for where, text in texts.items()]
    counted = habits.habits(modules)
    assert counted["facts_with_one_overrider"] == [
        "Encoder.ponders (nn.layers.Base)",
        "Encoder.start (encoders.tower.Tower)",
    ]
    assert habits.overriders(modules)["Encoder.table"] == [
        "ptm_jax.encoders.tower.Tower",
        "ptm_jax.nn.layers.Base",
    ]
    assert counted["foreign_isinstances"] == ["ptm_jax/encoders/tower.py:7"]
    assert counted["named_rooms"] == ["ptm_jax/encoders/tower.py:8"]
    assert counted["any_parameters"] == [
        "ptm_jax/encoders/tower.py:6 g",
        "ptm_jax/encoders/tower.py:6 own",
    ]
    assert counted["parameters"] == 12
    assert counted["positional"] == ["ptm_jax/encoders/tower.py:6 f"]
    vague = {name: len(places) for name, places in counted["vague_names"].items() if places}
    assert vague == {"found": 1, "rest": 1, "own": 1}
    assert counted["long_lines"] == ["ptm_jax/nn/layers.py:6"]
    assert counted["crowded_folders"] == []
    assert counted["files_in_core"] == ["ptm_jax/core/slots.py"]


def test_no_two_files_of_tests_have_one_name():
    """Pytest imports them by name, and one run of all could not collect both."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert not {name for name in names if names.count(name) > 1}


def test_test_modules_import_at_their_top_only_what_make_test_installs():
    """Without the other extras of setup.cfg, pytest could not collect them."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = {
        extra: {re.match(r"[\w-]*", line)[0].replace("-", "_") for line in lines.split("\n")}
        for extra, lines in config["options.extras_require"].items()
    }
    absent = set().union(*extras.values()) - extras["test"] - {"", "jax", "ptm_jax"}
    absent |= {"apache_beam", "sentence_transformers", "fasttext", "gliner"}
    assert {"torch", "transformers", "seqeval", "gcsfs"} <= absent
    for path in (ROOT / "tests").rglob("test_*.py"):
        imports = re.findall(r"^(?:import|from) (\w+)", path.read_text(), re.MULTILINE)
        assert not absent & {*imports}, path
