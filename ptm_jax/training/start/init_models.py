"""The models and vectors that a run begins with (`Experiment.init`), each opened once.

`opened(init)` gives `Initials`, which the set-up of a run, fine-tuning and the initialisation hand
on. A model is located and identified when it is first asked.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.convert.engine import Report
from ptm_jax.convert.family import family_of
from ptm_jax.convert.formats import untyped
from ptm_jax.convert.hub import locate
from ptm_jax.convert.libraries import sentence_folder
from ptm_jax.convert.libraries.sentence_folder import Sentence
from ptm_jax.convert.words import wordfiles
from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import Recipe
from ptm_jax.core.spec.classes import Kinds, kinds_of
from ptm_jax.core.spec.own_code import own_kinds
from ptm_jax.core.spec.rebuild import rebuild
from ptm_jax.core.system import Difference, System, Tie, tied
from ptm_jax.data.tokenizers import saved
from ptm_jax.training import workdirs
from ptm_jax.training.checkpoints import restore_params

TABLES = "embeddings"
"""The last part of `Initial.at` for the embedding layers of all towers, or of one."""
ENTITIES = "entities"
"""The last part of `Initial.at` for a table of entities, whose rows are filled by name."""


@dataclasses.dataclass(frozen=True, eq=False)
class Initial:
    """A model or a table of vectors that a part of a system begins with.

    at    the tower or the path of parameters; "": all towers
    path  a workdir or one of its checkpoints, a published checkpoint, a name on the Hub, or a file
          of vectors
    """

    at: str
    path: str

    @property
    def entities(self) -> bool:
        """Whether it gives the vectors of entities."""
        return self.at.split("/")[-1] == ENTITIES

    @functools.cached_property
    def is_table(self) -> bool:
        """Whether the path holds vectors and no model."""
        return wordfiles.is_words(self.path)

    @property
    def vectors(self) -> bool:
        """Whether it gives the vectors of tokens or entities, and not a model."""
        return self.at.split("/")[-1] in (TABLES, ENTITIES) or self.is_table

    @functools.cached_property
    def folder(self) -> Path:
        """The located model. Raises UserError."""
        return locate(self.path)

    @functools.cached_property
    def published(self) -> bool:
        """Whether it is a published checkpoint; False: a run."""
        return untyped.is_published(self.folder)

    @functools.cached_property
    def config(self) -> Config:
        """The config.json of a published checkpoint."""
        return checkpoint.config_of(self.folder)

    @property
    def workdir(self) -> Path:
        """The workdir of a run."""
        return workdirs.place_of(self.folder)[0]

    @functools.cached_property
    def record(self) -> Mapping[str, Any]:
        """The record of a run. Raises UserError."""
        return workdirs.read(self.workdir)

    @property
    def step(self) -> int:
        """The step of the checkpoint of a run."""
        _, named = workdirs.place_of(self.folder)
        return max(workdirs.steps_of(self.workdir), default=0) if named is None else named

    @property
    def recipe(self) -> Recipe | None:
        """The recipe of a run; None if its record has none that can be read."""
        try:
            return rebuild(self.record["config"]["system"]["recipe"], kinds_of(), "recipe")
        except (UserError, KeyError):
            return None

    @functools.cached_property
    def kinds(self) -> Kinds:
        """The classes that the record of a run may name."""
        return own_kinds(self.record, self.workdir)

    @property
    def tokenizer_folder(self) -> Path:
        """The folder of the tokenizer."""
        return self.folder if self.published else self.workdir / "tokenizer"

    def tokenizer(self) -> Any:
        """Returns the tokenizer, or None. Raises UserError."""
        if self.published:
            return checkpoint.tokenizer_of(self.folder)
        folder = self.tokenizer_folder
        return saved.load(folder) if folder.is_dir() else None

    def sentence(self) -> Sentence | None:
        """Returns the settings of sentence-transformers, or None."""
        folder = self.folder if self.published else self.workdir / workdirs.SENTENCE
        return sentence_folder.sentence_of(folder)

    def params(self, system: System) -> tuple[Mapping[str, Any], Report]:
        """Returns ({tower: parameters}, the report of parameters that were new). Raises UserError.

        A published checkpoint is read as the class with the heads of `system`, if the family has
        one (BERT's classifier includes the pooler). Adaptations of a run are merged."""
        if not self.published:
            return self.merged(restore_params(self.folder)[0]), Report(0)
        try:
            name = family_of(self.config).architecture_of(system)
        except UserError:
            name = None
        read = checkpoint.read(self.folder, architecture=name)
        return read.params, read.report

    def plain_params(self) -> Mapping[str, Any]:
        """Returns the parameters as they are in the files. Raises UserError."""
        if self.published:
            return checkpoint.read(self.folder).params
        return restore_params(self.folder)[0]

    def merged(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns parameters of the run with its adaptations merged into its networks."""
        try:
            system = self.record["config"]["system"]
        except UserError:
            return params
        ties = rebuild(system.get("ties", []), {"Tie": Tie, "Difference": Difference})
        params = tied(params, [tie for tie in ties if isinstance(tie, Difference)])
        wrappers = [*system.get("adapt", []), *system.get("compress", [])]
        return finished(wrappers, params, self.kinds)[1]


@dataclasses.dataclass(frozen=True, eq=False)
class Initials:
    """The initial models and vectors of a run, in the order in which they are applied."""

    sources: tuple[Initial, ...]

    @functools.cached_property
    def models(self) -> tuple[Initial, ...]:
        """The sources that are models."""
        return tuple(source for source in self.sources if not source.vectors)

    @property
    def paths(self) -> dict[str, str]:
        """{tower or part: path} of the models."""
        return {model.at: model.path for model in self.models}

    def model_of(self, *towers: str) -> Initial | None:
        """Returns the first model of one of the towers, or None."""
        return next((model for model in self.models if model.at in towers), None)

    def sentence(self) -> Sentence | None:
        """Returns the sentence-transformers settings of the main tower's initial model.
        None if they cannot be written."""
        settings = (model.sentence() for model in self.models if model.at in ("", "main"))
        sentence = next((one for one in settings if one is not None), None)
        return None if sentence is None or sentence.refused else sentence


Init = str | os.PathLike | Sequence[tuple[str, str]] | None
"""`Experiment.init`: a model for all towers, or (tower or path, model) pairs; vectors of tokens in
the place of a model."""


def opened(init: Init | Initials) -> Initials:
    """Returns the sources of `Experiment.init`."""
    if isinstance(init, Initials):
        return init
    if init is None:
        return Initials(())
    if isinstance(init, str | os.PathLike):
        return Initials((Initial("", os.fspath(init)),))
    return Initials(tuple(Initial(at, os.fspath(path)) for at, path in init))


def finished(
    wrappers: Sequence[Any], params: Mapping[str, Any], kinds: Kinds
) -> tuple[list[Any], Mapping[str, Any]]:
    """Returns (records of the remaining wrappers, parameters).
    Low-rank updates are added, averages are taken, masks applied."""
    remaining = []
    for record in wrappers:
        kind = record.get("kind") if isinstance(record, Mapping) else None
        known = kind is not None and kind in kinds and kind not in kinds.lost
        wrapper = rebuild(record, kinds) if known else None
        if wrapper is not None and slots.overrides(wrapper, "finish"):
            params = wrapper.finish(params)
        else:
            remaining.append(record)
    return remaining, params
