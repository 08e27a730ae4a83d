"""A trained model that reads words by their characters, on texts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax import systems
from ptm_jax.core import spec, towers
from ptm_jax.core.types import Vocab
from ptm_jax.data.tokenizers import TokenizerSpec
from ptm_jax.data.vocabularies import make
from ptm_jax.data.words import spellings
from ptm_jax.nn.adaptive import AdaptiveHead
from ptm_jax.tasks.pretrained import Pretrained

TEXTS = ["the king sees the house of the city.", "the queen loves a hat"]


def test_texts_are_spelled_for_the_model():
    tokenizer = make(TokenizerSpec(kind="word", vocab=12, specials="t5"), TEXTS)
    system = spec.respell(systems.get("cloze_cnn_mini"), Vocab, tokenizer.vocab)
    system = spec.respell(system, AdaptiveHead, lambda head: dataclasses.replace(head, cutoffs=(4, 8)))
    batch = {"input_ids": jnp.zeros((1, 4), jnp.int32), "characters": jnp.ones((1, 4, 16), jnp.int32)}
    random, shapes = np.random.default_rng(0), towers.abstract(system.towers, batch)
    params = jax.tree.map(lambda leaf: random.normal(0.0, 0.1, leaf.shape).astype(np.float32), shapes)
    model = Pretrained(system, params, tokenizer)
    ids = model.ids_of(TEXTS)
    out = model(ids[0][None])
    batch = {"input_ids": jnp.asarray(ids[0][None]), "characters": jnp.asarray(spellings(tokenizer, 16)[ids[0]][None])}
    run = jax.jit(lambda params: model.module.apply({"params": params}, batch, method="encode").hidden)
    expected = run(params["main"])
    np.testing.assert_allclose(out.hidden, expected, atol=1e-4)
    np.testing.assert_allclose(np.exp(out.logits).sum(-1), 1.0, atol=1e-4)
