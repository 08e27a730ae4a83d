"""An objective on the rows of one task: the others are padding for it."""

import dataclasses

import jax.numpy as jnp

from ptm_jax.core.types import Loss, Ratio
from ptm_jax.objectives.base import OnePass
from ptm_jax.objectives.decoded_rows import DecodedRows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counting(OnePass):
    """The number of real tokens and of predictions."""

    baseline = "nll"
    tower: str = "main"

    def of(self, tower, encoded, batch):
        tokens, weights = (batch["segment_ids"] > 0).sum(), batch["decoder_weights"].sum()
        return Loss(tokens, weights, {"nll": Ratio(tokens, weights)})


def test_the_other_rows_weigh_nothing():
    batch = {
        "input_ids": jnp.zeros((4, 3), jnp.int32),
        "segment_ids": jnp.array([[1, 1, 0], [1, 2, 2], [1, 0, 0], [1, 1, 1]]),
        "decoder_weights": jnp.array([[1.0, 0, 0], [1, 1, 0], [1, 1, 1], [0, 0, 1]]),
        "task": jnp.array([0, 1, 0, 1]),
    }
    first, second = (DecodedRows(name=f"t{n}", task=n, part=Counting()) for n in (0, 1))
    losses = [one.of(None, None, batch) for one in (first, second)]
    assert [(int(loss.sum), float(loss.weight)) for loss in losses] == [(3, 4.0), (6, 3.0)]
    assert [*losses[1].metrics] == ["t1_nll"] == [second.baseline]
