"""Shards are filled reading every part once."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from comparing import bits

from ptm_jax.convert import formats, place


def test_shards_are_filled_reading_every_part_once():
    truth = np.random.default_rng(4).random((3, 300, 256)).astype("f4")
    asked: list[tuple] = []

    def read(where):
        asked.append(where)
        return truth.transpose(0, 2, 1)[where].copy().transpose(0, 2, 1).transpose(0, 2, 1)

    turned = truth.transpose(0, 2, 1)
    boxes = lambda axis, parts: {
        tuple((i * n // parts, (i + 1) * n // parts) if a == axis else (0, n) for a, n in enumerate(turned.shape))
        for i in range(parts)
    }
    for wanted, lead, reads in (
        (boxes(1, 4), 1, 3),
        (boxes(2, 4), 1, 3),
        (boxes(0, 3), 1, 3),
        (boxes(0, 1), 1, 3),
        (boxes(2, 2), 0, 1),
    ):
        asked.clear()
        shards = place._shards(turned.shape, np.dtype("f4"), wanted, read, lead)
        assert set(shards) == wanted and len(asked) == reads
        for box, values in shards.items():
            assert bits(values) == bits(turned[tuple(slice(*bounds) for bounds in box)])
            assert values.flags.c_contiguous and values.ctypes.data % formats.ALIGN == 0


def test_only_what_this_process_holds_is_read():
    truth = np.arange(4 * 6.0).reshape(4, 6)
    asked: list[tuple] = []
    wanted = {((1, 2), (0, 2)), ((3, 4), (4, 6))}
    shards = place._shards((4, 6), np.dtype("f4"), wanted, lambda where: asked.append(where) or truth[where], 1)
    assert asked == [(slice(1, 2), slice(0, 6)), (slice(3, 4), slice(0, 6))]
    assert {box: values.tolist() for box, values in shards.items()} == {
        ((1, 2), (0, 2)): [[6, 7]],
        ((3, 4), (4, 6)): [[22, 23]],
    }
    assert place._shards((4, 6), np.dtype("f4"), set(), lambda where: 1 / 0, 1) == {}


@pytest.mark.parametrize("shape", [(), (5,), (0, 3), (300, 400)])
def test_a_placed_array_has_the_values_read(shape):
    truth = np.random.default_rng(5).random(shape[::-1]).T
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    found = place.place(shape, np.float32, sharding, lambda where: truth[where])
    assert found.sharding == sharding and bits(np.asarray(found)) == bits(truth.astype("f4"))
    with pytest.raises(ValueError, match="read gave shape"):
        place.place((7,), np.float32, sharding, lambda where: truth)
