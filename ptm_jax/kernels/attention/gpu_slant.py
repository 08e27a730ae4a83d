"""Registers of a Hopper GPU and their layouts; scores by distance moved between lines and places.

A tile is in the layout of wgmma's accumulator. A product with the 128 lines that a tile reads of a
table goes through shared memory to its places, and back (`slanted`, `straightened`). Products of
keys have a line of registers for each key: their tile is turned on the way (`slanted_keys`,
`straightened_keys`).
"""

from __future__ import annotations

import inspect

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

SIZE = 64  # queries and keys of a tile: the height of a wgmma

WIDE = 2 * SIZE  # lines of a table of distances that one tile reads: 127, padded by one

TILE = plgpu.Layout.WGMMA

# A warp reads 32 numbers of one line, one per thread, so lines need no alignment. Threads are in
# pairs: JAX 0.11 reads groups of four by ldmatrix, which faults on lines that start anywhere.
LOOSE = plgpu.Layout.TILED(
    plgpu.Tiling(((4, 32), (2,), (1,))), warp_dims=(-4,), lane_dims=(-3, -2), vector_dim=-1
)

# A tile that was written line by line is read with its lines as columns, and the other way round.
TURNED = plgpu.Layout.WGMMA_TRANSPOSED

# JAX 0.10 requires an index beside the reference, 0.11 does not.
_INDEX = (
    ((),)
    if inspect.signature(plgpu.load).parameters["idx"].default is inspect.Parameter.empty
    else ()
)


def load(ref, layout, optimized: bool = True):
    """Loads a reference into registers; `optimized` refuses slow reads of shared memory."""
    return plgpu.load(ref, *_INDEX, layout=layout, optimized=optimized)


def zeros(width: int, lines: int = SIZE):
    return plgpu.layout_cast(jnp.zeros((lines, width), jnp.float32), TILE)


def slanted(slant, x):
    """Selects [64, 64] from [64, 128].

    Line i from column 63 - i on, the columns of distance j - i (`kernels.scores.skew`).

    It is a view of shared memory that reads lines of 128 as lines of 127.
    """
    wide, view, square = _views(slant)
    wide[...] = x
    square[...] = load(view, LOOSE, optimized=False)
    return load(square, TILE, optimized=False)


def straightened(slant, x):
    """The transpose of `slanted`, [64, 64] to [64, 128], with zeros elsewhere."""
    wide, view, square = _views(slant)
    square[...] = x
    loose = load(square, LOOSE, optimized=False)
    wide[...] = zeros(WIDE)
    view[...] = loose
    return load(wide, TILE, optimized=False)


def slanted_keys(slant, x):
    """The same for keys: selects a tile [64 queries, 64 keys] from [64 keys, 128 lines].

    The lines of keys are in the order of falling distances."""
    wide, view, square = _views(slant)
    wide[...] = x
    square[...] = load(view, LOOSE, optimized=False)
    by_query = load(square.transpose((1, 0)), TURNED, optimized=False)
    return plgpu.layout_cast(by_query, TILE)


def straightened_keys(slant, x):
    """The transpose of `slanted_keys`, [64 queries, 64 keys] to [64 keys, 128 lines]."""
    wide, view, square = _views(slant)
    square.transpose((1, 0))[...] = plgpu.layout_cast(x, TURNED)
    loose = load(square, LOOSE, optimized=False)
    wide[...] = zeros(WIDE)
    view[...] = loose
    return load(wide, TILE, optimized=False)


def _views(slant):
    view = (
        slant.at[pl.ds(SIZE - 1, SIZE * (WIDE - 1))].reshape(SIZE, WIDE - 1).at[:, pl.ds(0, SIZE)]
    )
    return slant.reshape(SIZE, WIDE), view, slant.at[pl.ds(0, SIZE * SIZE)].reshape(SIZE, SIZE)
