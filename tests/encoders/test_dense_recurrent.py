"""Densely connected recurrent layers in numpy, the mask of the layers, its penalty, and the encoder
without some of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.core.errors import UserError
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Loss, Vocab
from ptm_jax.encoders.recurrent.dense_recurrent import DenseBiLSTM, pruned
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.recurrent.lstm import LSTM
from ptm_jax.objectives.tasks.layer_choice import Selecting
from ptm_jax.systems.recurrent import ld_net
from support import bare_layers
from support.recurrences import defined, lstm

VOCAB = Vocab(size=9, pad=0, eos=1, unk=2)


def encoder_of(right, left, **fields):
    """Layers of two units each."""
    ways = {
        "right": tuple(LSTM(2) for _ in range(right)),
        "left": tuple(LSTM(2, backward=True) for _ in range(left)),
    }
    return DenseBiLSTM(embed=Embeddings(vocab=VOCAB, width=3), features=4, **ways, **fields)


ENCODER = encoder_of(3, 3, selects=True)
BATCH = {
    "input_ids": jnp.asarray([[3, 5, 8, 4, 4], [7, 3, 6, 0, 0]]),
    "segment_ids": jnp.asarray([[1, 1, 1, 2, 2], [1, 1, 1, 0, 0]]),
}
MASK = np.array([[1.0, 0.0, 0.5], [0.0, 0.25, 1.5]], np.float32)


@pytest.fixture(scope="module")
def params():
    return {**bare_layers.drawn(ENCODER, BATCH), "mask": MASK}


@pytest.fixture(scope="module")
def states(params):
    return np.asarray(bare_layers.run(ENCODER, params, BATCH).hidden)


def test_a_layer_reads_the_words_and_all_layers_below_it(params, states):
    z = np.clip(MASK, 0, 1)
    for row in range(2):
        segments, found = np.asarray(BATCH["segment_ids"])[row], []
        for number, way in enumerate(("right", "left")):
            x = params["embed"]["token"][np.asarray(BATCH["input_ids"])[row]]
            for layer in range(3):
                h = defined(lstm, params[f"{way}_{layer}"], x, segments, backward=way == "left")[0]
                x = np.concatenate([x, z[number, layer] * h], -1)
            found.append(np.maximum(bare_layers.dense(params[f"{way}_features"], x), 0))
        np.testing.assert_allclose(states[row], np.concatenate(found, -1), atol=1e-5)


def test_without_the_layers_of_no_weight_the_states_are_the_same(params, states):
    encoder, smaller = pruned(ENCODER, params, {"right": (0, 2), "left": (2, 1)})
    assert (
        len(encoder.right) == len(encoder.left) == 2
        and not encoder.selects
        and "mask" not in smaller
    )
    found = bare_layers.run(encoder, smaller, BATCH).hidden
    np.testing.assert_allclose(found, states, atol=1e-5)
    encoder, smaller = pruned(ENCODER, params, {"right": (), "left": (1,)})
    shapes = jax.tree.map(np.shape, bare_layers.drawn(encoder, BATCH))
    assert shapes == jax.tree.map(np.shape, smaller)
    with pytest.raises(UserError, match="layers 0 to 2"):
        pruned(ENCODER, params, {"right": (3,), "left": ()})


@pytest.mark.full
@pytest.mark.parametrize("most", [3, 4])
def test_the_penalty_and_its_gradient(most):
    """R_3: 2 layers stay of the right direction and 2 of the left, one of them cut to 1."""
    task = type(
        "Task",
        (),
        {"tower": "main", "__call__": lambda *given: Loss(jnp.float32(6.0), jnp.float32(3.0))},
    )()
    objective = Selecting(task=task, strength=0.1, limit=most)

    def loss(mask):
        return objective({"main": Tower(None, {"encoder": {"mask": mask}})}, {}, None)

    z, over = np.clip(MASK, 0, 1), float(most < 4)
    value, slope = jax.value_and_grad(lambda mask: loss(mask).value())(jnp.asarray(MASK))
    np.testing.assert_allclose(value, 2 + 0.1 * (over * z.sum() + (z * (1 - z)).sum()), atol=1e-6)
    np.testing.assert_allclose(slope, 0.1 * (over + 1 - 2 * z), atol=1e-6)
    assert float(loss(jnp.asarray(MASK)).metrics["layers"].value()) == 4


@pytest.mark.full
def test_layer_wise_dropout_leaves_whole_layers_out_of_those_above(params):
    """Of 200 steps, the share of those in which the first layer of a direction reaches the second
    is 1 in 2."""
    encoder = encoder_of(2, 1, layer_drop=0.5)
    drawn = bare_layers.drawn(encoder, BATCH)
    run = jax.jit(
        lambda key: encoder.apply(
            {"params": drawn}, BATCH, train=True, rngs={"dropout": key}
        ).extra["forward"]
    )
    found = np.stack([np.asarray(run(key)) for key in jax.random.split(jax.random.key(0), 200)])
    values, counts = np.unique(found.reshape(200, -1), axis=0, return_counts=True)
    assert len(values) == 2 and abs(counts[0] / 200 - 0.5) < 3 * 0.5 / 200**0.5


def test_a_task_that_selects_trains_the_mask_in_its_bounds_and_the_projections_of_the_encoder():
    system = ld_net.selecting(systems.get("ld_net_mini"), rate=7.0)
    encoder, (frozen, *_, bounded, rates) = system.towers["main"].encoder, system.adapt
    assert encoder.selects and encoder.layer_drop == 0 and isinstance(system.objective, Selecting)
    paths = (
        "encoder/mask",
        "encoder/left_features/kernel",
        "encoder/right_0/state",
        "heads_lm/table",
    )
    assert [frozen.trainable(f"main/{path}", 0) for path in paths] == [True, True, False, True]
    assert [rates.rate(f"main/{path}") for path in paths] == [7, 1, 1, 1]
    after = bounded.on_step({"main": {"encoder": {"mask": MASK, "bias": MASK}}}, 0)["main"][
        "encoder"
    ]
    np.testing.assert_array_equal(after["mask"], [[1, 0, 0.5], [0, 0.25, 1]])
    np.testing.assert_array_equal(after["bias"], MASK)
