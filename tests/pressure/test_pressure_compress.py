"""Systems around a network that is there already: TinyBERT, BERT-of-Theseus, FastBERT."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core import slots
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.types import Loss, add_losses
from ptm_jax.encoders.model import Model
from ptm_jax.nn.blocks import Block, Stack
from ptm_jax.nn.heads.vocabulary import Classifier
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layers import Context
from ptm_jax.objectives.text.language import token_loss
from ptm_jax.training.steps import step
from support.tiny_systems import (
    WIDTH,
    Freeze,
    Given,
    Project,
    bits,
    check,
    encoder,
    evaluate,
    sentences,
    start,
    system,
    towers,
)

CLASSES = 2

pytestmark = pytest.mark.full  # each compiles several stages of training


def task():
    """Rows whose label follows from the first token."""
    batch = sentences()
    return {**batch, "label": batch["input_ids"][:, 0] % CLASSES}


def classifier(**options):
    """A network with a class for the first token."""
    return Model(
        encoder=encoder(**options), heads={"class": Classifier(CLASSES, initializer=Normal(0.2))}
    )


def scores_of(tower, batch, key=None):
    return tower.head("class", tower(batch, key).hidden[:, 0])


def cross_entropy(scores, labels) -> Loss:
    nll = -jnp.take_along_axis(jax.nn.log_softmax(scores), labels[..., None], -1)[..., 0]
    return token_loss(nll, jnp.ones_like(nll))


def classify(towers, batch, key):
    return cross_entropy(scores_of(towers["main"], batch, key), batch["label"])


# TinyBERT


class ExposeScores(slots.Wrapper):
    """Compression: attention layers show their scores in place of the probabilities."""

    def wrap(self, module):
        stack = module.encoder.stack
        attention = dataclasses.replace(stack.block.attention, expose="scores")
        stack = dataclasses.replace(
            stack, block=dataclasses.replace(stack.block, attention=attention)
        )
        return dataclasses.replace(module, encoder=dataclasses.replace(module.encoder, stack=stack))


def squares(student, teacher, name) -> Loss:
    """Mean squared error over all elements."""
    return Loss(jnp.square(student - teacher).sum(), jnp.float32(student.size), {})


@dataclasses.dataclass(frozen=True)
class LayerDistillation(slots.Objective):
    """Student layer m learns from teacher layer m * every: embeddings, hidden states through a map,
    attention scores."""

    every: int = 2

    def __call__(self, towers, batch, key):
        student, teacher = towers["student"], towers["teacher"]
        mine, theirs = student(batch, key), teacher(batch)
        embedded = squares(
            student.head("map_embedding", mine.layers[0]), theirs.layers[0], "embedding"
        )
        hidden = squares(
            student.head("map", mine.layers[1:]), theirs.layers[self.every :: self.every], "hidden"
        )
        attention = squares(
            mine.attention, theirs.attention[self.every - 1 :: self.every], "attention"
        )
        return add_losses((1.0, embedded), (1.0, hidden), (1.0, attention))


def soft_labels(towers, batch, key):
    """Cross-entropy of the student's classes against the teacher's, temperature 1."""
    student = jax.nn.log_softmax(scores_of(towers["student"], batch, key))
    teacher = jax.nn.softmax(scores_of(towers["teacher"], batch))
    nll = (teacher * (jnp.log(teacher) - student)).sum(
        -1
    )  # minus the teacher's entropy: 0 where they agree
    return token_loss(nll, jnp.ones_like(nll))


def tinybert(teacher: Any):
    small = classifier(layers=2, width=WIDTH // 2)
    maps = {"map": Project(WIDTH), "map_embedding": Project(WIDTH)}
    return system(
        "tinybert",
        towers={
            "teacher": classifier(layers=4),
            "student": dataclasses.replace(small, heads={**small.heads, **maps}),
        },
        objective=LayerDistillation(),
        adapt=(Given("teacher", teacher), Freeze(r"^teacher/")),
        compress=(ExposeScores(),),
    )


@pytest.mark.full
def test_tinybert_distils_layers_and_then_predictions():
    batch = task()
    taught = start(
        system("teacher", towers={"main": classifier(layers=4)}, objective=classify), batch
    )[1].params["main"]
    # A teacher that is sure of its label, so that there is something to learn in the second stage.
    taught["heads_class"]["dense"]["bias"] = jnp.asarray([2.0, -1.0])
    first = check(tinybert(taught), batch, steps=30)
    assert bits(first.last.params["teacher"]["heads_class"]["dense"]["bias"]) == bits(
        jnp.asarray([2.0, -1.0])
    )
    second = dataclasses.replace(tinybert(taught), objective=soft_labels)
    run = check(second, batch, params=first.last.params, splits=False)
    # What the first stage trained and the second does not read: the maps.
    for name in ("map", "map_embedding"):
        old, new = (
            flatten(state.params["student"][f"heads_{name}"]) for state in (first.last, run.last)
        )
        assert all(bits(old[path]) == bits(new[path]) for path in old)
    attention = evaluate(lambda b: towers(run)["teacher"](b).attention, batch)
    assert attention.shape[0] == 4 and not np.allclose(attention.sum(-1), 1.0)


# BERT-of-Theseus


class Module(nn.Module):
    """Predecessor layers and the one layer that takes their place: always when not training, else
    with probability min(1, slope * step + base), one draw for all rows."""

    predecessor: Stack
    successor: Block
    slope: float
    base: float

    @nn.compact
    def __call__(self, x, context: Context, cache=None):
        old = self.predecessor(x, context).hidden
        new, probabilities, cache = self.successor(x, context, cache)
        if context.train:
            rate = jnp.minimum(1.0, self.slope * context.step + self.base)
            new = jnp.where(jax.random.bernoulli(self.make_rng("dropout"), rate), new, old)
        return new, probabilities, cache


@dataclasses.dataclass(frozen=True)
class Theseus(slots.Wrapper):
    """Compression: `ratio` layers of the predecessor for each of the successor; only successors are
    trained."""

    slope: float
    base: float
    ratio: int = 2

    def wrap(self, module):
        stack = module.encoder.stack
        old = dataclasses.replace(stack, layers=self.ratio)
        swap = Module(predecessor=old, successor=stack.block, slope=self.slope, base=self.base)
        stack = dataclasses.replace(stack, block=swap, layers=stack.layers // self.ratio)
        return dataclasses.replace(module, encoder=dataclasses.replace(module.encoder, stack=stack))

    def init(self, params, source):
        """The successor of each module starts as the first of its predecessor's layers."""
        flat = flatten(params)
        firsts = {
            path.replace("/successor/", "/predecessor/block/")
            for path in flat
            if "/successor/" in path
        }
        copies = {
            path.replace("/predecessor/block/", "/successor/"): flat[path][:, 0] for path in firsts
        }
        return unflatten({**flat, **copies})

    def trainable(self, path, step):
        return "/successor/" in path

    def finish(self, params):
        """The parameters of the small network."""
        flat = {path: leaf for path, leaf in flatten(params).items() if "/predecessor/" not in path}
        return unflatten(
            {path.replace("/block/successor/", "/block/"): leaf for path, leaf in flat.items()}
        )

    def split(self, params):
        """The parameters of the network that was there first."""
        flat = {path: leaf for path, leaf in flatten(params).items() if "/successor/" not in path}
        return unflatten(
            {
                path.replace("/block/predecessor/block/", "/block/"): leaf.reshape(
                    -1, *leaf.shape[2:]
                )
                if "/predecessor/" in path
                else leaf
                for path, leaf in flat.items()
            }
        )


def theseus(slope=0.1, base=0.3):
    return system(
        "theseus",
        towers={"main": classifier(layers=4, dropout=0.0)},
        objective=classify,
        compress=(Theseus(slope, base),),
    )


def test_theseus_swaps_modules_more_and_more():
    batch = task()
    run = check(theseus(), batch, steps=30)
    assert all("/successor/" in path for path in flatten(run.last.opt_state["mu"]))
    mixed = theseus(slope=0.1, base=0.0)
    (swap,) = mixed.compress
    tower = step.core_towers.bind(step.program(mixed, 0).towers, run.last.params, train=True)[
        "main"
    ]
    before = evaluate(lambda b: tower(b, jax.random.key(0)).hidden, {**batch, "step": 0})
    after = evaluate(lambda b: tower(b, jax.random.key(0)).hidden, {**batch, "step": 10})
    whole, small = classifier(layers=4, dropout=0.0), classifier(layers=2, dropout=0.0)
    for model, params, found in ((whole, swap.split, before), (small, swap.finish, after)):
        params = params(run.last.params)["main"]["encoder"]
        hidden = evaluate(lambda p, m=model: m.encoder.apply({"params": p}, batch).hidden, params)
        np.testing.assert_allclose(found, hidden, atol=1e-6)


# FastBERT


@dataclasses.dataclass(frozen=True)
class SelfDistillation(slots.Objective):
    """Every branch learns the distribution of the classifier on top, summed over branches."""

    branches: int

    def __call__(self, towers, batch, key):
        tower = towers["main"]
        layers = tower(batch).layers
        teacher = jax.nn.log_softmax(tower.head("class", layers[-1][:, 0]))
        parts = []
        for n in range(self.branches):
            student = jax.nn.log_softmax(tower.head(f"branch{n}", layers[n][:, 0]))
            kl = (jnp.exp(student) * (student - teacher)).sum(-1)
            parts.append((1.0, token_loss(kl, jnp.ones_like(kl), name=f"kl{n}")))
        return add_losses(*parts)


def fastbert():
    plain = classifier(layers=2)
    branches = {f"branch{n}": Classifier(CLASSES, initializer=Normal(0.5)) for n in range(2)}
    return system(
        "fastbert",
        towers={"main": dataclasses.replace(plain, heads={**plain.heads, **branches})},
        objective=classify,
    )


def test_fastbert_trains_the_backbone_and_then_its_exits():
    batch = task()
    first = check(fastbert(), batch, steps=20)
    second = dataclasses.replace(
        fastbert(), objective=SelfDistillation(2), adapt=(Freeze(r"^main/(?!heads_branch)"),)
    )
    run = check(second, batch, steps=20, params=first.last.params, splits=False)
    tower = towers(run)["main"]

    def speeds(params):
        bound = dataclasses.replace(tower, params=params)
        layers = bound(batch).layers
        logs = [jax.nn.log_softmax(bound.head(f"branch{n}", layers[n][:, 0])) for n in range(2)]
        return jnp.stack([-(jnp.exp(log) * log).sum(-1) / jnp.log(CLASSES) for log in logs])

    doubt = evaluate(speeds, tower.params)
    assert ((doubt >= 0) & (doubt <= 1 + 1e-6)).all()
    # An exit after layer n needs no layer above it: branch 0 reads the embeddings, branch 1 the
    # first layer.
    slopes = evaluate(jax.jacrev(lambda p: speeds(p).sum(1)), tower.params)["encoder"]["stack"][
        "block"
    ]
    reached = np.asarray(slopes["ffn"]["up"]["kernel"] != 0).any((-1, -2))
    np.testing.assert_array_equal(reached, [[False, False], [True, False]])
