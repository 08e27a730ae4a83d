"""Adaptations on encoders of every kind: they are built, and a step of each is traced; what does
not fit is one line."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import pytest

from ptm_jax import systems
from ptm_jax.adapt import catalogue
from ptm_jax.adapt.parameters.levels import parameter_paths
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten
from ptm_jax.training.steps import step

ADDED = {
    "houlsby": "/after_ffn/reduce/", "lora": "^lora/", "mix": "^main/readers_mix/alpha$",
    "prefix": "/attention/prefix_key",
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "adapt"),
    [
        ("gpt_mini", ("houlsby", "gradual", "layer_decay")),
        ("albert_mini", ("lora", "mix")),
        ("albert_mini", ("prefix",)),
        ("bert_mini", ("prefix", "houlsby", "lora")),
        ("t5_mini", ("houlsby", "gradual", "layer_decay")),
        ("t5_mini", ("adversarial",)),
        ("transformer_xl_mini", ("lora", "gradual", "mix")),
        ("transformer_xl_mini", ("adversarial",)),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_every_kind_of_encoder_is_adapted(name, adapt):
    """The shapes after a step of an adapted miniature on rows of zeros."""
    system = systems.get(name)
    recipe = dataclasses.replace(system.recipe, accumulate=1)
    system = dataclasses.replace(system, adapt=catalogue.read_all(adapt), recipe=recipe)
    fields = system.examples.spec(32, system.towers["main"].encoder.embeddings.vocab)
    batch = {field: jnp.zeros((4, *shape), dtype) for field, (shape, dtype) in fields.items()} | {
        "rows": jnp.arange(4)
    }
    program = step.program(system, 0)
    state, metrics = jax.eval_shape(program.step, jax.eval_shape(program.init, batch), batch)
    for word in ADDED.keys() & set(adapt):
        assert any(re.search(ADDED[word], path) for path in flatten(state.params)), word
    assert any(metric.startswith("adversarial_") for metric in metrics) == ("adversarial" in adapt)
    levels = parameter_paths(state.params, program.towers)
    assert max(place.top for place in levels.values()) >= 2
    if name == "t5_mini":
        # The layers of the decoder stand above those of the encoder.
        low, high = (
            levels[f"main/encoder/{part}/stack/block/ffn/up/kernel"].level
            for part in ("encoder", "decoder")
        )
        assert low.max() < high.min()


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("bart_mini", "pals", "bart_mini does not take PALs: .*; leave it out"),
        ("albert_mini", "pals", "albert_mini does not take PALs: .*; leave it out"),
        ("t5_mini", "prefix", "its layers share Buckets"),
        ("xlnet_mini", "prefix", "has a memory in front"),
        ("albert_mini", "prefix(hidden=8)", "leave hidden=0"),
        ("bert_mini", "prefix(length=0)", "length is 0; it must be"),
        (
            "transformer_xl_lm1b",
            "adversarial",
            "does not take AdversarialTraining: the words of Adaptive",
        ),
    ],
)
def test_an_encoder_that_does_not_fit_is_refused(name, text, words):
    with pytest.raises(UserError, match=words):
        step.program(dataclasses.replace(systems.get(name), adapt=catalogue.read_all([text])), 0)
