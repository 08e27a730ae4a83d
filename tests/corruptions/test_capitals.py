"""Capitals, and objectives of the rows of one task (ERNIE 2.0)."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.types import Loss, Ratio
from ptm_jax.corruptions.knowledge.capitals import Capitals
from ptm_jax.objectives.base import OnePass
from ptm_jax.objectives.task_of_row import RowsOfTask, TokenFacts
from ptm_jax.statistics.lower_case import LowerCase
from support.corrupting import VOCAB, numpied


def test_capitals_are_written_small_and_marked():
    pieces = ["[PAD]", "[UNK]", "The", "the", "##S", "##s", "Q", "x"]
    tokenizer = types.SimpleNamespace(
        pieces=pieces,
        special_pieces={"[PAD]": 0, "[UNK]": 1},
        id=lambda piece: pieces.index(piece) if piece in pieces else None,
    )
    table = LowerCase().of_tokenizer(tokenizer)
    assert table.tolist() == [0, 1, 3, 3, 5, 5, 6, 7]
    lower = dataclasses.replace(
        LowerCase(), _arrays={"values": np.arange(400) - (np.arange(400) == 31)}
    )
    ids = np.array([[2, 30, 31, 31, 3, 0]])
    batch = {"input_ids": jnp.asarray(ids), "segment_ids": jnp.asarray(ids > 0, jnp.int32)}
    made = numpied(Capitals(vocab=VOCAB, lower=lower), 0, batch)
    assert made["input_ids"].tolist() == [[2, 30, 30, 30, 3, 0]]
    assert made["capitals"].tolist() == [[0, 0, 1, 1, 0, 0]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counted(OnePass):
    """The number of real tokens, and the sum of the labels."""

    tower: str = "main"

    def of(self, tower, encoded, batch):
        size = (batch["segment_ids"] > 0).sum().astype(jnp.float32)
        return Loss(batch["next_label"].sum() * 1.0, size, {"n": Ratio(size, size)})


def test_rows_of_other_tasks_are_padding():
    batch = {
        "segment_ids": jnp.array([[1, 1], [1, 0], [1, 1]]),
        "next_label": jnp.array([2, 8, 1]),
        "task": jnp.array([0, 1, 0]),
    }
    loss = RowsOfTask(task=0, part=Counted()).of(None, None, batch)
    assert float(loss.weight) == 4 and float(loss.sum) == 3


def test_facts_of_tokens_against_a_definition():
    draw = np.random.default_rng(0)
    scores, right = draw.normal(size=(3, 5)), draw.integers(0, 2, (3, 5))
    real = draw.random((3, 5)) < 0.7
    tower = types.SimpleNamespace(head=lambda name, hidden: hidden)
    encoded = types.SimpleNamespace(hidden=jnp.asarray(scores, jnp.float32))
    batch = {"seen": jnp.asarray(right), "segment_ids": jnp.asarray(real, jnp.int32)}
    part = TokenFacts(label="seen")
    loss = part.of(tower, encoded, batch)
    chance = 1 / (1 + np.exp(-scores))
    nll = -np.log(np.where(right > 0, chance, 1 - chance))
    assert np.isclose(loss.sum, (nll * real).sum(), rtol=1e-5) and loss.weight == real.sum()

    def total(x):
        return part.of(tower, types.SimpleNamespace(hidden=x), batch).sum

    slope = jax.grad(total)(encoded.hidden)
    assert np.allclose(slope, (chance - right) * real, atol=1e-5)
