"""`ptm list --matrix`: a cell takes a step on real rows, or is refused with its reason before
anything is compiled.

Cells are alike whose encoders have the same class and facts and whose tasks the same objectives:
they work or do not work together. The cells of `tests/laws/covering/cells.txt` take the step: each
class of encoders, each objective, and each fact of an encoder with each objective. Every refusal is
tried. `python tests/systems/test_matrix.py` writes the list.
"""

import dataclasses
import sys
from importlib.metadata import version
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.core import facts, slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import Phase
from ptm_jax.core.spec import walk
from ptm_jax.core.system import Experiment
from ptm_jax.corruptions.masking.sentence_masking import SentenceSlots
from ptm_jax.data.corpora.prepare import prepare
from ptm_jax.data.corpora.store import open_corpus
from ptm_jax.data.rows.sentences.sentence_slots import DocumentSlots
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.objectives.base import corruptions_of
from ptm_jax.objectives.text.text_traits import AdaptiveDepth, QueryStream
from ptm_jax.systems.survey import compose, matrix
from ptm_jax.training.start import differing, setup
from ptm_jax.training.steps.step import program

sys.path[:0] = [str(Path(__file__).parents[1])]  # in a process of its own

from support import covering  # noqa: E402

DOCS = Path(__file__).parents[2] / "docs"
ROWS, LENGTH = 4, 64
# A step is compiled for longer than it runs.
COMPILE = {"xla_backend_optimization_level": 0}
if version("jaxlib") < "0.11":
    COMPILE["xla_cpu_use_fusion_emitters"] = False


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """The pages of docs/, cut into paragraphs: a tokenizer with every special token that a task
    asks for."""
    folder = tmp_path_factory.mktemp("matrix")
    spec = TokenizerSpec(kind="unigram", vocab=400, specials="xlnet", sentinels=16)
    text = folder / "text.txt"
    text.write_text(
        "\n\n".join(page.read_text(encoding="utf8") for page in sorted(DOCS.glob("*.md"))),
        encoding="utf8",
    )
    prepare([str(text)], folder / "corpus", tokenizer=spec, heldout=0.0)
    return folder / "corpus"


def step(system, corpus):
    """One update of a composition on rows of the corpus: (loss, gradient norm, whether every
    parameter is finite)."""
    by_sentence = isinstance(system.examples, DocumentSlots)
    length = system.examples.sentences * system.examples.width if by_sentence else LENGTH
    phases = (Phase(steps=10, batch=ROWS, length=length),)
    recipe = dataclasses.replace(system.recipe, phases=phases, accumulate=1)
    system = dataclasses.replace(system, recipe=recipe)
    config = differing.resolve(Experiment(system=system, precision="float32"), corpus.vocab)
    config = dataclasses.replace(config, system=facts.fill(config.system, lambda: corpus))
    work = program(config.system, 0)
    batch = {
        name: jnp.asarray(leaf)
        for name, leaf in next(iter(setup.stream(config, corpus, 0))).items()
    }
    # Initial values from numpy: compiling the initialisation would take as long as the step.
    random = np.random.default_rng(0)
    shapes = jax.eval_shape(work.init, batch)
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    params = jax.tree.map(
        lambda leaf: random.normal(0.0, 0.1, leaf.shape).astype(np.float32), shapes.params
    )
    state = dataclasses.replace(zeros, params=params)
    state, metrics = jax.jit(work.step, compiler_options=COMPILE)(state, batch)
    finite = all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(state.params))
    return metrics["loss"].value().sum(), metrics["grad_norm"], finite


def class_of_encoder(name):
    """What objectives and corruptions ask of the encoder of a system."""
    encoder = systems.get(name).towers["main"].encoder
    facts = (
        encoder.direction,
        encoder.obeys_order,
        isinstance(encoder, QueryStream) and encoder.streams,
        encoder.carries,
        isinstance(encoder, AdaptiveDepth) and encoder.ponders,
    )
    return type(encoder).__name__, *facts, isinstance(encoder, SentenceSlots)


def class_of_task(name):
    """The objectives of a system, with its corruptions where these write who sees whom."""
    system = systems.get(name)
    objectives = {
        type(part).__name__
        for _, part in walk(system.objective)
        if isinstance(part, slots.Objective)
    }
    asks = {
        type(part).__name__
        for part in corruptions_of(system)
        if slots.overrides(part, "refusal", slots.Corruption)
    }
    return tuple(sorted(objectives | asks))


def traits_of(row, column):
    """What a cell tries: classes of its encoder and of its task, and each fact of the encoder with
    each objective of the task."""
    kind, *facts = class_of_encoder(matrix.ENCODERS[row])
    task = class_of_task(matrix.TASKS[column])
    pairs = {f"fact {n} {fact} {name}" for n, fact in enumerate(facts) for name in task}
    return {f"encoder {kind}", *(f"task {name}" for name in task), *pairs}


def selection(cells):
    """{row: the columns whose cells take a step}: `tests/laws/covering/cells.txt`, and new ones."""
    traits = {
        f"{row} > {column}": [f"{trait}" for trait in traits_of(row, column)]
        for (row, column), why in cells.items()
        if why is None
    }
    chosen = covering.covering("cells", traits, pairs=False)
    columns = {row: [] for row in matrix.ENCODERS}
    for cell in chosen:
        row, _, column = cell.partition(" > ")
        columns[row].append(column)
    return columns


@pytest.fixture(scope="session")
def cells():
    """The whole table, which takes as long as two steps."""
    return matrix.cells()


@pytest.fixture(scope="session")
def steps(cells):
    return selection(cells)


@pytest.mark.full
def test_the_table_has_every_task_and_most_cells_work(cells):
    assert len(cells) == len(matrix.ENCODERS) * len(matrix.TASKS)
    for name in (*matrix.ENCODERS, *matrix.TASKS):
        assert any(not why for pair, why in cells.items() if name in pair), (
            f"nothing works with {name}"
        )


def test_cells_of_a_class_work_or_do_not_work_together(cells):
    found = {}
    for (row, column), why in cells.items():
        key = class_of_encoder(matrix.ENCODERS[row]), class_of_task(matrix.TASKS[column])
        found.setdefault(key, {})[row, column] = why is None
    apart = {key: pairs for key, pairs in found.items() if len(set(pairs.values())) > 1}
    assert not apart and len(found) < 0.6 * len(cells)


@pytest.mark.full
@pytest.mark.parametrize("row", matrix.ENCODERS)
def test_every_cell_takes_a_step_or_is_refused(row, corpus, cells, steps):
    encoder, corpus = systems.get(matrix.ENCODERS[row]), open_corpus(corpus)
    for column, name in matrix.TASKS.items():
        task = systems.get(name)
        system = encoder if encoder.name == task.name else compose.compose(encoder, task)
        if reason := cells[row, column]:
            with pytest.raises(UserError) as refused:
                program(system, 0)
            assert reason in str(refused.value) and len(reason) > 20
        elif column in steps[row]:
            loss, norm, finite = step(system, corpus)
            assert np.isfinite(loss) and loss > 0 and np.isfinite(norm) and norm > 0 and finite, (
                column
            )
    jax.clear_caches()  # a row has as many programs as a process may map


@pytest.mark.full
@pytest.mark.parametrize(
    "row, column",
    [("ALBERT", "dEA"), ("ELECTRA", "KE"), ("XLNet", "supersenses"), ("KnowBERT", "EL")],
)
def test_tasks_of_entities_take_a_step_on_other_encoders(row, column, corpus):
    encoder, task = systems.get(matrix.ENCODERS[row]), systems.get(matrix.TASKS[column])
    system = encoder if encoder is task else compose.compose(encoder, task)
    loss, norm, finite = step(system, open_corpus(corpus))
    assert np.isfinite(loss) and loss > 0 and norm > 0 and finite


def test_the_linker_of_another_encoder_is_missing(cells):
    assert "take KnowBERT's" in cells["ALBERT", "EL"] and "causal" in cells["GPT", "KE"]


if __name__ == "__main__":
    columns = selection(matrix.cells())
    lines = [f"{row} > {column}\n" for row in columns for column in columns[row]]
    (covering.FOLDER / "cells.txt").write_text("".join(lines), encoding="utf8")
