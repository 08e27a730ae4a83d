"""Every objective against its definition, written here in plain numpy (float64): sums, weights and
gradients to 1e-5."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.objectives.joint import Joint
from ptm_jax.objectives.tasks.downstream import Classification, LabelGain
from ptm_jax.objectives.text.contrastive import DIM, InfoNCE, PairwiseRanking
from ptm_jax.objectives.text.detection import RTD, AddedWords
from ptm_jax.objectives.text.language import (
    LM,
    MLM,
    PLM,
    BiLM,
    Cloze,
    Reconstruction,
    RegularisedLM,
)
from ptm_jax.objectives.text.ponder import Ponder
from ptm_jax.objectives.text.sentence_pairs import NSP, BidirectionalNSP
from ptm_jax.objectives.text.seq2seq import Seq2Seq, SideLM
from ptm_jax.objectives.text.skip_thought import NeighbourSentences
from ptm_jax.objectives.text.span import SBO
from support.plain_towers import (
    B,
    L,
    P,
    PlainTower,
    V,
    batch_of,
    check,
    double,
    logistic,
    nll,
    params_of,
    pooled,
    states_of,
)


def over(weights, loss):
    """[(sum, weight)] of `loss` over the places that have a weight."""
    places = np.argwhere(weights > 0)
    return [(sum(loss(*place) for place in places), len(places))]


def predicted(states, head, b, prefix):
    positions, labels = b[f"{prefix}_positions"], b[f"{prefix}_labels"]
    return over(
        b[f"{prefix}_weights"], lambda i, j: nll(states[i, positions[i, j]] @ head, labels[i, j])
    )


def mlm(p, b, prefix="mlm"):
    return predicted(states_of(p, b), p["mlm"], b, prefix)


def plm(p, b):
    return predicted(states_of(p, b) @ p["forward"], p["lm"], b, "plm")


def neighbours(p, b, states, toward, head="lm"):
    """The state of each token predicts the token `toward` places further on, inside its
    document."""
    segments, pairs = b["segment_ids"], np.zeros((B, L))
    for t in range(max(0, -toward), min(L, L - toward)):
        pairs[:, t] = (segments[:, t] == segments[:, t + toward]) & (segments[:, t] > 0)
    return over(pairs, lambda i, t: nll(states[i, t] @ p[head], b["input_ids"][i, t + toward]))


def lm(p, b):
    return neighbours(p, b, states_of(p, b), 1)


def reconstruction(p, b):
    """Dai and Le 2015: only the words of the second copy count."""
    states, segments = states_of(p, b), b["segment_ids"]
    follows = (
        (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0) & (b["again"][:, 1:] > 0)
    )
    return over(follows, lambda i, t: nll(states[i, t] @ p["lm"], b["input_ids"][i, t + 1]))


def smoothed(p, b, rate=0.1, classes=3):
    scores = states_of(p, b)[:, 0] @ p["classify"]

    def target(i):
        return (1 - rate) * np.eye(classes)[b["label"][i]] + rate / classes

    def loss(i):
        return sum(target(i)[c] * nll(scores[i], c) for c in range(classes))

    return over((b["segment_ids"] > 0).any(1), loss)


def gain(leftwards):
    """Dai and Le 2015, section 3: after token t of T the weight is t / T, from the side that is
    read first."""

    def definition(p, b):
        states, terms, weight = states_of(p, b), 0.0, 0.0
        for i, size in enumerate((b["segment_ids"] > 0).sum(1)):
            for t in range(size):
                mine = (size - t if leftwards else t + 1) / size
                terms, weight = (
                    terms + mine * nll(states[i, t] @ p["classify"], b["label"][i]),
                    weight + mine,
                )
        return [(terms, weight)]

    return definition


def source(p, b):
    return neighbours(p, b, states_of(p, b) @ p["forward"], 1, "source")


def bilm(p, b):
    states = states_of(p, b)
    return neighbours(p, b, states @ p["forward"], 1) + neighbours(p, b, states @ p["backward"], -1)


def sentences(p, b):
    """Of row 0, the second sentence from the first and the first from the second; other rows have
    one sentence at most."""
    states, [first, second] = (
        states_of(p, b)[0],
        [np.flatnonzero(b["segment_ids"][0] == n) for n in (1, 2)],
    )
    ways = (("forward", second), ("backward", first))
    terms = [
        nll(states[t] @ p[way] @ p["lm"], b["input_ids"][0, t])
        for way, places in ways
        for t in places
    ]
    return [(sum(terms), len(terms))]


def regularised(p, b):
    states, segments = states_of(p, b), b["segment_ids"]
    raw, follows = (
        states @ p["match"],
        (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0),
    )
    size = over(segments > 0, lambda i, t: np.square(states[i, t]).mean())
    change = over(follows, lambda i, t: np.square(raw[i, t] - raw[i, t + 1]).mean())
    return lm(p, b) + scaled(2.0, size) + scaled(1.0, change)


def cloze(p, b):
    return neighbours(p, b, states_of(p, b), 0)


def pairs(p, b, rows=(True,) * B):
    pool = pooled(p, states_of(p, b), np)
    return over(
        (b["segment_ids"] > 0).any(1) & rows, lambda i: nll(pool[i] @ p["nsp"], b["next_label"][i])
    )


def sbo(p, b):
    states = states_of(p, b)

    def loss(i, j):
        sides = [states[i, b[name][i, j]] for name in ("span_left", "span_right")]
        return nll(
            np.concatenate([*sides, p["offset"][b["span_offset"][i, j]]]) @ p["sbo"],
            b["mlm_labels"][i, j],
        )

    return over(b["mlm_weights"], loss)


def seq2seq(p, b, smoothing=0.0, way=None):
    states = states_of(p, b) if way is None else states_of(p, b) @ p[way]

    def loss(i, t):
        target = np.full(V, smoothing / V)
        target[b["decoder_labels"][i, t]] += 1 - smoothing
        return sum(target[v] * nll(states[i, L - P + t] @ p["lm"], v) for v in range(V))

    return over(b["decoder_weights"], loss)


def added(p, b):
    scores = states_of(p, b) @ p["noise"]
    return over(b["noise_weights"], lambda i, t: logistic(scores[i, t, 0], b["noise_labels"][i, t]))


def ponder(p, b):
    states = states_of(p, b)
    return over(b["segment_ids"], lambda i, t: np.square(states[i, t]).sum())


def contrast(anchors, positives, real, temperature=1.0):
    """(sum, weight): each row's positive against those of the other real rows."""
    total = 0.0
    for i in real:
        scores = {j: np.dot(anchors[i], positives[j]) / temperature for j in real}
        total += -np.log(np.exp(scores[i]) / sum(np.exp(score) for score in scores.values()))
    return total, len(real)


def real_pairs(b, view):
    return [
        i
        for i in range(B)
        if (b["segment_ids"][i] > 0).any() and (b[f"{view}_segment_ids"][i] > 0).any()
    ]


def infonce(temperature=1.0, both_ways=False, cosine=False):
    def definition(p, b):
        x, y = (pooled(p, states_of(p, b, view), np) for view in ("", "pair"))
        if cosine:
            x, y = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, y))
        there = contrast(x, y, real_pairs(b, "pair"), temperature)
        if not both_ways:
            return [there]
        back = contrast(y, x, real_pairs(b, "pair"), temperature)
        return [((there[0] + back[0]) / 2, there[1])]

    return definition


def dim(p, b):
    return [
        contrast(
            pooled(p, states_of(p, b), np), states_of(p, b, "ngram")[:, 0], real_pairs(b, "ngram")
        )
    ]


def ranking(margin):
    def definition(p, b):
        good, bad = (
            (pooled(p, states_of(p, b, view), np) @ p["score"])[:, 0] for view in ("", "negative")
        )
        real = [i for i in range(B) if (b["segment_ids"][i] > 0).any()]
        return [(sum(max(0.0, margin - good[i] + bad[i]) for i in real), len(real))]

    return definition


def orders(kinds):
    """[B, L] of one kind for each row: both ways, source and target, left to right, right to
    left."""
    slots = np.arange(L)
    of = {
        "both": 0 * slots,
        "seq2seq": np.maximum(slots - 2, 0),
        "causal": slots,
        "backward": -slots,
    }
    return jnp.asarray(np.stack([of[kind] for kind in kinds]), jnp.int32)


MIXED = [
    ("both", "causal", "both"),
    ("seq2seq", "both", "causal"),
    ("backward", "both", "both"),
    (),
]


@pytest.mark.full
@pytest.mark.parametrize("kinds", MIXED)
def test_pairs_count_in_rows_that_see_all(kinds):
    """UniLM's mixture; a batch without an order is all such rows."""
    rows = np.array([kind == "both" for kind in kinds or ("both",) * B])
    given = {"order": orders(kinds)} if kinds else {}
    check(BidirectionalNSP(), lambda p, b: pairs(p, b, rows), batch=batch_of() | given)


def scaled(scale, terms):
    return [(scale * total, weight) for total, weight in terms]


CASES = {
    "mlm": (MLM(), mlm),
    "mlm of another prefix": (MLM(prefix="plm"), lambda p, b: mlm(p, b, "plm")),
    "lm": (LM(), lm),
    "regularised": (RegularisedLM(), regularised),
    "bilm": (BiLM(), bilm),
    "reconstruction": (Reconstruction(), reconstruction),
    "smoothed classes": (Classification(smoothing=0.1), smoothed),
    "label gain": (LabelGain(), gain(False)),
    "label gain of a backward encoder": (LabelGain(leftwards=True), gain(True)),
    "cloze": (Cloze(), cloze),
    "sentences beside": (NeighbourSentences(), sentences),
    "plm": (PLM(), plm),
    "three-way pairs": (NSP(name="structure"), pairs),
    "sbo": (SBO(), sbo),
    "seq2seq": (Seq2Seq(), seq2seq),
    "smoothed seq2seq": (Seq2Seq(label_smoothing=0.1), lambda p, b: seq2seq(p, b, 0.1)),
    "source of a pair": (SideLM(side="source", head="source"), source),
    "target of a pair": (SideLM(), lambda p, b: seq2seq(p, b, way="backward")),
    "added words": (AddedWords(), added),
    "infonce": (InfoNCE(temperature=0.5), infonce(0.5)),
    "infonce both ways": (InfoNCE(both_ways=True), infonce(both_ways=True)),
    "infonce cosine": (InfoNCE(similarity="cosine", temperature=0.2), infonce(0.2, cosine=True)),
    "dim": (DIM(), dim),
    "ranking": (PairwiseRanking(), ranking(1.0)),
    "wide ranking": (PairwiseRanking(margin=4.0), ranking(4.0)),
    "ponder": (Ponder(), ponder),
    "infoword": (
        Joint(parts=((1.0, MLM()), (0.5, DIM()))),
        lambda p, b: mlm(p, b) + scaled(0.5, dim(p, b)),
    ),
}


@pytest.mark.full
@pytest.mark.parametrize(("objective", "definition"), CASES.values(), ids=CASES.keys())
def test_equals_the_definition(objective, definition):
    loss = check(objective, definition)
    assert len(loss.metrics) >= len(np.atleast_1d(loss.sum))
    first = definition(*double_inputs())[0]
    found = [
        float(ratio.value())
        for name, ratio in loss.metrics.items()
        if name.endswith(("nll", "loss", "ponder"))
    ]
    if not isinstance(
        objective, Seq2Seq | Classification | LabelGain
    ):  # whose metrics are without smoothing or gain
        assert any(np.isclose(value, first[0] / first[1], rtol=1e-5) for value in found)


def double_inputs():
    return double(params_of()), double(batch_of())


def test_accuracy_counts_hits():
    loss = MLM()({"main": PlainTower(params_of())}, batch_of(), None)
    p, b = double_inputs()
    states = states_of(p, b)
    places = [
        (i, b["mlm_positions"][i, j], b["mlm_labels"][i, j])
        for i, j in np.argwhere(b["mlm_weights"] > 0)
    ]
    hits = [np.argmax(states[i, at] @ p["mlm"]) == label for i, at, label in places]
    np.testing.assert_allclose(loss.metrics["mlm_accuracy"].value(), np.mean(hits), rtol=1e-6)


def test_the_metric_of_seq2seq_is_without_smoothing():
    loss = Seq2Seq(label_smoothing=0.3)({"main": PlainTower(params_of())}, batch_of(), None)
    p, b = double_inputs()
    ((plain, weight),) = seq2seq(p, b)
    np.testing.assert_allclose(loss.metrics["nll"].value(), plain / weight, rtol=1e-5)


def electra(drawn, weight=50.0, frozen=False):
    """The definition for one draw of the words [B, L]."""

    def definition(p, b):
        generated = predicted(states_of(p["generator"], b), p["generator"]["mlm"], b, "mlm")
        original = b["input_ids"].copy()
        for i, j in np.argwhere(b["mlm_weights"] > 0):
            original[i, b["mlm_positions"][i, j]] = b["mlm_labels"][i, j]
        scores = states_of(p["main"], {**b, "input_ids": drawn}) @ p["main"]["rtd"]
        judged = over(
            b["segment_ids"], lambda i, t: logistic(scores[i, t, 0], drawn[i, t] != original[i, t])
        )
        return scaled(weight, judged) if frozen else generated + scaled(weight, judged)

    return definition


@pytest.mark.full
@pytest.mark.parametrize("frozen", [False, True])
def test_rtd_equals_the_definition_under_its_draw(frozen):
    objective, batch = RTD(frozen_generator=frozen), batch_of()
    params = {name: params_of(seed) for seed, name in enumerate(("main", "generator"))}
    generator = PlainTower(params["generator"])
    drawn = np.asarray(objective.filled(generator, generator(batch), batch, jax.random.key(0)))
    right = drawn[0, batch["mlm_positions"][0, 0]]  # a draw of the true word is original
    batch["mlm_labels"] = batch["mlm_labels"].at[0, 0].set(right)
    loss = check(
        objective, electra(drawn, frozen=frozen), params, batch, towers=("main", "generator")
    )
    assert {"mlm_nll", "rtd_nll", "rtd_accuracy"} <= set(loss.metrics)


def test_the_conventions_differ_by_the_sign_of_the_score():
    params = {name: params_of(seed) for seed, name in enumerate(("main", "generator"))}
    negated = {**params, "main": {**params["main"], "rtd": -params["main"]["rtd"]}}
    losses = [
        RTD(convention=convention)(
            {k: PlainTower(v) for k, v in p.items()}, batch_of(), jax.random.key(0)
        ).sum
        for convention, p in (("electra", params), ("survey", negated))
    ]
    np.testing.assert_array_equal(*losses)


def test_rtd_asks_for_the_tower_that_is_missing():
    assert "no 'generator'; add one with the head 'mlm'" in RTD().refusal(
        SimpleNamespace(towers={"main": None})
    )
    assert RTD().refusal(SimpleNamespace(towers={"main": None, "generator": None})) is None
