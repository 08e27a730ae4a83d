"""Matryoshka, GradCache and a teacher around the losses of sentence encoders."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.adapt import catalogue
from ptm_jax.core import spec
from ptm_jax.core import towers as core_towers
from ptm_jax.core.errors import UserError
from ptm_jax.core.spec.classes import kinds_of
from ptm_jax.core.spec.rebuild import rebuild
from ptm_jax.core.system import adapted
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import transformer
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.nn.heads.text_vector import TextVector
from ptm_jax.nn.initializers import Normal
from ptm_jax.objectives.sentences.base import Groups
from ptm_jax.objectives.sentences.cached import Cached
from ptm_jax.objectives.sentences.cosent import CoSENT
from ptm_jax.objectives.sentences.margins import MarginError
from ptm_jax.objectives.sentences.multiple_negatives import MultipleNegatives
from ptm_jax.objectives.sentences.nested import NestedFeatures, NestedLayers
from ptm_jax.objectives.sentences.sentence_teacher import Taught, VectorError
from support.classifier import classifier

VOCAB = Vocab(size=40, pad=0, cls=1, sep=2, mask=3)
WIDTH, LENGTH, LAYERS = 8, 6, 3
KEY = jax.random.key(0)


def batch_of(groups=8, texts=3, absent=()):
    draw, rows = np.random.default_rng(0), groups * texts
    real = np.arange(LENGTH) < draw.integers(2, LENGTH + 1, (rows, 1))
    real[list(absent)] = False
    scores = np.repeat(draw.random((groups, texts - 1)), texts, 0)
    return {
        "input_ids": jnp.asarray(draw.integers(4, 40, (rows, LENGTH)) * real, jnp.int32),
        "segment_ids": jnp.asarray(real, jnp.int32),
        "rows": jnp.arange(rows),
        "text_scores": jnp.asarray(scores, jnp.float32),
    }


@pytest.fixture(scope="module")
def module():
    encoder = transformer(
        vocab=VOCAB, positions=LearnedPositions(LENGTH), initializer=Normal(0.3), layers=LAYERS,
        width=WIDTH, heads=2, dropout=0.2,
    )  # fmt: skip
    return Model(encoder=encoder, heads={"vector": TextVector()})


@pytest.fixture(scope="module")
def params(module):
    batch = batch_of()
    init = jax.jit(lambda seed: core_towers.init({"main": module}, jax.random.key(seed), batch))
    return [init(seed)["main"] for seed in (0, 1)]


def gradient(objective, module, params, batch, train=False, teacher=None):
    """(loss, gradient) of the tower main."""

    def value(params):
        towers = {"main": core_towers.Tower(module, params, train)}
        if teacher is not None:
            towers["teacher"] = core_towers.Tower(module, teacher)
        return objective(towers, batch, KEY).value()

    return jax.jit(jax.value_and_grad(value))(params)


def apart(found, expected):
    """The relative distance of two trees."""
    a, b = (np.concatenate([np.ravel(x) for x in jax.tree.leaves(t)]) for t in (found, expected))
    return np.linalg.norm(a - b) / np.linalg.norm(b)


@pytest.mark.full
@pytest.mark.parametrize("loss", [MultipleNegatives(), CoSENT()])
def test_the_cached_gradient_is_the_plain_one_with_dropout(loss, module, params):
    batch = batch_of(absent=(5, 11))  # negatives that their rows lack
    plain = gradient(loss, module, params[0], batch, train=True)
    cached = gradient(Cached(task=loss, parts=4), module, params[0], batch, train=True)
    rounding = 2 * 20 * np.finfo(np.float32).eps  # the losses multiply cosines by 20
    assert apart(cached[0], plain[0]) < 1e-6 and apart(cached[1], plain[1]) < rounding


@pytest.mark.full
def test_the_cached_loss_has_less_memory(module):
    """The compiler's own figure: temporaries of a step, with activations that are most of them."""
    batch = {name: jnp.concatenate([value] * 32) for name, value in batch_of().items()}
    batch["rows"] = jnp.arange(len(batch["rows"]))
    shapes = jax.eval_shape(lambda: core_towers.init({"main": module}, KEY, batch))["main"]

    def size(objective):
        def value(params):
            return objective({"main": core_towers.Tower(module, params)}, batch, None).value()

        compiled = jax.jit(jax.grad(value)).lower(shapes).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    loss = CoSENT()
    assert size(Cached(task=loss, parts=16)) < 0.5 * size(loss)


def vectors_of(module, params, batch):
    tower = core_towers.Tower(module, params)
    return tower, tower(batch)


@pytest.mark.full
def test_nested_features_are_the_losses_of_their_beginnings(module, params):
    batch, loss = batch_of(absent=(5, 11)), MultipleNegatives()
    tower, encoded = vectors_of(module, params[0], batch)
    vectors = tower.read("vector", encoded, batch)
    found = NestedFeatures(task=loss, dims=(8, 4, 2), weights=(1.0, 0.5, 0.25))
    expected = sum(
        weight * loss.judged(vectors[:, :dim], batch).value()
        for dim, weight in ((8, 1.0), (4, 0.5), (2, 0.25))
    )  # the cosine does not depend on the length of a vector
    result = found.judged(vectors, batch)
    np.testing.assert_allclose(result.value(), expected, rtol=1e-5)
    assert {"ranking_nll_8", "ranking_nll_2"} <= set(result.metrics)


@pytest.mark.full
def test_nested_layers_are_the_losses_of_their_states(module, params):
    batch, loss = batch_of(), MultipleNegatives()
    tower, encoded = vectors_of(module, params[0], batch)
    real = np.asarray(batch["segment_ids"])[..., None]

    def mean(states):
        return (np.asarray(states) * real).sum(1) / real.sum(1)

    last, lower = mean(encoded.hidden), [mean(encoded.layers[n]) for n in (1, 2)]
    expected = loss.judged(jnp.asarray(last), batch).value()

    def softmax(x):
        e = np.exp(x / 0.3 - (x / 0.3).max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    for vectors in lower:
        kl = (softmax(last) * np.log(softmax(last) / softmax(vectors))).sum(-1).mean()
        expected += loss.judged(jnp.asarray(vectors), batch).value() / 2 + 0.3 * kl
    found = NestedLayers(task=loss, layers=(1, 2))({"main": tower}, batch, None)
    np.testing.assert_allclose(found.value(), expected, rtol=1e-5)


@pytest.mark.full
def test_a_teacher_gives_vectors_and_scores(module, params):
    batch = batch_of()
    mine, its = (
        tower.read("vector", encoded, batch)
        for tower, encoded in (vectors_of(module, p, batch) for p in params)
    )
    value, _ = gradient(Taught(task=VectorError()), module, params[0], batch, teacher=params[1])
    np.testing.assert_allclose(value, np.square(mine - its).mean(), rtol=1e-5)
    a, b = (np.stack(Groups.of(one, batch).texts) for one in (mine, its))

    def margin(x, n):
        return (x[0] * x[1]).sum(-1) - (x[0] * x[n]).sum(-1)

    value, slope = gradient(Taught(task=MarginError()), module, params[0], batch, teacher=params[1])
    np.testing.assert_allclose(value, np.square(margin(a, 2) - margin(b, 2)).mean(), rtol=1e-5)
    same, _ = gradient(Taught(task=MarginError()), module, params[1], batch, teacher=params[1])
    assert same < 1e-9 and any(np.any(leaf) for leaf in jax.tree.leaves(slope))


@pytest.fixture(scope="module")
def system(module):
    found = classifier()
    phase = dataclasses.replace(found.recipe.phases[-1], batch=12)
    return dataclasses.replace(
        found,
        towers={"main": module},
        objective=MultipleNegatives(),
        recipe=dataclasses.replace(found.recipe, phases=(phase,)),
    )


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
def test_wrappers_stand_in_their_order(order, system):
    names = "matryoshka(dims=(8, 4))", "layer_matryoshka", "grad_cache(parts=3)", "taught"
    adapt = catalogue.read_all([names[n] for n in order])
    objective, kinds = adapted(dataclasses.replace(system, adapt=adapt)).objective, []
    while not isinstance(objective, MultipleNegatives):
        kinds.append(type(objective))
        objective = objective.task
    assert kinds[:2] == [Taught, Cached] and {*kinds[2:]} == {NestedFeatures, NestedLayers}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("matryoshka(dims=(16,))", "vectors have 8 features"),
        ("matryoshka(dims=(8, 4), weights=(1.0,))", "a weight for each"),
        ("layer_matryoshka(layers=(3,))", "returns 3 layers"),
        ("grad_cache(parts=5)", "12 texts is not divisible into 5 parts"),
    ],
)
def test_what_does_not_fit_is_refused(name, message, system):
    with pytest.raises(UserError, match=message):
        adapted(dataclasses.replace(system, adapt=catalogue.read_all((name,))))


@pytest.mark.parametrize("name", ["matryoshka(dims=(8, 4))", "layer_matryoshka", "grad_cache",
                                  "taught(similarity=CosineScore())"])  # fmt: skip
def test_a_record_gives_the_wrapper_again(name, system):
    (wrapper,) = catalogue.read_all((name,))
    objective = adapted(dataclasses.replace(system, adapt=(wrapper,))).objective
    for value in (wrapper, objective):
        assert rebuild(json.loads(json.dumps(spec.to_json(value))), kinds_of()) == value


def test_another_task_is_refused():
    with pytest.raises(UserError, match="reads no vectors of texts"):
        adapted(classifier("grad_cache(parts=1)"))
