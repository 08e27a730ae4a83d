"""The context of a word: its definition in numpy, and gaps that it fills."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import ptm_jax
from ptm_jax import systems
from ptm_jax.core import spec
from ptm_jax.core.recipe import Phase
from ptm_jax.core.system import Experiment
from ptm_jax.core.types import Vocab
from ptm_jax.data.corpora.prepare import prepare
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.vocabularies import make
from ptm_jax.encoders.recurrent.context2vec import ContextLSTM
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.nn.recurrent.lstm import LSTM
from ptm_jax.systems.recurrent.context2vec import context2vec
from ptm_jax.training import loop
from support import tiny_models
from support.bare_layers import dense, drawn
from support.recurrences import defined, lstm

VOCAB = Vocab(size=30)
SEGMENTS = np.array([[1, 1, 1, 1, 2, 2, 0], [1, 2, 2, 2, 2, 2, 2]])


@pytest.mark.full
def test_the_vector_of_a_context_is_an_mlp_of_the_states_on_both_sides():
    encoder = ContextLSTM(
        vocab=VOCAB, width=3, right=LSTM(4), left=LSTM(4, backward=True), hidden=5, out=2
    )
    batch = {"input_ids": jnp.arange(14).reshape(2, 7), "segment_ids": jnp.asarray(SEGMENTS)}
    params = drawn(encoder, batch)
    found = encoder.apply({"params": params}, batch).hidden
    for b, segments in enumerate(SEGMENTS):
        x = params["token"][np.asarray(batch["input_ids"][b])]
        ahead, behind = (
            defined(lstm, params[n], x, segments, backward=n == "left")[0]
            for n in ("right", "left")
        )
        for t in np.flatnonzero(segments):

            def mine(k, b=b, t=t, segments=segments):
                return 0 <= k < 7 and SEGMENTS[b, k] == segments[t]

            sides = [
                ahead[t - 1] if mine(t - 1) else np.zeros(4),
                behind[t + 1] if mine(t + 1) else np.zeros(4),
            ]
            inner = np.maximum(dense(params["inner"], np.concatenate(sides)), 0)
            np.testing.assert_allclose(found[b, t], dense(params["outer"], inner), atol=1e-6)


@pytest.mark.full
def test_a_gap_is_filled_by_the_words_of_the_largest_cosines():
    tokenizer = make(TokenizerSpec(kind="word", specials="bert", vocab=15), tiny_models.TEXTS)
    system = spec.respell(context2vec("context2vec_tiny", 3, 4, 5, 2), Vocab, tokenizer.vocab)
    model = Pretrained(system, tiny_models.drawn(system), tokenizer)
    ids = [tokenizer.id(piece) for piece in ("[CLS]", "the", "[MASK]", "sees", "[SEP]")]
    context, words = (
        model(np.array([ids])).hidden[0, 2],
        np.asarray(model.params["main"]["heads_context"]["table"]),
    )
    cosines = words @ context / np.linalg.norm(words, axis=-1) / np.linalg.norm(context)
    cosines[list(tokenizer.special_pieces.values())] = -2
    best = np.argsort(-cosines)[:4]
    ((found,),) = model.fill_mask(["the [MASK] sees"], top=4)
    assert [one.token for one in found] == [tokenizer.piece(i) for i in best]
    np.testing.assert_allclose([one.probability for one in found], cosines[best], atol=1e-5)
    assert found[0].sentence == f"the {found[0].token} sees"


@pytest.mark.full
def test_a_trained_run_fills_gaps_by_both_sides(tmp_path):
    small, draw = systems.get("context2vec_mini"), np.random.default_rng(0)

    def line(a, b, word):
        return f"left{a} {word} right{b}."

    answers = {(a, b): f"middle{a}{b}" for a in range(3) for b in range(3)}
    (tmp_path / "text.txt").write_text(
        "\n\n".join(line(a, b, answers[a, b]) for a, b in draw.integers(3, size=(3000, 2)))
    )
    tokenizer = dataclasses.replace(small.tokenizer, vocab=21)
    prepare([str(tmp_path / "text.txt")], tmp_path / "corpus", tokenizer=tokenizer, heldout=0.05)
    recipe = dataclasses.replace(
        small.recipe, phases=(Phase(steps=200, batch=8, length=64),), lr=1e-2
    )
    config = Experiment(
        system=dataclasses.replace(small, recipe=recipe),
        data=(str(tmp_path / "corpus"),),
        save_every=0,
    )
    loop.train(config, tmp_path / "run", quiet=True)
    found = ptm_jax.load(tmp_path / "run").fill_mask(
        [line(a, b, "[MASK]") for a, b in answers], top=1
    )
    assert [best.token for ((best,),) in found] == list(answers.values())
