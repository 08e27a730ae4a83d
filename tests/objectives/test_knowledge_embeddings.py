"""KEPLER's loss against its definition in numpy: wrong triples, texts of relations, conditioned
entities, both norms."""

import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.objectives.knowledge.triples import KE, PairRelation, TripleTruth
from support.plain_towers import (
    LEXICAL,
    B,
    P,
    V,
    batch_of,
    check,
    hidden,
    nll,
    params_of,
    pooled,
    states_of,
)

pytestmark = pytest.mark.full
PARAMS = {"main": params_of(0, tuple(LEXICAL))}


def softplus(x):
    return np.log1p(np.exp(x))


def batch(*views):
    """The fields of every objective, and further texts of `relation` [B, S] and `conditioned` [B,
    2, S]."""
    draw, shapes = np.random.default_rng(7), {"relation": (B, P), "conditioned": (B, 2, P)}
    more = {f"{view}_input_ids": draw.integers(0, V, shapes[view]) for view in views}
    more |= {f"{view}_segment_ids": np.ones(shapes[view]) for view in views}
    return batch_of() | {name: jnp.asarray(value, jnp.int32) for name, value in more.items()}


def first(p, b, view, i):
    """The states of the first tokens of the texts of a row, [M, D]."""
    return hidden(p, b[f"{view}_input_ids"][i], b[f"{view}_segment_ids"][i], np)[:, 0]


def definition(norm, gamma, views=()):
    def ke(p, b):
        losses = []
        for i in np.flatnonzero((b["described_segment_ids"][:, 0] > 0).any(1)):
            h, t, *wrong = first(p, b, "described", i)
            r = (
                states_of(p, b, "relation")[i, 0]
                if "relation" in views
                else p["relations"][b["relation"][i]]
            )

            def d(head, tail, r=r):
                return np.linalg.norm(head + r - tail, norm)

            hr, tr = first(p, b, "conditioned", i) if "conditioned" in views else (h, t)
            far = [d(e, tr) for e in wrong[:2]] + [d(hr, e) for e in wrong[2:]]
            near = (d(hr, t) + d(h, tr)) / 2
            losses.append(softplus(near - gamma) + np.mean([softplus(gamma - one) for one in far]))
        return [(np.sum(losses), len(losses))]

    return ke


@pytest.mark.parametrize(
    ("norm", "gamma", "views"),
    [(1, 4.0, ()), (2, 1.5, ()), (1, 4.0, ("relation",)), (1, 3.0, ("conditioned",))],
    ids=["kepler", "norm 2", "relations", "conditions"],
)
def test_knowledge_embeddings_are_keplers(norm, gamma, views):
    leaf = "match" if "relation" in views else "relations"
    found = check(
        KE(norm=norm, gamma=gamma),
        definition(norm, gamma, views),
        PARAMS,
        batch(*views),
        leaves=(leaf, "place"),
    )
    assert 0 < found.metrics["ke_accuracy"].value() < 1


@pytest.mark.parametrize(
    ("objective", "label"), [(TripleTruth(), "triple_label"), (PairRelation(), "relation_label")]
)
def test_classes_of_triples_are_kgberts(objective, label):
    def loss(p, b):
        real = np.flatnonzero((b["segment_ids"] > 0).any(1))
        scores = pooled(p, states_of(p, b), np) @ p["nsp"]
        return [(sum(nll(scores[i], b[label][i]) for i in real), len(real))]

    check(objective, loss, PARAMS, leaves=("nsp", "pool"))
