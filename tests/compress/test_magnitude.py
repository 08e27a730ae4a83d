"""Pruning by magnitude: the schedule and the masks against numpy, and what a run keeps."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.compress import catalogue
from ptm_jax.compress.pruning.magnitude import PLACE, mask_of, share_at
from ptm_jax.core.paths import flatten
from ptm_jax.core.system import in_effect
from support.classifier import classifier, run

UP = "main/encoder/stack/block/ffn/up/kernel"


def pruned(text, **options):
    return dataclasses.replace(classifier(**options), compress=catalogue.read_all([text]))


def zeros(leaf):
    return np.mean(np.asarray(leaf) == 0, axis=tuple(range(1, leaf.ndim)))


def test_the_cubic_schedule():
    """Zhu & Gupta's Eq. 1 by hand: s_f = 0.8 from step 10 to 50."""
    found = [float(share_at(step, 0.8, 10, 50)) for step in (0, 10, 20, 30, 40, 50, 90)]
    np.testing.assert_allclose(
        found, [0, 0, 0.8 * (1 - 27 / 64), 0.8 * 7 / 8, 0.8 * 63 / 64, 0.8, 0.8], rtol=1e-6
    )


@pytest.mark.parametrize(
    ("path", "shape", "matrices"),
    [
        ("ffn/up/kernel", (3, 4, 5), 3),
        ("attention/query/kernel", (2, 4, 2, 3), 2),
        ("attention/out/kernel", (2, 2, 3, 4), 2),
        ("embed/token", (7, 4), 1),
    ],
)
def test_each_matrix_of_each_layer_loses_its_smallest_weights(path, shape, matrices):
    weights = np.random.default_rng(0).normal(size=shape).astype(np.float32) * np.arange(
        1, shape[0] + 1
    ).reshape(-1, *[1] * (len(shape) - 1))
    mask = np.asarray(mask_of(f"main/encoder/{path}", jnp.asarray(weights), 0.3)).reshape(
        matrices, -1
    )
    for kept, matrix in zip(mask, weights.reshape(matrices, -1), strict=True):
        smallest = np.argsort(np.abs(matrix))[: round(0.3 * matrix.size)]
        np.testing.assert_array_equal(np.flatnonzero(kept == 0), np.sort(smallest))


@pytest.mark.full
def test_the_masks_nest_and_follow_the_schedule():
    trace = run(pruned("magnitude(share=0.75, begin=0, end=0.5, every=1)", steps=8), 6)
    shares = [zeros(np.asarray(trace.params(number)[f"{PLACE}/{UP}"])) for number in range(7)]
    expected = [round(float(share_at(number, 0.75, 0, 4)) * 96) / 96 for number in range(7)]
    np.testing.assert_allclose(
        np.stack(shares), np.repeat(np.array(expected)[:, None], 3, 1), atol=1e-6
    )
    for number in range(6):
        old, new = (trace.params(n)[f"{PLACE}/{UP}"] for n in (number, number + 1))
        assert not np.any((old == 0) & (new != 0))
    params = flatten(in_effect(trace.program.system, trace.states[-1].params))
    assert not any(path.startswith(PLACE) for path in params)
    np.testing.assert_array_equal(zeros(params[UP]), [0.75] * 3)
    assert zeros(params["main/encoder/stack/block/ffn/up/bias"]).max() < 0.1


@pytest.mark.full
@pytest.mark.parametrize("restore", [None, "zero", "random", "initial"])
def test_before_training_the_pruned_weights_stay_zero_or_begin_anew(restore):
    """Information deletion: the weights are free again, from zero or from noise; their old values
    are the control."""
    text = (
        f"magnitude(share=0.5, when='before', restore={restore!r})"
        if restore
        else "magnitude(share=0.5, when='before')"
    )
    given = run(classifier(), 0).states[0].params
    trace = run(pruned(text), 1, given)
    begun, old = (
        in_effect(trace.program.system, trace.states[0].params),
        np.asarray(flatten(given)[UP]),
    )
    begun, gone = (
        np.asarray(flatten(begun)[UP]),
        np.asarray(mask_of(UP, jnp.asarray(old), 0.5)) == 0,
    )
    np.testing.assert_array_equal(begun[~gone], old[~gone])
    after = np.asarray(flatten(in_effect(trace.program.system, trace.states[1].params))[UP])
    if restore is None:
        assert not begun[gone].any() and not after[gone].any()
    else:
        assert {
            "zero": not begun[gone].any(),
            "initial": (begun == old).all(),
            "random": begun[gone].all(),
        }[restore]
        assert (after != begun)[gone].mean() > 0.9
    if restore == "random":
        assert not (begun == old)[gone].any() and 0.5 < begun[gone].std() / old.std() < 2


def test_what_it_refuses():
    for text, words in (
        ("magnitude(share=1.0)", "share is 1.0; it must be at least 0 and below 1"),
        ("magnitude(share=-0.1)", "share is -0.1"),
        ("magnitude(begin=0.9, end=0.1)", "begin 0.9, end 0.1"),
        ("magnitude(restore='zero')", "it is for when='before'"),
    ):
        with pytest.raises(Exception, match=words.replace("(", r"\(")):
            catalogue.read(text)
    with pytest.raises(ValueError, match="find no weight; name some"):
        catalogue.read("magnitude(targets='nothing', when='after')").smaller(
            None, {"main": {"a": jnp.ones(3)}}, None
        )
