"""Answers in steps, and the other layers of XLM's and XLNet's published checkpoints, against
numpy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp, softmax

from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Encoded, Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import transformer
from ptm_jax.nn.embeddings.parts import Languages, WordTypes
from ptm_jax.nn.heads.questions.answers import AnswerHead
from ptm_jax.nn.layerdrop import DroppedBlock
from ptm_jax.objectives.tasks.downstream import AnswerBeams
from support.bare_layers import context_of, dense, drawn, norm, run

B, L, D = 2, 5, 4
HIDDEN = np.random.default_rng(0).normal(size=(B, L, D)).astype(np.float32)
ENCODER = transformer(vocab=Vocab(size=7), layers=1, width=D, heads=1, dropout=0.0, types=2)
HEAD = AnswerHead(3, 2)
PARAMS = drawn(HEAD, HIDDEN, np.zeros(B, int), np.zeros(B, int))


def answers(row, start):
    """(start scores, end scores for a start, whether there is none) of one row, by definition."""
    p, x = PARAMS, HIDDEN[row]
    ends = norm(
        np.tanh(dense(p["end_join"], np.concatenate([x, np.tile(x[start], (L, 1))], -1))),
        p["end_norm"],
    )
    none = np.tanh(dense(p["none_join"], np.concatenate([x[start], x[L - 1 - row]])))
    return dense(p["start"], x)[:, 0], dense(p["end"], ends)[:, 0], dense(p["none"], none)[0]


def test_the_end_is_scored_given_the_right_start():
    batch = {"input_ids": jnp.ones((B, L), int), "segment_ids": jnp.array([[1] * 5, [1] * 4 + [0]])}
    batch |= {
        "answer_start": jnp.array([1, 2]),
        "answer_end": jnp.array([3, 2]),
        "no_answer": jnp.array([1, 0]),
    }
    table = {"embed": {"token": np.zeros((7, D))}}  # a tower offers it to every head
    tower = Tower(
        Model(encoder=ENCODER, heads={"answer": HEAD}), {"encoder": table, "heads_answer": PARAMS}
    )
    starts, ends, nones = zip(*(answers(row, row + 1) for row in range(B)), strict=True)

    def nll(scores, place):
        return logsumexp(scores) - scores[place]

    expected = (
        np.mean([nll(starts[0], 1) + nll(ends[0], 3), nll(starts[1], 2) + nll(ends[1], 2)]) / 2
    )
    expected += np.mean([np.log1p(np.exp(-nones[0])), np.log1p(np.exp(nones[1]))]) / 2

    def of(batch):
        return AnswerBeams().of(tower, Encoded(jnp.asarray(HIDDEN)), batch)

    np.testing.assert_allclose(jax.jit(lambda batch: of(batch).value())(batch), expected, rtol=1e-5)
    assert (
        "end_nll"
        in jax.eval_shape(of, {k: v for k, v in batch.items() if k != "no_answer"}).metrics
    )


def test_the_best_starts_and_the_best_ends_of_each():
    allowed = np.array([[0, 1, 1, 1, 1], [1] * 5])
    found = run(HEAD, PARAMS, HIDDEN, np.array([4, 3]), None, allowed)
    for row in range(B):
        inside = np.flatnonzero(allowed[row])
        scores = answers(row, 0)[0][inside]
        best = np.argsort(-scores)[:3]
        np.testing.assert_array_equal(found.start_places[row], inside[best])
        np.testing.assert_allclose(found.starts[row], softmax(scores)[best], rtol=1e-4)
        for beam, start in enumerate(inside[best]):
            ends = answers(row, start)[1][inside]
            np.testing.assert_array_equal(
                found.end_places[row, beam], inside[np.argsort(-ends)[:2]]
            )
            np.testing.assert_allclose(
                found.ends[row, beam], np.sort(softmax(ends))[::-1][:2], rtol=1e-4
            )
    assert found.none.shape == (B,) and found.end is None


@pytest.mark.full
def test_languages_words_as_types_and_blank_padding():
    embed = dataclasses.replace(ENCODER.embed, parts=(WordTypes(2), Languages(3)))
    encoder = dataclasses.replace(ENCODER, embed=embed, blank=True)
    batch = {"input_ids": jnp.array([[3, 4, 0]]), "segment_ids": jnp.array([[1, 1, 0]])}
    full = {
        **batch,
        "token_type_ids": jnp.array([[0, 1, 0]]),
        "language_ids": jnp.array([[2, 1, 0]]),
    }
    params = drawn(encoder, batch)
    table, language, scale = (params["embed"][name] for name in ("token", "language", "norm"))
    assert "type" not in params["embed"]
    plain, found = run(encoder, params, batch), run(encoder, params, full)
    np.testing.assert_allclose(plain.layers[0][0, 0], norm(table[3], scale), atol=1e-5)
    np.testing.assert_allclose(
        found.layers[0][0, 1], norm(table[4] + table[1] + language[1], scale), atol=1e-5
    )
    assert not np.asarray(found.hidden[0, 2]).any() and np.asarray(found.hidden[0, :2]).all()


def test_a_layer_is_left_out_for_all_rows_at_once():
    block, still = ENCODER.stack.block, context_of(B, L)
    fields = {
        f.name: getattr(block, f.name)
        for f in dataclasses.fields(block)
        if f.name not in ("parent", "name")
    }
    dropped = DroppedBlock(**fields, skip=0.3)
    params = drawn(block, HIDDEN, still)
    whole = run(block, params, HIDDEN, still)[0]
    np.testing.assert_array_equal(run(dropped, params, HIDDEN, still)[0], whole)

    def moving(key):
        return run(dropped, params, HIDDEN, context_of(B, L, train=True), rngs={"dropout": key})[0]

    drawings = np.asarray(jax.jit(jax.vmap(moving))(jax.random.split(jax.random.key(1), 2000)))
    left_out = (drawings == HIDDEN).all((1, 2, 3))
    np.testing.assert_allclose(
        drawings[~left_out], np.broadcast_to(whole, drawings[~left_out].shape), atol=1e-5
    )
    assert abs(left_out.mean() - 0.3) < 3 * np.sqrt(0.3 * 0.7 / 2000)
