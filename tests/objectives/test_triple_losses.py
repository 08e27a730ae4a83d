"""Losses of triples against plain numpy: sums, weights and every gradient; labels of all entities;
sides of Bernoulli."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.corruptions.knowledge.graphs import TripleNoise
from ptm_jax.data.rows.knowledge.graphs import TripleRows
from ptm_jax.knowledge.vocabulary_graph import Graph, KnownTriples
from ptm_jax.objectives.vectors.graph_vectors import TripleLoss
from support.plain_towers import V, batch_of, check, hidden

ENTITIES, RELATION = range(1, 7), 7
VALUES = np.zeros((V, 2), np.int32)
VALUES[list(ENTITIES), 0], VALUES[RELATION:, 0] = 1, 2
KNOWN = np.array([[1, 7, 2], [1, 7, 3], [4, 7, 2], [1, 8, 5], [6, 8, 5], [3, 8, 3]], np.int32)
FACTS = {"graph": Graph(words=0).filled(VALUES), "known": KnownTriples().filled(KNOWN)}


def given():
    ids = np.array([[1, 7, 2, 6, 8, 5], [4, 7, 2, 0, 0, 0], [0] * 6])
    segments = (ids > 0).astype(np.int32)
    return {**batch_of(), "input_ids": jnp.asarray(ids), "segment_ids": jnp.asarray(segments),
        "noise_ids": jnp.asarray([
        [2, 3, 5], [4, 1, 6], [1, 1, 1]
    ])}  # fmt: skip


def definition(loss):
    def run(p, b):
        ids, total, limits, count, triples = b["input_ids"].astype(int), 0.0, 0.0, 0, 0
        states = hidden(p, ids, b["segment_ids"], np)

        def plain(rows):
            return hidden(p, np.asarray(rows), np.ones(np.shape(rows)), np)

        def unit(x):
            return x / np.linalg.norm(x) if loss.unit else x

        for row, n in np.ndindex(len(ids), 2):
            h, r, t = states[row, 3 * n : 3 * n + 3]
            if not b["segment_ids"][row, 3 * n]:
                continue
            triples += 1
            limits += (
                loss.soft * (sum(max(0, e @ e - 1) for e in (h, t)) + r @ r) + loss.decay * r @ r
            )
            others = (
                list(ENTITIES)
                if loss.candidates == "all"
                else b["noise_ids"][row].astype(int).tolist()
            )
            vectors = plain([others])[0]
            for side in (False, True) if loss.sides == "both" else (bool(b["sides"][row, n]),):
                x, answer, true = (t, ids[row, 3 * n], h) if side else (h, ids[row, 3 * n + 2], t)

                def score(c, x=x, r=r, side=side):
                    return (unit(x) * r + (r if side else 0)) @ unit(c)

                good, bad = score(true), np.array([score(c) for c in vectors])
                wrong = bad[[e != answer for e in others]]
                count += 1
                if loss.loss == "margin":
                    total += np.maximum(0, loss.margin + wrong - good).mean()
                elif loss.loss == "softmax":
                    total += np.logaddexp.reduce([good, *wrong]) - good
                else:
                    key = (ids[row, 3 * n + 2 if side else 3 * n], ids[row, 3 * n + 1])
                    found = {
                        (k[0] if side else k[2])
                        for k in KNOWN
                        if (k[2 if side else 0], k[1]) == key
                    }
                    y = np.array(
                        [
                            (1 - loss.smoothing) * (e in found) + loss.smoothing / len(others)
                            for e in others
                        ]
                    )
                    total += (np.logaddexp(0, bad) - y * bad).mean()
        return [(total, count), (limits, triples)]

    return run


CASES = {
    "margin": TripleLoss(margin=2.0, soft=0.3),
    "unit": TripleLoss(unit=True, decay=0.1, sides="both"),
    "softmax": TripleLoss(loss="softmax", sides="both"),
    "all": TripleLoss(loss="softmax", candidates="all", sides="both"),
    "binary": TripleLoss(loss="binary", candidates="all", sides="both", smoothing=0.1),
}


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_equal_plain_numpy(name):
    loss = dataclasses.replace(CASES[name], **FACTS)
    check(loss, definition(loss), batch=given())


def test_sides_of_bernoulli_are_tails_per_head():
    # relation 7 has 3/2 tails a head and 3/2 heads a tail; relation 8 has 1 tail a head and 3/2
    # heads a tail
    shares = FACTS["known"].shares(V)
    np.testing.assert_allclose(shares[7:], [0.5, 1 / (1 + 1.5)])
    noise = TripleNoise(noise=5, side="bernoulli", **FACTS)
    ids = jnp.tile(jnp.asarray([[1, 8, 5]]), (4, 500))
    out = noise(jax.random.key(0), {"input_ids": ids, "rows": jnp.arange(4)})
    assert np.asarray(out["sides"]).mean() == pytest.approx(0.4, abs=0.04) and out[
        "noise_ids"
    ].shape == (4, 5)
    assert set(np.asarray(out["noise_ids"]).ravel()) <= set(ENTITIES)


def test_rows_hold_every_triple_once():
    draw = np.random.default_rng(0)
    triples = draw.integers(1, 9, (11, 3)).astype(np.int32)
    vocab = dataclasses.make_dataclass("Vocab", [("pad", int)])(0)
    out = TripleRows().rows(triples, length=12, vocab=vocab, rng=draw)
    assert out["input_ids"].shape == (3, 12)
    found = out["input_ids"].reshape(-1, 3)[out["segment_ids"].reshape(-1, 3).all(-1)]
    assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, triples.tolist()))
