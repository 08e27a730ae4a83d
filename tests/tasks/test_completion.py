"""Filtered ranks against brute force in numpy: ties, no numbers, both sides; the command and its
refusals."""

import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.tasks import completion

E, R = 12, 3


def brute(table, triples, known, size=E, sides=(0, 1)):
    """[sides, N]: ranks of tails and heads under table[r, h, t]."""
    facts, out = {tuple(k) for k in known.tolist()}, np.zeros((len(sides), len(triples)))
    for n, (h, r, t) in enumerate(triples.tolist()):
        for side in sides:
            true = table[r, h, t]
            better = equal = 0
            for e in range(size):
                other = (h, r, e) if side == 0 else (e, r, t)
                if other in facts:
                    continue
                score = table[r, other[0], other[2]]
                better, equal = better + (not score <= true), equal + (score == true)
            out[side, n] = 1 + better + equal / 2
    return out


def test_ranks_and_measures_equal_brute_force():
    draw = np.random.default_rng(0)
    table = draw.integers(0, 5, (R, E, E)).astype(np.float32)  # many ties
    table[0, 0, 3] = table[1, 2, 5] = np.nan
    rows = np.stack([draw.integers(0, n, 60) for n in (E, R, E)], -1)
    known, triples = (
        np.concatenate([rows, [[0, 0, 3], [2, 1, 4]]]),
        np.concatenate([rows[:21], [[0, 0, 3], [2, 1, 4]]]),
    )

    def score(x, y, what):
        if what == "relation":
            return jnp.moveaxis(jnp.asarray(table)[:, x, y], 0, 1)
        every = jnp.asarray(table)[y]
        return (
            jnp.take_along_axis(every, x[:, None, None], 2)[..., 0]
            if what == "head"
            else every[jnp.arange(len(x)), x]
        )

    found, expected = (
        completion.ranks(score, triples, known, E, batch=8),
        brute(table, triples, known),
    )
    np.testing.assert_array_equal(found, expected)
    metrics = completion.measures(found)
    flat = expected.ravel()
    assert metrics["mrr"] == pytest.approx((1 / flat).mean()) and metrics[
        "mean_rank"
    ] == pytest.approx(flat.mean())
    for k in (1, 3, 10):
        assert metrics[f"hits@{k}"] == pytest.approx((flat <= k).mean())
    found = completion.ranks(score, triples, known, R, batch=8, sought=("relation",))
    swapped = np.moveaxis(table, 0, 2)  # [h, t, r]: the relation in the place of a tail
    want = brute(
        np.moveaxis(swapped, 1, 0), triples[:, [0, 2, 1]], known[:, [0, 2, 1]], size=R, sides=(0,)
    )
    np.testing.assert_array_equal(found, want)


def test_triples_that_stand_in_train_are_counted():
    train = np.array([[0, 0, 1], [1, 0, 2], [2, 1, 3]])
    test = np.array([[1, 0, 2], [2, 1, 0], [1, 0, 2], [0, 0, 1]])
    assert completion._also_in(test, train) == 3 and completion._also_in(test, train[:0]) == 0
