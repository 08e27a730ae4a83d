"""Rename tables as data: a line says which tensors of a published checkpoint are which parameters of ours.

Line("encoder/stack/block/ffn/up", "bert.encoder.layer.{i}.intermediate.dense", "dense")

`{i}` in the published name counts what our array stacks on its first axis (layers, or ALBERT's groups), `{j}` on its
second. The same line serves both directions.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import numpy as np

Kind = Literal["dense", "conv1d", "norm", "plain"]


@dataclasses.dataclass(frozen=True)
class Line:
    """One row of a table: `ours`, a path (of a layer, or of one parameter where `kind` is "plain"), and `theirs`.

    dense   kernel [..in, ..out] is `weight` [out, in] of torch's Linear, flat; `ins` of our axes are inputs; bias is bias
    conv1d  the same without the transpose (GPT's Conv1D)
    norm    scale is `weight`, bias is `bias`
    plain   the array itself; `axes` permutes their axes into ours, as in numpy's transpose
    part    (index, of): ours is one of equal parts of theirs along the output (GPT-2's c_attn)
    rows    (first, of): ours is the rows of theirs from `first`, which has `of` (a vocabulary in clusters)
    shape   of theirs, for plain lines where it differs from ours by axes of size 1 or by a flattening; -1 as in numpy's
    """

    ours: str
    theirs: str
    kind: Kind = "plain"
    ins: int = 1
    axes: tuple[int, ...] | None = None
    part: tuple[int, int] | None = None
    rows: tuple[int, int] | None = None
    shape: tuple[int, ...] | None = None

    @property
    def depth(self) -> int:
        """How many axes of ours the published names count."""
        return sum(mark in self.theirs for mark in ("{i}", "{j}"))

    def leaf(self, path: str) -> tuple[str, str] | None:
        """(published name with its marks, which leaf) of our path; None where the line says nothing of it."""
        if self.kind == "plain":
            return (self.theirs, "plain") if path == self.ours else None
        layer, _, leaf = path.rpartition("/")
        if layer != self.ours:
            return None
        named = {"kernel": "weight", "scale": "weight", "bias": "bias"}.get(leaf)
        return None if named is None else (f"{self.theirs}.{named}", leaf)

    def read(self, tensor: np.ndarray, leaf: str, shape: tuple[int, ...]) -> np.ndarray:
        """Our array of one layer, [`shape`], of one published tensor (a view where that is possible).

        Raises ValueError where the tensor has another number of elements than the parameter.
        """
        if leaf == "kernel" and self.kind == "dense":
            tensor = tensor.T
        if self.part is not None:
            index, of = self.part
            if tensor.shape[-1] % of:
                raise ValueError(f"its {tensor.shape[-1]} columns are not {of} equal parts")
            size = tensor.shape[-1] // of
            tensor = tensor[..., index * size : (index + 1) * size]
        if self.rows is not None:
            tensor = tensor[self.rows[0] : self.rows[0] + shape[0]]
        if self.axes is not None:
            if tensor.ndim != len(self.axes):
                raise ValueError(f"it has {tensor.ndim} axes, not {len(self.axes)}")
            tensor = tensor.transpose(self.axes)
        if self._flat(leaf, shape) != self._flat(leaf, tensor.shape, theirs=True):
            raise ValueError("another shape")
        return tensor.reshape(shape)

    def write(self, array: np.ndarray, leaf: str) -> np.ndarray:
        """The published tensor (or its part) of our array of one layer."""
        if leaf == "kernel":
            array = array.reshape(math.prod(array.shape[: self.ins]), -1)
            array = array.T if self.kind == "dense" else array
        elif leaf == "bias":
            array = array.reshape(-1)
        if self.axes is not None:
            array = array.transpose(np.argsort(self.axes))
        return array if self.shape is None else array.reshape(self.shape)

    def theirs_of(self, leaf: str, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """The shape of the published tensor of our layer's array [`shape`], where the line alone tells it."""
        flat = self._flat(leaf, shape)
        if self.part is not None:
            flat = (*flat[:-1], flat[-1] * self.part[1])
        if self.rows is not None:
            flat = (self.rows[1], *flat[1:])
        if leaf == "kernel" and self.kind == "dense":
            flat = flat[::-1]
        if self.axes is not None:
            flat = tuple(shape[i] for i in np.argsort(self.axes))
        return flat if self.shape is None else None

    def window(self, leaf: str, index: tuple[slice, ...], shape: tuple[int, ...]):
        """(the slices of theirs that hold our slices `index` of a layer's array, the shape they give), or None where they
        hold more than those: only the sharded axes of a dense or plain tensor are read then."""
        whole = [s.indices(n)[:2] == (0, n) for s, n in zip(index, shape, strict=True)]
        if any(field is not None for field in (self.part, self.rows, self.axes, self.shape)):
            return None
        if leaf != "kernel":
            if len(shape) > 1 and self.kind != "plain" and not all(whole[1:]):
                return None
            if self.kind == "plain":
                return index
            rest = math.prod(shape[1:])
            start, stop, _ = index[0].indices(shape[0])
            return (slice(start * rest, stop * rest),)
        if not (all(whole[1 : self.ins]) and all(whole[self.ins + 1 :])):
            return None
        found = []
        for first, last in ((0, self.ins), (self.ins, len(shape))):
            rest = math.prod(shape[first + 1 : last])
            start, stop, _ = index[first].indices(shape[first])
            found.append(slice(start * rest, stop * rest))
        return tuple(found[::-1]) if self.kind == "dense" else tuple(found)

    def axis(self, leaf: str, shape: tuple[int, ...], theirs: int) -> int | None:
        """Which axis of ours of a layer's array [`shape`] runs along that axis of theirs, where `window` can cut it."""
        if not shape or any(field is not None for field in (self.part, self.rows, self.axes, self.shape)):
            return None
        if leaf != "kernel":
            return theirs if self.kind == "plain" else 0
        return 0 if (theirs == 0) != (self.kind == "dense") else self.ins

    def _flat(self, leaf: str, shape: tuple[int, ...], theirs: bool = False) -> tuple[int, ...]:
        """The shape that both sides must agree on: [in, out] of a kernel, [out] of a bias, else the array's own."""
        if leaf == "kernel" and not theirs:
            return math.prod(shape[: self.ins]), math.prod(shape[self.ins :])
        if leaf == "bias" and not theirs:
            return (math.prod(shape),)
        return (math.prod(shape),) if self.shape is not None else tuple(shape)


def attention(ours: str, theirs: tuple[str, str, str, str], kind: Kind = "dense") -> tuple[Line, ...]:
    """Lines of an attention layer: `theirs` are the published query, key, value and output layers."""
    inner = tuple(
        Line(f"{ours}/{name}", other, kind) for name, other in zip(("query", "key", "value"), theirs, strict=False)
    )
    return (*inner, Line(f"{ours}/out", theirs[3], kind, ins=2))
