"""NSP in a mixture of masks: of the bidirectional rows only, against a definition in plain numpy."""

import types

import jax
import jax.numpy as jnp
import numpy as np
from plain_towers import B, L, PlainTower, batch_of, check, nll, params_of, pooled, states_of

from ptm_jax import systems
from ptm_jax.corruptions.orders import MaskMixture
from ptm_jax.objectives.mixture import BidirectionalNSP
from ptm_jax.objectives.pairs import NSP


def orders(kinds):
    """[B, L] of one kind for each row: both ways, source and target, left to right, right to left."""
    slots = np.arange(L)
    of = {"both": 0 * slots, "seq2seq": np.maximum(slots - 2, 0), "causal": slots, "backward": -slots}
    return jnp.asarray(np.stack([of[kind] for kind in kinds]), jnp.int32)


def definition(kinds):
    def terms(p, b):
        states = states_of(p, b)
        rows = [i for i in range(B) if kinds[i] == "both" and (b["segment_ids"][i] > 0).any()]
        scores = pooled(p, states, np) @ p["nsp"]
        return [(sum(nll(scores[i], b["next_label"][i]) for i in rows), len(rows))]

    return terms


def test_only_rows_that_see_all_count():
    for kinds in (("both", "causal", "both"), ("seq2seq", "both", "causal"), ("backward", "both", "both")):
        check(BidirectionalNSP(), definition(kinds), batch={**batch_of(), "order": orders(kinds)})
    loss = BidirectionalNSP()({"main": PlainTower(params_of())}, {**batch_of(), "order": orders(["causal"] * 3)}, None)
    assert float(loss.weight) == 0 and float(loss.value()) == 0


def test_without_an_order_it_is_nsp():
    tower = {"main": PlainTower(params_of())}
    found, wanted = (kind()(tower, batch_of(), None) for kind in (BidirectionalNSP, NSP))
    assert float(found.sum) == float(wanted.sum) and float(found.weight) == float(wanted.weight) == 2


def test_a_third_of_unilms_rows_is_asked():
    """The rows of token types 0 and 1, by the mixture that the system has."""
    rows, length = 3000, 8
    types_ = jnp.tile(jnp.asarray([0, 0, 0, 0, 1, 1, 1, 1], jnp.int32), (rows, 1))
    batch = {"input_ids": jnp.full((rows, length), 7, jnp.int32), "token_type_ids": types_}
    out = jax.jit(MaskMixture())(jax.random.key(0), {**batch, "next_label": jnp.zeros(rows, jnp.int32)})
    tower = types.SimpleNamespace(head=lambda name, x: x if name == "pool" else jnp.zeros((rows, 2)))
    loss = BidirectionalNSP().of(tower, types.SimpleNamespace(hidden=out["input_ids"]), out)
    share = float(loss.weight) / rows
    assert int(loss.weight) == int((out["token_type_ids"] <= 1).all(1).sum())
    assert abs(share - 1 / 3) < 3 * np.sqrt(2 / 9 / rows)
    parts = [part for _, part in systems.get("unilm_base").objective.parts]
    assert any(isinstance(part, BidirectionalNSP) for part in parts)
