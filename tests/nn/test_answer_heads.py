"""Answers in steps, and what else XLM's and XLNet's published checkpoints need of the layers, against numpy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Visibility, Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer import transformer
from ptm_jax.nn.embeddings.parts import Languages, WordTypes
from ptm_jax.nn.heads.answers import AnswerHead
from ptm_jax.nn.heads.tasks import Summary, SummaryHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layerdrop import DroppedBlock
from ptm_jax.nn.layers import Context
from ptm_jax.objectives.downstream import AnswerBeams

B, L, D = 2, 5, 4
HIDDEN = jax.random.normal(jax.random.key(0), (B, L, D))
WIDE = Normal(0.5)


def norm(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)


def layer(p, x):
    return x @ p["kernel"] + p.get("bias", 0)


def answers(p, hidden, row, start):
    """(start scores, end scores for a start, whether there is none) of one row, by definition."""
    ends = norm(np.tanh(layer(p["end_join"], np.concatenate([hidden[row], np.tile(hidden[row, start], (L, 1))], -1))))
    none = np.tanh(layer(p["none_join"], np.concatenate([hidden[row, start], hidden[row, L - 1 - row]])))
    return layer(p["start"], hidden[row])[:, 0], layer(p["end"], ends)[:, 0], layer(p["none"], none)[0]


@pytest.fixture(scope="module")
def head():
    module = AnswerHead(3, 2, initializer=WIDE)
    params = jax.jit(module.init)(jax.random.key(1), HIDDEN, jnp.zeros(B, int), jnp.zeros(B, int))["params"]
    return module, params, jax.tree.map(np.asarray, params)


def test_the_end_is_scored_given_the_right_start(head):
    module, params, plain = head
    batch = {"input_ids": jnp.ones((B, L), int), "segment_ids": jnp.array([[1] * 5, [1] * 4 + [0]])}
    batch |= {"answer_start": jnp.array([1, 2]), "answer_end": jnp.array([3, 2]), "no_answer": jnp.array([1, 0])}
    encoder = transformer(vocab=Vocab(size=7), layers=1, width=D, heads=1)
    model = Model(encoder=encoder, heads={"answer": module})
    table = {"embed": {"token": jnp.zeros((7, D))}}  # which a tower offers to every head
    tower = Tower(model, {"encoder": table, "heads_answer": params})
    encoded = type("Encoded", (), {"hidden": HIDDEN})
    starts, ends, nones = zip(*(answers(plain, np.asarray(HIDDEN), row, row + 1) for row in range(B)), strict=True)
    nll = lambda scores, place: scipy.special.logsumexp(scores) - scores[place]
    expected = np.mean([nll(starts[0], 1) + nll(ends[0], 3), nll(starts[1], 2) + nll(ends[1], 2)]) / 2
    expected += np.mean([np.log1p(np.exp(-nones[0])), np.log1p(np.exp(nones[1]))]) / 2
    of = lambda batch: AnswerBeams().of(tower, encoded, batch)
    np.testing.assert_allclose(jax.jit(lambda batch: of(batch).value())(batch), expected, rtol=1e-5)
    assert "end_nll" in jax.eval_shape(of, {k: v for k, v in batch.items() if k != "no_answer"}).metrics


def test_the_best_starts_and_the_best_ends_of_each(head):
    module, params, plain = head
    allowed = jnp.array([[0, 1, 1, 1, 1], [1] * 5])
    found = jax.jit(lambda params: module.apply({"params": params}, HIDDEN, jnp.array([4, 3]), None, allowed))(params)
    for row in range(B):
        inside = np.flatnonzero(allowed[row])
        scores = answers(plain, np.asarray(HIDDEN), row, 0)[0][inside]
        best = np.argsort(-scores)[:3]
        np.testing.assert_array_equal(found.start_places[row], inside[best])
        np.testing.assert_allclose(found.starts[row], scipy.special.softmax(scores)[best], rtol=1e-4)
        for beam, start in enumerate(inside[best]):
            ends = answers(plain, np.asarray(HIDDEN), row, start)[1][inside]
            np.testing.assert_array_equal(found.end_places[row, beam], inside[np.argsort(-ends)[:2]])
            np.testing.assert_allclose(found.ends[row, beam], np.sort(scipy.special.softmax(ends))[::-1][:2], rtol=1e-4)
    assert found.none.shape == (B,) and found.end is None


def test_a_summary_may_be_a_mean_and_may_be_bare():
    segments = jnp.array([[1, 1, 0, 0, 0], [1] * 5])
    bare = Summary("tanh", at="mean", project=False)
    hidden, where = bare.reads(type("Encoded", (), {"hidden": HIDDEN}), {"input_ids": segments, "segment_ids": segments})
    means = np.tanh([np.asarray(HIDDEN)[0, :2].mean(0), np.asarray(HIDDEN)[1].mean(0)])
    np.testing.assert_allclose(bare.apply({}, hidden, where), means, rtol=1e-5)
    head = SummaryHead(Summary("identity", width=3))
    found, params = jax.eval_shape(lambda: head.init_with_output(jax.random.key(0), HIDDEN))
    assert found.shape == (B, 3) and head.classes == 3
    assert params["params"]["summary"]["dense"]["kernel"].shape == (D, 3)


def test_languages_words_as_types_and_blank_padding():
    encoder = transformer(vocab=Vocab(size=7), layers=1, width=D, heads=1, dropout=0.0, types=2, initializer=WIDE)
    embed = dataclasses.replace(encoder.embed, parts=(WordTypes(2), Languages(3)))
    encoder = dataclasses.replace(encoder, embed=embed, blank=True)
    batch = {"input_ids": jnp.array([[3, 4, 0]]), "segment_ids": jnp.array([[1, 1, 0]])}
    params, run = jax.jit(encoder.init)(jax.random.key(0), batch), jax.jit(encoder.apply)
    table, language = params["params"]["embed"]["token"], params["params"]["embed"]["language"]
    assert "type" not in params["params"]["embed"]
    full = {**batch, "token_type_ids": jnp.array([[0, 1, 0]]), "language_ids": jnp.array([[2, 1, 0]])}
    plain, found = run(params, batch), run(params, full)
    np.testing.assert_allclose(plain.layers[0][0, 0], norm(np.asarray(table[3])), atol=1e-5)
    wanted = norm(np.asarray(table[4] + table[1] + language[1]))
    np.testing.assert_allclose(found.layers[0][0, 1], wanted, atol=1e-5)
    assert not np.asarray(found.hidden[0, 2]).any() and np.asarray(found.hidden[0, :2]).all()


def test_a_layer_is_left_out_for_all_rows_at_once():
    block = transformer(vocab=Vocab(size=7), layers=1, width=D, heads=1, dropout=0.0).stack.block
    fields = {f.name: getattr(block, f.name) for f in dataclasses.fields(block) if f.name not in ("parent", "name")}
    dropped = DroppedBlock(**fields, skip=0.3)
    ones = jnp.ones((B, L), int)
    context = lambda train: Context(visibility=Visibility(ones, ones), rows=jnp.arange(B), train=train)
    params = jax.jit(lambda: block.init(jax.random.key(0), HIDDEN, context(False)))()
    whole, off = jax.jit(lambda params: [kind.apply(params, HIDDEN, context(False))[0] for kind in (block, dropped)])(params)
    np.testing.assert_array_equal(off, whole)
    run = jax.jit(jax.vmap(lambda key: dropped.apply(params, HIDDEN, context(True), rngs={"dropout": key})[0]))
    drawn = np.asarray(run(jax.random.split(jax.random.key(1), 2000)))
    left_out = (drawn == np.asarray(HIDDEN)).all((1, 2, 3))
    np.testing.assert_allclose(drawn[~left_out], np.broadcast_to(whole, drawn[~left_out].shape), atol=1e-5)
    assert abs(left_out.mean() - 0.3) < 3 * np.sqrt(0.3 * 0.7 / 2000)
