"""Which parameters every adaptation moves, at which step and how fast; what is frozen keeps its
bits, whatever decays."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.adapt.parameters.levels import ParameterPath, parameter_paths
from ptm_jax.adapt.parameters.rates import LayerDecay
from ptm_jax.adapt.parameters.unfreezing import ChainThaw, GradualUnfreezing, SequentialUnfreezing
from ptm_jax.core import slots
from ptm_jax.core.paths import flatten
from ptm_jax.core.recipe import SGD
from ptm_jax.training.steps import step
from ptm_jax.training.updates.freedom import Freedom
from support.classifier import LAYERS, batch, classifier, run

HEADS = LAYERS + 1
HEAD = r"/heads_classify/"
NORM = r"norm/(scale|bias)"


@pytest.mark.full
@pytest.mark.parametrize(
    ("adapt", "pattern"),
    [
        ("feature", HEAD),
        ("houlsby(width=3)", rf"{HEAD}|/after_\w+/|{NORM}"),
        ("lora(rank=2)", rf"{HEAD}|^lora/main/encoder/stack/block/attention/(query|value)/kernel/"),
        ("pals(width=4, heads=2)", r""),
        ("k_adapter(reads=(0, -1), width=4, heads=2, layers=1)", rf"{HEAD}|/readers_side/"),
        (
            "k_adapter(width=4, heads=2, layers=1, trains='network')",
            r"^(?!.*/readers_side/(down|up|stacks))",
        ),
        ("frozen(pattern='/embed/|/ffn/')", rf"^(?!.*(/embed/|/ffn/))|{HEAD}"),
        ("bitfit", rf"{HEAD}|/bias$"),
        ("pfeiffer(width=3)", rf"{HEAD}|/after_ffn/"),
        ("embedding", rf"{HEAD}|/embed/"),
        ("mix(top=2)", r""),
        ("prefix(length=2)", rf"{HEAD}|/attention/prefix_"),
        ("prefix(length=2, hidden=5)", rf"{HEAD}|/attention/prefix_"),
        ("rates(table=(('/embed/', 0.0), ('/ffn/', 0.5)))", r"^(?!.*/embed/)"),
    ],
    ids=lambda value: value.partition("(")[0] if value[:1].isalpha() else "",
)
def test_what_moves(adapt, pattern):
    """By path, and with it the moments; that the bits obey is a law (tests/laws)."""
    program = step.program(classifier(adapt), seed=0)
    shapes = jax.eval_shape(program.init, batch())
    free = {path for path in flatten(shapes.params) if re.search(pattern, path)}
    assert {
        path
        for path, place in program.freedom.places(shapes.params).items()
        if program.freedom.trains(place)
    } == free
    assert set(flatten(shapes.opt_state["mu"])) == free
    if adapt.startswith("rates"):
        assert program.freedom.rate("main/encoder/stack/block/ffn/up/kernel") == 0.5


@pytest.mark.full
@pytest.mark.parametrize(
    "adapt",
    [
        "houlsby(width=3)",
        "lora(rank=2)",
        "pals(width=4, heads=2)",
        "k_adapter(reads=(0, -1), width=4, heads=2, layers=1)",
    ],
    ids=lambda adapt: adapt.partition("(")[0],
)
def test_what_moves_has_a_gradient_of_the_task(adapt):
    """Away from the zeros that it begins with. The biases of keys have none."""
    program, draw = step.program(classifier(adapt), seed=0), np.random.default_rng(0)
    shapes = jax.eval_shape(program.init, batch()).params
    params = jax.tree.map(
        lambda leaf: jnp.asarray(draw.normal(size=leaf.shape), leaf.dtype), shapes
    )
    objective = program.system.objective

    def loss(params):
        return objective(program._bind(params, True), batch(), jax.random.key(0)).value()

    slopes, known = flatten(jax.jit(jax.grad(loss))(params)), program.freedom.places(params)
    free = {
        path for path in slopes if program.freedom.trains(known[path]) and "key/bias" not in path
    }
    still = {path for path in free if not np.asarray(slopes[path]).any()}
    assert not still


@pytest.fixture(scope="module")
def gradual():
    return run(classifier("gradual(steps=1)"), steps=5)


@pytest.mark.full
def test_layers_are_set_free_from_the_top(gradual):
    levels = [{HEADS}, {3, HEADS}, {2, 3, HEADS}, {1, 2, 3, HEADS}, {0, 1, 2, 3, HEADS}]
    assert [gradual.levels(number) for number in range(len(levels))] == levels
    moments = [flatten(gradual.states[1].opt_state[name]) for name in ("nu", "mu")]
    for path, place in parameter_paths(gradual.states[0].params, gradual.program.towers).items():
        # Moments of what did not move at the first step are still those of the beginning.
        waits = ~np.isin(place.level, list(levels[0]))
        for moment in moments:
            here = np.asarray(moment[path])
            assert not (here[waits] if np.ndim(waits) else here if waits else np.zeros(1)).any()


@pytest.mark.parametrize(
    ("adaptation", "levels"),
    [
        (
            GradualUnfreezing(steps=2, group=2),
            [{HEADS}, {HEADS}, {2, 3, HEADS}, {2, 3, HEADS}, {0, 1, 2, 3, HEADS}],
        ),
        (ChainThaw(steps=1), [{HEADS}, {0}, {1}, {2}, {3}, {0, 1, 2, 3, HEADS}]),
        (SequentialUnfreezing(steps=1), [{HEADS}, {1, 2, 3, HEADS}, {0, 1, 2, 3, HEADS}]),
    ],
    ids=lambda value: type(value).__name__ if dataclasses.is_dataclass(value) else "",
)
def test_what_is_free_when(adaptation, levels):
    freedom = Freedom((adaptation,))
    at = {level: ParameterPath(f"main/{level}", level, HEADS) for level in (0, HEADS)}
    stack = ParameterPath("main/stack", np.arange(1, HEADS), HEADS)
    for number, free in enumerate(levels):

        def live(place, n=number):
            return freedom.live(place, jnp.int32(n))

        found = {level for level, place in at.items() if live(place) is None or bool(live(place))}
        assert found | set((np.flatnonzero(live(stack)) + 1).tolist()) == free


def test_a_layer_begins_as_if_it_were_the_first_step(gradual):
    """Adam's bias correction goes by a layer's own updates: the first is lr g / (|g| + eps),
    whenever it comes."""
    path = "main/encoder/stack/block/ffn/up/kernel"
    counts = flatten(gradual.states[3].opt_state["updates"])[path]
    np.testing.assert_array_equal(np.ravel(counts), [0, 1, 2])
    before, after = gradual.params(1)[path][2], gradual.params(2)[path][2]
    mu = np.asarray(flatten(gradual.states[2].opt_state["mu"])[path][2]) / 0.1
    expected = before - 0.01 * (mu / (np.abs(mu) + 1e-4) + 0.1 * before)
    np.testing.assert_allclose(after, expected, rtol=1e-5, atol=1e-7)


def test_stages_share_the_run():
    """Without steps the stages take half of the run: 100 steps, four stages of twelve."""
    adaptation = step.program(classifier("gradual"), seed=0).system.adapt[0]
    assert adaptation.total == 100
    place = ParameterPath("main/encoder/embed/token", 0, HEADS)
    free = [bool(adaptation.trainable(place, jnp.int32(n))) for n in range(100)]
    assert free.index(True) == 48 and all(free[48:])


@pytest.mark.full
def test_rates_fall_with_depth():
    """With plain gradient descent an update is the rate times the gradient."""
    decay, gap = 0.5, 1
    plain = run(classifier(optimizer=SGD()))
    trace = run(classifier("layer_decay(decay=0.5, gap=1)", optimizer=SGD()))
    for path, place in parameter_paths(plain.states[0].params, plain.program.towers).items():
        old = plain.params(0)[path]
        whole, slow = plain.params(1)[path] - old, trace.params(1)[path] - old
        level = np.asarray(place.level)
        rate = np.where(level == HEADS, 1.0, decay ** (gap + LAYERS - level.astype(float)))
        rate = rate.reshape(rate.shape + (1,) * (whole.ndim - rate.ndim))
        np.testing.assert_allclose(slow, rate * whole, rtol=1e-3, atol=2e-7, err_msg=path)


def test_published_rates():
    """ULMFiT's 2.6 between neighbours, with the head a layer of its own; ELECTRA's 0.8^(N + 2 -
    depth); Sun's 0.95."""

    def rate(level, **fields):
        return LayerDecay(**fields).rate(ParameterPath("main/x", level, 13))

    np.testing.assert_allclose(
        [rate(13, decay=1 / 2.6, gap=1), rate(12, decay=1 / 2.6, gap=1)], [1, 1 / 2.6]
    )
    np.testing.assert_allclose(
        rate(np.arange(1, 13), decay=0.8, gap=2), 0.8 ** (14.0 - np.arange(1, 13)), rtol=1e-5
    )
    np.testing.assert_allclose([rate(12), rate(11), rate(0)], [1, 0.95, 0.95**12], rtol=1e-6)


def test_adaptations_reach_their_towers_alone():
    system = classifier("houlsby(width=3)")
    both = dataclasses.replace(system, towers={**system.towers, "teacher": system.towers["main"]})
    params = jax.eval_shape(step.program(both, 0).init, batch()).params
    assert any("after_ffn" in path for path in flatten(params["main"]))
    assert not any("after_ffn" in path for path in flatten(params["teacher"]))


def test_answers_of_a_filter():
    """Frozen for good, frozen by layer for good, frozen at some steps."""

    class Filter(slots.Wrapper):
        def trainable(self, path, step):
            return {"a": False, "b": np.array([True, False]), "c": step > 3, "d": True}[path]

    freedom = Freedom((Filter(),))
    assert [freedom.trains(path) for path in "abcd"] == [False, True, True, True]
    assert [freedom.varies(path) for path in "abcd"] == [False, False, True, False]
    np.testing.assert_array_equal(freedom.live("b", 0), [True, False])
    assert freedom.live("d", 0) is None and not freedom.live("c", 3) and freedom.live("c", 4)
