"""[P] is a token of the vocabulary's own, in the published system and in one with a trained tokenizer."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.core.spec import respell
from ptm_jax.core.system import refusal
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.orders import PseudoMasks
from ptm_jax.corruptions.pseudo import PseudoTokens
from support.corrupting import numpied

VOCAB = Vocab(size=1000, pad=0, unk=1, cls=2, sep=3, mask=4, extra=(999, 998))


def drawn(corruption):
    ids = jnp.asarray(np.random.default_rng(0).integers(5, 998, (64, 40)), jnp.int32)
    return numpied(corruption, 0, {"input_ids": ids})


def test_only_the_pseudo_masks_differ():
    found, masks = drawn(PseudoTokens(vocab=VOCAB)), drawn(PseudoMasks(vocab=VOCAB))
    there = np.zeros(found["input_ids"].shape, bool)
    there[:, 40:46] = found["plm_weights"] > 0
    assert there.sum() == 64 * 6 and (found["input_ids"][there] == 999).all() and (masks["input_ids"][there] == 4).all()
    np.testing.assert_array_equal(found["input_ids"][~there], masks["input_ids"][~there])
    assert not np.isin(found["input_ids"][~there], VOCAB.extra).any()
    for name in masks:
        assert name == "input_ids" or np.array_equal(found[name], masks[name])
    given = drawn(PseudoTokens(vocab=VOCAB, pseudo=7))
    assert (given["input_ids"][there] == 7).all()


def test_a_vocabulary_without_one_is_refused():
    poor = dataclasses.replace(VOCAB, extra=())
    with pytest.raises(ValueError, match="no extra token.*sentinels=1"):
        drawn(PseudoTokens(vocab=poor))
    system = systems.get("unilmv2_base")
    assert refusal(system) is None and system.corruption.vocab.extra == (1,) and system.tokenizer.sentinels == 1
    assert system.tokenizer.lowercase
    assert "sentinels=1" in refusal(respell(system, Vocab, poor))
    assert refusal(respell(system, Vocab, VOCAB)) is None
