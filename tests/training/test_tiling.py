"""A larger model that begins with a smaller one: tiles against numpy's own padding."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core import paths
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import AdamW, Constant, Phase, Recipe
from ptm_jax.encoders.model import Model
from ptm_jax.nn.attention.rotary import LocalLayers
from ptm_jax.nn.heads.vocabulary import MLMHead
from ptm_jax.objectives.text.language import MLM
from ptm_jax.systems.transformers.modern import modernbert
from ptm_jax.training.checkpoints import restore_params
from ptm_jax.training.loop import train
from ptm_jax.training.start import initial
from ptm_jax.training.start.tiling import tiled
from ptm_jax.training.steps.step import program
from support import tiny_runs as tiny


def definition(small, drawn, mode, stacked):
    """Layer i is layer round(i n / N), at most the last; then np.pad, whose "wrap" is cyclic."""
    if stacked:
        count, many = len(small), len(drawn)
        small = np.stack([small[min(round(n * count / many), count - 1)] for n in range(many)])
    more = [large - few for few, large in zip(small.shape, drawn.shape, strict=True)]
    if mode == "cyclic":
        return np.pad(small, [(0, extra) for extra in more], mode="wrap")
    around = [(extra // 2, extra - extra // 2) for extra in more]
    if mode == "middle":
        return np.pad(small, around, mode="wrap")
    inside = np.pad(np.ones(small.shape, bool), around)
    return np.where(inside, np.pad(small, around), drawn)


@pytest.mark.parametrize("mode", ["middle", "cyclic", "centre"])
@pytest.mark.parametrize(
    ("small", "large", "stacked"),
    [((5,), (8,), False), ((3, 4), (8, 9), False), ((2, 3, 4), (5, 3, 11), True)],
)
def test_tiles_are_those_of_numpy(small, large, stacked, mode):
    rng = np.random.default_rng(0)
    small, drawn = rng.normal(size=small), rng.normal(size=large)
    result = tiled(small, drawn, mode, stacked)
    np.testing.assert_array_equal(result, definition(small, drawn, mode, stacked))


def test_heads_are_tiled_as_the_released_code_tiles_their_columns():
    """12 heads of 64 to 16: the released code tiles the 768 columns, and begins at two heads."""
    kernel = np.random.default_rng(0).normal(size=(6, 12, 64))
    ours = tiled(kernel, np.empty((8, 16, 64)), "middle", False)
    flat = definition(kernel.reshape(6, 768), np.empty((8, 1024)), "middle", False)
    np.testing.assert_array_equal(ours.reshape(8, 1024), flat)


def experiment(layers, width, heads, text, **options):
    block = modernbert.block(
        layers=layers, width=width, heads=heads, hidden=2 * width, local=LocalLayers(radius=3)
    )
    encoder = modernbert.encoder(block, vocab=tiny.VOCAB, layers=layers, limit=32)
    recipe = Recipe(
        phases=(Phase(steps=1, batch=4, length=16),),
        lr=1e-3,
        schedule=Constant(),
        optimizer=AdamW(weight_decay=0.0),
    )
    towers = {"main": Model(encoder=encoder, heads={"mlm": MLMHead(vocab=tiny.VOCAB)})}
    system = dataclasses.replace(tiny.system, towers=towers, recipe=recipe, objective=MLM())
    return dataclasses.replace(tiny.config, system=system, data=(text,), **options)


@pytest.mark.full
def test_a_model_begins_with_the_tiles_of_a_smaller_run(tmp_path):
    text, small = tiny.write_text(tmp_path / "text.txt"), str(tmp_path / "small")
    train(experiment(2, 8, 2, text), small, quiet=True)
    system = experiment(3, 12, 3, text).system
    fields = system.examples.batch_spec(16, tiny.VOCAB)
    batch = {name: jnp.zeros((4, *dims), kind) for name, (dims, kind) in fields.items()}
    shapes = jax.eval_shape(program(system, 0).init, batch | {"rows": jnp.arange(4)}).params
    drawn = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), shapes)
    before = paths.flatten(restore_params(small)[0])
    for path, leaf in paths.flatten(initial.begin(drawn, small, system, tiling="middle")).items():
        expected = definition(np.asarray(before[path]), leaf, "middle", "/stack/block/" in path)
        np.testing.assert_array_equal(leaf, expected, err_msg=path)
    assert any(leaf.shape != before[path].shape for path, leaf in paths.flatten(drawn).items())
    with pytest.raises(UserError, match="take a system of its size, or --set tiling=middle"):
        initial.begin(drawn, small, system)
    with pytest.raises(ValueError, match="tiling is 'top'; it must be one of middle, cyclic, ce"):
        experiment(3, 12, 3, text, tiling="top")
