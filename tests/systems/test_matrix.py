"""Every cell of `ptm list --matrix` takes a step on real rows, or is refused with its reason before anything is compiled.

One cell in three of each row and column takes its step here, `PTM_EVERY_CELL=1 pytest -m full tests/systems/test_matrix.py`
computes all of them (ten minutes). What the table refuses is tried in every cell.
"""

import dataclasses
import gc
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import Phase
from ptm_jax.core.system import Experiment
from ptm_jax.data.prepare import prepare
from ptm_jax.data.store import open_corpus
from ptm_jax.data.tokenizers import TokenizerSpec
from ptm_jax.systems import compose, matrix
from ptm_jax.train import setup
from ptm_jax.train.step import program

TEXT = Path(__file__).parents[2] / "README.md"
ROWS, LENGTH = 4, 64
EVERY = bool(os.environ.get("PTM_EVERY_CELL"))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """The project's own page, cut into paragraphs: a tokenizer with every special token that a task asks for."""
    folder = tmp_path_factory.mktemp("matrix")
    spec = TokenizerSpec(kind="unigram", vocab=400, specials="xlnet", sentinels=16)
    text = folder / "text.txt"
    text.write_text(TEXT.read_text(encoding="utf8"), encoding="utf8")
    prepare([str(text)], folder / "corpus", tokenizer=spec, heldout=0.0)
    return folder / "corpus"


def step(system, corpus):
    """One update of a composition on rows of the corpus: (loss, gradient norm, whether every parameter is finite)."""
    slots = getattr(system.examples, "sentences", 0) * getattr(system.examples, "width", 0)
    phases = (Phase(steps=10, batch=ROWS, length=slots or LENGTH),)
    recipe = dataclasses.replace(system.recipe, phases=phases, accumulate=1)
    config = setup.resolve(Experiment(system=dataclasses.replace(system, recipe=recipe), precision="float32"), corpus.vocab)
    work = program(config.system, 0)
    batch = {name: jnp.asarray(leaf) for name, leaf in next(iter(setup.stream(config, corpus, 0))).items()}
    # Initial values from numpy: compiling the initialisation would take as long as the step.
    random = np.random.default_rng(0)
    shapes = jax.eval_shape(work.init, batch)
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    params = jax.tree.map(lambda leaf: random.normal(0.0, 0.1, leaf.shape).astype(np.float32), shapes.params)
    state = dataclasses.replace(zeros, params=params)
    state, metrics = jax.jit(work.step)(state, batch)
    finite = all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(state.params))
    return metrics["loss"].value().sum(), metrics["grad_norm"], finite


def computed(row, number):
    """Whether the cell of a row and the task of a number takes its step in this run."""
    return EVERY or (list(matrix.ENCODERS).index(row) + number) % 3 == 0


def check(row, folder):
    corpus, encoder = open_corpus(folder), systems.get(matrix.ENCODERS[row])
    tasks = {column: systems.get(name) for column, name in matrix.TASKS.items()}
    cells = compose.matrix({row: encoder}, tasks)
    for number, (column, task) in enumerate(tasks.items()):
        system = encoder if encoder.name == task.name else compose.compose(encoder, task)
        if reason := cells[row, column]:
            with pytest.raises(UserError) as refused:
                program(system, 0)
            assert reason in str(refused.value) and len(reason) > 20
            continue
        if not computed(row, number):
            continue
        loss, norm, finite = step(system, corpus)
        assert np.isfinite(loss) and loss > 0 and np.isfinite(norm) and norm > 0 and finite, column
        print(row, column, float(loss), float(norm))


@pytest.fixture(scope="session")
def cells():
    """The whole table, which takes as long as two steps."""
    return matrix.cells()


def test_the_table_has_every_task_and_most_cells_work(cells):
    assert len(cells) == len(matrix.ENCODERS) * len(matrix.TASKS)
    for name in (*matrix.ENCODERS, *matrix.TASKS):
        assert any(not why for pair, why in cells.items() if name in pair), f"nothing works with {name}"


@pytest.mark.full
@pytest.mark.parametrize("row", matrix.ENCODERS)
def test_every_cell_takes_a_step_or_is_refused(row, corpus, cells):
    """In a process of its own, which compiles without optimisation: most of its time is the compiler's."""
    flags = "--xla_backend_optimization_level=0"
    if version("jaxlib") < "0.11":
        flags += " --xla_cpu_use_fusion_emitters=false"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, __file__, row, str(corpus)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert len(done.stdout.splitlines()) == sum(
        not cells[row, column] and computed(row, number) for number, column in enumerate(matrix.TASKS)
    )


if __name__ == "__main__":
    gc.set_threshold(100_000, 50, 50)  # as conftest.py does, which this process has not read
    check(*sys.argv[1:])
