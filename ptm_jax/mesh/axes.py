"""Logical axes of parameters. The layer that makes a parameter declares them.

`logical_axes` of a layer maps a parameter to a name for each of its dimensions:

    class Bilinear(nn.Module):
        logical_axes = {"kernel": ("width", None), "bias": (None,), "query/kernel": ("width", None)}

A key is the path of a parameter below the layer, so a layer may also name the axes of its
sublayers' parameters. `*` stands for any characters of one name. If several layers declare a
parameter, the outermost one decides. The axes that a scan or a vmap adds come first and have no
name. A rule table of `mesh.rules` maps the names to mesh axes. None: the dimension is not split.

    width    features of the residual stream, or of a layer's input
    hidden   features inside a feed-forward layer
    heads    attention heads                head     features of a head
    vocab    rows of a table [V, D] whose width is split too
    words    rows of a table that is too narrow to split by width (entities, adaptive softmax)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain

from ptm_jax.core.types import Axes

NAMES = ("width", "heads", "head", "hidden", "vocab", "words")


def lookup(declared: Mapping[str, Axes], path: Sequence[str]) -> Axes | None:
    """Returns the axes that a mapping declares for a path below its layer, or None."""
    exact = declared.get("/".join(path))
    if exact is not None:
        return exact
    for key, axes in declared.items():
        names = key.split("/")
        if "*" in key and len(names) == len(path) and all(map(fnmatchcase, path, names)):
            return axes
    return None


@dataclasses.dataclass(frozen=True)
class ParameterAxes:
    """The logical axes of the parameters of a state.

    declared   {path: axes} of the parameters of the towers
    added      {end of a path: axes} of each wrapper (`slots.Wrapper.logical_axes`)
    """

    declared: Mapping[str, Axes] = dataclasses.field(default_factory=dict)
    added: Sequence[Mapping[str, Axes]] = ()

    def find(self, path: str) -> Axes | None:
        """Returns the axes of the parameter at the end of a path, or None if nobody declares them.
        The paths of moments, masks and means end with the path of their parameter."""
        names = path.split("/")
        ends = [names[start:] for start in range(len(names))]
        of_towers = (self.declared.get("/".join(end)) for end in ends)
        of_wrappers = (lookup(declared, end) for declared in self.added for end in ends)
        return next((axes for axes in chain(of_towers, of_wrappers) if axes is not None), None)

    def of(self, path: str, rank: int) -> Axes:
        """Returns a name or None for each of the `rank` dimensions of a leaf.
        A leaf that nobody declares has no names. For a moment with fewer dimensions than its
        parameter returns ()."""
        axes = self.find(path) or ()
        return (None,) * (rank - len(axes)) + axes if len(axes) <= rank else ()
