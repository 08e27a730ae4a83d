"""The import law over the syntax trees: who may import whom, where Linen lives, and what stays out
of the start-up."""

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import ptm_jax
from benchmarks import house as measured

PACKAGE = "ptm_jax"
ROOT = Path(ptm_jax.__file__).parent

FLOORS = (
    {"core"},
    {"knowledge", "statistics"},
    {"mesh", "kernels", "data", "corruptions", "objectives"},
    {"nn"},
    {"encoders"},
    {"adapt", "compress"},
    {"systems"},
    {"convert"},
    {"training"},
    {"runs"},
    {"inference"},
    {"tasks"},
    {"tuning"},
    {"plan", "launch", "bench"},
    {"api"},
    {"cli"},
)
# Rooms of one floor that import one another.
NEIGHBOURS = {("kernels", "mesh"), ("objectives", "kernels")}
LAW = {
    room: set().union(*FLOORS[:floor]) | {b for a, b in NEIGHBOURS if a == room}
    for floor, rooms in enumerate(FLOORS)
    for room in rooms
}
LINEN = {"nn", "encoders", "adapt", "compress"}
OUTSIDE = {"benchmarks", "configs", "launch", "tests"}
# One thing on several floors: a wrapper beside its objective, a system beside its encoder and its
# checkpoints.
SAME = {
    "adversarial", "agreement", "albert", "answers", "auxiliary", "averaging", "bart", "base",
    "bitext", "catalogue", "cloze", "context2vec", "crf", "deberta", "dependencies", "diffusion",
    "electra", "entities", "ernie", "eurobert", "neobert", "nezha",
    "glove", "graph_vectors", "graphs", "hotpot", "hybrid", "information", "knowbert", "lexical",
    "linked_text", "lstm", "luke", "memories", "mobilebert", "modernbert", "paragraph_vectors",
    "prepare",
    "recurrent", "roformer", "sentence_pairs", "sentence_trees", "seq2seq", "side", "skip_thought",
    "subgraphs", "t5", "tree_lstm", "trees", "triples", "windows", "xlnet", "xmod",
}  # fmt: skip
HEAVY = {"tensorflow", "torch", "transformers"}


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[str, int, bool]]:
    """(dotted name, line, inside a function) of everything a module imports; `from a import b`
    gives a.b."""
    waiting = [(tree, False)]
    while waiting:
        node, inside = waiting.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, inside
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")[: len(module.split(".")) - node.level + is_package]
                base = ".".join([*parents, *([base] if base else [])])
            for alias in node.names:
                yield f"{base}.{alias.name}", node.lineno, inside
        elif not isinstance(node, ast.expr):  # which holds no import
            inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            waiting.extend((child, inside) for child in ast.iter_child_nodes(node))


def broken(source: str, module: str, is_package: bool = False) -> list[str]:
    """What a module of the package does against the law, one line each."""
    folder = module.split(".")[1] if module.count(".") else ""
    found = []
    if module.rsplit(".", 1)[-1] == "utils":
        found.append(f"{module}: a utils.py")
    for name, line, in_function in imports(ast.parse(source), module, is_package):
        parts = name.split(".")
        where = f"{module}:{line} imports {name}"
        if parts[0] in OUTSIDE:
            found.append(f"{where}, which is outside the package")
        elif parts[0] == PACKAGE and len(parts) > 1 and folder in LAW:
            if parts[1] != folder and parts[1] not in LAW[folder]:
                found.append(
                    f"{where}; {folder} may import "
                    f"{', '.join(sorted(LAW[folder])) or 'nothing of ours'}"
                )
        elif parts[:2] == ["flax", "nnx"]:
            found.append(f"{where}; nnx is not used")
        elif parts == ["flax"] or parts[:2] == ["flax", "linen"]:
            if folder not in LINEN:
                found.append(f"{where}; Linen lives in {', '.join(sorted(LINEN))}")
        elif parts[0] in HEAVY and not in_function:
            found.append(f"{where} at the top level")
    return found


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def test_every_folder_has_a_law():
    folders = {
        path.parent.relative_to(ROOT).parts[0] for path in ROOT.rglob("*.py") if path.parent != ROOT
    }
    assert folders <= {*LAW}, "give the new folder its line in LAW"


def test_the_package_keeps_the_law():
    found = [
        line
        for name, path in modules()
        for line in broken(path.read_text(encoding="utf-8"), name, path.name == "__init__.py")
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ptm_jax.core.bad", "import ptm_jax.data.corpora.prepare"),
        ("ptm_jax.core.bad", "from ptm_jax import data"),
        ("ptm_jax.core.bad", "from ..nn import blocks"),
        ("ptm_jax.core.bad", "def f():\n    from ptm_jax.training import loop"),
        ("ptm_jax.nn.bad", "from ptm_jax.encoders.transformer import transformer"),
        ("ptm_jax.objectives.bad", "from ptm_jax.corruptions.masking import token"),
        ("ptm_jax.systems.bad", "from ptm_jax.training import loop"),
        ("ptm_jax.training.bad", "from ptm_jax.cli import main"),
        ("ptm_jax.training.bad", "from ptm_jax.bench import suite"),
        ("ptm_jax.training.bad", "import tests.core"),
        ("ptm_jax.cli.bad", "from configs import quickstart"),
        ("ptm_jax.core.bad", "import flax.linen as nn"),
        ("ptm_jax.systems.bad", "from flax import linen"),
        ("ptm_jax.training.bad", "import flax"),
        ("ptm_jax.nn.bad", "from flax import nnx"),
        ("ptm_jax.convert.bad", "import torch"),
        ("ptm_jax.data.bad", "try:\n    import tensorflow.io\nexcept ImportError:\n    pass"),
        ("ptm_jax.convert.bad", "class A:\n    import transformers"),
        ("ptm_jax.nn.utils", ""),
    ],
)
def test_the_law_can_be_broken(module, source):
    assert len(broken(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ptm_jax.core.good", "import jax\nfrom ptm_jax.core import paths\nfrom . import types"),
        (
            "ptm_jax.encoders.good",
            "import flax.linen as nn\nfrom flax.core import FrozenDict\nfrom ..nn import blocks",
        ),
        ("ptm_jax.cli.good", "import ptm_jax.training.loop\nimport ptm_jax"),
        ("ptm_jax.convert.good", "def pickle(path):\n    import torch"),
    ],
)
def test_the_law_lets_the_lawful_pass(module, source):
    assert not broken(source, module)


def test_relative_imports_of_a_package_start_at_itself():
    assert broken("from ..data import prepare", "ptm_jax.core", is_package=True)
    assert not broken("from . import types", "ptm_jax.core", is_package=True)


def test_importing_the_package_is_light():
    code = f"import sys, ptm_jax; print(*({HEAVY | {'jax', 'numpy'}!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not done.stdout.strip()


@pytest.fixture(scope="module")
def house():
    return [measured.Module(path, ROOT.parent) for path in sorted(ROOT.rglob("*.py"))]


def test_no_circle_of_imports(house):
    assert measured.circles(measured.graph(house, True)) == []


def test_a_training_that_is_done_imports_no_reader_of_batches_and_no_kernel(house):
    """They take a second. A run that is finished answers with what `training.loop` imports."""
    graph, known = measured.graph(house, False), {module.name: module for module in house}
    seen, waiting = set(), ["ptm_jax.training.loop"]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += graph[name]
    found = {
        of
        for name in seen
        for of, _, inside in imports(known[name].tree, name, False)
        if not inside
    }
    assert len(seen) > 100 and not [
        of for of in found if of.startswith(("grain", "orbax", "jax.experimental.pallas"))
    ]


def test_a_file_name_has_one_meaning(house):
    """A name stands in several folders only where it is the same thing on several floors."""
    folders = defaultdict(set)
    for module in house:
        if not module.is_package:
            folders[module.path.stem].add(module.room)
    assert {name for name, rooms in folders.items() if len(rooms) > 1} <= SAME


def test_few_values_are_probed_and_files_and_functions_are_short(house):
    """20 probes on the day this was written; those that are left ask values that are not ours, or
    fields by name."""
    calls = [
        node.func
        for module in house
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
    ]
    assert sum(isinstance(call, ast.Name) and call.id in measured.CALLS for call in calls) <= 30
    assert sum(module.lines > measured.LONG_FILE for module in house) <= 12
    lengths = [lines for module in house for lines, _ in measured.functions(module)]
    assert sum(lines > measured.LONG_FUNCTION for lines in lengths) <= 28
