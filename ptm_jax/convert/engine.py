"""Converts published tensors to a tower's parameters and back, by a rename table.

The engine is independent of the family. It reads each tensor when it builds the parameter and drops
it afterwards. With shardings it reads only the slices that the local devices hold, if the table
determines them.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from ptm_jax.convert.config import Config
from ptm_jax.convert.family import Family
from ptm_jax.convert.files import Tensors
from ptm_jax.convert.place import held, place
from ptm_jax.convert.table import Line
from ptm_jax.core.errors import UserError, closest
from ptm_jax.core.paths import flatten, unflatten

OLD = ((r"\.gamma$", ".weight"), (r"\.beta$", ".bias"))
"""Norm names in checkpoints that were converted from TensorFlow."""
WRAPPERS = re.compile(
    r"(?:^|(?<=\.))(?:module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)
"""Parts of names that wrappers of torch add: DataParallel, compile, FSDP."""


@dataclasses.dataclass(frozen=True)
class Report:
    """Result of an import.

    read     number of tensors read
    missing  our parameters without a tensor (new heads)
    extra    published tensors without a parameter
    """

    read: int
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Returns the report for the user, one line per finding."""
        lines = []
        if self.missing:
            lines.append(f"not in the checkpoint, made anew: {_listed(self.missing)}")
        if self.extra:
            lines.append(f"in the checkpoint, not used: {_listed(self.extra)}")
        return lines


def _listed(names: tuple[str, ...], shown: int = 8) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One of our parameters, and the names of its published tensors.
    They are [n_i, n_j] in the order of the stacked axes."""

    path: str
    shape: tuple[int, ...]
    line: Line
    part: str
    names: tuple[str, ...]

    @property
    def inner(self) -> tuple[int, ...]:
        """The shape of one layer."""
        return self.shape[self.line.depth :]

    @property
    def published(self) -> tuple[str, ...]:
        """The names without those of layers before the line's first."""
        if not self.line.first:
            return self.names
        each = math.prod(self.shape[1 : self.line.depth])
        return self.names[self.line.first * each :]


def leaves(
    shapes: Mapping[str, tuple[int, ...]], lines: tuple[Line, ...], limit: int | None = None
) -> tuple[dict[str, Leaf], tuple[str, ...]]:
    """Returns ({path: Leaf}, paths without a line) for {path: shape}.

    Raises UserError, before it builds their names, for a parameter that is made of more than
    `limit` tensors.
    """
    leaf_of, unmatched = {}, []
    for path, shape in shapes.items():
        match = next(((line, hit) for line in lines if (hit := line.leaf(path)) is not None), None)
        if match is None:
            unmatched.append(path)
            continue
        line, (name, part) = match
        if limit is not None and math.prod(shape[: line.depth]) > limit:
            several = " x ".join(map(str, shape[: line.depth]))
            raise UserError(
                f"the config has {several} layers of {name}, and the checkpoint has {limit} "
                "tensors in all"
            )
        counts = itertools.product(*(range(n) for n in shape[: line.depth]))
        names = tuple(_counted(name, count, line.members) for count in counts)
        leaf_of[path] = Leaf(path, tuple(shape), line, part, names)
    return leaf_of, tuple(unmatched)


def _counted(name: str, count: tuple[int, ...], members: tuple[str, ...] = ()) -> str:
    for mark, number in zip(("{i}", "{j}"), count, strict=False):
        name = name.replace(mark, members[number] if members and mark == "{j}" else str(number))
    return name


def read(
    tensors: Tensors,
    shapes: Mapping[str, Any],
    family: Family,
    lines: tuple[Line, ...],
    *,
    fresh: Any = None,
    shardings: Any = None,
    absent: Collection[str] = (),
) -> tuple[dict[str, Any], Report]:
    """Returns (parameters of a tower, report) from a checkpoint. Raises UserError.

    shapes     the tower's abstract tree
    fresh      fresh(paths) returns {path: array} for head parameters that the checkpoint lacks;
               None: a missing tensor is an error
    shardings  a tree like `shapes`; None: arrays on the default device
    absent     published names in lines of heads that the tower lacks
    """
    flat = flatten(shapes)
    where = None if shardings is None else flatten(shardings)
    leaf_at, unnamed = leaves(
        {path: leaf.shape for path, leaf in flat.items()}, lines, limit=len(tensors)
    )
    if unnamed:
        raise UserError(
            f"{tensors.folder}: the table of {family.model_type} has no line for "
            f"{', '.join(unnamed[:3])}; report this"
        )
    actual = names_in_file(
        tensors.names(), family, {name for leaf in leaf_at.values() for name in leaf.published}
    )
    missing = [
        path
        for path, leaf in leaf_at.items()
        if leaf.published and not any(name in actual for name in leaf.published)
    ]
    for leaf in leaf_at.values():
        lacking = [name for name in leaf.published if name not in actual]
        if lacking and (
            leaf.path not in missing or fresh is None or not leaf.path.startswith("heads_")
        ):
            raise UserError(
                f"{tensors.folder} has no tensor {lacking[0]!r}, which its class needs."
                f"{closest(lacking[0], tensors.names())}"
            )
    _check_shapes(tensors, actual, leaf_at, missing)
    wanted = {name for leaf in leaf_at.values() for name in leaf.published}
    ties = _ties_of(family, {*wanted, *absent, *(f"{name}.weight" for name in absent)})
    _check_ties(tensors, actual, ties, separable={line.theirs for line in lines})
    made = fresh(tuple(missing)) if missing else {}
    for path, leaf in leaf_at.items():
        if path not in made:
            made[path] = _made(tensors, actual, leaf, None if where is None else where[path])
    used = {actual[name] for leaf in leaf_at.values() for name in leaf.published if name in actual}
    used |= {actual[name] for name in ties if name in actual}
    extra = tuple(name for name in tensors.names() if name not in used and not family.ignored(name))
    return unflatten({path: made[path] for path in flat}), Report(len(used), tuple(missing), extra)


def _ties_of(family: Family, others: Collection[str]) -> dict[str, str]:
    """Returns {published duplicate: its source} without duplicates that are among `others`."""
    return {copy: source for copy, source in family.ties.items() if copy not in others}


def table_for(
    family: Family, config: Config, architecture: str, names: Iterable[str]
) -> tuple[Line, ...]:
    """Returns the rename table that fits the names in a file: `Family.lines`, else `inner`."""
    lines = family.lines(config, architecture)
    if family.inner is None:
        return lines
    spelled = {one for name in names for one in _spellings(WRAPPERS.sub("", name), family)}

    def fitting(table: tuple[Line, ...]) -> int:
        first = {_counted(line.theirs, (0, 0)) for line in table}
        return sum(any(name.startswith(one) for name in spelled) for one in first)

    inner = family.inner(config, architecture)
    return inner if fitting(inner) > fitting(lines) else lines


def names_in_file(names: Iterable[str], family: Family, wanted: set[str]) -> dict[str, str]:
    """Returns {name in the table: name in the file}.
    File names may lack the bare model's root, use an older spelling, or have the prefixes of a
    wrapper. Of tied tensors a file may have any one."""
    others = {other for sources in family.fill.values() for other in sources}
    known, name_in_file = wanted | set(family.ties) | others, {}
    names = tuple(names)
    outer = _outer_prefix(names, family, known)
    for name in names:
        candidates = _spellings(WRAPPERS.sub("", name).removeprefix(outer), family)
        chosen = next((c for part in (wanted, known) for c in candidates if c in part), None)
        if chosen is not None:
            name_in_file.setdefault(chosen, name)
    for name in wanted & set(family.fill):
        sources = [name_in_file[other] for other in family.fill[name] if other in name_in_file]
        if sources:
            name_in_file.setdefault(name, sources[0])
    for copy, source in family.ties.items():
        if source in wanted and copy not in wanted and copy in name_in_file:
            name_in_file.setdefault(source, name_in_file[copy])
    return name_in_file


def _spellings(name: str, family: Family) -> tuple[str, ...]:
    """Returns the names in the table that a name in a file may stand for."""
    for old, new in (*OLD, *family.renames):
        name = re.sub(old, new, name)
    return name, family.root + name, name.removeprefix(family.root)


def _outer_prefix(names: tuple[str, ...], family: Family, known: set[str]) -> str:
    """Returns the prefix that all names have before those of the table, as "model." of a module
    that holds the model."""
    inner, prefix = [WRAPPERS.sub("", name) for name in names], ""
    while inner and not any(known & set(_spellings(name, family)) for name in inner):
        first = inner[0].partition(".")[0] + "."
        if not all(name.startswith(first) for name in inner):
            return ""
        inner, prefix = [name.removeprefix(first) for name in inner], prefix + first
    return prefix


def _check_shapes(
    tensors: Tensors, actual: Mapping[str, str], leaves: Mapping[str, Leaf], missing: list[str]
) -> None:
    """Raises UserError if a tensor has the wrong shape, before any data is read."""
    for leaf in leaves.values():
        if leaf.path in missing:
            continue
        expected = leaf.line.theirs_of(leaf.part, leaf.inner)
        for name in leaf.published:
            shape = tuple(tensors.shape(actual[name]))
            if expected is not None and shape != tuple(expected):
                raise UserError(
                    f"{tensors.file(actual[name])}: {actual[name]} has the shape {list(shape)}; "
                    f"the config expects {list(expected)}"
                )


def _check_ties(
    tensors: Tensors, actual: Mapping[str, str], ties: Mapping[str, str], separable: Collection[str]
) -> None:
    """Raises UserError if a tied tensor differs from its source.
    `separable` are those that an untied config has for themselves."""
    for copy, source in ties.items():
        if copy in actual and source in actual and actual[copy] != actual[source]:
            if not np.array_equal(tensors.read(actual[copy]), tensors.read(actual[source])):
                advice = (
                    "which the config ties it to; set tie_word_embeddings to false in "
                    "config.json for a table of its own"
                    if copy in separable
                    else "and the network has one table for both; a checkpoint with two is not "
                    "supported"
                )
                raise UserError(
                    f"{tensors.file(actual[copy])}: {actual[copy]} differs from {actual[source]}, "
                    + advice
                )


def _finite(tensors: Tensors, name: str, value: np.ndarray) -> np.ndarray:
    """Returns the value of a tensor. Raises UserError if a number of it is NaN or infinite."""
    if value.dtype.kind not in "iub" and not np.isfinite(value).all():
        raise UserError(
            f"{tensors.file(name)}: {name} has numbers that are NaN or infinite; take "
            "another checkpoint"
        )
    return value


def _made(tensors: Tensors, actual: Mapping[str, str], leaf: Leaf, sharding: Any) -> Any:
    """Returns one parameter, reading its layers one at a time."""

    def layer(name: str, index: tuple[slice, ...]) -> np.ndarray:
        window = leaf.line.window(leaf.part, index, leaf.inner)
        size = tuple(len(range(*s.indices(n))) for s, n in zip(index, leaf.inner, strict=True))
        if window is not None and size != leaf.inner:
            piece = _finite(tensors, actual[name], tensors.read_slice(actual[name], window))
            return (
                piece.T if leaf.part == "kernel" and leaf.line.kind == "dense" else piece
            ).reshape(size)
        try:
            tensor = _finite(tensors, actual[name], tensors.read(actual[name]))
            return leaf.line.read(tensor, leaf.part, leaf.inner)[index]
        except ValueError as error:
            raise UserError(
                f"{tensors.file(actual[name])}: {actual[name]} "
                f"{list(tensors.shape(actual[name]))} does not fit {leaf.path} "
                f"{list(leaf.inner)}: {error}"
            ) from None

    depth = leaf.line.depth
    names = np.array(leaf.names, object).reshape(leaf.shape[:depth])

    def stacked(index: tuple[slice, ...]) -> np.ndarray:
        name = names[tuple(s.start for s in index[:depth])] if depth else leaf.names[0]
        if depth and index[0].start < leaf.line.first:
            shape = [
                len(range(*s.indices(n))) for s, n in zip(index[depth:], leaf.inner, strict=True)
            ]
            return np.full((1,) * depth + tuple(shape), leaf.part == "scale", np.float32)
        value = layer(name, tuple(index[depth:]))
        return value.reshape((1,) * depth + value.shape)

    sharding = sharding or jax.sharding.SingleDeviceSharding(jax.devices()[0])
    local, rows = held(leaf.shape, sharding), None
    if (
        local is not None
        and leaf.published
        and leaf.line.window(leaf.part, local[depth:], leaf.inner) is not None
    ):
        rows = leaf.line.axis(leaf.part, leaf.inner, tensors.rows(actual[leaf.published[0]]))
    return place(
        leaf.shape,
        np.float32,
        sharding,
        stacked,
        lead=depth,
        rows=None if rows is None else depth + rows,
    )


def write(
    params: Mapping[str, Any], family: Family, lines: tuple[Line, ...], bare: bool
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (published name, tensor) for a tower's parameters.
    `bare` drops the model's root from the names."""
    flat = flatten(params)
    leaf_at, unnamed = leaves({path: tuple(np.shape(leaf)) for path, leaf in flat.items()}, lines)
    if unnamed:
        raise UserError(
            f"{family.model_type} has no tensor for {', '.join(unnamed[:3])}; choose a system "
            "of that family"
        )
    shared: dict[str, list[tuple[Leaf, tuple[int, ...]]]] = {}
    for leaf in leaf_at.values():
        for count, name in zip(np.ndindex(*leaf.shape[: leaf.line.depth]), leaf.names, strict=True):
            if not count or count[0] >= leaf.line.first:
                shared.setdefault(name, []).append((leaf, count))
    for name, parts in shared.items():
        parts = sorted(parts, key=lambda p: p[0].line.part or p[0].line.rows or (0, 1))
        pieces = [
            leaf.line.write(np.asarray(flat[leaf.path])[count], leaf.part) for leaf, count in parts
        ]
        line = parts[0][0].line
        axis = 0 if line.rows is not None or line.kind == "dense" else -1
        if line.groups > 1:
            pieces = [piece.reshape(line.groups, -1, *piece.shape[1:]) for piece in pieces]
            tensor = np.concatenate(pieces, 1).reshape(-1, *pieces[0].shape[2:])
        else:
            tensor = pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis)
        yield (name.removeprefix(family.root) if bare else name), tensor
