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
from ptm_jax.core.spec import respell
from ptm_jax.core.system import Experiment
from ptm_jax.core.types import Vocab
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


def with_words(system, vocab):
    return system if vocab is None else respell(system, Vocab, vocab)


def begun(monkeypatch, name, model, vocab=None, **parts):
    """{path: first number} after `Experiment.init`; the models are trees of their names."""
    system, other = (with_words(systems.get(one), vocab) for one in (name, model))
    monkeypatch.setattr(
        Initial,
        "params",
        lambda source, _: (numbered(other, float(source.path)), Report(0)),
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


SMALL = Vocab(size=50, bos=0, cls=0, pad=1, eos=2, sep=2, unk=3, mask=4)


@pytest.mark.full
def test_a_transformer_begins_with_models_of_its_sides(monkeypatch, capsys):
    found = begun(monkeypatch, "xlm_translation_mini", "xlm_mini", SMALL, encoder="1", decoder="2")
    start = "main/encoder/"
    inside = {path.removeprefix(start): v for path, v in found.items() if path.startswith(start)}
    of = {
        side: {value for path, value in inside.items() if path.startswith(f"{side}/stack/")}
        for side in ("encoder", "decoder")
    }
    assert of == {"encoder": {1.0}, "decoder": {2.0, 0.0}}
    cross = {path for path, value in inside.items() if value == 0}
    assert cross and all("/cross/" in path for path in cross)
    assert inside["encoder/embed/token"] == 2  # both sides have one table: the last one's
    lines = capsys.readouterr().err
    assert "decoder of 2: begins at random: encoder/decoder/stack/block/cross/attention" in lines
    assert "1: in the model, not used: " in lines and "encoder of 1" not in lines


@pytest.mark.full
def test_one_model_for_both_sides_has_one_line_of_what_is_not_used(monkeypatch, capsys):
    begun(monkeypatch, "xlm_translation_mini", "xlm_mini", SMALL, encoder="3", decoder="3")
    lines = capsys.readouterr().err.splitlines()
    (line,) = (line for line in lines if "not used" in line)
    assert line == "3: in the model, not used: encoder/embed/language, heads_mlm"


@pytest.mark.full
def test_one_side_of_an_encoder_decoder_is_another_one_s(monkeypatch):
    found = begun(monkeypatch, "transformer_mini", "mass_mini", SMALL, decoder="2")
    theirs = {path for path, value in found.items() if value == 2}
    assert any("/cross/" in path for path in theirs)
    assert {path for path in theirs if "/encoder/encoder/" in path} == {
        "main/encoder/encoder/embed/token"
    }


@pytest.mark.full
@pytest.mark.parametrize(
    ("model", "vocab", "message"),
    [
        ("xlm_mini", None, "^1 does not fit encoder: main/encoder/embed/token has the shape"),
        ("lstm_mini", SMALL, "^1 does not fit encoder: "),
    ],
)
def test_a_model_that_fits_no_side_is_one_line(monkeypatch, model, vocab, message):
    with pytest.raises(UserError, match=message):
        begun(monkeypatch, "xlm_translation_mini", model, vocab, encoder="1")


def test_an_unknown_part_is_named_beside_the_parts_that_there_are(monkeypatch):
    with pytest.raises(UserError, match="no tower or part of .*decoder, encoder, main"):
        begun(monkeypatch, "xlm_translation_mini", "xlm_mini", SMALL, enc="1")
