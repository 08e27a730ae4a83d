"""Every objective against its definition, written here in plain numpy (float64): sums, weights and gradients to 1e-5."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Loss, Ratio, add_losses
from ptm_jax.objectives.contrastive import DIM, InfoNCE, PairwiseRanking
from ptm_jax.objectives.detection import RTD, AddedWords
from ptm_jax.objectives.joint import Joint
from ptm_jax.objectives.language import LM, MLM, PLM, BiLM, Cloze
from ptm_jax.objectives.mixture import BidirectionalNSP
from ptm_jax.objectives.sentence_pairs import NSP
from ptm_jax.objectives.seq2seq import Seq2Seq
from ptm_jax.objectives.span import SBO
from support.plain_towers import B, L, P, PlainTower, V, batch_of, check, double, logistic, nll, params_of, pooled, states_of


def predicted(states, head, b, prefix):
    """(sum, weight) over the chosen places."""
    total = weight = 0.0
    for i in range(B):
        for j in range(P):
            if b[f"{prefix}_weights"][i, j]:
                total += nll(states[i, b[f"{prefix}_positions"][i, j]] @ head, b[f"{prefix}_labels"][i, j])
                weight += 1
    return total, weight


def mlm(p, b, prefix="mlm"):
    return [predicted(states_of(p, b), p["mlm"], b, prefix)]


def plm(p, b):
    return [predicted(states_of(p, b) @ p["forward"], p["lm"], b, "plm")]


def neighbours(p, b, states, toward):
    """(sum, weight): the state of each token predicts the token `toward` places further on, inside its document."""
    total = weight = 0.0
    for i in range(B):
        for t in range(L):
            s = t + toward
            if 0 <= s < L and b["segment_ids"][i, t] == b["segment_ids"][i, s] > 0:
                total += nll(states[i, t] @ p["lm"], b["input_ids"][i, s])
                weight += 1
    return total, weight


def lm(p, b):
    return [neighbours(p, b, states_of(p, b), 1)]


def bilm(p, b):
    states = states_of(p, b)
    return [neighbours(p, b, states @ p["forward"], 1), neighbours(p, b, states @ p["backward"], -1)]


def cloze(p, b):
    return [neighbours(p, b, states_of(p, b), 0)]


def pairs(p, b):
    pool, real = pooled(p, states_of(p, b), np), (b["segment_ids"] > 0).any(1)
    losses = [nll(pool[i] @ p["nsp"], b["next_label"][i]) for i in range(B) if real[i]]
    return [(sum(losses), len(losses))]


def sbo(p, b):
    states, total, weight = states_of(p, b), 0.0, 0
    for i in range(B):
        for j in range(P):
            if b["mlm_weights"][i, j]:
                sides = [states[i, b[name][i, j]] for name in ("span_left", "span_right")]
                features = np.concatenate([*sides, p["offset"][b["span_offset"][i, j]]])
                total, weight = total + nll(features @ p["sbo"], b["mlm_labels"][i, j]), weight + 1
    return [(total, weight)]


def seq2seq(smoothing):
    def definition(p, b):
        states, total, weight = states_of(p, b), 0.0, 0
        for i in range(B):
            for t in range(P):
                if b["decoder_weights"][i, t]:
                    target = np.full(V, smoothing / V)
                    target[b["decoder_labels"][i, t]] += 1 - smoothing
                    scores = states[i, L - P + t] @ p["lm"]
                    total += sum(target[v] * nll(scores, v) for v in range(V))
                    weight += 1
        return [(total, weight)]

    return definition


def added(p, b):
    states, total, weight = states_of(p, b), 0.0, 0
    for i in range(B):
        for t in range(L):
            if b["noise_weights"][i, t]:
                total += logistic((states[i, t] @ p["noise"])[0], b["noise_labels"][i, t])
                weight += 1
    return [(total, weight)]


def contrast(anchors, positives, real, temperature=1.0):
    """(sum, weight): each row's positive against those of the other real rows."""
    total = 0.0
    for i in real:
        scores = {j: np.dot(anchors[i], positives[j]) / temperature for j in real}
        total += -np.log(np.exp(scores[i]) / sum(np.exp(score) for score in scores.values()))
    return total, len(real)


def real_pairs(b, view):
    return [i for i in range(B) if (b["segment_ids"][i] > 0).any() and (b[f"{view}_segment_ids"][i] > 0).any()]


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
    return [contrast(pooled(p, states_of(p, b), np), states_of(p, b, "ngram")[:, 0], real_pairs(b, "ngram"))]


def ranking(margin):
    def definition(p, b):
        good, bad = ((pooled(p, states_of(p, b, view), np) @ p["score"])[:, 0] for view in ("", "negative"))
        real = [i for i in range(B) if (b["segment_ids"][i] > 0).any()]
        return [(sum(max(0.0, margin - good[i] + bad[i]) for i in real), len(real))]

    return definition


def orders(kinds):
    """[B, L] of one kind for each row: both ways, source and target, left to right, right to left."""
    slots = np.arange(L)
    of = {"both": 0 * slots, "seq2seq": np.maximum(slots - 2, 0), "causal": slots, "backward": -slots}
    return jnp.asarray(np.stack([of[kind] for kind in kinds]), jnp.int32)


MIXED = [("both", "causal", "both"), ("seq2seq", "both", "causal"), ("backward", "both", "both"), ()]


@pytest.mark.parametrize("kinds", MIXED)
def test_pairs_count_in_rows_that_see_all(kinds):
    """UniLM's mixture; a batch without an order is all such rows."""

    def definition(p, b):
        scores = pooled(p, states_of(p, b), np) @ p["nsp"]
        rows = [i for i in range(B) if (not kinds or kinds[i] == "both") and (b["segment_ids"][i] > 0).any()]
        return [(sum(nll(scores[i], b["next_label"][i]) for i in rows), len(rows))]

    check(BidirectionalNSP(), definition, batch=batch_of() | ({"order": orders(kinds)} if kinds else {}))


def scaled(scale, terms):
    return [(scale * total, weight) for total, weight in terms]


CASES = {
    "mlm": (MLM(), mlm),
    "mlm of another prefix": (MLM(prefix="plm"), lambda p, b: mlm(p, b, "plm")),
    "lm": (LM(), lm),
    "bilm": (BiLM(), bilm),
    "cloze": (Cloze(), cloze),
    "plm": (PLM(), plm),
    "three-way pairs": (NSP(name="structure"), pairs),
    "sbo": (SBO(), sbo),
    "seq2seq": (Seq2Seq(), seq2seq(0.0)),
    "smoothed seq2seq": (Seq2Seq(label_smoothing=0.1), seq2seq(0.1)),
    "added words": (AddedWords(), added),
    "infonce": (InfoNCE(temperature=0.5), infonce(0.5)),
    "infonce both ways": (InfoNCE(both_ways=True), infonce(both_ways=True)),
    "infonce cosine": (InfoNCE(similarity="cosine", temperature=0.2), infonce(0.2, cosine=True)),
    "dim": (DIM(), dim),
    "ranking": (PairwiseRanking(), ranking(1.0)),
    "wide ranking": (PairwiseRanking(margin=4.0), ranking(4.0)),
    "spanbert": (Joint(parts=((1.0, MLM()), (1.0, SBO()))), lambda p, b: mlm(p, b) + sbo(p, b)),
    "infoword": (Joint(parts=((1.0, MLM()), (0.5, DIM()))), lambda p, b: mlm(p, b) + scaled(0.5, dim(p, b))),
    "unilmv2": (
        Joint(parts=((1.0, MLM()), (1.0, MLM(prefix="plm")))),
        lambda p, b: mlm(p, b) + mlm(p, b, "plm"),
    ),
}


@pytest.mark.parametrize(("objective", "definition"), CASES.values(), ids=CASES.keys())
def test_equals_the_definition(objective, definition):
    loss = check(objective, definition)
    assert len(loss.metrics) >= len(np.atleast_1d(loss.sum))
    first = definition(*double_inputs())[0]
    found = [float(ratio.value()) for name, ratio in loss.metrics.items() if name.endswith(("nll", "loss"))]
    if not isinstance(objective, Seq2Seq):  # whose first metric is without smoothing
        assert any(np.isclose(value, first[0] / first[1], rtol=1e-5) for value in found)


def double_inputs():
    return double(params_of()), double(batch_of())


def test_accuracy_counts_hits():
    loss = MLM()({"main": PlainTower(params_of())}, batch_of(), None)
    p, b = double_inputs()
    states = states_of(p, b)
    places = [(i, b["mlm_positions"][i, j], b["mlm_labels"][i, j]) for i, j in np.argwhere(b["mlm_weights"] > 0)]
    hits = [np.argmax(states[i, at] @ p["mlm"]) == label for i, at, label in places]
    np.testing.assert_allclose(loss.metrics["mlm_accuracy"].value(), np.mean(hits), rtol=1e-6)


def test_added_losses_keep_their_own_means():
    a, b = Loss(jnp.float32(6.0), jnp.float32(3.0)), Loss(jnp.float32(10.0), jnp.float32(2.0))
    both = add_losses((1.0, a), (0.5, b))
    assert float(both.value()) == 2.0 + 0.5 * 5.0
    assert float(both.value(jnp.array([6.0, 4.0]))) == 1.0 + 0.5 * 2.5
    assert float(Ratio(jnp.float32(0), jnp.float32(0)).value()) == 0, "nothing over nothing is 0"


def test_the_metric_of_seq2seq_is_without_smoothing():
    loss = Seq2Seq(label_smoothing=0.3)({"main": PlainTower(params_of())}, batch_of(), None)
    p, b = double_inputs()
    ((plain, weight),) = seq2seq(0.0)(p, b)
    np.testing.assert_allclose(loss.metrics["nll"].value(), plain / weight, rtol=1e-5)


def electra(drawn, weight=50.0, frozen=False):
    """The definition for one draw of the words [B, L]."""

    def definition(p, b):
        generated = predicted(states_of(p["generator"], b), p["generator"]["mlm"], b, "mlm")
        original = b["input_ids"].copy()
        for i in range(B):
            for j in range(P):
                if b["mlm_weights"][i, j]:
                    original[i, b["mlm_positions"][i, j]] = b["mlm_labels"][i, j]
        states, total, tokens = states_of(p["main"], {**b, "input_ids": drawn}), 0.0, 0
        for i in range(B):
            for t in range(L):
                if b["segment_ids"][i, t]:
                    total += logistic((states[i, t] @ p["main"]["rtd"])[0], drawn[i, t] != original[i, t])
                    tokens += 1
        judged = (weight * total, tokens)
        return [judged] if frozen else [generated, judged]

    return definition


@pytest.mark.parametrize("frozen", [False, True])
def test_rtd_equals_the_definition_under_its_draw(frozen):
    objective, batch = RTD(frozen_generator=frozen), batch_of()
    params = {name: params_of(seed) for seed, name in enumerate(("main", "generator"))}
    generator = PlainTower(params["generator"])
    drawn = np.asarray(objective.filled(generator, generator(batch), batch, jax.random.key(0)))
    loss = check(objective, electra(drawn, frozen=frozen), params, batch, towers=("main", "generator"))
    assert {"mlm_nll", "rtd_nll", "rtd_accuracy"} <= set(loss.metrics)


def test_the_conventions_differ_by_the_sign_of_the_score():
    params = {name: params_of(seed) for seed, name in enumerate(("main", "generator"))}
    negated = {**params, "main": {**params["main"], "rtd": -params["main"]["rtd"]}}
    losses = [
        RTD(convention=convention)({k: PlainTower(v) for k, v in p.items()}, batch_of(), jax.random.key(0)).sum
        for convention, p in (("electra", params), ("survey", negated))
    ]
    np.testing.assert_array_equal(*losses)


def test_rtd_asks_for_the_tower_that_is_missing():
    assert "no 'generator'; add one with the head 'mlm'" in RTD().refusal(SimpleNamespace(towers={"main": None}))
    assert RTD().refusal(SimpleNamespace(towers={"main": None, "generator": None})) is None
