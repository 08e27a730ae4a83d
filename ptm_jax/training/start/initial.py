"""Initial parameters of a run: random, or those of another model with the same paths
(`Experiment.init`)."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.convert.engine import Report
from ptm_jax.convert.family import family_of
from ptm_jax.convert.hub import locate
from ptm_jax.convert.libraries import sentence_folder
from ptm_jax.convert.libraries.sentence_folder import Sentence
from ptm_jax.core import slots
from ptm_jax.core.errors import UserError, closest
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.spec.classes import Kinds
from ptm_jax.core.spec.own_code import own_kinds
from ptm_jax.core.spec.rebuild import rebuild
from ptm_jax.core.system import Experiment, System, adapted
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.training import workdirs
from ptm_jax.training.checkpoints import restore_params
from ptm_jax.training.logs import console
from ptm_jax.training.start import given_vectors

Init = str | Sequence[tuple[str, str]] | None
"""`Experiment.init`: a model for all towers, or (tower or path, model) pairs; vectors of tokens in
the place of a model."""


def pairs_of(init: Init) -> tuple[tuple[str, str], ...]:
    """Returns ((tower or path, model), ...); "" means all towers."""
    if init is None:
        return ()
    return (
        (("", os.fspath(init)),)
        if isinstance(init, str | os.PathLike)
        else tuple((at, model) for at, model in init)
    )


def models_of(init: Init) -> tuple[tuple[str, str], ...]:
    """Returns the pairs without those that give vectors of tokens
    (`training.start.given_vectors`)."""
    return tuple(pair for pair in pairs_of(init) if not given_vectors.gives_vectors(*pair))


def sentence_of(init: Init) -> Sentence | None:
    """Returns the sentence-transformers settings of the model that the main tower begins with, if
    they can be written."""
    places = [locate(path) for at, path in models_of(init) if at in ("", "main")]
    folders = (
        place if checkpoint.is_published(place) else workdirs.place_of(place)[0] / workdirs.SENTENCE
        for place in places
    )
    found = next(
        (one for folder in folders if (one := sentence_folder.sentence_of(folder)) is not None),
        None,
    )
    return None if found is None or found.refused else found


def check(config: Experiment) -> None:
    """Raises UserError if `init` names an unknown tower, or if a tower that needs a model has
    none."""
    system, pairs = adapted(config.system), pairs_of(config.init)
    known = {*system.towers}
    for at, model in pairs:
        if at == given_vectors.PLACE or at in _language_models(system):
            continue
        if at and at.split("/")[0] not in known:
            near = closest(at.split("/")[0], known)
            raise UserError(
                f"init={at}={model} names no tower of {system.name}; it has: "
                f"{', '.join(sorted(known))}.{near}"
            )
    for tower in slots.objective(system.objective).given:
        if not any(at in ("", tower) for at, _ in models_of(config.init)):
            raise UserError(
                f"the tower {tower!r} of {system.name} is never trained; give its model "
                f"(--init {tower}=MODEL)"
            )


def with_tokenizer(config: Experiment) -> Experiment:
    """Returns the experiment. If it has no tokenizer, it gets that of its (first) initial model."""
    pairs = models_of(config.init)
    if not pairs or config.tokenizer is not None:
        return config
    folder = locate(pairs[0][1])
    if not checkpoint.is_published(folder):
        folder = workdirs.place_of(folder)[0] / "tokenizer"
    return dataclasses.replace(config, tokenizer=TokenizerSpec(path=str(folder)))


def params_of(path: str | os.PathLike, system: System) -> tuple[Mapping[str, Any], Report]:
    """Returns ({tower: parameters}, what was new) of a workdir, one of its checkpoints, or a
    published checkpoint.

    A published checkpoint is read as the class with the heads of `system`, if the family has one
    (BERT's classifier includes the pooler)."""
    folder = locate(path)
    if not checkpoint.is_published(folder):
        return _finished(folder, restore_params(folder)[0]), Report(0)
    try:
        name = family_of(Config.read(folder / "config.json")).architecture_of(system)
    except UserError:
        name = None
    found = checkpoint.read(folder, architecture=name)
    return found.params, found.report


def _finished(path: str | os.PathLike, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Merges the adaptations of a run into its network parameters, to initialise another run."""
    try:
        folder = workdirs.place_of(path)[0]
        record = workdirs.read(folder)
    except UserError:
        return params
    system = record["config"]["system"]
    wrappers = [*system.get("adapt", []), *system.get("compress", [])]
    return finished(wrappers, params, own_kinds(record, folder))[1]


def finished(
    wrappers: Sequence[Any], params: Mapping[str, Any], kinds: Kinds
) -> tuple[list[Any], Mapping[str, Any]]:
    """Returns (records of the remaining wrappers, parameters): low-rank updates are added, averages
    are taken, masks applied."""
    stay, known = [], lambda kind: kind in kinds and kind not in kinds.lost
    for part in wrappers:
        wrapper = (
            rebuild(part, kinds) if isinstance(part, Mapping) and known(part.get("kind")) else None
        )
        if wrapper is not None and slots.overrides(wrapper, "finish"):
            params = wrapper.finish(params)
        else:
            stay.append(part)
    return stay, params


def begin(
    params: Mapping[str, Any],
    init: Init,
    system: System,
    tokenizer: Callable[[], Any] | None = None,
) -> Mapping[str, Any]:
    """Returns `params` with the parameters of the models in `init`, on the shardings of `params`,
    and with the vectors that it gives to the tokens of `tokenizer()`.

    A head that the model lacks, or has in another shape, keeps its random initialisation, with a
    line on stderr. Encoders must match, except for parameters added by adaptations. Raises
    UserError.
    """
    for at, model in pairs_of(init):
        if given_vectors.gives_vectors(at, model):
            lexicons = _lexicons(system) if given_vectors.gives_entities(at) else {}
            fill = given_vectors.fill_entities if lexicons else given_vectors.fill
            params = fill(params, at, model, lexicons or tokenizer())
        else:
            params = _begun(params, at, model, system)
    return params


def _language_models(system: System) -> Mapping[str, Mapping[str, str]]:
    """{name: {prefix of paths: prefix}} of the parts that may begin with a language model
    (`slots.Encoder`)."""
    encoders = {tower: slots.encoder_of(system, tower) for tower in system.towers}
    return {
        name: {f"main/{old}": f"{tower}/{new}" for old, new in moves.items()}
        for tower, encoder in encoders.items()
        if encoder is not None
        for name, moves in encoder.language_models.items()
    }


def _lexicons(system: System) -> dict[str, Any]:
    """{path of a table of entities: its lexicon}."""
    found = {name: encoder.lexicons for name, encoder in _encoders(system).items()}
    return {
        f"{name}/encoder/{path}": lexicon
        for name, some in found.items()
        for path, lexicon in some.items()
    }


def _with_language_model(
    params: Mapping[str, Any], at: str, path: str, system: System
) -> Mapping[str, Any]:
    """Returns `params` whose part `at` is that of a language model. Raises UserError."""
    whole, moves = flatten(params), _language_models(system)[at]
    for name, leaf in flatten(params_of(path, system)[0]).items():
        new = next(
            (name.replace(old, new, 1) for old, new in moves.items() if name.startswith(old)), None
        )
        if new is None and "/heads_" in name:
            continue  # a part without a softmax
        if new not in whole or whole[new].shape != leaf.shape:
            here = (
                "no such parameter" if new not in whole else f"the shape {list(whole[new].shape)}"
            )
            raise UserError(
                f"{path} does not fit {at}: {name} has the shape {list(leaf.shape)}, and "
                f"{system.name} has {here}; take a "
                "language model with its embeddings, its first layer and its words"
            )
        whole[new] = _placed(leaf, whole[new])
    return unflatten(whole)


def _begun(params: Mapping[str, Any], at: str, path: str, system: System) -> Mapping[str, Any]:
    if at in _language_models(system):
        return _with_language_model(params, at, path, system)
    whole = flatten(params)
    target = {
        name: leaf for name, leaf in whole.items() if not at or f"{name}/".startswith(f"{at}/")
    }
    if not target:
        raise UserError(
            f"init={at}={path} names no parameter of {system.name}.{closest(at, _prefixes(whole))}"
        )
    source, report = _source(at, path, system)
    source = _of_plain(source, system)
    tower = next(iter(source)).split("/")[0]
    new = {f"{tower}/{name}" for name in report.missing}  # drawn when the checkpoint was read
    own = [wrapper.owns for wrapper in system.wrappers if wrapper.owns is not None]
    own += [encoder.beyond for encoder in _encoders(system).values() if encoder.beyond is not None]
    added = {name for name in target if any(re.search(pattern, name) for pattern in own)}
    fresh = [wrapper.fresh for wrapper in system.wrappers if wrapper.fresh is not None]
    source = {
        name: leaf
        for name, leaf in source.items()
        if not any(re.search(pattern, name) for pattern in fresh)
    }
    renewed = {name for name in target if any(re.search(pattern, name) for pattern in fresh)}
    reused = set()
    for name in target.keys() - source.keys():
        pooled = re.sub(r"/heads_\w+/summary/", "/heads_pool/", name)
        if pooled in source:
            source[name] = source[pooled]
            reused.add(pooled)
    same = {
        name for name, leaf in target.items() if name in source and source[name].shape == leaf.shape
    }
    for name in target.keys() & source.keys() - same:
        if "/heads_" not in name:
            there, here = list(source[name].shape), list(target[name].shape)
            raise UserError(
                f"{path} does not fit: {name} has the shape {there} there and {here} here; "
                "take a system of its size"
            )
    absent = [name for name in target if name not in same | added]
    if strange := [name for name in absent if "/heads_" not in name and name not in renewed]:
        raise UserError(
            f"{path} does not fit: it has no parameter {strange[0]}; take a system with its encoder"
        )
    unused = [name for name in source if name not in same | new | reused | {*absent}]
    parts = {
        "not in it, drawn anew": [*(name for name in absent if name not in source), *(same & new)],
        "of another shape in it, drawn anew": [name for name in absent if name in source],
        "in it, not used": [*unused, *(name.replace(".", "/") for name in report.extra)],
    }
    if lines := [f"{what}: {_tops(sorted(names))}" for what, names in parts.items() if names]:
        console.say(f"{path}: {'; '.join(lines)}")
    return unflatten(
        {
            name: _placed(source[name], leaf) if name in same else leaf
            for name, leaf in whole.items()
        }
    )


def _encoders(system: System) -> dict[str, slots.Encoder]:
    found = {name: slots.encoder_of(system, name) for name in system.towers}
    return {name: encoder for name, encoder in found.items() if encoder is not None}


def _of_plain(source: dict[str, Any], system: System) -> dict[str, Any]:
    """Puts the layers of a plain Transformer at the paths of encoders that hold them in parts."""
    for name, encoder in _encoders(system).items():
        if encoder.beyond is not None:
            head = f"{name}/encoder/"
            own = {
                path.removeprefix(head): leaf
                for path, leaf in source.items()
                if path.startswith(head)
            }
            rest = {path: leaf for path, leaf in source.items() if not path.startswith(head)}
            source = rest | {head + path: leaf for path, leaf in encoder.of_plain(own).items()}
    return source


def _source(at: str, path: str, system: System) -> tuple[dict[str, Any], Report]:
    """Returns ({path: array}, what was new) of a model; for one tower, of its tower of that name or
    its main tower."""
    if not at:
        found, report = params_of(path, system)
        return flatten(found), report
    tower = at.split("/")[0]
    found, report = params_of(
        path, dataclasses.replace(system, towers={"main": adapted(system).towers[tower]})
    )
    other = next((name for name in (tower, "main") if name in found), list(found)[-1])
    flat = flatten({tower: found[other]})
    return {name: leaf for name, leaf in flat.items() if f"{name}/".startswith(f"{at}/")}, report


def _placed(new: Any, old: jax.Array) -> jax.Array:
    """Places an array on the sharding of `old`. Each process provides the parts on its devices."""
    new = np.asarray(jnp.asarray(new, old.dtype))
    return jax.make_array_from_callback(new.shape, old.sharding, lambda index: new[index])


def _prefixes(names: Mapping[str, Any]) -> set[str]:
    """Returns all proper prefixes of paths."""
    return {name.rsplit("/", depth)[0] for name in names for depth in range(1, name.count("/") + 1)}


def _tops(names: list[str]) -> str:
    """Returns the distinct modules of parameter paths, as text."""
    return ", ".join(dict.fromkeys("/".join(name.split("/")[:2]) for name in names))
