"""The experiment that a word names: a system, the user's config, or a model to train further."""

from __future__ import annotations

import dataclasses
import os
import re
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptm_jax.core.errors import UserError, closest, unknown_of_many
from ptm_jax.data.stores import objects, working

EPOCHS = 3.0
"""Epochs over the text when a model is trained further (BERT's own steps are of its own text)."""
CONFIGS = Path(__file__).parents[1] / "configs"
"""The experiments of `configs/`, in the installed package as well."""


def resolve(target: str, sets: Sequence[str] = (), *, experiment: bool = False) -> Any:
    """The System or Experiment that `target` names, with the 'path=value' words of `sets` applied.

    `target` is a name of the catalogue, two of them joined by "+" (an encoder and a task), a file
    of `configs/` by its name, another .py file that defines `config` or `experiment()`, or the
    directory of a run or of a Hugging Face checkpoint, whose parameters an experiment begins with;
    it reads the text for `EPOCHS` epochs unless `sets` give steps or epochs. A name of the
    catalogue wins over a directory of that name without a published checkpoint. With `experiment`,
    a System becomes an Experiment first, so that `sets` may reach its fields too. Raises UserError.
    """
    from ptm_jax.convert.formats.untyped import is_published
    from ptm_jax.convert.libraries.sentence_folder import model_folder
    from ptm_jax.core import spec
    from ptm_jax.core.system import Experiment, System

    folder = working.opened(target)
    if (folder / "modules.json").is_file():
        folder = model_folder(folder)
        target = target if objects.is_store(target) else os.fspath(folder)
    if folder.is_dir() and (is_published(folder) or not _is_system(target)):
        value = _further(folder, target)
    else:
        is_file_name = target.endswith(".py") or os.sep in target or "/" in target
        value = load_file(target) if is_file_name else _named(target)
    if experiment and isinstance(value, System):
        value = Experiment(system=value)
    changes = spec.parse_pairs(sets)
    if isinstance(value, Experiment) and any(
        re.match(r"(system\.)?recipe(\.phases|$)", path) for path in changes
    ):
        value = dataclasses.replace(value, epochs=None)
    return changed(value, sets)


def changed(value: Any, sets: Sequence[str]) -> Any:
    """`value` with the 'path=value' words of --set applied. Raises UserError."""
    from ptm_jax.core import spec
    from ptm_jax.core.spec.classes import kinds_of

    changes = spec.parse_pairs(sets)
    named = any(re.match(r"[A-Z]\w*\s*(\(|$)", text) for text in changes.values())
    try:
        return spec.override(value, changes, kinds_of() if named else None)
    except UserError as error:
        wrappers = {"adapt": "adaptations by --adapt, as in `ptm train SYSTEM --adapt lora`"}
        wrappers["compress"] = (
            "compressions by --compress, as in `ptm train SYSTEM --compress magnitude`"
        )
        named = [name for name in wrappers if {name, f"system.{name}"} & changes.keys()]
        if not named:
            raise
        advice = f"give {wrappers[named[0]]}"
        raise UserError(f"{str(error).rstrip('.')}; {advice}") from error


def _further(folder: Path, name: str) -> Any:
    """The Experiment that trains a published checkpoint or a run further: its record, tokenizer and
    parameters. `name` is the folder as the user gave it."""
    from ptm_jax.convert.checkpoint import config_of
    from ptm_jax.convert.config import Config
    from ptm_jax.convert.formats.untyped import is_published
    from ptm_jax.core import slots
    from ptm_jax.core.system import Experiment
    from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
    from ptm_jax.runs.run import Run

    if is_published(folder):
        system = _published(config_of(folder))
        return Experiment(
            system=system, init=name, tokenizer=TokenizerSpec(path=name), epochs=EPOCHS
        )
    run = Run.at(folder)
    if not run.exists:
        raise UserError(
            f"{name} is a directory; give a .py file, a name of `ptm list`, a run, or a "
            "Hugging Face checkpoint"
        )
    config = (
        Experiment(system=_published(Config(run.published))) if run.published else run.experiment()
    )
    system = config.system
    if system.examples.labelled:
        raise UserError(
            f"{name} was fine-tuned; train it on a task with --init {name} --task NAME --data PATH"
        )

    # what an adaptation merges when it ends is in the parameters that the new run begins with
    def stay(wrappers):
        return tuple(wrapper for wrapper in wrappers if not slots.overrides(wrapper, "finish"))

    system = dataclasses.replace(system, adapt=stay(system.adapt), compress=stay(system.compress))
    fields = {
        "tokenizer": TokenizerSpec(path=working.named(str(run.folder / "tokenizer"))),
        "init": name,
        "epochs": EPOCHS,
    }
    return dataclasses.replace(
        config, system=system, mesh=(), rules="replicated", slices=1, **fields
    )


def recorded(workdir: str | os.PathLike, more: int) -> Any:
    """The Experiment of a run as its record has it, for `more` steps in its own workdir.
    Raises UserError."""
    from ptm_jax.core.spec.rebuild import rebuild
    from ptm_jax.runs.run import Run
    from ptm_jax.training import workdirs

    record, run = workdirs.read(Path(workdir), corpus=True), Run(Path(workdir))
    command = record.get("command", f"ptm train SYSTEM_OR_CONFIG --workdir {workdir}")
    try:
        config = run.experiment()
        parts = record["config"], record["config"]["system"]
        outer, inner = (rebuild(part.get("tokenizer"), run.kinds) for part in parts)
    except UserError as error:
        raise UserError(f"{error}; or give the first command: {command} --more {more}") from None
    if config.system.examples.labelled:
        raise UserError(
            f"{workdir} was fine-tuned, and --more adds steps to a run on text; train it further "
            f"by `ptm train --init {workdir} --data PATH --workdir OTHER`, or from the beginning "
            "with more --epochs"
        )
    system = dataclasses.replace(config.system, tokenizer=inner)
    data = config.data if all(map(_exists, config.data)) else ()
    data = data or (record["corpus"].get("path", str(Path(workdir) / "data")),)
    return dataclasses.replace(config, system=system, tokenizer=outer, data=data)


def _exists(place: str) -> bool:
    return objects.is_store(place) or Path(place).exists()


def _published(config: Any) -> Any:
    """The System of a published config, with the heads of pre-training."""
    from ptm_jax.convert.checkpoint import record_of
    from ptm_jax.convert.family import family_of

    family = family_of(config)
    named = family.architecture(config)
    return record_of(config, family.pretraining if named == family.bare else named)[0]


def load_file(target: str) -> Any:
    """The `config`, or the result of `experiment()`, of a Python file, imported by its path."""
    from ptm_jax.core.spec.own_code import import_file
    from ptm_jax.core.system import Experiment, System

    path = Path(target)
    if not path.exists() and (CONFIGS / target.removeprefix("configs/")).is_file():
        path = CONFIGS / target.removeprefix("configs/")
    if not path.exists():
        near = (
            closest(path.name, [p.name for p in path.parent.glob("*.py")])
            if path.parent.is_dir()
            else ""
        )
        raise UserError(f"no such config: {target}; give a .py file that defines `config`.{near}")
    module = guard(lambda: import_file(path), path)
    if "config" in vars(module):
        value = module.config
    elif callable(make := vars(module).get("experiment")):
        value = guard(make, path)
    else:
        raise UserError(
            f"{target} defines neither `config` (an Experiment or a System) nor `experiment()`"
        )
    if not isinstance(value, Experiment | System):
        raise UserError(
            f"the config of {target} is of type {type(value).__name__}; it must be an "
            "Experiment or a System"
        )
    return value


def _is_system(name: str) -> bool:
    from ptm_jax import systems

    return name.count("+") < 2 and all(part in systems.names() for part in name.split("+"))


def _named(name: str) -> Any:
    from ptm_jax import systems

    if _is_system(name):
        return systems.get(name)
    if Path(name).exists():
        return load_file(name)
    if (CONFIGS / f"{name}.py").is_file():
        return load_file(f"{name}.py")
    raise unknown_of_many("system", name, systems.names())


def guard(function, path: Path) -> Any:
    """Calls the user's code; an exception becomes one line with their file and line."""
    try:
        return function()
    except UserError:
        raise
    except SyntaxError as error:
        raise UserError(f"{error.filename or path}:{error.lineno}: {error.msg}") from error
    except Exception as error:
        frames = [
            f
            for f in traceback.extract_tb(error.__traceback__)
            if Path(f.filename).resolve() == path.resolve()
        ]
        where = f"{path}:{frames[-1].lineno}" if frames else str(path)
        raise UserError(f"{where}: {type(error).__name__}: {error}") from error
