"""The squared error to the mean of teachers, over every kind of scores and weights, in numpy."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Encoded, Loss
from ptm_jax.objectives.base import OnePass
from ptm_jax.objectives.regularisation.averaging import OwnTeacher

SEGMENTS = np.ones((6, 5), np.int32)
SEGMENTS[2, 3:], SEGMENTS[4] = 0, 0
TOKENS = (SEGMENTS > 0).astype(np.float64)
ROWS = TOKENS.any(1).astype(np.float64)
DRAWN = np.random.default_rng(0).uniform(0, 2, (6, 5))


@dataclasses.dataclass(frozen=True)
class Given:
    """A tower with given scores."""

    scores: object
    train: bool = True

    def __call__(self, batch, key=None):
        return Encoded(hidden=None)

    def read(self, head, encoded, batch, key=None):
        return self.scores


@dataclasses.dataclass(frozen=True)
class Two(OnePass):
    """A task whose loss is 2."""

    tower: str = "main"
    head: str = "any"

    def of(self, tower, encoded, batch):
        return Loss(jnp.float32(6), jnp.float32(3))


@pytest.mark.parametrize(
    ("shape", "fields", "weights"),
    [
        ((6, 3), {}, ROWS),
        ((6, 3), {"label_weights": DRAWN[:, 0]}, DRAWN[:, 0]),
        ((6, 3), {"token_weights": DRAWN}, ROWS),
        ((6, 5, 4), {}, TOKENS),
        ((6, 5, 4), {"token_weights": DRAWN}, DRAWN),
        ((6, 5, 4), {"label_weights": DRAWN[:, 0]}, TOKENS),
        ((2, 3), {}, ROWS[::3]),
        ((2, 3), {"label_weights": DRAWN[:2, 0]}, DRAWN[:2, 0]),
        ((2, 6, 5), {}, TOKENS),
    ],
    ids=[
        "classes", "weighted classes", "classes with weights of tokens",
        "tags", "weighted tags", "tags with weights of texts",
        "choices", "weighted choices", "spans",
    ],
)  # fmt: skip
def test_the_error_to_the_mean_of_the_teachers(shape, fields, weights):
    spans = shape == (2, 6, 5)  # the scores of the first and of the last token of an answer
    drawn = np.random.default_rng(1).normal(size=(3, *shape))
    towers = {
        name: Given(tuple(map(jnp.asarray, scores)) if spans else jnp.asarray(scores))
        for name, scores in zip(("main", "first", "second"), drawn, strict=True)
    }
    batch = {"segment_ids": jnp.asarray(SEGMENTS)} | {k: jnp.asarray(v) for k, v in fields.items()}
    loss = OwnTeacher(task=Two(), teachers=("first", "second"), scale=0.5)(towers, batch, None)
    squared = np.square(drawn[0] - (drawn[1] + drawn[2]) / 2).mean(0 if spans else -1)
    error = np.average(squared, weights=weights)
    np.testing.assert_allclose(loss.metrics["teacher_error"].value(), error, rtol=1e-5)
    np.testing.assert_allclose(loss.value(), 2 + 0.5 * error, rtol=1e-5)
