"""Rename tables: each line maps published tensors to our parameters, in both directions.

Line("encoder/stack/block/ffn/up", "bert.encoder.layer.{i}.intermediate.dense", "dense")

`{i}` in the published name is the index on the first stacked axis of our array (layers, or ALBERT's
groups), `{j}` the index on the second.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Literal

import numpy as np

Kind = Literal["dense", "conv1d", "norm", "plain"]


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of a table: our path `ours` and the published `theirs`.
    `ours` is of a layer, or of a parameter if `kind` is "plain".

    Values of `kind`:

    dense   our kernel [..in, ..out], flattened, is `weight` [out, in] of torch's Linear; the first
            `ins` axes are inputs
    conv1d  the same without the transpose (GPT's Conv1D)
    norm    our scale is `weight`, our bias is `bias`
    plain   the array itself; `axes` permutes the published axes into ours, as in numpy's transpose

    Other fields:

    part    (index, of): ours is one of `of` equal parts of the published tensor along the output
            (GPT-2's c_attn)
    groups  number of groups in the published output; each holds its share of all parts (NeoBERT's
            heads, each with its query, key and value)
    rows    (first, of): ours is the rows from `first` of a published tensor with `of` rows (a
            vocabulary in clusters)
    first   the first layer that has the tensor; the layers before it have the identity, ones for a
            scale and zeros for a bias (ModernBERT's first norm)
    shape   the published shape of a plain line, if it differs from ours by axes of size 1 or by a
            flattening; -1 as in numpy
    members the published names on the axis `{j}` in place of numbers (X-MOD's languages)
    """

    ours: str
    theirs: str
    kind: Kind = "plain"
    ins: int = 1
    axes: tuple[int, ...] | None = None
    part: tuple[int, int] | None = None
    groups: int = 1
    rows: tuple[int, int] | None = None
    first: int = 0
    shape: tuple[int, ...] | None = None
    members: tuple[str, ...] = ()

    @property
    def depth(self) -> int:
        """The number of our axes that the published names index."""
        return sum(mark in self.theirs for mark in ("{i}", "{j}"))

    @property
    def head(self) -> str | None:
        """The name of the head that has the parameter. None for one of the encoder."""
        part = self.ours.partition("/")[0]
        return part.removeprefix("heads_") if part.startswith("heads_") else None

    def leaf(self, path: str) -> tuple[str, str] | None:
        """Returns (published name with its marks, leaf) for our path.
        None if the line does not match."""
        if self.kind == "plain":
            return (self.theirs, "plain") if path == self.ours else None
        layer, _, leaf = path.rpartition("/")
        if layer != self.ours:
            return None
        named = {"kernel": "weight", "scale": "weight", "bias": "bias"}.get(leaf)
        return None if named is None else (f"{self.theirs}.{named}", leaf)

    def read(self, tensor: np.ndarray, leaf: str, shape: tuple[int, ...]) -> np.ndarray:
        """Returns our array of one layer, [`shape`], from a published tensor (a view if possible).

        Raises ValueError if the tensor does not fit the parameter.
        """
        if leaf == "kernel" and self.kind == "dense":
            tensor = tensor.T
        if self.part is not None:
            index, of = self.part
            if tensor.shape[-1] % (of * self.groups):
                raise ValueError(
                    f"its {tensor.shape[-1]} columns are not {of * self.groups} equal parts"
                )
            lead = tensor.shape[:-1]
            tensor = tensor.reshape(*lead, self.groups, of, -1)[..., index, :].reshape(*lead, -1)
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
        """Returns the published tensor (or its part) for our array of one layer."""
        if leaf == "kernel":
            array = array.reshape(math.prod(array.shape[: self.ins]), -1)
            array = array.T if self.kind == "dense" else array
        elif leaf == "bias":
            array = array.reshape(-1)
        if self.axes is not None:
            array = array.transpose(np.argsort(self.axes))
        return array if self.shape is None else array.reshape(self.shape)

    def theirs_of(self, leaf: str, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Returns the published shape for our array [`shape`] of one layer.
        None if the line does not determine it."""
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
        """Returns the slices of the published tensor that hold our slices `index` of a layer.

        Returns None if there are no such slices.
        """
        complete = [s.indices(n)[:2] == (0, n) for s, n in zip(index, shape, strict=True)]
        if any(field is not None for field in (self.part, self.rows, self.axes, self.shape)):
            return None
        if leaf != "kernel":
            if len(shape) > 1 and self.kind != "plain" and not all(complete[1:]):
                return None
            if self.kind == "plain":
                return index
            inner = math.prod(shape[1:])
            start, stop, _ = index[0].indices(shape[0])
            return (slice(start * inner, stop * inner),)
        if not (all(complete[1 : self.ins]) and all(complete[self.ins + 1 :])):
            return None
        slices = []
        for first, last in ((0, self.ins), (self.ins, len(shape))):
            inner = math.prod(shape[first + 1 : last])
            start, stop, _ = index[first].indices(shape[first])
            slices.append(slice(start * inner, stop * inner))
        return tuple(slices[::-1]) if self.kind == "dense" else tuple(slices)

    def axis(self, leaf: str, shape: tuple[int, ...], theirs: int) -> int | None:
        """Returns our axis of a layer's array [`shape`] for the published axis `theirs`.
        None if `window` cannot cut it."""
        if not shape or any(
            field is not None for field in (self.part, self.rows, self.axes, self.shape)
        ):
            return None
        if leaf != "kernel":
            return theirs if self.kind == "plain" else 0
        return 0 if (theirs == 0) != (self.kind == "dense") else self.ins

    def _flat(self, leaf: str, shape: tuple[int, ...], theirs: bool = False) -> tuple[int, ...]:
        """Returns the shape to compare on both sides: [in, out] of a kernel, [out] of a bias, else
        the array's own."""
        if leaf == "kernel" and not theirs:
            return math.prod(shape[: self.ins]), math.prod(shape[self.ins :])
        if leaf == "bias" and not theirs:
            return (math.prod(shape),)
        return (math.prod(shape),) if self.shape is not None else tuple(shape)


QKV = ("query", "key", "value")


def attention(ours: str, theirs: str, names: Iterable[str]) -> tuple[Line, ...]:
    """Returns the lines of an attention layer.
    `names` are the published query, key, value and output layers in `theirs`."""
    layers = zip((*QKV, "out"), names, strict=True)
    return tuple(
        Line(f"{ours}/{name}", theirs + other, "dense", ins=1 + (name == "out"))
        for name, other in layers
    )


def joined(ours: str, theirs: str, kind: Kind, groups: int = 1) -> tuple[Line, ...]:
    """Returns the lines of query, key and value that are one published layer.
    `groups`: number of heads, if each has its three parts together."""
    return tuple(
        Line(f"{ours}/{name}", theirs, kind, part=(i, 3), groups=groups)
        for i, name in enumerate(QKV)
    )


def block(ours: str, theirs: str, names: Iterable[str], kind: Kind = "dense") -> tuple[Line, ...]:
    """Returns the lines of the rest of a layer.
    `names` are the published norm after attention, first and second layer of the feed-forward, and
    last norm, in `theirs`."""
    remaining = zip(
        ("attention_norm", "ffn/up", "ffn/down", "ffn_norm"),
        names,
        ("norm", kind, kind, "norm"),
        strict=True,
    )
    return tuple(Line(f"{ours}/{name}", theirs + other, of) for name, other, of in remaining)


def vocabulary(dense: str, norm: str, bias: str, table: str) -> tuple[Line, ...]:
    """Returns the lines of a vocabulary head of BERT's kind, `mlm` or `lm`.
    The bias and the table are parameters."""
    return tuple(
        line
        for head in ("heads_mlm", "heads_lm")
        for line in (
            Line(f"{head}/dense", dense, "dense"),
            Line(f"{head}/norm", norm, "norm"),
            Line(f"{head}/bias", bias),
            Line(f"{head}/table", table),
        )
    )


def tasks(classes: str, summary: str = "", score: str = "", choice: str = "") -> tuple[Line, ...]:
    """Returns the lines of the task heads: layers `classes` and `summary` of a text's classifier.

    `score` and the summary `choice` of multiple choice (default: the classifier's).
    """
    return (
        Line("heads_classify/summary/dense", summary, "dense"),
        Line("heads_classify/classes", classes, "dense"),
        Line("heads_choose/summary/dense", choice or summary, "dense"),
        Line("heads_choose/score", score or classes, "dense"),
        Line("heads_tag/classes", "classifier", "dense"),
        Line("heads_span/ends", "qa_outputs", "dense"),
    )
