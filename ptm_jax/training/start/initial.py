"""Initial parameters of a run: random, or from models with the same paths (`Experiment.init`)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.adapt.parameters.freezing import renewed
from ptm_jax.adapt.parameters.levels import stacked
from ptm_jax.convert.engine import Report
from ptm_jax.core import slots
from ptm_jax.core.errors import UserError, closest
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.system import Difference, Experiment, System, Tiling, adapted
from ptm_jax.core.types import Params
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.encoder_traits import EntityTables, GrownTransformer
from ptm_jax.training import workdirs
from ptm_jax.training.logs import console
from ptm_jax.training.start import given_vectors, model_parts
from ptm_jax.training.start.init_models import TABLES, Init, Initial, Initials, opened
from ptm_jax.training.start.tiling import fits, tiled
from ptm_jax.training.steps.step import Program
from ptm_jax.training.updates import schedules


def check(config: Experiment, init: Initials | None = None) -> None:
    """Raises UserError if `init` names an unknown tower, or if a required model is missing."""
    system, init = adapted(config.system), opened(config.init if init is None else init)
    known, parts = {*system.towers}, model_parts.parts_of(config.system)
    for source in init.sources:
        tower = source.at.split("/")[0]
        if source.at != TABLES and source.at not in parts and tower and tower not in known:
            raise UserError(
                f"init={source.at}={source.path} names no tower or part of {system.name}; it has: "
                f"{', '.join(sorted({*known, *parts}))}.{closest(tower, {*known, *parts})}"
            )
    for tower in slots.objective(system.objective).given:
        if init.model_of("", tower) is None:
            raise UserError(
                f"the tower {tower!r} of {system.name} is never trained; give its model "
                f"(--init {tower}=MODEL)"
            )


def with_tokenizer(config: Experiment, init: Initials | None = None) -> Experiment:
    """Returns the experiment. If it has no tokenizer, it gets the one of its first model."""
    models = opened(config.init if init is None else init).models
    if not models or config.tokenizer is not None:
        return config
    folder = models[0].tokenizer_folder
    return dataclasses.replace(config, tokenizer=TokenizerSpec(path=str(folder)))


def begun(
    params: Params,
    init: Initials,
    config: Experiment,
    program: Program,
    *,
    shardings: Params,
    tokenizer: Callable[[], object],
) -> Params:
    """Returns stored parameters of a run with the parameters of its initial model.

    program    the run's
    shardings  of the parameters"""
    padding = program.padding
    params = jax.jit(lambda params: padding.cut(params, "params/"))(params)
    params = begin(params, init, config.system, tokenizer, config.tiling)
    remark_decay(init, config)
    params = program.begun(params, params)
    return jax.jit(lambda params: padding.fill(params, "params/"), out_shardings=shardings)(params)


def begin(
    params: Mapping[str, Any],
    init: Init | Initials,
    system: System,
    tokenizer: Callable[[], Any] | None = None,
    tiling: Tiling | None = None,
) -> Mapping[str, Any]:
    """Returns `params` with the parameters of the models in `init`.

    They are on the shardings of `params`, with the vectors that `init` gives to the tokens of
    `tokenizer()`. With `tiling` those of a smaller model fill larger ones
    (`training.start.tiling`).

    A head that the model lacks, or has in another shape, keeps its random initialisation, with a
    line on stderr. Encoders must match, except for parameters added by adaptations. Raises
    UserError.
    """
    random, sources, printed = flatten(params), opened(init).sources, set()
    for source in sources:
        if source.vectors:
            lexicons = _lexicons(system) if source.entities else {}
            if lexicons:
                params = given_vectors.fill_entities(params, source, lexicons)
            else:
                params = given_vectors.fill(params, source, tokenizer())
        elif source.at in model_parts.parts_of(system):
            params = model_parts.begun(params, source, system, _placed, printed)
        else:
            params = _with_model(params, source, system, tiling)
    flat = flatten(params)
    loaded = [tie for tie in system.ties if isinstance(tie, Difference)]
    loaded = [tie for tie in loaded if flat[tie.path] is not random[tie.path]]
    return unflatten({**flat, **{tie.path: flat[tie.path] - flat[tie.source] for tie in loaded}})


def remark_decay(init: Init | Initials, config: Experiment) -> None:
    """Prints a line for each model of a run whose rate had decayed (`WarmupStableDecay`).

    Text is learnt further from a checkpoint before the decay (Hägele et al. 2024, arXiv
    2405.18392)."""
    if config.system.examples.labelled:
        return
    for model in opened(init).models:
        recipe = None if model.published else model.recipe
        if recipe is None:
            continue
        stable = schedules.stable_steps(recipe.schedule, recipe.steps)
        if stable is not None and model.step > stable:
            before = workdirs.checkpoint_of(model.workdir, stable)
            other = f"--init {before}" if before.is_dir() else "an earlier checkpoint"
            console.say(
                f"{model.path}: its learning rate had decayed from step {stable:,} on; to train it "
                f"further on text, take {other}"
            )


def _with_model(
    params: Mapping[str, Any], source: Initial, system: System, tiling: Tiling | None
) -> Mapping[str, Any]:
    """Returns `params` with the subtree `source.at` loaded from a model. Raises UserError."""
    flat = flatten(params)
    target = {name: leaf for name, leaf in flat.items() if _is_below(name, source.at)}
    if not target:
        near = closest(source.at, _prefixes(flat))
        raise UserError(
            f"init={source.at}={source.path} names no parameter of {system.name}.{near}"
        )
    model, report = _arrays_of(source, system)
    model = _of_plain(model, system)
    tower = next(iter(model)).split("/")[0]
    new = {f"{tower}/{name}" for name in report.missing}  # drawn when the checkpoint was read
    added = [wrapper.owns for wrapper in system.wrappers if wrapper.owns is not None]
    added += [encoder.beyond for encoder in _grown(system).values()]
    fresh = renewed(system.wrappers)
    model = {name: leaf for name, leaf in model.items() if not _matches(name, fresh)}

    used, drawn, reshaped = set(), [], []
    layers = stacked(params, adapted(system).towers)
    for name, leaf in target.items():
        key = name if name in model else re.sub(r"/heads_\w+/summary/", "/heads_pool/", name)
        array = model.get(key)
        if array is not None and array.shape == leaf.shape:
            flat[name] = _placed(array, leaf)
            used.add(key)
            drawn += [name] if name in new else []
        elif array is not None and tiling and fits(array.shape, leaf.shape):
            flat[name] = _placed(tiled(array, leaf, tiling, layers[name]), leaf)
            used.add(key)
        elif array is not None and "/heads_" not in name:
            raise _unequal(source, name, array, leaf)
        elif _matches(name, added):
            continue
        elif array is not None:
            used.add(key)
            (drawn if key in new else reshaped).append(name)
        elif "/heads_" in name or _matches(name, fresh):
            drawn.append(name)
        else:
            raise UserError(
                f"{source.path} does not fit: it has no parameter {name}; take a system with its "
                "encoder"
            )
    unused = [name for name in model if name not in used | new]
    remarks = {
        "new, begins at random": drawn,
        "new, begins at random (the checkpoint's has another shape)": reshaped,
        "in the checkpoint, not used": [
            *unused,
            *(name.replace(".", "/") for name in report.extra),
        ],
    }
    if lines := [f"{text}: {_tops(sorted(names))}" for text, names in remarks.items() if names]:
        console.say(f"{source.path}: {'; '.join(lines)}")
    return unflatten(flat)


def _unequal(source: Initial, name: str, array: jax.Array, leaf: jax.Array) -> UserError:
    larger = ", or --set tiling=middle" if fits(array.shape, leaf.shape) else ""
    return UserError(
        f"{source.path} does not fit: {name} has the shape {list(array.shape)} there and "
        f"{list(leaf.shape)} here; take a system of its size{larger}"
    )


def _arrays_of(source: Initial, system: System) -> tuple[dict[str, Any], Report]:
    """Returns ({path: array}, report) of a model.
    For one tower, of its tower of that name or its main tower."""
    if not source.at:
        params, report = source.params(system)
        return flatten(params), report
    tower = source.at.split("/")[0]
    alone = dataclasses.replace(system, towers={"main": adapted(system).towers[tower]})
    params, report = source.params(alone)
    name = next((name for name in (tower, "main") if name in params), list(params)[-1])
    arrays = flatten({tower: params[name]})
    return {path: leaf for path, leaf in arrays.items() if _is_below(path, source.at)}, report


def _lexicons(system: System) -> dict[str, Any]:
    """{path of a table of entities: its lexicon}."""
    return {
        f"{tower}/encoder/{path}": lexicon
        for tower, encoder in slots.encoders_with(system, EntityTables).items()
        for path, lexicon in encoder.lexicons.items()
    }


def _grown(system: System) -> dict[str, GrownTransformer]:
    """{tower: its encoder}, those that may begin with a plain Transformer."""
    return slots.encoders_with(system, GrownTransformer)


def _of_plain(arrays: dict[str, Any], system: System) -> dict[str, Any]:
    """Puts the layers of a plain Transformer at the paths of encoders that hold them in parts."""
    for tower, encoder in _grown(system).items():
        start = f"{tower}/encoder/"
        inside = {name for name in arrays if name.startswith(start)}
        layers = {name.removeprefix(start): arrays[name] for name in arrays if name in inside}
        moved = {start + name: leaf for name, leaf in encoder.of_plain(layers).items()}
        arrays = {name: arrays[name] for name in arrays if name not in inside} | moved
    return arrays


def _placed(new: Any, old: jax.Array) -> jax.Array:
    """Places an array on the sharding of `old`. Each process provides the parts on its devices."""
    new = np.asarray(jnp.asarray(new, old.dtype))
    return jax.make_array_from_callback(new.shape, old.sharding, lambda index: new[index])


def _is_below(name: str, at: str) -> bool:
    """Whether a path of parameters is `at` or below it; everything is below ""."""
    return not at or f"{name}/".startswith(f"{at}/")


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)


def _prefixes(names: Mapping[str, Any]) -> set[str]:
    """Returns all proper prefixes of paths."""
    return {name.rsplit("/", depth)[0] for name in names for depth in range(1, name.count("/") + 1)}


def _tops(names: list[str]) -> str:
    """Returns the distinct modules of parameter paths, as text."""
    return ", ".join(dict.fromkeys("/".join(name.split("/")[:2]) for name in names))
