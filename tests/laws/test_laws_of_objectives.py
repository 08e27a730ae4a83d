"""The laws of every objective: a loss is a sum over rows with a weight that the batch alone
decides.

That the sum is the published one is tested against numpy in tests/objectives, gradients included.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core import slots
from ptm_jax.core.system import refusal
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.objectives import joint, task_of_batch
from ptm_jax.objectives.regularisation import (
    adversarial,
    agreement,
    auxiliary,
    averaging,
    information,
)
from ptm_jax.objectives.sentences import (
    cached,
    cosent,
    margins,
    multiple_negatives,
    nested,
    sentence_teacher,
    sparsity,
)
from ptm_jax.objectives.task_of_row import RowsOfTask
from ptm_jax.objectives.tasks import answers, crf, downstream, hotpot, layer_choice
from ptm_jax.objectives.text import (
    contrastive,
    detection,
    diffusion,
    dual_training,
    greedy,
    hybrid,
    language,
    ponder,
    seq2seq,
)
from ptm_jax.objectives.vectors import graph_vectors, graphs
from support import plain_towers, registered, tiny_systems
from support.plain_towers import LEXICAL, B, D, L, PlainTower, V, batch_of

params_of = functools.partial(plain_towers.params_of, more=tuple(LEXICAL))
TASK = downstream.Classification()
PAIRS = multiple_negatives.MultipleNegatives()
OWN = {
    "masked words": language.MLM(prefix="plm"),
    "half causal": hybrid.Hybrid(causal=0.5),
    "diffusion": diffusion.Diffusion(vocab=Vocab(size=V, mask=3)),
    "infonce": contrastive.InfoNCE(temperature=0.5),
    "wide ranking": contrastive.PairwiseRanking(margin=4.0),
    "dim": contrastive.DIM(),
    "survey's rtd": detection.RTD(convention="survey", frozen_generator=True),
    "classes": TASK,
    "numbers": downstream.Classification(kind="number", head="number"),
    "tags": downstream.Tagging(),
    "span": downstream.AnswerSpan(),
    "beams": downstream.AnswerBeams(),
    "choices": downstream.Choosing(),
    "conversation": answers.ConversationAnswers(),
    "verified": answers.VerifiedSpan(),
    "documents": hotpot.DocumentPairs(),
    "hops": hotpot.HopAnswers(gamma=0.5),
    "ponder": ponder.Ponder(),
    "named": task_of_batch.TaskOfBatch(tasks=(task_of_batch.NamedTask(name="a", task=TASK),)),
    "mixing": joint.TaskMixing(tasks=(language.LM(), language.MLM()), rates=(1.0, 0.0)),
    "fading": auxiliary.FadingLanguage(task=TASK, language=language.MLM(), steps=4),
    "agreement": agreement.Agreement(task=TASK),
    "adversarial": adversarial.AdversarialLoss(task=TASK, width=D, virtual=0.5),
    "compressed": information.Compressed(task=TASK, beta=0.5, gamma=0.25),
    "noise triples": graph_vectors.TripleLoss(loss="softmax", soft=0.1),
    "symmetric": multiple_negatives.MultipleNegatives(
        directions=("query_to_doc", "doc_to_query"), partition="per_direction"
    ),
    "cached": cached.Cached(task=PAIRS, parts=2),
    "features": nested.NestedFeatures(task=PAIRS, dims=(2, D), weights=(0.5, 1.0)),
    "sparse": sparsity.Sparse(task=PAIRS, queries=0.3, documents=0.2, warmup=4),
    "taught": sentence_teacher.Taught(task=sentence_teacher.VectorError()),
    "teacher": averaging.OwnTeacher(task=TASK, teachers=("generator",)),
}
TRIPLETS = {margins.Triplet, margins.MarginError, margins.SoftRanking}
ELSEWHERE = {
    crf.CRFTagging,
    layer_choice.Selecting,
    *TRIPLETS,
    nested.NestedLayers,
    sentence_teacher.VectorError,
}
"""A head that is a chain (tests/nn/test_crf.py), the mask of an encoder
(tests/encoders/test_dense_recurrent.py), and losses of triplets, layers and a
teacher's vectors, of which the batch here has none (tests/objectives/test_sentence_losses.py)."""
CASES = registered.values("objective") | OWN
CASES |= registered.by_default("ptm_jax.objectives", slots.Objective, CASES, without=ELSEWHERE)
_RANKING = multiple_negatives.MultipleNegatives, cosent.CoSENT
ACROSS_ROWS = (contrastive.InfoNCE, contrastive.DIM, *_RANKING)
"""Losses of a row that depend on the other rows of the batch."""
_PLACES = downstream.AnswerSpan, downstream.AnswerBeams, answers.VerifiedSpan, hotpot.HopAnswers
ALL_PLACES = (*_PLACES, downstream.Choosing, seq2seq.Seq2Seq)
"""Losses whose softmax or targets are over all places of a row or a question: heads and corruptions
leave padding out."""
LEVELS = (greedy.GreedyLayers,)
"""Losses of an encoder's levels, which are no states: their padding is the encoder's
(tests/encoders/test_logistic.py)."""
NONE = "answer_start", "answer_end", "answer_kind", "grade", "facts"
"""Fields whose -1 is nothing."""

COVERED = {"objectives": {name: registered.class_names(value) for name, value in CASES.items()}}
each, thinned = registered.each(CASES), registered.each(CASES, covered="objectives")
"""Every case; and the cases of which `make test` compiles those of the list."""
ROWS = 2 * B


def has(name, kinds):
    return any(isinstance(part, kinds) for part in registered.parts(CASES[name]))


@functools.cache
def batch():
    """Two groups of rows, with every field that an objective reads."""
    fields = jax.tree.map(lambda *x: jnp.concatenate(x), batch_of(1), batch_of(2))
    return {
        **fields,
        "rows": jnp.arange(ROWS),
        "perturbation": jnp.zeros((ROWS, L, D)),
        "task": jnp.zeros(ROWS, jnp.int32),
    }


def emptied(rows, given=None):
    """The batch whose `rows` are padding and have no weight."""
    out = dict(given or batch())
    for field, value in out.items():
        if "weights" in field or "segment" in field or field in NONE:
            out[field] = value.at[rows].set(-1 if field in NONE else 0)
    return out


@functools.cache
def compiled(name):
    """(params, batch) -> the loss, and the gradients with respect to the parameters and the words'
    vectors."""

    def value(params, perturbation, given):
        given = {**given, "perturbation": perturbation, "step": jnp.int32(2)}
        half = jax.tree.map(lambda x: 0.5 * x, params)
        given_to = {"main": params, "projections": {}} | dict.fromkeys(
            ("generator", "dbow", "teacher", "proposal"), half
        )
        towers = {name: PlainTower(tree, train=True) for name, tree in given_to.items()}
        loss = CASES[name](towers, given, jax.random.key(0))
        return loss.value(), loss

    run = jax.jit(jax.grad(value, argnums=(0, 1), has_aux=True))
    return lambda params, given: run(params, given["perturbation"], given)


@functools.cache
def plain(name):
    return compiled(name)(params_of(), batch())


def terms(loss):
    return np.atleast_1d(loss.sum), np.atleast_1d(loss.weight)


def test_every_objective_is_here():
    missing = registered.missing("ptm_jax.objectives", slots.Objective, CASES) - ELSEWHERE
    assert not missing, f"give {missing} a value in OWN"


@thinned
def test_a_batch_without_weight_has_no_loss_and_no_gradient(name):
    gradients, loss = compiled(name)(params_of(), emptied(np.arange(ROWS)))
    assert float(loss.value()) == 0 and not np.any(loss.sum) and not np.any(loss.weight)
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(gradients))


@thinned
def test_sums_and_weights_add_over_micro_batches(name):
    if has(name, ACROSS_ROWS):
        pytest.skip("its negatives are the other rows of the micro-batch")
    parts = [
        compiled(name)(params_of(), emptied(rows))[1] for rows in (np.arange(B), np.arange(B, ROWS))
    ]
    _, whole = plain(name)
    for found, expected in zip(
        map(sum, zip(*map(terms, parts), strict=True)), terms(whole), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    for metric, ratio in whole.metrics.items():
        np.testing.assert_allclose(
            sum(part.metrics[metric].sum for part in parts), ratio.sum, rtol=1e-5, atol=1e-6
        )
        np.testing.assert_allclose(
            sum(part.metrics[metric].weight for part in parts), ratio.weight, rtol=1e-6
        )


@thinned
def test_the_order_of_rows_is_nothing(name):
    swapped = {field: jnp.roll(value, B, 0) for field, value in batch().items()}
    gradients, loss = compiled(name)(params_of(), swapped)
    for found, expected in zip(terms(loss), terms(plain(name)[1]), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        gradients[0],
        plain(name)[0][0],
    )


@thinned
def test_the_weight_is_the_batchs(name):
    _, loss = plain(name)
    weights = terms(loss)[1] > 0
    assert weights.any() if has(name, RowsOfTask) else weights.all()  # all rows are of one task
    np.testing.assert_array_equal(compiled(name)(params_of(3), batch())[1].weight, loss.weight)


@thinned
def test_a_baseline_is_of_one_of_its_metrics(name):
    """The frequencies of words or classes are compared with a metric of the loss, or with
    nothing."""
    assert CASES[name].baseline in {None, *plain(name)[1].metrics}


@thinned
def test_padding_has_no_gradient(name):
    if has(name, graphs.DescribedTriples):
        pytest.skip("it reads no text")
    if has(name, ALL_PLACES):
        pytest.skip("padding stands among the places of the softmax, as in the original")
    if has(name, LEVELS):
        pytest.skip("it reads no states")
    if has(name, dual_training.DualTraining):
        pytest.skip(
            "its rows are in other vocabularies, of another length than the one that is perturbed"
        )
    slopes = np.asarray(plain(name)[0][1])
    assert np.isfinite(slopes).all() and slopes.any()
    assert (slopes[np.asarray(batch()["segment_ids"]) == 0] == 0).all()


@pytest.mark.full
@thinned
def test_bfloat16_is_near_float32(name):
    halved = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params_of())
    gradients, loss = compiled(name)(halved, batch())
    np.testing.assert_allclose(
        np.float32(loss.value()), np.float32(plain(name)[1].value()), rtol=0.05, atol=0.05
    )
    assert all(
        np.isfinite(np.asarray(leaf, np.float32)).all() for leaf in jax.tree.leaves(gradients)
    )


@each
def test_the_record_gives_the_value_back(name):
    assert registered.rebuilt(CASES[name]) == CASES[name]


@each
def test_a_refusal_is_one_clause(name):
    for direction in ("bidirectional", "causal"):
        module = Model(encoder=tiny_systems.encoder(direction=direction), heads={})
        system = tiny_systems.system("law", towers={"main": module}, objective=CASES[name])
        assert registered.one_clause(refusal(system))
