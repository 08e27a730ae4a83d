"""An encoder-decoder that begins with two language models: which parameters are theirs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.convert.engine import Report
from ptm_jax.core import towers
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten
from ptm_jax.core.system import Experiment
from ptm_jax.training.start import initial
from ptm_jax.training.start.init_models import Initial

FIELDS = (
    "input_ids",
    "segment_ids",
    "decoder_input_ids",
    "decoder_segment_ids",
    "decoder_positions",
)
BATCH = {name: jax.ShapeDtypeStruct((2, 4), jnp.int32) for name in FIELDS}


def numbered(system, value):
    return jax.tree.map(
        lambda leaf: jnp.full(leaf.shape, value), towers.abstract(dict(system.towers), BATCH)
    )


def begun(monkeypatch, name, model, **parts):
    """{path: first number} after `Experiment.init`; the models are trees of their names."""
    system = systems.get(name)
    monkeypatch.setattr(
        Initial,
        "params",
        lambda source, _: (numbered(systems.get(model), float(source.path)), Report(0)),
    )
    config = Experiment(system=system, init=tuple(parts.items()))
    initial.check(config)
    found = flatten(initial.begin(numbered(system, 0.0), config.init, system))
    return {path: float(np.asarray(leaf).flat[0]) for path, leaf in found.items()}


def test_both_sides_of_a_pair_begin_with_a_language_model(monkeypatch):
    found = begun(monkeypatch, "lm_seq2seq_mini", "lm_seq2seq_lm_mini", encoder="1", decoder="2")
    layer = ("inputs/bias", "inputs/kernel", "projection", "state")
    first = {"embed/token", *(f"layers_0/{name}" for name in layer)}
    ours = {f"main/encoder/encoder/{name}" for name in first} | {
        f"main/heads_source/{name}" for name in ("table", "bias")
    }
    assert {path for path, value in found.items() if value == 1} == ours
    theirs = {f"main/encoder/decoder/{name.replace('layers_0', 'first')}" for name in first}
    assert {path for path, value in found.items() if value == 2} == theirs | {
        "main/heads_lm/table",
        "main/heads_lm/bias",
    }


def test_a_layer_that_tasks_share_begins_with_a_bidirectional_language_model(monkeypatch):
    found = begun(monkeypatch, "liu_shared_mini", "liu_lm_mini", shared="3")
    ways = {
        f"shared/{way}/{name}"
        for way in ("right", "left")
        for name in ("inputs/bias", "inputs/kernel", "state")
    }
    assert {
        path.removeprefix("main/encoder/") for path, value in found.items() if value == 3
    } == ways | {"embed/token"}


def test_a_language_model_of_another_size_is_one_line(monkeypatch):
    with pytest.raises(
        UserError,
        match="^1 does not fit encoder: main/encoder/embed/token has the shape .*; take a",
    ):
        begun(monkeypatch, "lm_seq2seq_mini", "lstm_mini", encoder="1")
