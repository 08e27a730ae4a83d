"""The named streams: rates, uniformity, independence, and the same draw under every slicing of the
batch."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core import streams

KEY = jax.random.key(7)
ROWS = jnp.arange(64)


def bits(key=KEY, rows=ROWS, shape=(1024,)):
    return np.asarray(streams.uniform_bits(key, rows, shape))


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.1, 0.15, 0.5, 0.9, 1.0])
def test_rates_lie_within_three_standard_errors(rate):
    keep = np.asarray(streams.keep_mask(KEY, ROWS, (64, 256), rate))
    error = np.sqrt(rate * (1 - rate) / keep.size)
    assert abs((1 - keep.mean()) - rate) <= 3 * error + 2.0**-32
    by_row = 1 - keep.reshape(len(ROWS), -1).mean(1)
    assert np.all(np.abs(by_row - rate) <= 5 * error * np.sqrt(len(ROWS)) + 2.0**-31)


def uneven(values):
    """How many standard deviations the chi-square over 256 bins (mean 255, variance 510) lies from
    its mean."""
    counts = np.bincount(values.reshape(-1), minlength=256)
    return abs(((counts - counts.mean()) ** 2 / counts.mean()).sum() - 255) / np.sqrt(510)


@pytest.mark.parametrize("shift", [0, 8, 16, 24])
def test_bytes_are_uniform(shift):
    assert uneven((bits() >> shift) & 255) < 5


def test_consecutive_draws_are_independent_pairs():
    low = (bits() >> 28).astype(np.int64)
    for other in (
        np.roll(low, 1, axis=1),
        np.roll(low, 1, axis=0),
    ):  # along the row, and between rows
        assert uneven(low * 16 + other) < 5


def test_keys_steps_and_names_give_unrelated_masks():
    keys = [
        KEY,
        jax.random.key(8),
        *(streams.stream(0, n, s) for n in ("dropout", "mask") for s in (0, 1)),
    ]
    masks = [np.asarray(streams.keep_mask(k, ROWS, (1024,), 0.5)).reshape(-1) for k in keys]
    limit = 4 * 0.5 / np.sqrt(masks[0].size)
    for a, b in itertools.combinations(masks, 2):
        assert abs((a == b).mean() - 0.5) < limit
        assert not any(np.array_equal(a[:4096], b[shift : 4096 + shift]) for shift in range(64))


def test_rows_are_unrelated_and_no_bits_repeat_by_shifting():
    drawn = bits(rows=jnp.asarray([0, 1, 2, 2**20, 2**31 - 1]))
    limit = 4 * 0.5 / np.sqrt(drawn.shape[1])
    signs = drawn >> 31
    for i, j in itertools.combinations(range(len(drawn)), 2):
        assert abs((signs[i] == signs[j]).mean() - 0.5) < limit
        assert len(np.intersect1d(drawn[i], drawn[j])) < 8


def test_a_slice_of_the_rows_draws_the_same_bits():
    whole = bits(shape=(8, 16))
    np.testing.assert_array_equal(whole[10:20], bits(rows=ROWS[10:20], shape=(8, 16)))
    np.testing.assert_array_equal(
        whole[[5, 3]], bits(rows=ROWS[jnp.asarray([5, 3])], shape=(8, 16))
    )
    jitted = jax.jit(lambda key, rows: streams.uniform_bits(key, rows, (8, 16)))
    np.testing.assert_array_equal(whole, jitted(KEY, ROWS))
    np.testing.assert_array_equal(
        whole.reshape(64, -1), bits(shape=(128,)), "whatever the shape of a row"
    )


def test_rows_of_too_many_elements_are_refused():
    with pytest.raises(ValueError, match="more than 2\\*\\*32"):
        jax.eval_shape(lambda: streams.uniform_bits(KEY, ROWS, (1 << 17, 1 << 17)))


def test_row_keys_and_streams_are_functions_of_their_arguments():
    def data(key):
        return np.asarray(jax.random.key_data(key))

    keys = data(streams.row_keys(KEY, ROWS))
    assert len(np.unique(keys, axis=0)) == len(ROWS)
    np.testing.assert_array_equal(keys[5:9], data(streams.row_keys(KEY, ROWS[5:9])))
    np.testing.assert_array_equal(
        data(streams.stream(3, "a", 4)), data(streams.stream(3, "a", jnp.int32(4)))
    )
    drawn = {
        tuple(data(streams.stream(s, n, t))) for s in (0, 1) for n in ("a", "b") for t in (0, 1)
    }
    assert len(drawn) == 8
