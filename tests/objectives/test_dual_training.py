"""Dual training: its terms are the losses of both networks' masked words and the distances of their
parameters in numpy."""

import jax
import numpy as np
import pytest

from ptm_jax.core.paths import unflatten
from ptm_jax.objectives.text.dual_training import DualTraining, distances
from support import plain_towers
from support.plain_towers import LEXICAL, PlainTower, double, nll, states_of


def test_the_distances_are_those_of_projected_parameters():
    draw = np.random.default_rng(0)
    shapes = {  # of 2 layers; 2 heads of 3 and of 1
        "encoder/embed/token": ((9, 6), (4, 2)),
        "encoder/stack/block/attention/query/kernel": ((2, 6, 2, 3), (2, 2, 2, 1)),
        "encoder/stack/block/attention/query/bias": ((2, 2, 3), (2, 2, 1)),
        "encoder/stack/block/attention/out/kernel": ((2, 2, 3, 6), (2, 2, 1, 2)),
        "encoder/stack/block/ffn/up/kernel": ((2, 6, 8), (2, 2, 4)),
        "heads_mlm/bias": ((9,), (4,)),
    }
    its, mine = ({path: draw.normal(size=pair[n]) for path, pair in shapes.items()} for n in (0, 1))
    matrices = {f"{way}_{a}": draw.normal(size=(a, b) if way == "up" else (b, a)) for way in ("up",
        "down")
                for a, b in ((6, 2), (8, 4))}  # fmt: skip
    down, up, found = matrices["down_6"], matrices["up_6"], [0.0, 0.0]

    def flat(tree):
        return {
            "token": tree["encoder/embed/token"][-4:],
            "query": tree["encoder/stack/block/attention/query/kernel"].reshape(
                2, -1, 6 if tree is its else 2
            ),
            "bias": tree["encoder/stack/block/attention/query/bias"].reshape(2, -1),
            "out": tree["encoder/stack/block/attention/out/kernel"].reshape(
                2, 6 if tree is its else 2, -1
            ),
            "up": tree["encoder/stack/block/ffn/up/kernel"],
        }

    t, s = flat(its), flat(mine)
    for n, (x, y, v, f) in enumerate(
        ((t, s, down, matrices["down_8"]), (s, t, up, matrices["up_8"]))
    ):
        found[n] += np.sum((x["token"] @ v.T - y["token"]) ** 2) + np.sum(
            (x["bias"] @ v.T - y["bias"]) ** 2
        )
        for layer in range(2):
            for name, right in (("query", v), ("out", v), ("up", f)):
                found[n] += np.sum((v @ x[name][layer] @ right.T - y[name][layer]) ** 2)
    result = distances(unflatten(mine), unflatten(its), matrices, "^encoder/")
    np.testing.assert_allclose(result, found, rtol=1e-5)


def test_the_loss_is_that_of_both_networks():
    params = plain_towers.params_of(more=tuple(LEXICAL))
    other, batch = jax.tree.map(lambda x: 0.7 * x, params), plain_towers.batch_of()
    towers = {
        "main": PlainTower(params),
        "teacher": PlainTower(other),
        "projections": PlainTower({}),
    }
    loss = DualTraining(epsilon=0.25, where="^mlm$")(towers, batch, None)
    b, means = double(batch), {}
    for view, tree in (("student", params), ("mixed", other)):
        p = double(tree)
        states = states_of(p, b, view)
        terms = [
            (b[f"{view}_{prefix}_weights"][r, i],
             nll(states[r, b[f"{view}_mlm_positions"][r, i]] @ p[prefix],
                 b[f"{view}_{prefix}_labels"][r, i]))
            for prefix in (("mlm", "second") if view == "mixed" else ("mlm",
                )) for r in range(3) for i in range(3)
        ]  # fmt: skip
        means[view] = sum(w * term for w, term in terms) / sum(w for w, _ in terms)
    apart = 2 * float(np.sum((0.3 * np.asarray(params["mlm"], np.float64)) ** 2))
    np.testing.assert_allclose(
        loss.value(), means["student"] + means["mixed"] + 0.25 * apart, rtol=1e-5
    )
    np.testing.assert_allclose(loss.metrics["student_nll"].value(), means["student"], rtol=1e-5)


def test_a_weight_below_0_is_refused():
    with pytest.raises(ValueError, match="epsilon is -1"):
        DualTraining(epsilon=-1)
