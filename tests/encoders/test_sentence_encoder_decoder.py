"""TSDAE: the decoder sees one vector of the text, and its layers are the encoder's."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ptm_jax
from ptm_jax.core import spec, towers
from ptm_jax.core.paths import flatten
from ptm_jax.core.system import tied
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.systems import get
from ptm_jax.training.steps.step import program
from support import tiny_models

VOCAB = Vocab(size=40, pad=0, unk=1, cls=2, sep=3, mask=4)


@pytest.fixture(scope="module")
def tsdae():
    """(system, parameters with their ties, a batch of the corruption)."""
    system = spec.respell(get("tsdae_mini"), Vocab, VOCAB)
    rng = np.random.default_rng(0)
    ids = rng.integers(5, 40, (4, 12)).astype(np.int32)
    ids[:, 0], ids[:, -1] = VOCAB.cls, VOCAB.sep
    batch = {
        "input_ids": jnp.asarray(ids),
        "segment_ids": jnp.ones((4, 12), jnp.int32),
        "positions": jnp.tile(jnp.arange(12, dtype=jnp.int32), (4, 1)),
        "rows": jnp.arange(4, dtype=jnp.int32),
    }
    state = program(system, 0).init(batch)
    noisy = system.corruption(jax.random.key(0), batch)
    return system, state.params, noisy


def bound(system, params):
    return towers.bind(system.towers, tied(params, system.ties))["main"]


def test_a_deletion_of_60_percent_is_restored(tsdae):
    _, _, batch = tsdae
    kept = (np.asarray(batch["segment_ids"]) > 0).sum(1)
    assert (kept == 2 + 10 - 6).all()
    assert np.asarray(batch["decoder_labels"])[:, 0].tolist() == [VOCAB.cls] * 4


def test_the_decoder_sees_the_first_state_alone(tsdae):
    """In the first row, of two documents, each token attends to the first state of its own."""
    system, params, batch = tsdae
    segments = batch["segment_ids"].at[0, 3:6].set(2)
    written = batch["decoder_segment_ids"].at[0, 4:].set(2)
    tower = bound(system, params)
    encoded = tower({**batch, "segment_ids": segments, "decoder_segment_ids": written})
    attention = np.asarray(encoded.extra["cross_attention"])
    expected = np.zeros((4, 12, 12))
    expected[..., 0] = 1
    expected[0, 4:, 0], expected[0, 4:, 3] = 0, 1
    for layer in attention:
        for head in np.moveaxis(layer, 1, 0):
            np.testing.assert_allclose(head, expected, atol=1e-6)


def test_the_decoder_has_only_its_cross_attention(tsdae):
    system, params, _ = tsdae
    own = [path for path in flatten(params) if path.startswith("main/encoder/decoder/")]
    assert own and all("/cross/" in path for path in own)
    filled = flatten(tied(params, system.ties))
    for tie in system.ties:
        assert filled[tie.path] is filled[tie.source]


@pytest.mark.full
def test_a_vector_is_the_state_of_the_encoders_first_token(published):
    """It equals the vector of the encoder alone, which has no decoder whose states could count."""
    tokenizer = ptm_jax.load(published).tokenizer
    system = spec.respell(get("tsdae_mini"), Vocab, tokenizer.vocab)
    params = tied(tiny_models.drawn(system, 0, 0.1), system.ties)
    model = Pretrained(system, params, tokenizer)
    encoder = Model(encoder=model.module.encoder.encoder, heads={})
    alone = Pretrained(
        dataclasses.replace(system, towers={"main": encoder}, ties=()),
        {"main": {"encoder": params["main"]["encoder"]["encoder"]}},
        tokenizer,
    )
    texts = ["the dog naps", "a fox by the river in york"]
    for pooling, of_alone in ((None, "cls"), ("mean", "mean")):
        vectors = model.encode(texts, pooling=pooling)
        np.testing.assert_allclose(vectors, alone.encode(texts, pooling=of_alone), atol=1e-5)
        assert np.abs(vectors[0] - vectors[1]).max() > 0.1
