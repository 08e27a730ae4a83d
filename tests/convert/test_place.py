"""Shards are filled reading every part once."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from comparing import bits

from ptm_jax.convert import place
from ptm_jax.convert.formats import tensors
from ptm_jax.convert.table import Line


def boxes(shape: tuple[int, ...], axis: int, parts: int) -> set:
    """The bounds of equal parts of an array along an axis."""

    def cut(i, n):
        return (i * n // parts, (i + 1) * n // parts)

    return {
        tuple(cut(i, n) if a == axis else (0, n) for a, n in enumerate(shape)) for i in range(parts)
    }


def test_shards_are_filled_reading_every_part_once():
    turned = np.random.default_rng(4).random((3, 300, 256)).astype("f4").transpose(0, 2, 1)
    asked: list[tuple] = []

    def read(where):
        asked.append(where)
        return turned[where].copy()

    for axis, parts, lead, reads in (
        (1, 4, 1, 3),
        (2, 4, 1, 3),
        (0, 3, 1, 3),
        (0, 1, 1, 3),
        (2, 2, 0, 1),
    ):
        asked.clear()
        wanted = boxes(turned.shape, axis, parts)
        shards = place._shards(turned.shape, np.dtype("f4"), wanted, read, lead)
        assert set(shards) == wanted and len(asked) == reads
        for box, values in shards.items():
            assert bits(values) == bits(turned[tuple(slice(*bounds) for bounds in box)])
            assert values.flags.c_contiguous and values.ctypes.data % tensors.ALIGN == 0


def test_only_what_this_process_holds_is_read():
    truth = np.arange(4 * 6.0).reshape(4, 6)
    asked: list[tuple] = []
    wanted = {((1, 2), (0, 2)), ((3, 4), (4, 6))}
    shards = place._shards(
        (4, 6), np.dtype("f4"), wanted, lambda where: asked.append(where) or truth[where], 1
    )
    assert asked == [(slice(1, 2), slice(0, 6)), (slice(3, 4), slice(0, 6))]
    assert {box: values.tolist() for box, values in shards.items()} == {
        ((1, 2), (0, 2)): [[6, 7]],
        ((3, 4), (4, 6)): [[22, 23]],
    }
    assert place._shards((4, 6), np.dtype("f4"), set(), lambda where: 1 / 0, 1) == {}


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_shards_are_filled_by_blocks_of_rows(rows, monkeypatch):
    """Each element is read once, in blocks that are cut along one axis alone, turned or not."""
    monkeypatch.setattr(place, "_BLOCK", 400_000)
    truth = np.random.default_rng(6).random((2, 96, 40, 64)).astype("f4")
    stored = np.ascontiguousarray(np.moveaxis(truth, rows, 1))
    asked: list[tuple] = []

    def read(where):
        asked.append(where)
        return np.moveaxis(stored, 1, rows)[where]

    for axis, parts in ((1, 4), (2, 4), (3, 4), (0, 1)):
        asked.clear()
        wanted = boxes(truth.shape, axis, parts)
        shards = place._shards(truth.shape, np.dtype("f4"), wanted, read, 1, rows=rows)
        for box, values in shards.items():
            assert bits(values) == bits(truth[tuple(slice(*bounds) for bounds in box)])
        assert len(asked) > 2 and sum(truth[where].size for where in asked) == truth.size
        whole = [slice(0, n) for n in truth.shape]
        assert all(where[a] == whole[a] for where in asked for a in {1, 2, 3} - {rows})
        assert max(truth[where].nbytes for where in asked) <= 400_000


@pytest.mark.parametrize("theirs", [0, 1])
@pytest.mark.parametrize(
    ("line", "leaf", "shape"),
    [
        (Line("a", "b", "dense"), "kernel", (6, 8)),
        (Line("a", "b", "dense"), "kernel", (6, 4, 2)),
        (Line("a", "b", "dense", ins=2), "kernel", (4, 2, 6)),
        (Line("a", "b", "conv1d"), "kernel", (6, 4, 2)),
        (Line("a", "b", "conv1d", ins=2), "kernel", (4, 2, 6)),
        (Line("a", "b"), "plain", (6, 8)),
    ],
)
def test_the_axis_of_the_rows_cuts_theirs_there_alone(line, leaf, shape, theirs):
    axis, whole = line.axis(leaf, shape, theirs), line.theirs_of(leaf, shape)
    cut = line.window(
        leaf, tuple(slice(1, 3) if a == axis else slice(0, n) for a, n in enumerate(shape)), shape
    )
    assert [s.indices(n)[:2] == (0, n) for s, n in zip(cut, whole, strict=True)] == [
        theirs != 0,
        theirs != 1,
    ]
    for changes in ({"part": (0, 2)}, {"axes": (1, 0)}, {"shape": (48,)}, {"rows": (0, 9)}):
        assert dataclasses.replace(line, **changes).axis(leaf, shape, theirs) is None


def test_what_a_block_cannot_give_ends_the_import():
    def read(where):
        raise OSError(f"at {where[0].start}")

    wanted = {((0, 4000), (0, 200)), ((0, 4000), (200, 400))}
    with pytest.raises(OSError, match="at 0"):
        place._shards((4000, 400), np.dtype("f4"), wanted, read, 0, rows=0)


@pytest.mark.parametrize("shape", [(), (5,), (0, 3), (300, 400)])
def test_a_placed_array_has_the_values_read(shape):
    truth = np.random.default_rng(5).random(shape[::-1]).T
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    found = place.place(shape, np.float32, sharding, lambda where: truth[where])
    assert found.sharding == sharding and bits(np.asarray(found)) == bits(truth.astype("f4"))
    with pytest.raises(ValueError, match="read gave shape"):
        place.place((7,), np.float32, sharding, lambda where: truth)
