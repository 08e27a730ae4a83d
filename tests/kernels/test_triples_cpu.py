"""The kernel of triples against the plain step, whose losses and scores other tests compare with
numpy and pykeen."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import SGD, Adagrad, AdamW, Constant, Phase, Recipe
from ptm_jax.core.spec import legacy, with_field
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.words.static import WordVectors
from ptm_jax.kernels import triples
from ptm_jax.knowledge.vocabulary_graph import Graph, KnownTriples
from ptm_jax.mesh import rules
from ptm_jax.nn.heads.knowledge.graph_vectors import Convolution, Hyperplanes, Product, Translation
from ptm_jax.nn.initializers import Normal
from ptm_jax.objectives.vectors.graph_vectors import TripleLoss
from ptm_jax.training.steps.step import program
from ptm_jax.training.updates import in_place

T, K, WIDTH, RELATIONS = 5, 3, 20, 4
ADAM, BOTH = AdamW(weight_decay=0.0, eps=1e-8), {"loss": "softmax", "sides": "both"}
CASES = {
    "l1": (Translation, {"norm": 1}, {"unit": True}, SGD()),
    "l2": (Translation, {"norm": 2}, BOTH, ADAM),
    "planes": (Hyperplanes, {}, {"soft": 1.0, "margin": 2.0}, ADAM),
    "planes of unit vectors": (Hyperplanes, {}, {**BOTH, "unit": True}, Adagrad()),
    "product": (Product, {}, {"unit": True, "decay": 0.1, "margin": 3.0}, Adagrad(initial=1e-3)),
    "product, softmax": (
        Product,
        {},
        {"loss": "softmax"},
        dataclasses.replace(ADAM, bias_correction=False),
    ),
}


def system(head, sizes, loss, optimizer, entities=24):
    vocab = Vocab(size=entities + RELATIONS + 3, pad=0, unk=2)
    facts = {
        "graph": Graph(words=0).filled(np.zeros((vocab.size, 2), np.int32)),
        "known": KnownTriples(),
    }
    heads = {"triple": head(vocab=vocab, width=WIDTH, **sizes)}
    tower = Model(
        encoder=WordVectors(vocab=vocab, width=WIDTH, initializer=Normal(0.4)), heads=heads
    )
    phases = (Phase(steps=9, batch=4, length=3 * T),)
    recipe = Recipe(
        phases=phases, lr=0.1, optimizer=optimizer, schedule=Constant(warmup=3), clip=None
    )
    return dataclasses.replace(
        systems.get("transe"),
        towers={"main": tower},
        corruption=None,
        objective=TripleLoss(**loss, **facts),
        recipe=recipe,
    )


def batch(entities=24):
    """Four rows: one ends with padding, one is all padding, and one has its answer among the
    noise."""
    draw = np.random.default_rng(0)

    def some(low, size, *shape):
        return low + draw.integers(0, size, shape)

    ids = np.stack(
        [some(3, entities, 4, T), some(3 + entities, RELATIONS, 4, T), some(3, entities, 4, T)], -1
    )
    there = np.ones((4, T, 1), int)
    there[1, 3:] = there[3] = 0
    noise = some(3, entities, 4, K)
    noise[0] = ids[0, 0, [0, 2, 0]]
    fields = {
        "input_ids": (ids * there).reshape(4, -1),
        "segment_ids": np.repeat(there, 3, 2).reshape(4, -1),
    }
    fields |= {"noise_ids": noise, "sides": some(0, 2, 4, T), "rows": np.arange(4)}
    return {name: jnp.asarray(value, jnp.int32) for name, value in fields.items()}


def kernel_of(system):
    return in_place.kernel_of(system, rules.make_mesh(devices=jax.devices()[:1]))


@pytest.mark.full
@pytest.mark.parametrize("entities", [24, 400], ids=["whole", "rows"])
@pytest.mark.parametrize("case", CASES)
def test_three_native_steps_are_three_plain_ones(case, entities):
    """Parameters, moments and metrics; a table of 31 rows is updated whole, of one of 407 only the
    rows that were read."""
    work, given = program(system(*CASES[case], entities), 0), batch(entities)
    if why := triples.refusal():
        pytest.skip(f"no kernel of triples here: {why}")
    assert bool(work.system.objective.select(work.system, given)[1]) == (entities == 400)
    native = dataclasses.replace(work, native=kernel_of(work.system))
    normals = ("main/heads_triple/table",) if CASES[case][0] is Hyperplanes else ()
    assert native.native.paths == ("main/encoder/token", *normals)
    assert native.native.settings.score == work.system.towers["main"].heads["triple"].native_score
    plain = found = jax.jit(work.init)(given)
    for _ in range(3):
        plain, expected = jax.jit(work.step)(plain, given)
        found, metrics = jax.jit(native.step)(found, given)

    def close(a, b):
        return np.testing.assert_allclose(a, b, atol=2e-5, rtol=2e-5)

    jax.tree.map(close, found, plain)
    jax.tree.map(close, metrics, expected)
    begun, ended = (
        np.asarray(state.params["main"]["encoder"]["token"])
        for state in (jax.jit(work.init)(given), found)
    )
    assert 20 < (begun != ended).any(-1).sum() < 60


def test_parts_on_other_threads_give_the_same_bits():
    """The sums of an update have a fixed order."""
    work, given = program(system(*CASES["planes"]), 0), batch()
    if why := triples.refusal():
        pytest.skip(f"no kernel of triples here: {why}")
    step = jax.jit(dataclasses.replace(work, native=kernel_of(work.system)).step)
    state = jax.jit(work.init)(given)
    runs = [step(state, given) for _ in range(20)]
    for other in runs[1:]:
        jax.tree.map(np.testing.assert_array_equal, runs[0], other)


@pytest.mark.parametrize(
    ("head", "sizes", "loss", "optimizer"),
    [
        (Hyperplanes, {"norm": 1}, {}, ADAM),
        (
            Convolution,
            {"height": 4},
            {"loss": "binary", "candidates": "all"},
            ADAM,
        ),
        (Product, {}, {"impl": "plain"}, ADAM),
        (Product, {}, {}, AdamW()),
        (Product, {}, {}, SGD(momentum=0.9)),
        (Product, {}, {}, Adagrad(scaled=True)),
    ],
    ids=["norm 1", "all entities", "plain", "decay", "momentum", "scaled"],
)
def test_what_the_kernel_does_not_compute_is_left_to_xla(head, sizes, loss, optimizer):
    assert kernel_of(system(head, sizes, loss, optimizer)) is None


def test_rows_of_biases_are_those_of_the_entities():
    """ConvE with noise, two steps on the rows that were read, is the step on the whole tables."""
    sizes = {"height": 4, "image": 0.0, "maps": 0.0, "output": 0.0}
    work, given = program(system(Convolution, sizes, BOTH, SGD(), 400), 0), batch(400)
    dense = dataclasses.replace(
        work.system.objective, graph=Graph(words=0).filled(np.zeros((9, 2), np.int32))
    )
    whole = dataclasses.replace(work, system=dataclasses.replace(work.system, objective=dense))
    assert len(work.system.objective.select(work.system, given)[1]) == 3
    assert not dense.select(whole.system, given)[1]
    rows = plain = jax.jit(work.init)(given)
    for _ in range(2):
        rows, plain = jax.jit(work.step)(rows, given)[0], jax.jit(whole.step)(plain, given)[0]
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5),
        rows.params,
        plain.params,
    )
    assert np.asarray(rows.params["main"]["heads_triple"]["bias"]).any()


def test_records_that_repeat_the_facts_of_the_head_load():
    record = spec.to_json(system(Convolution, {"height": 4}, BOTH, ADAM).objective)
    old = {**record, "own": True, "biased": True}
    assert legacy.renewed(old) == record


def test_a_named_kernel_that_cannot_make_the_step_is_refused():
    named = with_field(system(Product, {}, {}, AdamW()), "impl", "native")
    with pytest.raises(UserError, match="no updates of AdamW"):
        kernel_of(named)
