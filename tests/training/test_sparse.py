"""Rows of sparse tables: a path without a parameter is refused, moments follow their rows, factored
moments stay whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import Adafactor, Adagrad, Constant, Phase, Recipe
from ptm_jax.training.updates import optimizers
from ptm_jax.training.updates.sparse import SelectedRows

SIZE, WIDTH = 7, 3


def tree(rng):
    """A table, another one whose path ends alike, and a parameter without rows."""

    def draw(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    return {
        "main": {"in": draw(SIZE, WIDTH), "bias": draw(WIDTH)},
        "other": {"main": {"in": draw(SIZE, WIDTH)}},
    }


def test_a_path_without_a_parameter_is_refused():
    params = tree(np.random.default_rng(0))
    with pytest.raises(
        UserError, match="selects rows of 'main/inn', which no tower has.* 'main/in'"
    ):
        SelectedRows.of(params, {"main/inn": jnp.arange(2)})
    with pytest.raises(UserError, match="'in', which no tower has"):  # a part of a path is none
        SelectedRows.of(params, {"in": jnp.arange(2)})


def test_without_rows_nothing_is_cut():
    params, small = tree(np.random.default_rng(0)), tree(np.random.default_rng(1))
    rows = SelectedRows.of(params, {})
    assert rows.take(params) is params and rows.put(params, small) is small


@pytest.mark.full
@pytest.mark.parametrize("optimizer", [Adagrad(), Adafactor()])
def test_only_selected_rows_move(optimizer):
    """Rows and their moments are those of the table of these rows alone; 99 is padding."""
    params = tree(np.random.default_rng(0))
    transform = optimizers.build(
        Recipe(
            phases=(Phase(steps=1, batch=1, length=1),),
            lr=0.1,
            schedule=Constant(),
            optimizer=optimizer,
            clip=None,
        )
    )
    state, ids = transform.init(params), jnp.array([5, 2, 99])
    rows = SelectedRows.of(params, {"main/in": ids})
    part, moments = rows.take(params), rows.take(state, moments=True)
    assert part["main"]["in"].shape == (3, WIDTH) and part["other"]["main"]["in"].shape == (
        SIZE,
        WIDTH,
    )
    np.testing.assert_array_equal(part["main"]["in"][:2], params["main"]["in"][ids[:2]])
    grads = jax.tree.map(jnp.ones_like, part)
    updates, moments = transform.update(grads, moments, part)
    after = rows.put(params, optimizers.apply(part, updates))
    kept = rows.put(state, moments, moments=True)
    moved = (np.asarray(after["main"]["in"]) != np.asarray(params["main"]["in"])).any(1)
    assert moved.tolist() == [row in (2, 5) for row in range(SIZE)]
    assert (after["other"]["main"]["in"] != params["other"]["main"]["in"]).all()
    assert jax.tree.map(jnp.shape, kept) == jax.tree.map(jnp.shape, state)
    if isinstance(optimizer, Adafactor):  # one mean for all rows that the step read, row 0 or not
        np.testing.assert_allclose(kept["column"]["main"]["in"], jnp.ones((1, WIDTH)), rtol=1e-6)
        assert (np.asarray(kept["row"]["main"]["in"])[:, 0] > 0).tolist() == moved.tolist()
    else:
        expected = np.where(moved[:, None], optimizer.initial + 1, optimizer.initial)
        np.testing.assert_allclose(
            kept["nu"]["main"]["in"], np.broadcast_to(expected, (SIZE, WIDTH)), rtol=1e-6
        )
