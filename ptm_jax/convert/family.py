"""A family of published checkpoints: how its config becomes a record and a rename table, and back."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

from ptm_jax.convert.config import Config
from ptm_jax.convert.table import Line
from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.registry import Catalogue
from ptm_jax.core.system import System


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """What `ptm import` knows of a `model_type`.

    build     (config, architecture) -> System: the record whose towers the checkpoint fills
    lines     (config, architecture) -> the rename table of the whole architecture, first match wins
    config    (system) -> fields of a config.json; with `build` it must give the same towers back
    root      prefix of the bare model inside the classes with heads ("bert."); a bare checkpoint is without it
    heads     {class name of the published model: names of our heads}, the bare model's class first
    ties      {published duplicate: published tensor it repeats}: compared on import where it is there, never written
    ignore    regular expressions of published names that hold nothing: buffers of positions, masks
    renames   (regular expression, replacement) of names in older checkpoints
    constants (config, architecture) -> {published name: array} of tensors that are a formula, which a layer computes here:
              written, and compared on import where they are there
    fill      {published name: others that hold the same where it is absent}: shared tensors are in a file once
    """

    model_type: str
    build: Callable[[Config, str], System]
    lines: Callable[[Config, str], tuple[Line, ...]]
    config: Callable[[System], dict[str, Any]]
    root: str
    heads: Mapping[str, tuple[str, ...]]
    ties: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ignore: tuple[str, ...] = (r"(^|\.)position_ids$",)
    renames: tuple[tuple[str, str], ...] = ()
    fill: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    constants: Callable[[Config, str], Mapping[str, Any]] = lambda config, architecture: {}

    @property
    def name(self) -> str:
        """Under which the catalogue of families has it."""
        return self.model_type

    @property
    def bare(self) -> str:
        """The class without a head."""
        return next(iter(self.heads))

    @property
    def pretraining(self) -> str:
        """The class that goes on with pre-training: a vocabulary head alone, or the bare one where there is none such."""
        return next((name for name, heads in self.heads.items() if heads in (("mlm",), ("lm",))), self.bare)

    def architecture(self, config: Config) -> str:
        """The class that wrote a checkpoint. Raises UserError for one that this family does not have."""
        named = config("architectures", list, None)
        if not named:
            return self.bare
        if named[0] not in self.heads:
            raise UserError(f"{config.file}: {unknown('architecture', str(named[0]), self.heads)}")
        return named[0]

    def architecture_of(self, system: System) -> str:
        """The class whose heads are those of a system. Raises UserError where none is."""
        heads = {name for tower in system.towers.values() for name in tower.heads}
        for name, ours in self.heads.items():
            if set(ours) == heads:
                return name
        raise UserError(
            f"{self.model_type} has no class with the heads {', '.join(sorted(heads)) or 'none'}; choose other heads"
        )

    def ignored(self, name: str) -> bool:
        """Whether a published name holds nothing of the model."""
        return any(re.search(pattern, name) for pattern in self.ignore)


families = Catalogue("model_type")


def family_of(config: Config) -> Family:
    """The family of a config. Raises UserError for a `model_type` that is not there."""
    name = config("model_type", str)
    if name not in _complete():
        raise UserError(f"{config.file}: {unknown('model_type', name, families.names())}")
    return families.get(name)


def names() -> tuple[str, ...]:
    """Every `model_type` that can be read."""
    return _complete().names()


def _complete() -> Catalogue:
    from ptm_jax.core import registry

    registry.discover("ptm_jax.convert.families")
    return families
