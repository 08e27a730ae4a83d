"""Integer weights and inputs of products: Q8BERT and dynamic quantisation.

Q8BERT: Zafrir et al. 2019, arXiv 1910.06188; dynamic quantisation of a trained model is its
baseline. The parameters of a quantised model are

    kernel          int8 matrix
    kernel_scale    scale of each column
    kernel_inputs   [range, levels] of the inputs; a range of 0: the greatest magnitude of each row
    <name>_scale    scale of an int8 embedding table

`nn.layers.Dense` and the embeddings compute with them (`kernels.integers`), so a quantised model
needs no wrapper. Softmax, LayerNorm, GELU and the products of attention without weights stay in
float32.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.compress.base import Compression
from ptm_jax.core import slots, towers
from ptm_jax.core.paths import flatten, matrix_of, unflatten
from ptm_jax.core.types import Array, Batch, Params
from ptm_jax.kernels.integers import LEAST

if TYPE_CHECKING:
    from ptm_jax.core.system import System
    from ptm_jax.core.types import Step


MATRICES = r"/(query|key|value|out|up|gate|down|dense)/kernel$"
TABLES = r"/embed/(token|type|position/table)$"


def levels_of(bits: Any) -> Any:
    """Returns the greatest whole number of symmetric quantisation, 2^(bits - 1) - 1.

    Zafrir et al., Eq. 2.
    """
    return 2.0 ** (np.asarray(bits) - 1) - 1


def check_bits(**fields: int | Sequence[int]) -> None:
    """Raises ValueError for a number of bits outside of 2 to 8."""
    for name, bits in fields.items():
        for one in bits if isinstance(bits, Sequence) else (bits,):
            if one not in range(2, 9):
                raise ValueError(
                    f"{name} is {bits}; whole numbers have 2 to 8 bits here, 8 is Q8BERT's"
                )


@dataclasses.dataclass(frozen=True)
class Grid:
    """The values that the columns of a matrix [.., I, O] may take.

    They are `scale` q + `offset`, for whole numbers q in [-low - 1, low] or, without `offset`, in
    [-low, low]. `scale` and `offset` are [.., O]; so is `low`, or broadcasts.
    """

    scale: Array
    offset: Array | None
    low: Any

    @classmethod
    def of(cls, matrix: Array, bits: Any, groups: int | None = 1, symmetric: bool = True) -> Grid:
        """Returns the grid of a matrix by the extreme weights of each group of columns.

        bits    2 to 8, or [N, 1] of the layers
        groups  number of groups of neighbouring columns of one range; None: each column. A matrix
                of fewer columns has one a column
        Raises ValueError if the columns cannot be so many groups."""
        columns = matrix.shape[-1]
        groups = columns if groups is None else min(groups, columns)
        if columns % groups:
            raise ValueError(
                f"{columns} columns cannot be {groups} groups of one size; choose a divisor"
            )
        grouped = matrix.reshape(*matrix.shape[:-1], groups, columns // groups)

        def spread(x):
            return jnp.repeat(x, columns // groups, -1)

        if symmetric:
            low = levels_of(bits)
            return cls(spread(jnp.maximum(jnp.abs(grouped).max((-3, -1)), LEAST) / low), None, low)
        least, largest = grouped.min((-3, -1)), grouped.max((-3, -1))
        step = jnp.maximum(largest - least, LEAST) / (2.0 ** np.asarray(bits) - 1)
        low = levels_of(bits)
        return cls(spread(step), spread(least + (low + 1) * step), low)

    def whole(self, matrix: Array) -> Array:
        """Returns the integers [.., I, O] int8 nearest to the weights; halves round to the
        even number."""
        shifted = matrix if self.offset is None else matrix - self.offset[..., None, :]
        low = jnp.asarray(self.low)[..., None] if np.ndim(self.low) else self.low
        least = -low if self.offset is None else -low - 1
        return jnp.clip(jnp.round(shifted / self.scale[..., None, :]), least, low).astype(jnp.int8)

    def real(self, integers: Array) -> Array:
        """Returns the weights that integers represent."""
        weights = integers.astype(jnp.float32) * self.scale[..., None, :]
        return weights if self.offset is None else weights + self.offset[..., None, :]


def straight(x: Array, rounded: Array) -> Array:
    """Returns `rounded` with the gradient of x (Bengio et al. 2013, arXiv 1308.3432, section 4)."""
    return x + jax.lax.stop_gradient(rounded - x)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Int8(Compression):
    """Quantises a trained model dynamically, without training.

    Weights are rounded once, the inputs of each product by the greatest magnitude of their row (the
    baseline DQ of Zafrir et al. 2019, Table 1, who take one range of a whole batch: a row's result
    then depends on the others).

    bits         bits of the weights
    groups       number of ranges of a matrix; None: one for each column
    input_bits   bits of the inputs of products
    table_bits   bits of the embedding tables, which have one range each
    rows         number of training examples for measuring the range of each product's inputs, their
                 greatest magnitude (static quantisation); 0: dynamic
    matrices     path pattern of the kernels of dense layers
    tables       path pattern of the embedding tables
    """

    bits: int = 8
    groups: int | None = None
    input_bits: int = 8
    table_bits: int = 8
    rows: int = 0
    matrices: str = MATRICES
    tables: str = TABLES
    towers: tuple[str, ...] = ("main",)

    trains = False
    symmetric = True

    def __post_init__(self):
        check_bits(bits=self.bits, input_bits=self.input_bits, table_bits=self.table_bits)
        if self.groups is not None and self.groups < 1:
            raise ValueError(
                f"groups is {self.groups}; it must be at least 1, or None for a range of "
                "each column"
            )
        if self.rows < 0:
            raise ValueError(
                f"rows is {self.rows}; it must be a number of training examples, 0 for "
                "dynamic ranges"
            )

    def of(self, params: Params) -> dict[str, tuple[int, ...]]:
        """Returns {path: (layers .., in, out)} of the matrices.

        Raises ValueError if there is none.
        """
        flat = {
            path: leaf.shape
            for path, leaf in flatten(params).items()
            if path.partition("/")[0] in self.towers
        }
        matrices = {
            path: matrix_of(path, shape)
            for path, shape in flat.items()
            if re.search(self.matrices, path)
        }
        if not matrices:
            raise ValueError(
                f"matrices={self.matrices!r} finds no kernel; name some of the model's, as "
                "'/up/kernel$'"
            )
        return matrices

    def bits_of(self, path: str, layers: tuple[int, ...]) -> Any:
        """Returns the bits of a matrix, or [N, 1] of the layers of a stack."""
        return self.bits

    def inputs(self, layers: tuple[int, ...], limit: Any = 0.0) -> Array:
        """Returns `kernel_inputs` [layers .., 2] of a matrix."""
        limit = jnp.broadcast_to(jnp.asarray(limit, jnp.float32), layers)
        return jnp.stack([limit, jnp.full(layers, levels_of(self.input_bits), jnp.float32)], -1)

    def grid(self, path: str, leaf: Array, shape: tuple[int, ...]) -> Grid:
        """Returns the grid of a matrix of this shape (layers .., in, out)."""
        bits = self.bits_of(path, shape[:-2])
        try:
            return Grid.of(leaf.reshape(shape), bits, self.groups, self.symmetric)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def table(self, table: Array) -> tuple[Array, Array]:
        """Returns the integers [V, D] int8 of a table, and the value of one step."""
        low = levels_of(self.table_bits)
        scale = jnp.maximum(jnp.abs(table).max(), LEAST) / low
        return jnp.clip(jnp.round(table / scale), -low, low).astype(jnp.int8), scale

    def whole(self, params: Params, limits: Any = None) -> Params:
        """Returns the parameters with matrices and tables as integers.

        `limits`: ranges of inputs by path, or None.
        """
        flat = flatten(params)
        for path, shape in self.of(params).items():
            if flat[path].dtype == jnp.int8:
                continue
            place, layers, limit = (
                path.removesuffix("kernel"),
                shape[:-2],
                (limits or {}).get(path, 0.0),
            )
            grid = self.grid(path, flat[path], shape)
            width = flat[path].shape[len(layers) :][sides_of(shape, flat[path].shape) :]

            def fit(leaf, layers=layers, width=width):
                return leaf.reshape(*layers, *width)

            flat[path] = grid.whole(flat[path].reshape(shape)).reshape(flat[path].shape)
            flat[f"{path}_scale"], flat[f"{path}_inputs"] = (
                fit(grid.scale),
                self.inputs(layers, limit),
            )
            if grid.offset is not None:
                flat[f"{path}_offset"] = fit(grid.offset)
            if (
                f"{place}bias" in flat
            ):  # to the steps of the product's sums (Zafrir et al., section 3.1)
                unit = fit(
                    grid.scale * flat[f"{path}_inputs"][..., :1] / flat[f"{path}_inputs"][..., 1:2]
                )
                bias = flat[f"{place}bias"]
                flat[f"{place}bias"] = jnp.where(
                    unit > 0, jnp.round(bias / jnp.maximum(unit, LEAST)) * unit, bias
                )
        for path in [
            path
            for path in flat
            if re.search(self.tables, path) and path.partition("/")[0] in self.towers
        ]:
            if flat[path].dtype != jnp.int8:
                flat[path], flat[f"{path}_scale"] = self.table(flat[path])
        return unflatten(flat)

    def watched(self, params: Params, keep: float = 0.0) -> Params:
        """Returns the parameters with what lets `nn.layers.Dense` see its inputs; a step keeps
        `keep` of a range."""
        flat = flatten(params)
        for path, shape in self.of(params).items():
            layers = shape[:-2]
            self.grid(path, flat[path], shape)
            flat[f"{path}_inputs"] = jnp.concatenate(
                [self.inputs(layers), jnp.full((*layers, 1), keep)], -1
            )
            flat[f"{path}_seen"] = jnp.zeros((*layers, 2))
        return unflatten(flat)

    def ranges(self, system: System, params: Params, batches: Iterable[Batch]) -> dict[str, Array]:
        """Returns the greatest magnitude of each matrix's inputs over batches, by path [layers ..].

        Raises ValueError without a batch.
        """
        objective, magnitudes = slots.objective(system.objective), {}

        def loss(trained, batch):
            return objective(towers.bind(system.towers, trained), batch, jax.random.key(0)).value()

        see, watched = jax.jit(jax.grad(loss)), self.watched(params)
        for batch in batches:
            for path, leaf in flatten(see(watched, batch)).items():
                if path.endswith("_seen"):
                    now = leaf[..., 0] / jnp.maximum(leaf[..., 1], 1)
                    magnitudes[path.removesuffix("_seen")] = jnp.maximum(
                        magnitudes.get(path.removesuffix("_seen"), 0.0), now
                    )
        if not magnitudes:
            raise ValueError(
                "ranges are measured on training examples, and there is none; give --data, "
                "or rows=0"
            )
        return magnitudes

    def smaller(
        self, system: System, params: Params, batches: Iterable[Batch]
    ) -> tuple[Any, Params]:
        return system, self.whole(
            params, self.ranges(system, params, batches()) if self.rows else None
        )


def sides_of(shape: tuple[int, ...], kernel: tuple[int, ...]) -> int:
    """Returns the number of input axes of a kernel whose matrix is `shape`.

    The kernel is [layers .., in .., out ..].
    """
    inner, size, count = kernel[len(shape) - 2 :], 1, 0
    while size < shape[-2]:
        size, count = size * inner[count], count + 1
    return max(count, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Q8BERT(Int8):
    """Fine-tunes a model that rounds its weights and inputs to 8 bits.

    Zafrir et al. 2019: symmetric linear quantisation of all dense layers and embeddings, one range
    a matrix; the range of a layer's inputs is the moving mean of their greatest magnitude over the
    steps. Weights and inputs are rounded in the forward pass, gradients pass straight through.

    decay    decay of the moving means

    As in nlp-architect, ranges begin with the first batch, and the range of a step counts its batch
    already. Deviation: results of products are not rounded again (`requantize_output`), because
    float32 layers read them.
    """

    groups: int | None = 1
    decay: float = 0.9999

    trains = True
    owns = r"/kernel_(inputs|seen)$"
    observes = r"/kernel_seen$"
    logical_axes = {"kernel_inputs": (None,), "kernel_seen": (None,)}

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay is {self.decay}; it must be at least 0 and below 1")

    def init(self, params: Params, source: Params | None) -> Params:
        return self.watched(params, self.decay)

    def trainable(self, path: str, step: Step) -> bool:
        return not path.endswith("/kernel_inputs")

    def on_step(self, params: Params, step: Step) -> Params:
        """Moves the ranges by the mean of the greatest magnitudes of the forward passes of the
        step."""
        flat = flatten(params)
        for path in [path for path in flat if re.search(self.observes, path)]:
            place = f"{path.removesuffix('seen')}inputs"
            total, count = flat[path][..., 0], flat[path][..., 1]
            now, old = total / jnp.maximum(count, 1.0), flat[place]
            moved = jnp.where(
                old[..., 0] > 0, old[..., 0] - (1 - old[..., 2]) * (old[..., 0] - now), now
            )
            flat[place] = old.at[..., 0].set(jnp.where(count > 0, moved, old[..., 0]))
            flat[path] = jnp.zeros_like(flat[path])
        return unflatten(flat)

    def effective(self, params: Params, train: bool) -> Params:
        """Returns the rounded weights in float32; in evaluation the served model's weights."""
        flat = flatten(params)
        if not train:
            limits = {path: flat.get(f"{path}_inputs") for path in self.of(params)}
            limits = {path: leaf[..., 0] for path, leaf in limits.items() if leaf is not None}
            return self.whole(self.finish(params), limits)
        for path, shape in self.of(params).items():
            matrix, grid = flat[path].reshape(shape), self.grid(path, flat[path], shape)
            flat[path] = straight(matrix, grid.real(grid.whole(matrix))).reshape(flat[path].shape)
        for path in [
            path
            for path in flat
            if re.search(self.tables, path) and path.partition("/")[0] in self.towers
        ]:
            integers, scale = self.table(flat[path])
            flat[path] = straight(flat[path], integers.astype(jnp.float32) * scale)
        return unflatten(flat)

    def finish(self, params: Params) -> Params:
        """Returns the trained parameters in float32."""
        return unflatten(
            {path: leaf for path, leaf in flatten(params).items() if not re.search(self.owns, path)}
        )

    def smaller(
        self, system: System, params: Params, batches: Iterable[Batch]
    ) -> tuple[Any, Params]:
        return system, params  # `effective` has made it
