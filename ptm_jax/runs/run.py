"""The folder of a training run, or of an imported or averaged model.

`Run` reads and writes such a folder. `training.workdirs` describes its layout.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ptm_jax.convert import adapterfile
from ptm_jax.convert.formats import untyped
from ptm_jax.convert.libraries import sentence_folder
from ptm_jax.core import facts, paths, spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import check_fields, read_json
from ptm_jax.core.spec.classes import Kinds
from ptm_jax.core.spec.own_code import own_kinds
from ptm_jax.core.spec.rebuild import rebuild
from ptm_jax.core.system import Experiment, System
from ptm_jax.core.types import Params, Vocab
from ptm_jax.data.corpora.store import Corpus, open_corpus
from ptm_jax.data.stores import fetched, working
from ptm_jax.data.tokenizers import saved
from ptm_jax.training import workdirs
from ptm_jax.training.checkpoints import restore_params
from ptm_jax.training.start import differing
from ptm_jax.training.updates.freedom import Freedom

CHOICE = "task.json"
CHOSEN = {"task": str, "step": int, "examples": int, "metrics": dict, "ended": str}
"""Fields of the choice."""
"""The file in which a fine-tuning run writes the step of its chosen checkpoint
(`tuning.selection`)."""
LARGEST = 0.5
"""The largest share of a model's parameters that may be saved as an adapter."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A run.

    folder  the workdir
    step    step of a checkpoint; None: the newest intact one
    """

    folder: Path
    step: int | None = None

    @classmethod
    def at(cls, path: str | os.PathLike) -> Run:
        """Returns the run of a path: a workdir, its `checkpoints`, or one checkpoint.
        See `sentence_folder.model_folder`."""
        return cls(*workdirs.place_of(sentence_folder.model_folder(path)))

    @property
    def exists(self) -> bool:
        """Whether the folder has the record of a run.
        A published checkpoint has a config.json too."""
        return (self.folder / "config.json").is_file() and not untyped.is_published(self.folder)

    @functools.cached_property
    def record(self) -> Mapping[str, Any]:
        """The record.
        `record["config"]` is the Experiment's, or {"system"} for an imported model. Raises
        UserError."""
        return workdirs.read(self.folder)

    @functools.cached_property
    def kinds(self) -> Kinds:
        """The classes that the record may name, including the user's own (`core.spec.own_code`)."""
        return own_kinds(self.record, self.folder)

    @property
    def system(self) -> Mapping[str, Any]:
        """The record of the system, with the languages of the training text by number."""
        system, corpus = self.record["config"]["system"], self.record.get("corpus") or {}
        examples = system.get("examples") or {}
        if "languages" in corpus and examples.get("languages") == []:
            system = {**system, "examples": {**examples, "languages": corpus["languages"]}}
        return system

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the training data, as given by the user."""
        return tuple(self.record["config"].get("data", ()))

    @property
    def published(self) -> Mapping[str, Any]:
        """The published config of an imported model; {} for others."""
        return self.record.get("published") or {}

    @property
    def corpus_facts(self) -> Mapping[str, Any]:
        """{"digest", "tokenizer", "vocab", "path"} of the corpus.
        Raises UserError for a run without a corpus."""
        return workdirs.read(self.folder, corpus=True)["corpus"]

    @property
    def vocab(self) -> Vocab:
        """The vocabulary of the corpus."""
        return workdirs.vocab_of({"corpus": self.corpus_facts})

    def choice(self) -> dict[str, Any] | None:
        """The record of the checkpoint that fine-tuning chose; None for other runs.
        Raises UserError."""
        path = self.folder / CHOICE
        if not path.is_file():
            return None
        try:
            choice = read_json(path, "the choice")
            check_fields(path, choice, CHOSEN)
        except UserError as error:
            raise UserError(f"{path} is damaged ({error}); delete it and run again") from None
        return choice

    @property
    def path(self) -> Path:
        """The workdir, or the checkpoint of `step`."""
        return self.folder if self.step is None else workdirs.checkpoint_of(self.folder, self.step)

    def restore(self, **options: Any) -> tuple[Params, dict[str, Any], int]:
        """Returns (parameters, meta, step) of the checkpoint.
        `options` go to `restore_params`. Raises UserError."""
        return restore_params(self.path, **options)

    def tokenizer(self, meta: Mapping[str, Any] | None = None) -> Any:
        """Returns the tokenizer, or None.
        Raises UserError if the `meta` of a checkpoint names another one."""
        wanted = None if meta is None else meta.get("tokenizer")
        if (self.folder / "tokenizer").is_dir():
            return (
                workdirs.check_tokenizer(self.folder, wanted)
                if wanted
                else saved.load(self.folder / "tokenizer")
            )
        if wanted is not None:
            raise UserError(
                f"{self.folder} has no tokenizer; copy the directory `tokenizer` of the run "
                "back into it"
            )
        return None

    def corpus(self) -> Corpus:
        """Returns the training corpus. Raises UserError if it was moved or replaced."""
        facts = self.corpus_facts
        places = [self.folder / "data", facts.get("path", self.folder / "data")]
        folders = [place for place in places if fetched.is_corpus(fetched.corpus(place))]
        if not folders:
            raise UserError(
                f"the corpus of {self.folder} is not in {places[-1]} any more; put it back"
            )
        corpus = open_corpus(folders[0])
        if corpus.manifest["digest"] != facts["digest"]:
            raise UserError(
                f"{corpus.dir} is not the corpus that {self.folder} was trained on; put that "
                "one back"
            )
        return corpus

    def experiment(self, defined: Experiment | None = None, **slots: Any) -> Experiment:
        """Returns the resolved Experiment of the run, without a tokenizer.
        `slots` are records that replace its system's.

        Slots with the user's own code are taken from `defined`. Raises UserError if one is missing
        or differs.
        """
        config = self.record["config"]
        source = None if defined is None else differing.resolve(defined, self.vocab).system
        records = {
            name: part
            for name, part in config["system"].items()
            if name not in ("kind", "tokenizer")
        }
        built = {
            name: self._slot(name, part, source) for name, part in {**records, **slots}.items()
        }
        remaining = {
            name: part
            for name, part in config.items()
            if name not in ("kind", "system", "tokenizer")
        }
        return Experiment(system=System(**built), **rebuild(remaining, self.kinds))

    def _slot(self, name: str, part: Any, source: System | None) -> Any:
        """Rebuilds a slot from the record.
        If its code is not found, returns the slot of `source`, which must be equal."""
        try:
            if not isinstance(part, str) or name not in ("objective", "corruption", "examples"):
                return rebuild(part, self.kinds, f"system.{name}")
            if part in self.kinds and source is None:  # a given config must equal the run's
                return self.kinds[part]
        except UserError as error:
            if source is None:
                raise UserError(
                    f"{error}. Where it is defined in your config file, give that as --config"
                ) from error
        if source is None:
            raise UserError(f"the {name} of this run is your own {part}; give its file as --config")
        value = vars(source)[name]
        if changed := spec.differences(
            facts.without_hashes(part), facts.without_hashes(spec.to_json(value))
        ):
            listed = "; ".join(f"{path or name}: {a} there, {b} here" for path, a, b in changed[:3])
            raise UserError(f"the {name} of --config is not the one of the run; {listed}")
        return value

    def save_adapter(self, out: str | os.PathLike) -> tuple[int, int, int]:
        """Writes the trained parameters to a file.
        Returns (bytes, parameters in it, parameters of the base).

        Raises UserError."""
        adapt, towers = (
            rebuild(self.system.get(name, ()), self.kinds, f"system.{name}")
            for name in ("adapt", "towers")
        )
        adapted, frozen = adapter_parts(self.restore()[0], Freedom(tuple(adapt), towers))
        ours, theirs = paths.count(adapted), paths.count(frozen)
        if not adapted or ours > LARGEST * (ours + theirs):
            raise UserError(
                f"{self.folder} trained {ours:,} of {ours + theirs:,} parameters, which is "
                "no adapter; "
                f"`ptm export {self.folder} --out DIR` writes the whole model"
            )
        init = self.record["config"].get("init")
        name = Path(init if isinstance(init, str) else self.system.get("name", "")).name
        file = adapterfile.AdapterFile(
            adapted, self.system, adapterfile.digest(frozen), tuple(sorted(frozen)), name
        )
        return adapterfile.write(out, file), ours, theirs


def best_checkpoint(path: str | os.PathLike) -> str | os.PathLike:
    """Returns the checkpoint that fine-tuning chose in a workdir.
    Other paths are returned unchanged."""
    run = Run(working.opened(path))
    choice = run.choice()
    chosen = None if choice is None else workdirs.checkpoint_of(run.folder, choice["step"])
    if chosen is None or choice["step"] not in workdirs.steps_of(run.folder):
        return path
    return chosen


def stop_remark(path: str | os.PathLike) -> str | None:
    """Returns the remark on a workdir whose run has not ended; None for others."""
    run = Run(working.opened(path))
    if not run.exists or not run.sources or run.choice() is not None:
        return None
    steps = workdirs.steps_of(run.folder)
    planned = sum(phase["steps"] for phase in run.system.get("recipe", {}).get("phases", ()))
    if not steps or steps[-1] >= planned:
        return None
    return f"{path} has not ended: its checkpoint is of step {steps[-1]:,} of {planned:,}"


def adapter_parts(params: Params, freedom: Freedom) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns ({path: array} of the adaptation, {path: array} of the frozen base).
    The first part was trained or added."""
    places, flat = freedom.places(params), paths.flatten(params)
    trained = {path: leaf for path, leaf in flat.items() if freedom.trains(places[path])}
    return trained, {path: leaf for path, leaf in flat.items() if path not in trained}
