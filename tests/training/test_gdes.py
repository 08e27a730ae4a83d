"""Gradient-disentangled sharing of words and positions, and a clip by tower."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ptm_jax
from ptm_jax import systems
from ptm_jax.core import towers
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.recipe import AdamW, ClipByTower, Phase, Recipe
from ptm_jax.core.system import Difference, Experiment, Tie, tied, untied
from ptm_jax.core.types import Vocab
from ptm_jax.nn.attention.disentangled import Distances
from ptm_jax.objectives.text.detection import RTD
from ptm_jax.runs.run import Run
from ptm_jax.systems.transformers import deberta
from ptm_jax.training import loop
from ptm_jax.training.start import initial
from ptm_jax.training.updates import optimizers
from support import tiny_runs

WORDS, PLACES = "encoder/embed/token", "encoder/embed/position/table"
TIES = tuple(
    Difference(path=f"main/{path}", source=f"generator/{path}") for path in (WORDS, PLACES)
)
VOCAB = Vocab(size=20, pad=0, mask=3)


def system_of():
    attend = deberta.attention(width=8, heads=2, distances=Distances(farthest=6))
    fields = {"vocab": VOCAB, "layers": 1, "hidden": 8, "limit": 12, "absolute": True}
    core = deberta.encoder(attend, dropout=0.0, **fields)
    return deberta.detecting("", core, core, lr=1e-3)


def batch_of():
    draw = np.random.default_rng(0)
    ids, places = draw.integers(4, 20, (2, 8)), np.array([[1, 4], [2, 7]])
    labels = np.take_along_axis(ids, places, 1)
    np.put_along_axis(ids, places, VOCAB.mask, 1)
    fields = {"input_ids": ids, "mlm_positions": places, "mlm_labels": labels, "rows": np.arange(2)}
    fields |= {"segment_ids": np.ones_like(ids)}
    batch = {name: jnp.asarray(value, jnp.int32) for name, value in fields.items()}
    return {**batch, "mlm_weights": jnp.ones((2, 2))}


@functools.cache
def gradients():
    """(function of parameters, ties and the weight of the detection, parameters)."""
    models, batch = system_of().towers, batch_of()
    params = jax.jit(functools.partial(towers.init, models))(jax.random.key(0), batch)

    def loss(params, weight, ties):
        bound = towers.bind(models, tied(params, ties))
        return RTD(weight=weight)(bound, batch, None).value()

    return jax.jit(jax.grad(loss), static_argnums=2), params


@pytest.mark.full
def test_the_detection_has_no_gradient_to_the_shared_tables():
    run, params = gradients()
    params = untied(params, TIES, fresh=True)
    assert not any(flatten(params)[tie.path].any() for tie in TIES)  # they begin at 0
    one, ten = (flatten(run(params, weight, TIES)) for weight in (1.0, 10.0))
    used = {tie.path: flatten(params)[tie.source] for tie in TIES}
    alone = flatten(run(unflatten({**flatten(params), **used}), 1.0, ()))
    for tie in TIES:
        np.testing.assert_array_equal(one[tie.source], ten[tie.source])
        assert one[tie.source].any()
        np.testing.assert_allclose(ten[tie.path], 10 * one[tie.path], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(one[tie.path], alone[tie.path], rtol=1e-5, atol=1e-7)
        assert np.abs(alone[tie.path]).max() > 1e-4


def test_differences_keep_the_tables_of_two_models():
    _, params = gradients()
    again = flatten(tied(untied(params, TIES, fresh=False), TIES))
    for path, leaf in flatten(params).items():
        np.testing.assert_allclose(again[path], leaf, atol=1e-7, err_msg=path)
    with pytest.raises(UserError, match="no tower has"):
        untied(params, [Tie(path="main/x", source="main/y")], fresh=True)


@pytest.mark.parametrize("by_tower", [True, False])
def test_a_clip_by_tower_is_an_optimizer_for_each(by_tower):
    recipe = Recipe(
        phases=(Phase(steps=9, batch=1, length=8),), lr=0.1, optimizer=AdamW(eps=0.5), clip=1.0
    )
    draw = np.random.default_rng(0)

    def tree(scale):
        return {"w": jnp.asarray(scale * draw.normal(size=(3, 2)), jnp.float32)}

    params = {"main": tree(1.0), "generator": tree(1.0)}
    grads = {"main": tree(50.0), "generator": tree(3.0)}

    def updates(recipe, params, grads):
        optimizer = optimizers.build(recipe)
        return optimizer.update(grads, optimizer.init(params), params)[0]

    together = updates(
        dataclasses.replace(recipe, clip=ClipByTower() if by_tower else 1.0), params, grads
    )
    same = []
    for name in params:
        alone = updates(recipe, {name: params[name]}, {name: grads[name]})[name]["w"]
        same.append(np.allclose(together[name]["w"], alone, rtol=1e-5, atol=1e-9))
    assert all(same) == by_tower


@pytest.mark.full
def test_a_run_keeps_differences_and_another_begins_with_its_tables(tmp_path):
    """A loaded model has E_G + delta; a run that begins with it trains the same delta."""
    mini = systems.get("deberta_v3_mini")
    recipe = dataclasses.replace(mini.recipe, phases=(Phase(steps=2, batch=4, length=16),))
    tokenizer = dataclasses.replace(mini.tokenizer, vocab=90)
    system = dataclasses.replace(mini, recipe=recipe, tokenizer=tokenizer)
    text = tiny_runs.write_text(tmp_path / "text.txt")
    config = Experiment(system=system, data=(text,), precision="float32", eval_every=0)
    loop.train(config, tmp_path / "run", quiet=True)
    trained = Run(tmp_path / "run").restore()[0]
    raw, model = flatten(trained), ptm_jax.load(tmp_path / "run")
    main, generator = (f"{tower}/{WORDS}" for tower in ("main", "generator"))
    assert np.abs(raw[main]).max() > 0
    np.testing.assert_array_equal(flatten(model.params)[main], raw[generator] + raw[main])
    zeros = jax.tree.map(jnp.zeros_like, trained)
    begun = flatten(initial.begin(zeros, str(tmp_path / "run"), model.system))
    np.testing.assert_allclose(begun[main], raw[main], atol=1e-7)
