"""MobileBERT and its teacher: published sizes, what a student begins with, and the transfer on a
run."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.compress import recipes
from ptm_jax.compress.students import mobile
from ptm_jax.convert.config import Config
from ptm_jax.convert.families import mobilebert as published
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten
from ptm_jax.core.recipe import Phase
from ptm_jax.core.system import adapted
from ptm_jax.systems.transformers.bert_gpt import BERT_UNCASED
from ptm_jax.systems.transformers.mobilebert import TINY_IB, ib_bert
from ptm_jax.training.steps import step
from support import splitting
from support.classifier import classifier


def millions(name, part):
    return (
        sum(
            np.prod(shape)
            for path, shape in splitting.parameters(name).items()
            if path.startswith(part)
        )
        / 1e6
    )


@pytest.mark.full
def test_the_networks_have_the_published_sizes():
    """Table 1: 293 million parameters and 25.3 million; the networks without heads have 294.2 and
    24.6."""
    assert abs(millions("ib_bert_large", "main/encoder/") / 293 - 1) < 0.005
    assert abs(millions("mobilebert", "main/encoder/") / 25.3 - 1) < 0.03
    assert millions("mobilebert", "teacher/") == millions("ib_bert_large", "main/")


def test_the_student_is_the_network_of_the_published_config():
    """The encoder that the library's default config gives."""
    fields = {
        "model_type": "mobilebert", "vocab_size": 30_522, "hidden_size": 512,
        "num_hidden_layers": 24,
        "num_attention_heads": 4, "intermediate_size": 512, "embedding_size": 128,
        "max_position_embeddings": 512,
    }  # fmt: skip
    library = published.encoder(Config(fields))
    own = mobile.Mobile().tower(systems.get("ib_bert_large").towers["main"]).encoder
    assert own.stack == library.stack
    vocab = dataclasses.replace(BERT_UNCASED)
    assert own.embed.clone(vocab=vocab) == library.embed.clone(vocab=vocab, norm=own.embed.norm)


@functools.cache
def small(**fields):
    """(system of the pair in small, its program)."""
    sizes = dataclasses.replace(
        TINY_IB, layers=2, states=16, inner=32, tables=8, heads=2, hidden=24
    )
    parent = ib_bert("small", sizes)
    transfer = dataclasses.replace(
        recipes.MOBILEBERT_PROGRESSIVE,
        student=mobile.Mobile(inner=8, hidden=12, stacked=2),
        layers=2,
        transfer=0.5,
    )
    recipe = dataclasses.replace(
        parent.recipe, phases=(Phase(steps=8, batch=4, length=16),), lr=1e-3
    )
    found = dataclasses.replace(parent, compress=(transfer,), recipe=recipe)
    return found, step.program(found, 0)


def text(rows=4, length=16):
    draw = np.random.default_rng(0)
    ids = draw.integers(1000, 2000, (rows, length)).astype(np.int32)
    one = np.ones_like(ids)
    types = np.repeat([[0] * 8 + [1] * 8], rows, 0).astype(np.int32)
    fields = {
        "input_ids": ids,
        "segment_ids": one,
        "token_type_ids": types,
        "next_label": np.zeros(rows, np.int32),
    }
    return fields | {
        "positions": np.tile(np.arange(length, dtype=np.int32), (rows, 1)),
        "rows": np.arange(rows),
    }


@pytest.mark.full
def test_embeddings_and_heads_begin_as_the_teachers_and_the_transfer_lowers_each_stage():
    found, work = small()
    state = jax.jit(work.init)(text())
    first = {path: np.asarray(leaf) for path, leaf in flatten(state.params).items()}
    for path in (
        "encoder/embed/token",
        "encoder/embed/expand/dense/kernel",
        "heads_mlm/rest",
        "heads_nsp/dense/kernel",
    ):
        path = next(name for name in first if name.startswith(f"main/{path.rsplit('/', 1)[0]}"))
        assert np.array_equal(first[path], first[path.replace("main/", "teacher/")]), path
    update, moved = jax.jit(work.step), []
    for _ in range(8):
        before = {path: np.asarray(leaf).tobytes() for path, leaf in flatten(state.params).items()}
        state, metrics = update(state, text())
        moved.append(
            {
                p
                for p, leaf in flatten(state.params).items()
                if np.asarray(leaf).tobytes() != before[p]
            }
        )
    assert not any(path.startswith("teacher/") for path in set().union(*moved))
    assert not any(path.startswith("main/encoder/embed") for path in moved[2] | moved[3]), (
        "stage 2 freezes the embeddings"
    )
    assert any(path.startswith("main/heads_mlm") for path in moved[-1])
    assert not any(path.startswith("main/heads_mlm") for path in moved[0])


def test_a_teacher_without_bottlenecks_is_refused():
    value = dataclasses.replace(recipes.MOBILEBERT, hard=1.0)
    with pytest.raises(
        UserError, match="is made from an IB-BERT, a network of bottlenecks"
    ) as error:
        adapted(dataclasses.replace(classifier(types=2), compress=(value,)))
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="sizes below 1"):
        mobile.Mobile(inner=0)
