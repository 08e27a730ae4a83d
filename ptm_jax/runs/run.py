"""The folder of a training run, or of an imported or averaged model.

`Run` reads and writes such a folder. `training.workdirs` describes its layout.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax.convert import adapterfile, checkpoint
from ptm_jax.convert.libraries import elmo_folder, sentence_folder
from ptm_jax.core import facts, paths, spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.spec.classes import Kinds
from ptm_jax.core.spec.own_code import made_here, own_kinds, sources_of
from ptm_jax.core.spec.rebuild import rebuild
from ptm_jax.core.system import Experiment, System
from ptm_jax.core.types import Params, Vocab
from ptm_jax.data.corpora.store import Corpus, open_corpus
from ptm_jax.data.tokenizers import saved
from ptm_jax.runs import card
from ptm_jax.training import workdirs
from ptm_jax.training.checkpoints import Checkpoints, restore_params
from ptm_jax.training.start import differing, init_models
from ptm_jax.training.updates.freedom import Freedom

CHOICE = "task.json"
"""The file in which a fine-tuning run writes the step of its chosen checkpoint
(`tuning.selection`)."""
GENERATION = "generation_config.json"
"""The published settings of generation, in the folder of an imported model as in that of its
checkpoint."""
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
        """Returns the run of a path: a workdir, its `checkpoints`, or one checkpoint
        (`sentence_folder.model_folder`)."""
        return cls(*workdirs.place_of(sentence_folder.model_folder(path)))

    @property
    def exists(self) -> bool:
        """Whether the folder has the record of a run (a published checkpoint has a config.json
        too)."""
        return (self.folder / "config.json").is_file() and not checkpoint.is_published(self.folder)

    @functools.cached_property
    def record(self) -> Mapping[str, Any]:
        """The record. `record["config"]` is the Experiment's, or {"system"} for an imported model.
        Raises UserError."""
        return workdirs.read(self.folder)

    @functools.cached_property
    def kinds(self) -> Kinds:
        """The classes that the record may name, including the user's own (`core.spec.own_code`)."""
        return own_kinds(self.record, self.folder)

    @property
    def system(self) -> Mapping[str, Any]:
        """The record of the system."""
        return self.record["config"]["system"]

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
        """{"digest", "tokenizer", "vocab", "path"} of the corpus. Raises UserError for a run
        without a corpus."""
        return workdirs.read(self.folder, corpus=True)["corpus"]

    @property
    def vocab(self) -> Vocab:
        """The vocabulary of the corpus."""
        return workdirs.vocab_of({"corpus": self.corpus_facts})

    def choice(self) -> dict[str, Any] | None:
        """The record of the checkpoint that fine-tuning chose; None for other runs. Raises
        UserError."""
        path = self.folder / CHOICE
        if not path.is_file():
            return None
        try:
            choice = json.loads(path.read_text(encoding="utf8"))
            choice["task"], choice["step"], choice["examples"], choice["metrics"], choice["ended"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is damaged ({error}); delete it and run again") from None
        return choice

    @property
    def path(self) -> Path:
        """The workdir, or the checkpoint of `step`."""
        return self.folder if self.step is None else workdirs.checkpoint_of(self.folder, self.step)

    def restore(self, **options: Any) -> tuple[Params, dict[str, Any], int]:
        """Returns (parameters, meta, step) of the checkpoint. `options` go to `restore_params`.
        Raises UserError."""
        return restore_params(self.path, **options)

    def tokenizer(self, meta: Mapping[str, Any] | None = None) -> Any:
        """Returns the tokenizer, or None. Raises UserError if the `meta` of a checkpoint names
        another one."""
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
        places = [self.folder / "data", Path(facts.get("path", self.folder / "data"))]
        folders = [place for place in places if (place / "manifest.json").is_file()]
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

    def experiment(self, given: Experiment | None = None, **slots: Any) -> Experiment:
        """Returns the resolved Experiment of the run, without a tokenizer. `slots` are records that
        replace its system's.

        Slots with the user's own code are taken from `given`. Raises UserError if one is missing or
        differs.
        """
        config = self.record["config"]
        own = None if given is None else differing.resolve(given, self.vocab).system
        records = {
            name: part
            for name, part in config["system"].items()
            if name not in ("kind", "tokenizer")
        }
        built = {name: self._slot(name, part, own) for name, part in {**records, **slots}.items()}
        remaining = {
            name: part
            for name, part in config.items()
            if name not in ("kind", "system", "tokenizer")
        }
        return Experiment(system=System(**built), **rebuild(remaining, self.kinds))

    def _slot(self, name: str, part: Any, own: System | None) -> Any:
        """Rebuilds a slot from the record. If its code is not found, returns the slot of `own`,
        which must be equal."""
        try:
            if not isinstance(part, str) or name not in ("objective", "corruption", "examples"):
                return rebuild(part, self.kinds, f"system.{name}")
            if part in self.kinds and own is None:  # a given config must equal the run's
                return self.kinds[part]
        except UserError as error:
            if own is None:
                raise UserError(
                    f"{error} Where it is defined in your config file, give that as --config"
                ) from error
        if own is None:
            raise UserError(f"the {name} of this run is your own {part}; give its file as --config")
        value = vars(own)[name]
        if found := spec.differences(
            facts.without_hashes(part), facts.without_hashes(spec.to_json(value))
        ):
            listed = "; ".join(f"{path or name}: {a} there, {b} here" for path, a, b in found[:3])
            raise UserError(f"the {name} of --config is not the one of the run; {listed}")
        return value

    def save_adapter(self, out: str | os.PathLike) -> tuple[int, int, int]:
        """Writes the trained parameters to a file. Returns (bytes, parameters in it, parameters of
        the base).

        Raises UserError."""
        adapt, towers = (
            rebuild(self.system.get(name, ()), self.kinds, f"system.{name}")
            for name in ("adapt", "towers")
        )
        own, rest = adapter_parts(self.restore()[0], Freedom(tuple(adapt), towers))
        ours, theirs = paths.count(own), paths.count(rest)
        if not own or ours > LARGEST * (ours + theirs):
            raise UserError(
                f"{self.folder} trained {ours:,} of {ours + theirs:,} parameters, which is "
                "no adapter; "
                f"`ptm export {self.folder} --out DIR` writes the whole model"
            )
        init = self.record["config"].get("init")
        name = Path(init if isinstance(init, str) else self.system.get("name", "")).name
        file = adapterfile.AdapterFile(
            own, self.system, adapterfile.digest(rest), tuple(sorted(rest)), name
        )
        return adapterfile.write(out, file), ours, theirs


def best_checkpoint(path: str | os.PathLike) -> str | os.PathLike:
    """Returns the checkpoint that fine-tuning chose in a workdir. Other paths are returned
    unchanged."""
    run = Run(Path(path))
    choice = run.choice()
    chosen = None if choice is None else workdirs.checkpoint_of(run.folder, choice["step"])
    return path if chosen is None or not chosen.is_dir() else chosen


def adapter_parts(params: Any, freedom: Freedom) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns ({path: array} that was trained or added by an adaptation, {path: array} of the
    frozen base)."""
    places, flat = freedom.places(params), paths.flatten(params)
    trained = {path: leaf for path, leaf in flat.items() if freedom.trains(places[path])}
    return trained, {path: leaf for path, leaf in flat.items() if path not in trained}


def check_free(out: str | os.PathLike) -> None:
    """Raises UserError if an output directory is not empty."""
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is there already; choose another --out, or remove it")


def write(
    out: str | os.PathLike,
    record: Mapping[str, Any],
    tokenizer: Any,
    params: Params,
    beside: Sequence[Path] = (),
) -> Run:
    """Writes a run of no steps with the record {"config": {"system"}, ...} and copies of the files
    `beside`, atomically.

    Raises UserError."""
    with drafted(out) as draft:
        draft.mkdir(parents=True)
        for file in beside:
            shutil.copyfile(file, draft / file.name)
        if record.get("own"):
            record = {**record, "own": {**record["own"], "folder": str(Path(out).absolute())}}
        workdirs.write(draft, record, record["config"]["system"])
        meta = {"tokenizer": None}
        if tokenizer is not None:
            tokenizer.save(draft / "tokenizer")
            meta["tokenizer"] = tokenizer.hash
        store = Checkpoints(draft, keep=1)
        store.save(0, {"params": params}, meta)
        store.wait()
    return Run.at(out)


def keep(out: str | os.PathLike, model: Any, found: checkpoint.Checkpoint) -> Run:
    """Writes an imported model as a run of no steps. The record contains the published config, for
    export."""
    record = {"config": {"system": spec.to_json(found.system)}, "published": dict(found.config)}
    return _kept(out, model, record, generation_of(Path(found.config.file).parent))


def save(out: str | os.PathLike, model: Any) -> Run:
    """Writes a loaded model as a run of no steps, its adaptations merged into the network. Raises
    UserError."""
    check_free(out)
    system = dataclasses.replace(model.system, adapt=(), compress=())
    record = {"config": {"system": spec.to_json(system)}, "published": dict(model.published)}
    own = sources_of(system, Path(out))
    return _kept(out, model, {**record, "own": own} if own else record)


def _kept(
    out: str | os.PathLike, model: Any, record: Mapping[str, Any], beside: Sequence[Path] = ()
) -> Run:
    run = write(out, record, model.tokenizer, model.params, beside)
    if model.sentence is not None and not model.sentence.refused:
        sentence_folder.write(run.folder / workdirs.SENTENCE, model.sentence)
    return run


def average(models: Sequence[str], out: str | os.PathLike) -> Params:
    """Writes the mean of the parameters of several runs as a run of no steps, and returns it.

    Only one model at a time is in memory. Adaptations are merged into the network first. Pooling,
    layers and prompts of a sentence-transformers folder are kept. Raises UserError for fewer than
    two models, or if networks, tokenizers, shapes or these settings differ.
    """
    check_free(out)
    if len(models) < 2:
        raise UserError(f"the mean of {len(models)} models is nothing new; name two or more")
    first, total = None, {}
    for model in models:
        run = Run.at(model)
        system = dict(run.system)
        params, meta, _ = run.restore()
        for name in ("adapt", "compress"):
            system[name], params = init_models.finished(system.get(name, []), params, run.kinds)
        flat = {path: np.asarray(leaf, np.float64) for path, leaf in paths.flatten(params).items()}
        mine = {
            "towers": system["towers"],
            "adaptations": system["adapt"],
            "compressions": system["compress"],
        }
        mine["tokenizer"] = meta.get("tokenizer")
        mine["parameters"] = {path: leaf.shape for path, leaf in flat.items()}
        sentence = sentence_folder.sentence_of(run.folder / workdirs.SENTENCE)
        mine["sentence settings"] = None if sentence is None else sentence_folder.settings(sentence)
        if first is None:
            config = {**run.record["config"], "system": system}
            first, record = mine, {**run.record, "config": config, "averaged": list(models)}
            record["own"] = record.get("own") if made_here(run.record, run.folder) else None
            tokenizer = run.tokenizer() if mine["tokenizer"] else None
        for name, value in mine.items():
            if value != first[name]:
                raise UserError(
                    f"{model} and {models[0]} differ in their {name}; the mean is of models "
                    "of one network"
                )
        total = {path: total.get(path, 0.0) + leaf / len(models) for path, leaf in flat.items()}
    mean = paths.unflatten({path: leaf.astype(np.float32) for path, leaf in total.items()})
    found = write(out, record, tokenizer, mean, generation_of(models[0]))
    if sentence is not None:
        sentence_folder.write(found.folder / workdirs.SENTENCE, sentence)
    return mean


def published_config(model: str | os.PathLike) -> Mapping[str, Any] | None:
    """Returns the published config of a run or of a published checkpoint, or None."""
    run = Run.at(model)
    if run.exists:
        return run.published or None
    file = run.folder / "config.json"
    return (
        json.loads(file.read_text(encoding="utf8")) if checkpoint.is_published(run.folder) else None
    )


def generation_of(model: str | os.PathLike) -> list[Path]:
    """Returns [the file with the settings of generation] of a run or a published checkpoint, []
    without one."""
    file = Run.at(model).folder / GENERATION
    return [file] if file.is_file() else []


LAYOUTS = ((elmo_folder.writes, elmo_folder.write),)
"""(whether an encoder has a layout of another library, what writes it) of those without a class in
Transformers."""


def export(
    out: str | os.PathLike,
    model: Any,
    config: Mapping[str, Any] | None = None,
    beside: Sequence[Path] = (),
    *,
    dtype: str = "float32",
    max_shard_bytes: int = 5_000_000_000,
    run: Run | None = None,
) -> list[Path]:
    """Writes a model as a Hugging Face directory with copies of the files `beside`, or in a layout
    of `LAYOUTS`, atomically. Returns its files.

    The folder has a model card from the record of `run`, and the files of sentence-transformers
    where the model came from such a folder, or classifies the mean of the states. Raises
    UserError."""
    from ptm_jax.data.tokenizers.published import write_published

    for own, write in LAYOUTS:
        if own(model.module.encoder):
            with drafted(out) as draft:
                write(draft, model.module, model.params[model.tower], model.examples, dtype)
            return [file for file in Path(out).absolute().rglob("*") if file.is_file()]
    with drafted(out) as draft:
        sentence = model.sentence
        module, params, last = sentence_folder.parted(model.module, model.params[model.tower])
        named = checkpoint.task_names(
            model.system.objective, model.module.heads, model.examples.labels
        )
        if (
            last is not None
            # no class has this head; as a folder of sentence-transformers it is a layer on the
            # vector
        ):
            longest = (
                {}
                if sentence is None
                else {"max_length": sentence.max_length, "lower": sentence.lower}
            )
            sentence = sentence_folder.Sentence(dense=(last,), width=len(last.kernel), **longest)
        system = dataclasses.replace(model.system, towers={"main": module})
        options = {
            "config": config,
            "named": named,
            "dtype": dtype,
            "max_shard_bytes": max_shard_bytes,
        }
        checkpoint.write(draft, system, {"main": params}, **options)
        if model.tokenizer is not None:
            write_published(model.tokenizer, draft)
        for file in beside:
            shutil.copyfile(file, draft / file.name)
        if sentence is not None and not sentence.refused:
            sentence_folder.write(draft, sentence)
        fields = json.loads((draft / "config.json").read_text(encoding="utf8"))
        (draft / "README.md").write_text(
            card.card(model, fields, sentence is not None, run), encoding="utf8"
        )
    return [file for file in Path(out).absolute().rglob("*") if file.is_file()]


@contextlib.contextmanager
def drafted(out: str | os.PathLike) -> Iterator[Path]:
    """Yields a folder to write to, which is renamed to `out` at the end. Raises UserError if it
    cannot be written."""
    out = Path(out).absolute()
    draft = out.with_name(out.name + ".draft")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        with workdirs.writing(out, "free space there, or choose another --out"):
            yield draft
            if out.exists():
                out.rmdir()  # empty: `check_free`
            draft.replace(out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
