"""Collects the logical axes that Linen modules declare (`mesh.axes`) while they are initialised."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import flax.linen as nn

from ptm_jax.core.towers import abstract, place
from ptm_jax.core.types import Axes, Batch
from ptm_jax.mesh.axes import ParameterAxes, lookup


class Collector:
    """The modules and parameters that an initialisation has made, by path."""

    def __init__(self):
        self._classes: dict[tuple[str, ...], list[type]] = {}
        self._ranks: dict[tuple[str, ...], int] = {}

    def observe(
        self, call: Callable, args: tuple, options: dict, context: nn.module.InterceptorContext
    ) -> object:
        """Calls a method of a module and notes the module's class and its parameters."""
        result, module = call(*args, **options), context.module
        if module.scope is not None and module.is_initializing():
            path, kind = (*place(), *module.path), type(module)
            classes = self._classes.setdefault(path, [])
            if kind not in classes:
                classes.append(kind)
            for name, leaf in module.variables.get("params", {}).items():
                if not isinstance(leaf, Mapping):
                    self._ranks.setdefault((*path, name), leaf.ndim)
        return result

    def axes(self) -> dict[str, Axes]:
        """Returns {path: axes} of the declared parameters.

        Raises ValueError for axes that are not as many as the dimensions.
        """
        named = {}
        for path, rank in self._ranks.items():
            axes, kind = self._declared(path)
            if axes is None:
                continue
            if len(axes) != rank:
                raise ValueError(
                    f"{kind.__name__}.logical_axes gives {'/'.join(path)} the axes {axes}; it has "
                    f"{rank} dimensions"
                )
            named["/".join(path)] = axes
        return named

    def _declared(self, path: tuple[str, ...]) -> tuple[Axes | None, type]:
        for depth in range(len(path)):
            for kind in self._classes.get(path[:depth], ()):
                for base in kind.__mro__:
                    axes = lookup(vars(base).get("logical_axes", {}), path[depth:])
                    if axes is not None:
                        return axes, base
        return None, object


@contextlib.contextmanager
def collected() -> Iterator[Collector]:
    """Context manager that collects the declarations of the modules that are initialised in it."""
    collector = Collector()
    with nn.intercept_methods(collector.observe):
        yield collector


def axes_of(modules: Mapping[str, nn.Module], batch: Batch) -> ParameterAxes:
    """Returns the logical axes of the parameters of towers {name: module}.

    They are read from the shapes of a batch.
    """
    with collected() as collector:
        abstract(modules, batch)
    return ParameterAxes(collector.axes())
