"""Source words from a language model: what the encoder reads, what is trained, what begins."""

import dataclasses

import jax
import numpy as np
import pytest

from ptm_jax.adapt.modules.model_words import ModelWords
from ptm_jax.core.errors import UserError
from ptm_jax.core.system import adapted
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model, distinct
from ptm_jax.encoders.transformer.augmented import augmented
from ptm_jax.encoders.transformer.transformer import transformer
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.systems import get
from ptm_jax.systems.sequence_to_sequence.bart import seq2seq

VOCAB, DRAW = Vocab(size=20, pad=1, eos=2, bos=0), Normal(0.4)
SIZES = {"heads": 2, "dropout": 0.0, "attention_dropout": 0.0, "initializer": DRAW, "vocab": VOCAB}


def pair():
    return seq2seq(layers=1, width=8, positions=LearnedPositions(9, initializer=DRAW), **SIZES)


def model():
    return transformer(layers=2, width=6, positions=LearnedPositions(9, initializer=DRAW), **SIZES)


IDS = np.array([[5, 6, 7, 8], [9, 10, 11, 1]], np.int32)
BATCH = {
    "input_ids": IDS,
    "segment_ids": (IDS > 1).astype(np.int32),
    "decoder_input_ids": IDS[:, ::-1].copy(),
}


def with_(params, path, new):
    """Returns a tree in which the parameters below `path` are others."""
    name, _, below = path.partition("/")
    return {**params, name: with_(params[name], below, new) if below else new}


@pytest.mark.full
@pytest.mark.parametrize("tuned", [False, True])
def test_the_encoder_reads_a_projection_of_the_states(tuned):
    """The network equals a plain one whose table of the row's words holds the projections."""
    network = distinct(augmented(pair(), model(), tuned=tuned))
    params = network.init(jax.random.key(0), BATCH)["params"]
    encoded = network.apply({"params": params}, BATCH)
    states = model().apply({"params": params["words"]}, {k: BATCH[k] for k in list(BATCH)[:2]})
    layers = np.asarray(states.layers, np.float64)
    if tuned:
        mixed = np.asarray(states.hidden)
    else:
        params = with_(params, "mix/alpha", np.array([0.3, -0.2, 0.5], np.float32))
        encoded = network.apply({"params": params}, BATCH)
        normal = layers - layers.mean(-1, keepdims=True)
        normal /= np.sqrt((normal**2).mean(-1, keepdims=True) + 1e-12)
        weights = np.exp([0.3, -0.2, 0.5])
        mixed = np.einsum("n,nbld->bld", weights / weights.sum(), normal)
    dense = params["encoder"]["embed"]["expand"]["states"]
    vectors = mixed @ np.asarray(dense["kernel"]) + np.asarray(dense["bias"])
    table = np.array(params["encoder"]["embed"]["token"])
    source = np.array(table)
    source[IDS.reshape(-1)] = vectors.reshape(-1, 8)  # no word occurs twice
    inner = distinct(pair()).encoder
    plain = {**params["encoder"]["embed"], "token": source}
    plain.pop("expand")
    wanted = inner.apply(
        {"params": {**params["encoder"], "embed": plain}}, {k: BATCH[k] for k in list(BATCH)[:2]}
    ).hidden
    assert np.allclose(encoded.extra["source"], wanted, atol=1e-5)


@pytest.mark.status("model_words", "built")
def test_the_language_model_is_frozen_unless_it_is_tuned():
    main, words = Model(encoder=pair(), heads={"lm": LMHead()}), Model(encoder=model(), heads={})
    parent = get("xlm_translation_mini")
    system = dataclasses.replace(
        parent, towers={"main": main, "words": words}, adapt=(ModelWords(),)
    )
    work = adapted(system)
    assert list(work.towers) == ["main"] and work.towers["main"].encoder.words == model()
    path = "main/encoder/words/stack/block/ffn/up/kernel"
    assert not ModelWords().trainable(path, 0) and ModelWords(kind="tuned").trainable(path, 0)
    assert ModelWords().trainable("main/encoder/mix/alpha", 0)
    with pytest.raises(UserError, match="reads another model; give both, as --init main=MODEL w"):
        adapted(dataclasses.replace(system, towers={"main": main}))
