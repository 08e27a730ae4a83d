"""XLNet's memory: the first part of a row, in either direction, equal to one long row."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_xl import LENGTH, begin, draw, encoder

from ptm_jax.core.spec import respell
from ptm_jax.encoders.transformer.xlnet import XLNetEncoder
from ptm_jax.nn.attention.directed import DirectedScores
from ptm_jax.nn.attention.relative import ShiftedScores


def like(module, memory, reuse=0.5):
    """The encoder as an `XLNetEncoder` whose scores know directions."""
    module = respell(
        module,
        ShiftedScores,
        lambda s: DirectedScores(segments=s.segments, initializer=s.initializer),
    )
    fields = {
        f.name: getattr(module, f.name)
        for f in dataclasses.fields(module)
        if f.name not in ("parent", "name")
    }
    return XLNetEncoder(**{**fields, "memory": memory}, reuse=reuse)


@pytest.fixture(scope="module")
def one_layer():
    """Of one layer: what is remembered are token vectors, so that memory and row equal one long
    row."""
    module = like(encoder(layers=1, direction="bidirectional"), memory=4)
    batch = {"input_ids": draw(), "backward": jnp.zeros(2, jnp.int32)}
    return module, *begin(module, batch)


@pytest.mark.full
def test_memory_and_row_equal_one_long_row_in_both_directions(one_layer):
    module, run, params = one_layer
    first, second, sides = draw(seed=1), draw(seed=2), jnp.asarray([0, 1])
    memory = run(
        params, {"input_ids": first, "backward": sides, "carry": module.empty_memory(2)}
    ).memory
    np.testing.assert_array_equal(memory["segments"], [[0, 1, 1, 1]] * 2)
    found = run(params, {"input_ids": second, "backward": sides, "carry": memory})
    np.testing.assert_array_equal(found.memory["segments"], [[1] * 4] * 2)
    # 3 of the first row are remembered; the second row of the batch lies from right to left.
    whole = np.concatenate([np.asarray(first)[:, :3], np.asarray(second)], 1)
    forward = run(params, {"input_ids": jnp.asarray(whole[:1])}).hidden[0, 3:]
    backward = run(params, {"input_ids": jnp.asarray(whole[1:, ::-1])}).hidden[0, ::-1][3:]
    np.testing.assert_allclose(found.hidden[0], forward, atol=2e-5, rtol=1e-5)
    np.testing.assert_allclose(found.hidden[1], backward, atol=2e-5, rtol=1e-5)
    turned = run(params, {"input_ids": jnp.asarray(whole[1:])}).hidden[0, 3:]
    assert np.abs(found.hidden[1] - turned).max() > 1e-2


def test_places_of_tokens_keep_their_meaning(one_layer):
    """As a corruption writes them: the same row with and without, and turned round."""
    module, run, params = one_layer
    batch, slots = (
        {"input_ids": draw(seed=1), "backward": jnp.asarray([1, 1])},
        jnp.arange(LENGTH)[None],
    )
    places = jnp.concatenate([slots, -slots])
    found = run(params, {**batch, "places": places})
    wanted = run(params, {**batch, "backward": jnp.asarray([0, 1])})
    np.testing.assert_allclose(found.hidden, wanted.hidden, atol=2e-5, rtol=1e-5)


@pytest.mark.full
def test_it_holds_the_first_part_of_the_last_rows():
    module = like(encoder(direction="bidirectional"), memory=5, reuse=1 / 3)
    ids, types = (
        draw(length=2 * LENGTH),
        jnp.asarray(np.tile([0, 0, 0, 1, 1, 2], (2, 1)), jnp.int32),
    )
    run, params = begin(module, {"input_ids": ids[:, :LENGTH], "token_type_ids": types})
    carry, inputs = module.empty_memory(2), []
    for start in (0, LENGTH):
        out = run(
            params,
            {"input_ids": ids[:, start : start + LENGTH], "token_type_ids": types, "carry": carry},
        )
        inputs.append(np.moveaxis(np.asarray(out.layers[:-1]), 0, 1)[:, :, :2])
        carry = out.memory
    wanted = np.concatenate([np.zeros_like(inputs[0][:, :, :1]), *inputs], 2)
    np.testing.assert_array_equal(carry["layers"], wanted)
    np.testing.assert_array_equal(carry["segments"], [[0, 1, 1, 1, 1]] * 2)
    assert not np.asarray(carry["types"]).any()
    alone = run(params, {"input_ids": ids[:, :LENGTH], "token_type_ids": types})
    np.testing.assert_array_equal(
        alone.memory["layers"], np.moveaxis(np.asarray(alone.layers[:-1]), 0, 1)[:, :, :2]
    )
    assert like(encoder(), memory=0).empty_memory(2) is None


def test_no_gradient_flows_into_what_is_remembered(one_layer):
    module, run, params = one_layer
    batch = {"input_ids": draw(), "backward": jnp.asarray([0, 1])}

    def loss(token):
        return (run({**params, "embed": {"token": token}}, batch).memory["layers"] ** 2).sum()

    assert (jax.jit(jax.grad(loss))(params["embed"]["token"]) == 0).all()


@pytest.mark.full
def test_padding_sees_itself_beside_the_text(one_layer):
    """As if it were the last token of the text, which the text does not see."""
    module, run, params = one_layer
    alone = dataclasses.replace(module, alone=True, reuse=2)
    pads = jax.jit(lambda batch: alone.apply({"params": params}, batch))
    ids, segments = draw(), jnp.asarray([[1] * 4 + [0] * 2] * 2, jnp.int32)
    batch = {"input_ids": ids, "segment_ids": segments}
    found, plain = pads(batch), run(params, batch)
    np.testing.assert_allclose(found.hidden[:, :4], plain.hidden[:, :4], atol=1e-6)
    text = run(params, {"input_ids": ids, "segment_ids": segments.at[:, 4].set(1)})
    np.testing.assert_allclose(found.hidden[:, 4], text.hidden[:, 4], atol=2e-5)
    assert np.abs(found.hidden[:, 4] - plain.hidden[:, 4]).max() > 1e-2
    assert found.memory["segments"].shape == (
        2,
        2,
    )  # `reuse` places of the row, whatever its length
