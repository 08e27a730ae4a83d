"""NSP in the mixture of masks that UniLM has: a third of the rows count. Its definition is in test_definitions.py."""

import types

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax import systems
from ptm_jax.corruptions.orders import MaskMixture
from ptm_jax.objectives.mixture import BidirectionalNSP


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
