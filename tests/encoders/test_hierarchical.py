"""HIBERT's three networks: what a sentence's vector, a document state and a decoded word depend
on."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import distinct
from ptm_jax.encoders.transformer.hierarchical import Hierarchical
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.nn.attention.multihead import Attention, CrossAttention
from ptm_jax.nn.blocks import Block, FeedForward, Stack
from ptm_jax.nn.embeddings.summed import Embeddings, Sinusoids
from support import bare_layers
from support.bare_layers import drawn, sees

VOCAB, WIDTH, T, S = Vocab(size=40), 8, 3, 4


def model():
    attention = Attention(heads=2, width=WIDTH)
    block = Block(attention=attention, ffn=FeedForward(12))
    stack = Stack(block=block, layers=2)
    decoding = dataclasses.replace(
        stack, block=dataclasses.replace(block, cross=CrossAttention(attention))
    )
    embed = Embeddings(vocab=VOCAB, width=WIDTH, position=Sinusoids())
    encoder = Hierarchical(
        sentence=Transformer(embed=embed, stack=stack),
        document=stack,
        decoder=Transformer(embed=embed.clone(given=True), stack=decoding, direction="causal"),
        tokens=T,
    )
    return distinct(encoder)


@pytest.fixture(scope="module")
def net():
    module = model()
    params = jax.tree.map(jnp.asarray, drawn(module, {"input_ids": jnp.zeros((1, T), jnp.int32)}))
    return module, jax.jit(lambda params, batch: module.apply({"params": params}, batch)), params


@pytest.mark.full
def test_vectors_see_their_sentence_states_the_document_and_words_one_state(net):
    _, run, params = net
    # slot 1 is two tokens long, slot 3 is empty
    segments = jnp.asarray([[1, 1, 1, 2, 2, 0, 3, 3, 3, 0, 0, 0]])
    decoder = jnp.asarray([[1, 1, 1, 2, 2, 0]])
    batch = {
        "input_ids": jnp.arange(T * S)[None],
        "decoder_input_ids": jnp.arange(T * S, T * S + 2 * T)[None],
    }
    batch |= {
        "segment_ids": segments,
        "decoder_segment_ids": decoder,
        "sentence_positions": jnp.asarray([[2, 0]]),
    }

    def outputs(params):
        out = run(params, batch)
        return jnp.concatenate([out.extra["vectors"][0], out.extra["sentences"][0], out.hidden[0]])

    seen = sees(outputs, params, "sentence/embed/token")[:, : T * (S + 2)]
    vectors, sentences, hidden = np.split(seen, [S, 2 * S])
    real = np.asarray(segments[0] > 0)
    own = np.asarray(segments[0][None] == jnp.arange(1, 4)[:, None])
    np.testing.assert_array_equal(vectors[:3, : T * S], own)
    np.testing.assert_array_equal(sentences[:3, : T * S], np.stack([real] * 3))
    words = np.asarray(decoder[0][:, None] == decoder[0][None]) & np.tri(2 * T, dtype=bool)
    np.testing.assert_array_equal(hidden[:5, T * S :], words[:5])
    np.testing.assert_array_equal(hidden[:5, : T * S], np.stack([real] * 5))


@pytest.mark.full
def test_a_word_depends_on_its_own_sentence_state_alone(net):
    """The decoder by itself: a change in another sentence's state changes nothing."""
    module, _, params = net
    ids = jnp.arange(2 * T)[None]
    segments = jnp.repeat(jnp.asarray([[1, 2]]), T, 1)
    inner = {
        "input_ids": ids,
        "segment_ids": segments,
        "positions": jnp.tile(jnp.arange(T), 2)[None],
    }
    options = {
        "source_segments": jnp.asarray([[1, 2]]),
        "table": params["sentence"]["embed"]["token"],
    }

    def outputs(given):
        own = {"params": params["decoder"]}
        return module.decoder.apply(own, inner, source=given["source"][None], **options).hidden[0]

    seen = sees(
        outputs,
        {"source": np.random.default_rng(1).normal(size=(2, WIDTH)).astype(np.float32)},
        "source",
    )
    np.testing.assert_array_equal(
        seen, np.asarray(segments[0][:, None] == jnp.asarray([1, 2])[None])
    )


@pytest.mark.full
def test_sentences_are_the_sentence_encoder_alone_and_places_are_chosen(net):
    module, run, params = net
    ids = jax.random.randint(jax.random.key(3), (2, T * S), 0, VOCAB.size)
    out = run(params, {"input_ids": ids})
    alone = bare_layers.run(
        module.sentence, params["sentence"], {"input_ids": ids.reshape(-1, T)}
    ).hidden[:, 0]
    np.testing.assert_allclose(out.extra["vectors"].reshape(-1, WIDTH), alone, atol=1e-5)
    # decoding sentences 3 and 1 is decoding all of them, and taking those
    words = ids.reshape(2, S, T)[:, jnp.asarray([3, 1])].reshape(2, -1)
    chosen = run(
        params,
        {
            "input_ids": ids,
            "decoder_input_ids": words,
            "sentence_positions": jnp.asarray([[3, 1]] * 2),
        },
    )
    whole = out.hidden.reshape(2, S, T, WIDTH)[:, jnp.asarray([3, 1])]
    np.testing.assert_allclose(chosen.hidden.reshape(whole.shape), whole, atol=1e-5)


@pytest.mark.full
def test_a_short_last_slot_is_padded(net):
    module, run, params = net
    ids = jnp.arange(T + 1)[None]
    out = run(params, {"input_ids": ids})
    whole = {
        "input_ids": jnp.pad(ids, ((0, 0), (0, T - 1))),
        "segment_ids": jnp.asarray([[1] * T + [2] + [0] * (T - 1)]),
    }
    np.testing.assert_allclose(
        out.extra["sentences"], run(params, whole).extra["sentences"], atol=1e-6
    )
    assert (module.direction, module.obeys_order) == ("decoder", False)
