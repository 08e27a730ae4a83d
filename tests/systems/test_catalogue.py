"""The catalogue: at paper size (abstractly) every system initialises and lies on a mesh as it lay,
and one of each structure takes a step; resolved texts and words."""

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from golden import GOLDEN, resolved

from ptm_jax import systems
from ptm_jax.adapt import catalogue as adaptations
from ptm_jax.cli import listing
from ptm_jax.compress import catalogue as compressions
from ptm_jax.core import facts, paths, spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.registry import made
from ptm_jax.core.types import Vocab
from ptm_jax.systems.survey import rows as survey
from ptm_jax.systems.survey.order import ORDER
from ptm_jax.tasks.catalogue import catalogue as tasks
from ptm_jax.training.steps.step import program
from support import splitting
from support.structures import structures

STATUS = Path(systems.__file__).parent / "survey" / "status.json"


def vocab_of(system):
    return next(part for _, part in spec.walk(system.towers) if isinstance(part, Vocab))


def batch_of(system, rows=None, length=None):
    phase = system.recipe.phases[0]
    rows, length = rows or phase.batch, length or phase.length
    fields = system.examples.spec(length, vocab_of(system))
    batch = {
        name: jax.ShapeDtypeStruct((rows, *dims), dtype) for name, (dims, dtype) in fields.items()
    }
    return {**batch, "rows": jax.ShapeDtypeStruct((rows,), jnp.int32)}


def test_there_are_24_miniatures():
    assert len([n for n in systems.names() if re.fullmatch(r"bert_L\d+_H\d+", n)]) == 24


@pytest.mark.parametrize("name", [name for name in structures() if name not in splitting.COVER])
def test_initialises_at_paper_size(name):
    """The first system of each structure; the others below, and a part of them in
    `tests/mesh/test_parameter_axes.py`, too."""
    system = systems.get(name)
    work = program(facts.stand_ins(system, vocab_of(system)), 0)
    params = jax.eval_shape(work.init, batch_of(system)).params
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))


LARGE_BIASES = {"charlstm_small": 0.9985}
"""{system: the share of its parameters that is split}: 7,900 of 5.3 million are biases and vectors
of characters."""


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.status(one, "built") for one in alike])
        for name, alike in structures().items()
    ],
)
def test_initialises_and_steps_at_paper_size(name):
    """Each system initialises; the first one of a structure takes the step, whose operations are
    those of the others, unless it has been trained (`make trainings`). Every parameter has axes,
    lies where it lay, and nearly all bytes are split."""
    for one in structures()[name]:
        state, _ = splitting.abstract(one)
        assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(state.params)), one
        assert splitting.undeclared(one) == [], one
        assert splitting.hashes().get(one) in (None, splitting.digest(one)), one
        if not one.endswith("_mini"):
            share = splitting.share_split(one)
            assert share >= 0.999 or share == pytest.approx(LARGE_BIASES.get(one), abs=1e-4), one
    system, (state, _) = systems.get(name), splitting.abstract(name)
    splitting.abstract.cache_clear()
    if "trains" in survey.status().get(name, ()):
        return
    work = program(facts.stand_ins(system, vocab_of(system)), 0)
    after, metrics = jax.eval_shape(work.step, state, batch_of(system))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(
        lambda x: (x.shape, x.dtype), state
    )
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(after.params))
    assert "loss" in metrics


@pytest.mark.full
@pytest.mark.parametrize("name", ["bert_base", "roberta_base", "gpt", "gpt2"])
def test_one_real_step_in_small_has_finite_gradients(name):
    """The published record itself with four numbers changed: nothing but sizes differs from the
    system."""
    system = systems.get(name)
    base = "towers.main.encoder"
    system = spec.override(
        system,
        {
            f"{base}.embed.width": "16",
            f"{base}.stack.layers": "2",
            f"{base}.stack.block.attention.heads": "2",
            f"{base}.stack.block.attention.width": "16",
            f"{base}.stack.block.ffn.hidden": "32",
        },
    )
    work = program(system, 0)
    shapes = batch_of(system, 4, 32)
    batch = {
        k: jnp.ones(v.shape, v.dtype) if k != "rows" else jnp.arange(4) for k, v in shapes.items()
    }
    batch["input_ids"] = jax.random.randint(jax.random.key(0), (4, 32), 110, 1000)
    if "next_label" in batch:
        batch["next_label"] = jnp.array([0, 1, 0, 1])
    state = work.init(batch)
    after, metrics = jax.jit(work.step)(state, batch)
    assert jnp.isfinite(metrics["grad_norm"]) and metrics["grad_norm"] > 0
    still = [
        path
        for path, moment in paths.flatten(after.opt_state["mu"]).items()
        if not (moment != 0).any()
    ]
    assert not still, f"parameters that no gradient reached: {still}"


def test_resolved_text_of_every_system_is_the_golden_one():
    """A change of any system shows as a diff of its file; `python tests/systems/golden.py` writes
    them anew."""
    assert {
        file.stem: file.read_text(encoding="utf8") for file in GOLDEN.glob("*.txt")
    } == resolved()


def test_the_order_of_the_catalogue_names_every_system():
    for module, names in ORDER.items():
        assert [*made(f"ptm_jax.systems.{module}")] == names.split(), (
            f"correct {module} in systems/order.py"
        )
    assert set(systems.names()) >= set(" ".join(ORDER.values()).split()), "others stand last"


def test_the_catalogue_claims_no_more_than_its_tests_earn(marked):
    """Every word of status.json has a test whose marker can earn it; a merge leaves no name
    twice."""
    entries = re.findall(r'^ "([^"]+)": ', STATUS.read_text(encoding="utf8"), re.M)
    assert len(entries) == len(set(entries))
    claims = {
        (name, word)
        for name, words in json.loads(STATUS.read_text(encoding="utf8")).items()
        for word in words
    }
    assert claims <= marked, f"claimed without a test: {sorted(claims - marked)}"


def test_every_name_with_a_word_is_a_row_or_a_value_of_a_catalogue():
    names = {name for row in listing.rows() for name in (row["name"], *row["values"])}
    names |= {*tasks.names(), *adaptations.NAMES, *compressions.NAMES}
    names |= {name for name in systems.names() if not systems.get(name).rows}  # after the survey
    assert {*json.loads(STATUS.read_text(encoding="utf8"))} <= names


def test_every_system_has_a_word():
    words = json.loads(STATUS.read_text(encoding="utf8"))
    assert all("built" in words.get(name, []) for name in systems.names())


def test_an_unknown_system_names_the_closest():
    with pytest.raises(UserError, match="bert_base"):
        systems.get("bert_bas")
