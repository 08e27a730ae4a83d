"""Families of published checkpoints: a config to a record and a rename table, and back."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ptm_jax.convert.config import Config
from ptm_jax.convert.files import Tensors
from ptm_jax.convert.table import Line
from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.registry import Catalogue
from ptm_jax.core.system import System
from ptm_jax.encoders.transformer import seq2seq

TASKS = {
    "ForMaskedLM": ("mlm",),
    "ForSequenceClassification": ("classify",),
    "ForMultipleChoice": ("choose",),
    "ForTokenClassification": ("tag",),
    "ForQuestionAnswering": ("span",),
}


def classes(
    prefix: str, more: Mapping[str, tuple[str, ...]], tasks: Iterable[str] = TASKS
) -> dict[str, tuple[str, ...]]:
    """Returns {published class: names of our heads}.
    The bare model, the classes of `tasks`, and `more`."""
    named = {"Model": (), **{task: TASKS[task] for task in tasks}, **more}
    return {prefix + name: heads for name, heads in named.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """The conversion rules of one `model_type`.

    build     (config, architecture) -> System: the record of the checkpoint
    lines     (config, architecture) -> the rename table of the whole architecture; the first match
              wins
    config    (system) -> fields of a config.json; `build` must return the same towers from them
    root      prefix of the bare model inside the classes with heads ("bert."); a bare checkpoint
              lacks it
    heads     {published class name: names of our heads}, the bare model's class first
    halves    the classes of an encoder-decoder family with only an encoder or only a decoder
    ties      {published duplicate: the tensor it repeats}: compared on import if present, never
              written
    ignore    regular expressions of published names without parameters: position buffers, masks
    renames   (regular expression, replacement) for names in older checkpoints
    constants (config, architecture) -> {published name: array} of fixed tensors that our layers
    compute: written on export,
              compared on import if present
    inner     the rename table of the names in memory, if Transformers writes files with other names
              (those of `lines`); files of either are read
    opened    (tensors, config) -> the tensors that are read (weights that a file holds in parts)
    fill      {published name: names with the same values}: used if the name is missing; files store
              a shared tensor once
    completed (config, tensors) -> the config with the fields that only the tensors determine
    published (system) -> the system with the choices of the class where it computes the same on
              rows padded on the right; parameters that it alone has are zeros
    """

    model_type: str
    build: Callable[[Config, str], System]
    lines: Callable[[Config, str], tuple[Line, ...]]
    config: Callable[[System], dict[str, Any]]
    root: str
    heads: Mapping[str, tuple[str, ...]]
    halves: tuple[str, ...] = ()
    ties: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ignore: tuple[str, ...] = (r"(^|\.)position_ids$",)
    renames: tuple[tuple[str, str], ...] = ()
    inner: Callable[[Config, str], tuple[Line, ...]] | None = None
    opened: Callable[[Tensors, Config], Tensors] = lambda tensors, config: tensors
    fill: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    constants: Callable[[Config, str], Mapping[str, Any]] = lambda config, architecture: {}
    completed: Callable[[Config, Tensors], Config] = lambda config, tensors: config
    published: Callable[[System], System] = lambda system: system

    @property
    def name(self) -> str:
        """The name of the family in the catalogue."""
        return self.model_type

    @property
    def bare(self) -> str:
        """The class without heads."""
        return next(iter(self.heads))

    @property
    def pretraining(self) -> str:
        """The class to continue pre-training with.
        It has only a vocabulary head; without one it is the bare class."""
        return next(
            (name for name, heads in self.heads.items() if heads in (("mlm",), ("lm",))), self.bare
        )

    def architecture(self, config: Config) -> str:
        """Returns the class that wrote a checkpoint (default: the bare class).
        Raises UserError if unknown."""
        named = config("architectures", list, None)
        if not named:
            return self.bare
        if not isinstance(named[0], str) or named[0] not in self.heads:
            raise UserError(
                f"{config.file}: {unknown('architecture', str(named[0])[:100], self.heads)}"
            )
        return named[0]

    def architecture_of(self, system: System) -> str:
        """Returns the class with the heads (and the halves) of a system.
        Raises UserError if there is none.

        The bare class may lack its pooler, as if it were made with `add_pooling_layer=False`."""
        heads = {name for tower in system.towers.values() for name in tower.heads}
        pair = is_pair(system)
        for name, ours in self.heads.items():
            if set(ours) in (heads, heads | {"pool"} if name == self.bare else heads) and (
                not self.halves or pair == (name not in self.halves)
            ):
                return name
        kind = (
            "" if not self.halves else " of an encoder with a decoder" if pair else " of one half"
        )
        raise UserError(
            f"{self.model_type} has no class{kind} with the heads "
            f"{', '.join(sorted(heads)) or 'none'}; choose other heads"
        )

    def ignored(self, name: str) -> bool:
        """Returns whether a published name holds no parameter."""
        return any(re.search(pattern, name) for pattern in self.ignore)


def several_tables(tensors: Tensors) -> bool:
    """Returns whether the encoder of a file has another table of tokens than its decoder."""
    table_of = {}
    for part in ("shared", "encoder.embed_tokens", "decoder.embed_tokens"):
        names = (name for name in tensors if f".{name}".endswith(f".{part}.weight"))
        table_of[part.partition(".")[0]] = next(names, None)
    shared = table_of["shared"]
    encoder, decoder = (table_of[side] or shared for side in ("encoder", "decoder"))
    if encoder is None or decoder is None or encoder == decoder:
        return False
    return not np.array_equal(tensors.read(encoder), tensors.read(decoder))


def is_pair(system: System) -> bool:
    """Returns whether the main tower is an encoder-decoder."""
    return seq2seq.is_pair(system.towers["main"].encoder)


families = Catalogue("model_type", f"{__package__}.families")


def family_of(config: Config) -> Family:
    """Returns the family of a config. Raises UserError for an unknown `model_type`."""
    name = config("model_type", str)
    if name not in families:
        code = "it asks for remote code, which is never run; " if "auto_map" in config else ""
        known = unknown("model_type", name[:100], families.names())
        raise UserError(f"{config.file}: {code}{known}")
    return families.get(name)
