"""The parameters that a run begins with: drawn, or another model's where the paths agree (`Experiment.init`)."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.convert.family import family_of
from ptm_jax.convert.hub import locate
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.rebuild import rebuild
from ptm_jax.core.system import Experiment, System
from ptm_jax.data.tokenizers import TokenizerSpec
from ptm_jax.systems.kinds import kinds_of
from ptm_jax.train import logs
from ptm_jax.train.checkpoints import restore_params


def with_tokenizer(config: Experiment) -> Experiment:
    """The experiment with the tokenizer of the model it begins with, where it names none itself."""
    if config.init is None or config.tokenizer is not None:
        return config
    folder = locate(config.init)
    if not checkpoint.is_published(folder):
        folder = workdir_of(folder) / "tokenizer"
    return dataclasses.replace(config, tokenizer=TokenizerSpec(path=str(folder)))


def params_of(path: str | os.PathLike, system: System) -> Mapping[str, Any]:
    """{tower: parameters} of a workdir, of one of its checkpoints, or of a published checkpoint, read as the class that has
    the heads of `system` where the family has it (a pooler is a part of BERT's classifier)."""
    folder = locate(path)
    if not checkpoint.is_published(folder):
        return _finished(workdir_of(folder), restore_params(folder)[0])
    try:
        name = family_of(Config.read(folder / "config.json")).architecture_of(system)
    except UserError:
        name = None
    found = checkpoint.read(folder, architecture=name)
    for line in found.report.lines():
        logs.say(f"{folder}: {line}")
    return found.params


def _finished(workdir: Path, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parameters of a run as another begins with them: what its adaptations kept beside the network is in it."""
    try:
        record = json.loads((workdir / "config.json").read_text(encoding="utf8"))["config"]["system"].get("adapt", [])
    except (OSError, ValueError, KeyError, TypeError):
        return params
    return finished(record, params)[1]


def finished(adapt: Sequence[Any], params: Mapping[str, Any]) -> tuple[list[Any], Mapping[str, Any]]:
    """(records of the adaptations that stay, parameters): low-rank updates added, averages taken."""
    kinds, stay = kinds_of(), []
    for part in adapt:
        wrapper = rebuild(part, kinds) if isinstance(part, Mapping) and part.get("kind") in kinds else None
        if hasattr(wrapper, "finish"):
            params = wrapper.finish(params)
        else:
            stay.append(part)
    return stay, params


def begin(params: Mapping[str, Any], path: str | os.PathLike, system: System) -> Mapping[str, Any]:
    """`params` with everything that the model at `path` has too, on the shardings of `params`.

    A head of another shape is drawn anew, as one that the model lacks; both are told. An encoder must be the same, but for
    what adaptations add to it. Raises UserError.
    """
    source, target = flatten(params_of(path, system)), flatten(params)
    own = [wrapper.owns for wrapper in (*system.adapt, *system.compress) if hasattr(wrapper, "owns")]
    added = {name for name in target if any(re.search(pattern, name) for pattern in own)}
    fresh = [wrapper.fresh for wrapper in system.adapt if hasattr(wrapper, "fresh")]
    source = {name: leaf for name, leaf in source.items() if not any(re.search(pattern, name) for pattern in fresh)}
    renewed = {name for name in target if any(re.search(pattern, name) for pattern in fresh)}
    for name in target.keys() - source.keys():
        pooled = re.sub(r"/heads_\w+/summary/", "/heads_pool/", name)
        if pooled in source:
            source[name] = source[pooled]
    same = {name for name, leaf in target.items() if name in source and source[name].shape == leaf.shape}
    for name in target.keys() & source.keys() - same:
        if "/heads_" not in name:
            there, here = list(source[name].shape), list(target[name].shape)
            raise UserError(
                f"{path} does not fit: {name} has the shape {there} there and {here} here; take a system of its size"
            )
    absent = [name for name in target if name not in same | added]
    if strange := [name for name in absent if "/heads_" not in name and name not in renewed]:
        raise UserError(f"{path} does not fit: it has no parameter {strange[0]}; take a system with its encoder")
    if absent:
        logs.say(f"drawn anew: {_tops(absent)}")
    if unused := [name for name in source if name not in same]:
        logs.say(f"of {path}, not used: {_tops(unused)}")

    def place(new, old):  # each process gives the parts that its devices hold
        new = np.asarray(jnp.asarray(new, old.dtype))
        return jax.make_array_from_callback(new.shape, old.sharding, lambda index: new[index])

    return unflatten({name: place(source[name], leaf) if name in same else leaf for name, leaf in target.items()})


def _tops(names: list[str]) -> str:
    """The modules of parameters, each once."""
    return ", ".join(dict.fromkeys("/".join(name.split("/")[:2]) for name in names))


def workdir_of(path: Path) -> Path:
    path = path.absolute()
    path = path.parent if path.name.startswith("step_") else path
    return path.parent if path.name == "checkpoints" else path
