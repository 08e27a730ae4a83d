"""The step of a batch that does not fit the memory is computed in micro-batches."""

import types

import jax
import jax.numpy as jnp
import pytest

from ptm_jax.core.recipe import Phase, Recipe
from ptm_jax.mesh import rules
from ptm_jax.training.hosts import devices
from ptm_jax.training.steps import fitting

BATCH = {"rows": jnp.arange(24)}


class Step:
    """A step that needs 120 bytes for the batch and 10 for the rest, and a compiler that refuses
    above `limit`."""

    def __init__(self, parts, limit):
        self.parts, self.limit = parts, limit

    def lower(self, state, batch, seed):
        return self

    def compile(self):
        if 120 // self.parts > self.limit:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of HBM")
        return self

    def memory_analysis(self):
        sizes = {
            "temp_size_in_bytes": 120 // self.parts,
            "output_size_in_bytes": 30,
            "alias_size_in_bytes": 20,
        }
        return types.SimpleNamespace(**sizes)


@pytest.mark.parametrize(
    ("room", "limit", "parts"),
    [(130, 999, 1), (129, 999, 2), (30, 999, 6), (None, 999, 1), (None, 40, 3), (1, 999, 24)],
)
def test_the_fewest_micro_batches_that_fit(room, limit, parts, capsys):
    numbers = fitting.parts_of(
        Recipe(lr=1.0, phases=(Phase(steps=1, batch=24, length=8),)), 24, None, 1, rules.make_mesh()
    )
    assert numbers == [1, 2, 3, 4, 6, 8, 12, 24]
    made, found = fitting.compiled(lambda n: Step(n, limit), (None, BATCH, 0), numbers, room)
    line = capsys.readouterr().err
    assert found == made.parts and found >= parts and (found == parts or limit == 40)
    assert (line == "") == (parts == 1)
    if parts == 6:
        assert (
            "24 rows does not fit the 0.0 GB" in line
            and "6 micro-batches of 4 rows (recipe.accumulate=6)" in line
        )
    assert ("which still needs" in line) == (room == 1)


def test_a_resumed_run_keeps_its_number_and_examples_of_several_rows_are_not_split():
    recipe, mesh = (
        Recipe(lr=1.0, phases=(Phase(steps=1, batch=24, length=8),), accumulate=2),
        rules.make_mesh(),
    )
    assert fitting.parts_of(recipe, 24, None, 1, mesh)[0] == 2
    assert fitting.parts_of(recipe, 24, 6, 1, mesh) == [6, 8, 12, 24]
    assert fitting.parts_of(recipe, 24, 6, 2, mesh) == [2]


def test_what_a_compiled_step_needs_is_the_compilers_figure():
    """The larger array lives in the step only; the donated state costs nothing."""
    step = jax.jit(lambda s, b: s + jnp.sort(jnp.outer(b, b).ravel())[: len(s)], donate_argnums=0)
    made = step.lower(jnp.ones(1000), jnp.ones(1000)).compile()
    assert 4e6 <= fitting._need(made) <= 5e7


def test_free_memory_is_that_of_the_host_or_its_container():
    found = devices.free_memory(jax.devices("cpu")[0])
    assert found is None or 0 < found < 1e13
