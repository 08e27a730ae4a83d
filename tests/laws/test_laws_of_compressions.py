"""Every compression of the catalogue that trains, on a published model, by shapes alone."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from ptm_jax import systems
from ptm_jax.compress import catalogue
from ptm_jax.core import facts
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.task_heads import SequenceHead
from ptm_jax.objectives.tasks.downstream import Classification
from ptm_jax.tasks.formats.labelled import Labelled
from ptm_jax.training.steps import step
from support.registered import rebuilt

TRAINING = [name for name in catalogue.NAMES if catalogue.read(name).trains]


def classifier():
    """BERT-base with a head of two classes for pairs of texts."""
    bert = systems.get("bert_base")
    tower = bert.towers["main"].clone(heads={"classify": SequenceHead(2, Summary("tanh"))})
    task = {
        "examples": Labelled(first=("a",), second=("b",)),
        "corruption": None,
        "objective": Classification(),
        "ties": (),
    }
    return dataclasses.replace(bert, towers={"main": tower}, **task)


def batch(rows=4, length=32):
    fields = ("input_ids", "segment_ids", "token_type_ids", "positions", "rows")
    ids, per_row = (jax.ShapeDtypeStruct(dims, jnp.int32) for dims in ((rows, length), (rows,)))
    return dict.fromkeys(fields, ids) | {"label": per_row, "rows": per_row, "next_label": per_row}


@pytest.mark.full
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.status(name, "built")) for name in TRAINING]
)
def test_it_takes_a_step_at_its_published_size(name):
    """MobileBERT's teacher is IB-BERT in pre-training; every other method compresses a
    classifier."""
    value = catalogue.read(name)
    model = systems.get("ib_bert_large") if "mobilebert" in name else classifier()
    vocab = model.towers["main"].encoder.embeddings.vocab
    system = facts.stand_ins(dataclasses.replace(model, compress=(value,)), vocab)
    work = step.program(system, 0)
    state = jax.eval_shape(work.init, batch())
    after, metrics = jax.eval_shape(work.step, state, batch())
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(
        lambda x: (x.shape, x.dtype), state
    )
    assert "loss" in metrics


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_its_record_rebuilds_it(name):
    value = catalogue.read(name)
    assert rebuilt(value) == value
