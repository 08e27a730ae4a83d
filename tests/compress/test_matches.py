"""Each match of a distillation equals its formula in numpy, on networks that are arrays; maps and
refusals."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.compress.matches.attending import AttentionMaps, AttentionScores, HeadRelations
from ptm_jax.compress.matches.base import MAPS, Compared, Outline, pairs, wants_assistant
from ptm_jax.compress.matches.predictions import Logits, SoftTargets, soft_targets
from ptm_jax.compress.matches.states import Gram, Hidden, Patient, StateCosine
from ptm_jax.core.errors import UserError
from ptm_jax.nn.attention.multihead import Projected

B, L, D, H, K, C = 2, 4, 6, 2, 3, 3
SEGMENTS = np.array([[1, 1, 1, 0], [1, 1, 2, 2]])
REAL = SEGMENTS > 0
SEEN = (SEGMENTS[:, :, None] == SEGMENTS[:, None]) & REAL[:, None] & REAL[:, :, None]


def draw(*shape, seed):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def reading(seed, layers, scores=None):
    """A network's outputs as arrays; layers 0 ... N."""
    states = draw(layers + 1, B, L, D, seed=seed)
    q, k, v = (draw(layers + 1, B, L, H, K, seed=seed + n) for n in (1, 2, 3))
    encoder = types.SimpleNamespace(direction="bidirectional")
    return types.SimpleNamespace(
        states=lambda layer: states[layer],
        heads=lambda layer: Projected(q[layer], k[layer], v[layer], 0.5),
        outline=Outline(layers, D, H, K),
        predictions={
            "classify": (
                draw(B, C, seed=seed) if scores is None else scores,
                np.array([1.0, 2.0], np.float32),
            )
        },
        batch={"input_ids": np.zeros((B, L), np.int32), "segment_ids": SEGMENTS},
        tower=types.SimpleNamespace(module=encoder),
        numpy=(states.astype(np.float64), q, k, v),
    )


@pytest.fixture
def compared(monkeypatch):
    monkeypatch.setattr("ptm_jax.core.slots.encoder_in", lambda module: module)
    return Compared(
        reading(0, 2), (reading(10, 4), reading(20, 4)), lambda name, x: x @ kernel(name)
    )


def kernel(name):
    return draw(D, D, seed=len(name))


def softmax(x, seen=None):
    x = np.asarray(x, np.float64)
    e = np.exp(x - x.max(-1, keepdims=True)) * (1 if seen is None else seen)
    return e / np.maximum(e.sum(-1, keepdims=True), 1e-30)


def mean(values, weights):
    return float((values * weights).sum() / np.sum(weights))


def kl(p, q):
    return np.where(p > 0, p * np.log(np.maximum(p, 1e-30) / np.maximum(q, 1e-30)), 0).sum(-1)


def predictions(compared):
    s, *t = (
        np.asarray(one.predictions["classify"][0]) for one in (compared.student, *compared.teachers)
    )
    soft, two = (softmax(t[0] / 2) + softmax(t[1] / 2)) / 2, np.array([1, 2])
    yield SoftTargets(temperature=2.0), mean(4 * kl(soft, softmax(s / 2)), two)
    yield (
        SoftTargets(temperature=2.0, kind="cross_entropy"),
        mean(-4 * (soft * np.log(softmax(s / 2))).sum(-1), two),
    )
    yield Logits(), mean(((s - (t[0] + t[1]) / 2) ** 2).mean(-1), two)


def states(compared):
    s, t = (one.numpy[0] for one in (compared.student, compared.teachers[0]))

    def term(mine, its):
        return mean(((mine - its) ** 2).mean(-1), REAL)

    w = [np.asarray(kernel(name), np.float64) for name in ("m", "m_1", "m_2")]
    yield Hidden(), term(s[1], t[2]) + term(s[2], t[4])
    yield (
        Hidden(layers="states", projection="shared"),
        sum(term(s[i] @ w[0], t[2 * i]) for i in range(3)),
    )
    yield (
        Hidden(layers="last", projection="each"),
        term(s[1] @ w[1], t[3]) + term(s[2] @ w[2], t[4]),
    )
    yield Hidden(layers=((0, 3),), teacher=1), term(s[0], compared.teachers[1].numpy[0][3])

    def unit(x):
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    yield StateCosine(), mean(1 - (unit(s[2]) * unit(t[4])).sum(-1), REAL)
    first = ((unit(s[1][:, 0]) - unit(t[2][:, 0])) ** 2).sum(-1).mean()
    yield Patient(), first
    yield Patient(average=True), first / D

    def gram(x):
        return np.einsum("bqd,bkd->bqk", x, x) / D

    yield Gram(layers="top"), mean((gram(s[2]) - gram(t[4])) ** 2, SEEN)

    def flow(x):
        return np.einsum("bld,ble->bde", x * REAL[..., None], x) / REAL.sum(1)[:, None, None]

    yield Gram(layers="top", over="features"), ((flow(s[2]) - flow(t[4])) ** 2).mean((1, 2)).mean()


def attention(compared):
    (_, sq, sk, sv), (_, tq, tk, tv) = compared.student.numpy, compared.teachers[0].numpy

    def scores(q, k, scale):
        return np.einsum("bqhd,bkhd->bhqk", q, k).astype(np.float64) * scale

    def apart(i, j):
        return mean(((scores(sq[i], sk[i], 0.5) - scores(tq[j], tk[j], 0.5)) ** 2).mean(1), SEEN)

    def far(p, q):
        return mean(kl(softmax(p, SEEN[:, None]), softmax(q, SEEN[:, None])).mean(1), REAL)

    root = K**-0.5
    yield AttentionScores(), apart(1, 2) + apart(2, 4)
    yield AttentionMaps(), far(scores(tq[4], tk[4], 0.5), scores(sq[2], sk[2], 0.5))
    yield HeadRelations(), far(scores(tv[4], tv[4], root), scores(sv[2], sv[2], root))
    yield (
        HeadRelations(vectors="query"),
        far(scores(tq[4], tq[4], root), scores(sq[2], sq[2], root)),
    )


def test_every_match_is_its_formula(compared):
    cases = [*predictions(compared), *states(compared), *attention(compared)]
    found = jax.jit(lambda: [match(compared, "m") for match, _ in cases])()
    for (match, expected), loss in zip(cases, found, strict=True):
        metric = loss.metrics["m"]
        values = (
            float(np.sum(np.asarray(loss.sum) / np.asarray(loss.weight))),
            float(metric.sum / metric.weight),
        )
        np.testing.assert_allclose(values, expected, rtol=2e-5, atol=1e-7, err_msg=repr(match))


def test_soft_targets_by_hand():
    """Teacher (0.8, 0.2), student (0.5, 0.5) at T = 1: 0.8 ln 1.6 + 0.2 ln 0.4."""
    found = jax.jit(soft_targets, static_argnums=2)(
        jnp.zeros((1, 2)), [np.log(np.array([[0.8, 0.2]], np.float32))], 1.0
    )
    np.testing.assert_allclose(found, [0.8 * np.log(1.6) + 0.2 * np.log(0.4)], rtol=1e-6)


def test_the_maps_are_those_of_the_papers():
    def find(name, student, teacher):
        return MAPS[name](student, teacher)

    assert find("uniform", 4, 12) == [(1, 3), (2, 6), (3, 9), (4, 12)]  # TinyBERT
    assert [t for _, t in find("skip", 6, 12)] == [2, 4, 6, 8, 10] and [
        t for _, t in find("below", 6, 12)
    ] == [
        7,
        8,
        9,
        10,
        11,
    ]
    assert [t for _, t in find("skip", 3, 12)] == [4, 8] and [
        t for _, t in find("below", 3, 12)
    ] == [10, 11]  # PKD
    assert [s for s, _ in find("below", 6, 12)] == [1, 2, 3, 4, 5]
    assert find("states", 2, 4) == [(0, 0), (1, 2), (2, 4)] and find("top", 2, 4) == [(2, 4)]


def test_minilms_rule_for_an_assistant():
    teacher = Outline(12, 768, 12, 64)
    sizes = [(6, 384), (3, 384), (6, 768), (12, 384), (7, 384)]
    assert [wants_assistant(Outline(n, d, 12, 32), teacher) for n, d in sizes] == [
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (((1, 9),), "layer 9 of the teacher"),
        (((3, 1),), "layer 3 of the student"),
        ("top1", "map of layers"),
        ((), "no layer"),
    ],
)
def test_a_map_that_names_no_layer_is_one_line(layers, message):
    with pytest.raises(ValueError, match=message) as error:
        pairs(layers, Outline(2, D, H, K), Outline(4, D, H, K))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("match", "student", "message"),
    [
        (Hidden(), Outline(2, 8, H, K), "8 wide and the teacher 6"),
        (AttentionScores(), Outline(2, D, 3, 2), "3 heads and the teacher 2"),
        (AttentionMaps(layers="states"), Outline(2, D, H, K), "embeddings"),
        (HeadRelations(), Outline(2, D, None, None), "attention"),
        (StateCosine(), Outline(None, D, H, K), "states of their layers"),
    ],
)
def test_networks_that_do_not_fit_are_one_line(match, student, message):
    with pytest.raises(ValueError, match=message):
        match.projections(student, Outline(4, D, H, K))


def test_another_number_of_classes_is_one_line(compared):
    odd = reading(3, 4, scores=draw(B, C + 1, seed=3))
    with pytest.raises(UserError, match="4 classes and the student 3"):
        SoftTargets()(dataclasses.replace(compared, teachers=(odd,)), "m")
    with pytest.raises(UserError, match="no predictions 'mlm'"):
        SoftTargets(heads=("mlm",))(compared, "m")


def test_a_term_counts_in_its_span():
    half = Hidden(weight=3.0, span=(0.5, 1.0))
    found = jax.jit(jax.vmap(lambda step: half.scale(step, 4)))(np.arange(4))
    assert found.tolist() == [0, 0, 3, 3] and Hidden(weight=2.0).scale(7, 4) == 2.0
    for odd in ({"span": (0.5, 0.5)}, {"weight": -1.0}):
        with pytest.raises(ValueError, match="span"):
            Hidden(**odd)


@pytest.mark.full
def test_every_loss_of_textbrewer_is_a_match(compared):
    """TextBrewer 0.2.1 on the same arrays, of one document a row (it has no packed rows)."""
    torch, losses = pytest.importorskip("torch"), pytest.importorskip("textbrewer.losses")
    student, teacher = compared.student, compared.teachers[0]
    for one in (student, teacher):
        one.batch["segment_ids"] = REAL.astype(np.int32)
        one.predictions["classify"] = one.predictions["classify"][0], np.ones(B, np.float32)
    tensors = [
        [torch.tensor(np.asarray(x, np.float32)) for x in one.numpy] for one in (student, teacher)
    ]
    s, t = tensors[0][0][2], tensors[1][0][4]
    scores = [
        torch.einsum("bqhd,bkhd->bhqk", one[1][layer], one[2][layer]) * 0.5
        for one, layer in zip(tensors, (2, 4), strict=True)
    ]
    logits = [torch.tensor(one.predictions["classify"][0]) for one in (student, teacher)]
    mask = torch.tensor(REAL)
    hidden = [x.masked_fill(~mask[:, None, None, :], -1e4) for x in scores]

    def flow(x):
        return [x, x]

    cases = [
        (
            SoftTargets(temperature=2.0, kind="cross_entropy"),
            4 * losses.kd_ce_loss(*logits, temperature=2.0),
        ),
        (Logits(), losses.kd_mse_loss(*logits)),
        (Hidden(layers="top"), losses.hid_mse_loss(s, t, mask)),
        (StateCosine(), losses.cos_loss(s, t, mask)),
        (Patient(layers="top"), losses.pkd_loss(s, t)),
        # With a mask it divides the products by L, without one by D, as here.
        (
            Gram(layers="top"),
            losses.mmd_loss(flow(s), flow(t), mask) * (s.shape[1] / s.shape[2]) ** 2,
        ),
        (Gram(layers="top", over="features"), losses.fsp_loss(flow(s), flow(t), mask)),
        (AttentionScores(layers="top"), losses.att_mse_loss(*scores, mask)),
        (
            AttentionMaps(),
            losses.att_ce_loss(*hidden, mask) - losses.att_ce_loss(hidden[1], hidden[1], mask),
        ),
    ]
    alone = dataclasses.replace(compared, teachers=(teacher,))
    found = jax.jit(lambda: [match(alone, "m").metrics["m"] for match, _ in cases])()
    for (match, expected), metric in zip(cases, found, strict=True):
        np.testing.assert_allclose(
            metric.sum / metric.weight, float(expected), rtol=1e-4, atol=1e-6, err_msg=repr(match)
        )
