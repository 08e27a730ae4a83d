"""Objectives of triples and entities against their definitions in numpy."""

import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Encoded
from ptm_jax.objectives.knowledge.entities import DEA, ERD, EntityLinking
from ptm_jax.objectives.knowledge.latent_relations import LatentRelations
from ptm_jax.objectives.knowledge.triples import LRC
from support.plain_towers import (
    LEXICAL,
    batch_of,
    check,
    hidden,
    logistic,
    nll,
    params_of,
    pooled,
    states_of,
)

pytestmark = pytest.mark.full
PARAMS = {"main": params_of(0, tuple(LEXICAL))}


def over(weights, loss):
    places = np.argwhere(weights > 0)
    return [(sum(loss(*place) for place in places), len(places))]


def test_lexical_relations_are_liberts():
    def lrc(p, b):
        ids, segments = (
            b[f"lexical_{name}"].reshape(-1, 3) for name in ("input_ids", "segment_ids")
        )
        scores = (pooled(p, hidden(p, ids, segments, np), np) @ p["lrc"])[:, 0]
        return over((segments > 0).any(1), lambda i: logistic(scores[i], i % 3 == 0))

    check(LRC(), lrc, PARAMS, leaves=("lrc", "pool"))


def test_denoised_entities_are_ernies():
    def dea(p, b):
        states, labels, weights = states_of(p, b), b["entity_labels"], b["entity_weights"]

        def loss(i, j):
            others = sorted({*labels[i][weights[i] > 0]})
            return nll(
                p["table"][others] @ states[i, b["entity_positions"][i, j]],
                others.index(labels[i, j]),
            )

        return over(weights, loss)

    found = check(DEA(), dea, PARAMS, leaves=("place",))
    assert float(found.metrics["dea_guess"].value()) == pytest.approx(np.log(2))


def test_replaced_entities_are_wklms():
    def erd(p, b):
        states = states_of(p, b)

        def both(i, j):
            return np.concatenate(
                [states[i, b[f"erd_{side}"][i, j]] for side in ("before", "after")]
            )

        return over(
            b["erd_weights"],
            lambda i, j: logistic((both(i, j) @ p["erd"])[0], b["erd_labels"][i, j]),
        )

    check(ERD(), erd, PARAMS, leaves=("erd", "place"))


@pytest.mark.parametrize("kind", ["softmax", "margin"])
def test_linking_is_knowberts(kind):
    """The true entity of one mention is none, of another no candidate: with margins all of their
    candidates are wrong."""

    def linking(p, b):
        states, total, count, outside = states_of(p, b), 0.0, 0, 0
        for i, j in np.argwhere(b["mlm_weights"] > 0):
            at = b["mlm_positions"][i, j]
            scores, some, gold = (
                states[i, at] @ p["tag"],
                b["candidates"][i, j],
                b["gold_entities"][i, at],
            )
            scores, some = scores[some > 0], some[some > 0]
            outside += gold != 0 and gold not in some
            if gold == 0 or (kind == "softmax" and gold not in some):
                continue
            if kind == "softmax":
                total, count = total + nll(scores, [*some].index(gold)), count + 1
            else:
                sign = np.where(some == gold, 1, -1)
                total, count = total + np.maximum(0, 0.2 - sign * scores).sum(), count + len(some)
        assert count and outside > 1
        return [(total, count)]

    batch = batch_of()
    places = batch["mlm_positions"][1][batch["mlm_weights"][1] > 0]
    gold = batch["gold_entities"].at[1, places[:2]].set(jnp.array([-1, 9])[: len(places[:2])])
    check(
        EntityLinking(loss=kind),
        linking,
        PARAMS,
        leaves=("tag",),
        batch={**batch, "gold_entities": gold},
    )


def test_each_linker_has_its_true_entities_and_its_metrics():
    """Two linkers with scores 1, 0, -2 and 0, 3: the second entity is true for both."""

    def linker(scores):
        return {
            "scores": jnp.array([[scores]]),
            "candidates": jnp.array([[[7, 8, 9][: len(scores)]]]),
            "first": jnp.array([[1]]),
            "used": jnp.array([[True]]),
        }

    encoded = Encoded(None, extra={"linking": (linker([1.0, 0.0, -2.0]), linker([0.0, 3.0]))})
    batch = {"gold_entities": jnp.array([[0, 8]]), "gold_entities_1": jnp.array([[0, 8]])}
    margin, softmax = (
        EntityLinking(loss="margin").of(None, encoded, batch),
        EntityLinking(source=1).of(None, encoded, batch),
    )
    assert float(margin.sum) == pytest.approx(1.2 + 0.2 + 0) and float(margin.weight) == 3
    assert (
        float(softmax.sum) == pytest.approx(np.log(1 + np.exp(-3))) and float(softmax.weight) == 1
    )
    assert {*margin.metrics} == {"linking_hinge", "linking_accuracy", "linking_guess"}
    assert {*softmax.metrics} == {"linking_1_nll", "linking_1_accuracy", "linking_1_guess"}


def segmentations(size, spans):
    """All ways to cut `size` tokens into words and names of 1 to `spans` tokens, as lists of
    (start, tokens, is name)."""

    def cut(start):
        if start == size:
            yield []
            return
        for length, name in [
            (1, False),
            *((n, True) for n in range(1, spans + 1) if start + n <= size),
        ]:
            yield from ([(start, length, name), *rest] for rest in cut(start + length))

    return list(cut(0))


def test_latent_relations_are_the_sum_over_all_segmentations():
    """Hayashi et al. 2020, Eq. 2: every segmentation is written out."""
    assert len(segmentations(4, 2)) == 29

    def lrlm(p, b):
        states, total = states_of(p, b), 0.0
        for row in range(len(states)):
            graph = [e for e in b["graph_entities"][row] if e > 0]
            for segment in {*b["segment_ids"][row]} - {0}:
                _, *places = np.flatnonzero(b["segment_ids"][row] == segment)

                def span(start, length, name, row=row, places=places, graph=graph):
                    h, at = states[row, places[start] - 1], places[start]
                    gate = (h @ p["latent"])[0]
                    if not name:
                        return np.exp(-nll(h @ p["lm"], b["input_ids"][row, at])) / (
                            1 + np.exp(gate)
                        )
                    entity = b["span_entities"][row, at, length - 1]
                    chosen = (
                        np.exp(-nll(p["table"][graph] @ h, graph.index(entity)))
                        if entity in graph
                        else 0.0
                    )
                    return chosen / (1 + np.exp(-gate))

                total -= np.log(
                    sum(
                        np.prod([span(*one) for one in cut])
                        for cut in segmentations(len(places), 2)
                    )
                )
        return [(total, sum((s > 0).sum() - len({*s} - {0}) for s in b["segment_ids"]))]

    check(LatentRelations(), lrlm, PARAMS, leaves=("latent",))
