"""Objectives of words' classes against their definitions in numpy, and the masking that knows
them."""

import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core import facts
from ptm_jax.corruptions.knowledge.lexical import (
    NEUTRAL,
    OTHER,
    AllowedSenses,
    LabelAwareMasking,
    SingleSenseMasking,
)
from ptm_jax.knowledge.english_words import SUPERSENSES
from ptm_jax.objectives.joint import Joint
from ptm_jax.objectives.knowledge.lexical import Rating, Supersenses, WordClassLoss
from support import corrupting
from support.corrupting import VOCAB
from support.plain_towers import LEXICAL, check, nll, params_of, states_of

pytestmark = pytest.mark.full
PARAMS = {"main": params_of(0, tuple(LEXICAL))}


def over(weights, loss):
    places = np.argwhere(weights > 0)
    return sum(loss(*place) for place in places), len(places)


def test_supersenses_are_equation_3_and_4_of_sensebert():
    def senses(p, b):
        states, weights = states_of(p, b), b["mlm_weights"].copy()

        def of(i, j):
            at = b["mlm_positions"][i, j]
            bits = b["allowed_senses"][i, at]
            return [
                s
                for s in range(45)
                if (int(bits[0]) >> s if s < 24 else int(bits[1]) >> s - 24) & 1
            ], states[i, at] @ p["senses"]

        for i, j in np.argwhere(weights > 0):
            weights[i, j] = bool(of(i, j)[0])

        def allowed(i, j):
            return -np.log(sum(np.exp(-nll(of(i, j)[1], s)) for s in of(i, j)[0]))

        def regular(i, j):
            return np.mean([nll(of(i, j)[1], s) for s in of(i, j)[0]])

        return [over(weights, allowed), over(weights, regular)]

    assert len(SUPERSENSES) == 45
    check(Supersenses(), senses, PARAMS, leaves=("place",))


def test_classes_and_ratings_are_cross_entropies():
    def classes(p, b):
        states = states_of(p, b)

        def one(name):
            return lambda i, j: nll(
                states[i, b["mlm_positions"][i, j]] @ p[name], b[f"{name}_labels"][i, j]
            )

        rating = over(
            b["rating_weights"], lambda i: nll(states[i, 0] @ p["ratings"], b["rating_label"][i])
        )
        return [
            *(over(b["classes_weights"], one(name)) for name in ("parts", "polarities")),
            rating,
        ]

    parts = WordClassLoss(name="parts"), WordClassLoss(name="polarities"), Rating()
    check(
        Joint(parts=tuple((1.0, part) for part in parts)),
        classes,
        PARAMS,
        leaves=("parts", "polarities", "ratings"),
    )


def names_of(lexicon):
    """{ids: integers} of the trie, by walking it."""
    table, size = lexicon.values, VOCAB.size
    walk = [((i,), table[i, 1]) for i in range(size) if table[i, 1]]
    for name, node in walk:
        walk += [
            ((*name, int(table[child, 0])), child)
            for child in range(table[node, 1], table[node, 2])
        ]
    return {name: table[node, 3:] for name, node in walk if table[node, 3]}


def test_label_aware_masking():
    value = facts.stand_ins(LabelAwareMasking(vocab=VOCAB), VOCAB)
    before = corrupting.documents(rows=256)
    out = corrupting.numpied(value, 0, before)
    ids, segments, names = (
        np.asarray(before["input_ids"]),
        np.asarray(before["segment_ids"]),
        names_of(value.lexicon),
    )
    parts, polarities = np.full(ids.shape, OTHER), np.full(ids.shape, NEUTRAL)
    for row in range(len(ids)):
        at = 0
        while at < ids.shape[1]:  # from left to right the longest name
            fits = [
                n
                for n in (1, 2)
                if tuple(ids[row, at : at + n]) in names
                and len({*segments[row, at : at + n]} - {0}) == 1
            ]
            if fits and segments[row, at]:
                found = names[tuple(ids[row, at : at + fits[-1]])]
                parts[row, at : at + fits[-1]], polarities[row, at : at + fits[-1]] = (
                    found[0] - 1,
                    found[1] - 1,
                )
            at += fits[-1] if fits else 1
    used, rows = out["mlm_weights"] > 0, np.arange(len(ids))[:, None]
    places = rows, out["mlm_positions"]
    assert np.array_equal(out["mlm_labels"][used], ids[places][used])
    assert np.array_equal(out["parts_labels"], parts[places]) and np.array_equal(
        out["polarities_labels"], polarities[places]
    )
    known = (parts != OTHER) | (polarities != NEUTRAL)
    assert np.array_equal(out["classes_weights"] > 0, used & known[places])
    chosen = np.zeros(ids.shape, bool)
    chosen[np.broadcast_to(rows, used.shape)[used], out["mlm_positions"][used]] = True
    words = corrupting.words(before)
    for polar, rate in ((True, 0.3), (False, 0.15)):
        drawn = chosen[words & ((polarities != NEUTRAL) == polar)]
        assert abs(drawn.mean() - rate) < 3 * np.sqrt(rate * (1 - rate) / len(drawn))
    changed = out["input_ids"] != ids
    assert abs(changed[chosen].mean() - 0.9) < 3 * np.sqrt(0.09 / chosen.sum()) + 0.1 / 353
    assert np.array_equal(out["parts"], np.where(changed, OTHER, parts))
    assert np.array_equal(out["polarities"], np.where(changed, NEUTRAL, polarities))
    late = out["rating_weights"] > 0
    assert abs(late[words.any(1)].mean() - 0.2) < 3 * np.sqrt(0.16 / len(ids))
    label = np.asarray(before["label"])[:, None]
    assert np.array_equal(out["ratings"], np.where(words & ~late[:, None], label, 5))
    unrated = corrupting.numpied(value, 0, {**before, "label": before["label"].at[::2].set(-1)})
    assert not unrated["rating_weights"][::2].any() and (unrated["ratings"][::2] == 5).all()
    for name in ("ratings", "rating_label", "rating_weights"):
        assert np.array_equal(unrated[name][1::2], out[name][1::2])


def test_allowed_senses_are_those_before_masking():
    value = facts.stand_ins(AllowedSenses(), VOCAB)
    before = corrupting.documents(rows=8)
    senses = corrupting.numpied(value, 0, before)["allowed_senses"]
    names, ids = names_of(value.lexicon), np.asarray(before["input_ids"])
    alone = {
        name[0]: row
        for name, row in names.items()
        if not any((name[0], i) in names for i in range(VOCAB.size))
    }
    seen = {i: row for i, row in alone.items() if (ids == i).any()}
    assert len(seen) > 10 and all(
        (senses[ids == i] == row[2:]).all(1).any() for i, row in seen.items()
    )


def test_masking_favours_words_of_a_single_supersense():
    """Half of those of a row, at most 40% of its predictions, and any others for the rest."""
    value, draw = SingleSenseMasking(vocab=VOCAB, rate=0.3), np.random.default_rng(0)
    before = corrupting.documents(rows=400)
    ids, words = np.asarray(before["input_ids"]), corrupting.words(before)
    share = np.array([0.05, 0.9])[
        np.arange(400) % 2, None
    ]  # in odd rows 40% of the predictions are the bound
    count = np.where(draw.random(ids.shape) < share, 1, draw.choice([0, 2, 3], ids.shape))
    senses = np.stack([(1 << np.minimum(count, 2)) - 1, np.where(count == 3, 1 << 20, 0)], -1)
    assert np.array_equal(
        count, [[sum(bin(int(b)).count("1") for b in pair) for pair in row] for row in senses]
    )
    out = corrupting.numpied(value, 0, {**before, "allowed_senses": jnp.asarray(senses, jnp.int32)})
    chosen = np.zeros(ids.shape, bool)
    used = out["mlm_weights"] > 0
    rows = np.broadcast_to(np.arange(400)[:, None], used.shape)
    chosen[rows[used], out["mlm_positions"][used]] = True
    clear = words & (count == 1)
    budget = np.where(words.any(1), np.maximum(1, np.floor(0.3 * words.sum(1) + 0.5)), 0)
    favoured = np.floor(np.minimum(0.5 * clear.sum(1) + 0.5, 0.4 * budget))
    assert np.array_equal(chosen.sum(1), budget) and not (chosen & ~words).any()
    assert ((chosen & clear).sum(1) >= favoured).all()
    wanted = favoured + (budget - favoured) * (clear.sum(1) - favoured) / np.maximum(
        words.sum(1) - favoured, 1
    )
    for odd in (0, 1):
        more, expected = (chosen & clear).sum(1)[odd::2].sum(), wanted[odd::2].sum()
        assert abs(more - expected) < 3 * np.sqrt((wanted - favoured)[odd::2].sum())
    assert (favoured == np.floor(0.4 * budget))[1::2].mean() > 0.9
    changed = (out["input_ids"] != ids)[chosen].mean()
    assert abs(changed - 0.9) < 3 * np.sqrt(0.09 / chosen.sum()) + 0.1 / 353
    plain = corrupting.numpied(value, 0, before)
    assert np.array_equal(plain["mlm_weights"].sum(1), budget)
