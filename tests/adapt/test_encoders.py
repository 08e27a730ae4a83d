"""Adaptations on encoders of every kind: they are built, and a step of each is traced; what does not fit is one line."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from ptm_jax import systems
from ptm_jax.adapt import catalogue
from ptm_jax.core.errors import UserError
from ptm_jax.core.levels import places
from ptm_jax.core.paths import flatten
from ptm_jax.train import step


def traced(name, *adapt):
    """The shapes of the parameters after a step of a miniature, adapted, on rows of zeros."""
    system = systems.get(name)
    recipe = dataclasses.replace(system.recipe, accumulate=1)
    system = dataclasses.replace(system, adapt=catalogue.read_all(adapt), recipe=recipe)
    encoder = system.towers["main"].encoder
    fields = system.examples.spec(32, encoder.embeddings.vocab)
    batch = {field: jnp.zeros((4, *shape), dtype) for field, (shape, dtype) in fields.items()}
    program = step.program(system, 0)
    state = jax.eval_shape(program.init, batch | {"rows": jnp.arange(4)})
    return program, jax.eval_shape(program.step, state, batch | {"rows": jnp.arange(4)})[0].params


@pytest.mark.parametrize(
    ("name", "adapt"),
    [
        ("gpt_mini", ("houlsby", "gradual", "layer_decay")),
        ("albert_mini", ("lora", "mix")),
        ("t5_mini", ("houlsby", "gradual", "layer_decay")),
        ("transformer_xl_mini", ("lora", "gradual", "mix")),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_every_kind_of_encoder_is_adapted(name, adapt):
    program, params = traced(name, *adapt)
    flat = flatten(params)
    added = [path for path in flat if "/after_ffn/reduce/" in path or path.startswith("lora/")]
    assert added and (adapt[0] != "lora" or "main/readers_mix/alpha" in flat)
    levels = places(params, program.towers)
    assert max(place.top for place in levels.values()) >= 2
    if name == "t5_mini":
        # The layers of the decoder stand above those of the encoder.
        low, high = (levels[f"main/encoder/{part}/stack/block/ffn/up/kernel"].level for part in ("encoder", "decoder"))
        assert low.max() < high.min()


@pytest.mark.parametrize("name", ["bart_mini", "albert_mini"])
def test_what_an_encoder_does_not_take_is_one_line(name):
    system = dataclasses.replace(systems.get(name), adapt=catalogue.read_all(["pals"]))
    with pytest.raises(UserError, match=f"{name} does not take PALs: .*; leave it out"):
        step.program(system, 0)
