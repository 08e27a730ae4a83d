"""Reads the directory of a published checkpoint into a record with parameters, and writes it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.convert import engine, pruned, quantised
from ptm_jax.convert.config import Config
from ptm_jax.convert.family import Family, families, family_of
from ptm_jax.convert.files import open_tensors
from ptm_jax.convert.formats.untyped import read_config
from ptm_jax.convert.records import PROBLEMS, label_fields
from ptm_jax.convert.saving import write_tensors
from ptm_jax.core import slots, spec, towers
from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.reading import check_fields, read_json
from ptm_jax.core.spec.classes import kinds_of
from ptm_jax.core.spec.rebuild import rebuild
from ptm_jax.core.streams import stream
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.data.tokenizers.published import FILES, read_published
from ptm_jax.objectives.tasks.downstream import label_kind

if TYPE_CHECKING:
    from ptm_jax.core.recipe import Recipe
    from ptm_jax.core.slots import Objective

RECIPE = "ptm_jax_recipe.json"
"""File of a folder that `ptm export` wrote: the recipe of the run, beside config.json."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read.
    The record, its parameters {tower: tree}, the import report and the published config."""

    system: System
    params: Mapping[str, Any]
    report: engine.Report
    config: Config
    architecture: str


def tokenizer_of(folder: Path) -> Any:
    """Returns the tokenizer of a published checkpoint, or None if the directory has none."""
    files = (next(folder.glob(pattern), None) for pattern in FILES)
    return read_published(folder) if folder.is_dir() and any(files) else None


def example(system: System | None = None) -> dict[str, Any]:
    """Returns the smallest batch that initialises every tower of a published architecture."""
    ids = jnp.zeros((1, 2), jnp.int32)
    return {"input_ids": ids, "decoder_input_ids": ids, "segment_ids": jnp.ones_like(ids)}


def config_of(folder: Path, allow_pickle: bool = False) -> Config:
    """Returns the config of a published checkpoint, with its `model_type`. Raises UserError."""
    return read_config(folder, example(), allow_pickle)


def record_of(
    config: Config, architecture: str | None = None, vocab: Vocab | None = None
) -> tuple[System, str]:
    """Returns (record, architecture) for a config.json.
    `vocab` holds the special ids of the checkpoint's tokenizer."""
    family = family_of(config)
    if architecture is not None and architecture not in family.heads:
        raise unknown("architecture", architecture, family.heads)
    name = architecture or family.architecture(config)
    try:
        system = pruned.smaller(family.build(config, name), config)
    except ValueError as error:
        raise UserError(f"{config.file}: {error}") from error
    if vocab is not None:
        size = system.towers["main"].encoder.embed.vocab.size
        if vocab.size > size:
            raise UserError(
                f"{config.file} has a vocabulary of {size}, its tokenizer {vocab.size} "
                "pieces; one is another model's"
            )
        system = spec.respell(system, Vocab, dataclasses.replace(vocab, size=size))
    folder = Path(config.file).parent
    if folder == Path():
        return dataclasses.replace(system, name=name), name
    return _with_recipe(dataclasses.replace(system, name=folder.absolute().name), folder), name


def _with_recipe(system: System, folder: Path) -> System:
    """Returns the record with the recipe of the run from which this library wrote a folder.
    Raises UserError for a damaged file."""
    path = folder / RECIPE
    if not path.is_file():
        return system
    record = read_json(path, "the recipe of a run")
    check_fields(path, record, {"kind": str, "phases": list, "lr": float})
    try:
        return dataclasses.replace(system, recipe=rebuild({**record, "kind": "Recipe"}, kinds_of()))
    except UserError as error:
        raise UserError(
            f"{path} is no recipe of this version ({error}); delete it: the published recipe takes "
            "its place"
        ) from None


def keep_recipe(folder: Path, recipe: Recipe) -> None:
    """Writes the recipe of a run into a published folder that has another one, for `record_of`. A
    recipe with phases that change the system is the run's alone."""
    named = any(phase.changes or phase.continues for phase in recipe.phases)
    if not named and recipe != record_of(config_of(folder))[0].recipe:
        text = json.dumps(spec.to_json(recipe), indent=1)
        (folder / RECIPE).write_text(text + "\n", encoding="utf8")


def read(
    folder: str | os.PathLike,
    *,
    architecture: str | None = None,
    vocab: Vocab | None = None,
    allow_pickle: bool = False,
    shardings: Callable[[Any], Any] | None = None,
    seed: int = 0,
) -> Checkpoint:
    """Reads a published checkpoint: a directory with config.json and tensors.

    architecture  another class of the same family. A task head that the checkpoint lacks is
                  initialised from `seed` and reported
    shardings     abstract parameters -> a tree of shardings; each device receives only its shards

    Raises UserError for missing or damaged files, wrong shapes and unknown types. No code from the
    checkpoint is executed.
    """
    folder = Path(folder)
    config = config_of(folder if folder.is_dir() else folder.parent, allow_pickle)
    family = family_of(config)
    tensors = open_tensors(folder, allow_pickle=allow_pickle)
    config = family.completed(config.within(map(tensors.shape, tensors)), tensors)
    tensors = family.opened(tensors, config)
    system, name = record_of(config, architecture, vocab)
    lines = pruned.lines(engine.table_for(family, config, name, tensors.names()), system)
    try:
        shapes = towers.abstract(system.towers, example(system))
    except ValueError as error:
        raise UserError(f"{config.file}: {str(error).splitlines()[0]}") from error
    if name == family.bare and _lacks_pooler(tensors, shapes["main"], family, lines):
        system = without_pooler(system)
        shapes = {
            **shapes,
            "main": {part: tree for part, tree in shapes["main"].items() if part != "heads_pool"},
        }
    written = config("architectures", list, None) or [family.bare]
    draw = None if architecture in (None, written[0]) else lambda paths: _drawn(system, seed, paths)
    where = None if shardings is None else shardings(shapes)["main"]
    _check_constants(tensors, family, family.constants(config, name))
    readable = {line.theirs for line in lines if line.head in (None, *system.towers["main"].heads)}
    absent = {line.theirs for line in lines} - readable
    params, report = engine.read(
        tensors, shapes["main"], family, lines, fresh=draw, shardings=where, absent=absent
    )
    if fields := config("quantization_config", dict, None):
        leaves = engine.leaves(
            {path: leaf.shape for path, leaf in flatten(shapes["main"]).items()}, lines
        )[0]
        params = quantised.read(params, tensors, leaves, fields)
        report = dataclasses.replace(report, extra=quantised.others(report.extra))
    return Checkpoint(system, {"main": params}, report, config, name)


def without_pooler(system: System) -> System:
    """Returns the record of a bare model that was made with `add_pooling_layer=False`."""
    main = system.towers["main"]
    heads = {name: head for name, head in main.heads.items() if name != "pool"}
    return dataclasses.replace(
        system, towers={**system.towers, "main": dataclasses.replace(main, heads=heads)}
    )


def _lacks_pooler(
    tensors: Any, shapes: Mapping[str, Any], family: Family, lines: tuple[Any, ...]
) -> bool:
    """Returns whether the head `pool` has parameters, and the file has no tensor of them."""
    flat = {
        path: leaf.shape for path, leaf in flatten(shapes).items() if path.startswith("heads_pool/")
    }
    names = [
        name.removeprefix(family.root)
        for leaf in engine.leaves(flat, lines)[0].values()
        for name in leaf.names
    ]
    return bool(names) and not any(name.endswith(tuple(names)) for name in tensors.names())


def _check_constants(
    tensors: Any, family: Family, constants: Mapping[str, Any], atol: float = 4e-3
) -> None:
    """Raises UserError if a tensor differs from the values that our layer computes.
    `atol` covers bfloat16 rounding."""
    for constant, value in constants.items():
        for name in {constant, constant.removeprefix(family.root)} & set(tensors.names()):
            stored = np.asarray(tensors.read(name), np.float32)
            if stored.shape != value.shape or np.abs(stored - value).max() > atol:
                raise UserError(
                    f"{tensors.file(name)}: {name} is not the fixed table of "
                    f"{family.model_type}; it is not supported"
                )


def _drawn(system: System, seed: int, paths: tuple[str, ...]) -> dict[str, Any]:
    """Returns {path: array} of newly initialised parameters of the main tower."""

    @jax.jit  # one program of what these parameters need, in place of one for each operation
    def drawn() -> dict[str, Any]:
        params = towers.init(system.towers, stream(seed, "init"), example(system))["main"]
        return {path: leaf for path, leaf in flatten(params).items() if path in paths}

    return drawn()


def published(
    system: System, config: Mapping[str, Any] | None = None
) -> tuple[Family, Config, str]:
    """Returns the (family, config, architecture) that describes a system's towers.

    `config` is the config of the import; it is kept if it still describes the towers. Of several
    families with the same network (RoBERTa, XLM-R, CamemBERT) the one of the system's paper is
    taken, else the first. Raises UserError if no family matches; the message names the first
    difference from the nearest family.
    """
    if config is not None:
        parsed = Config(config)
        family = family_of(parsed)
        architecture = family.architecture_of(system)
        if _same(family, parsed, architecture, system) is None:
            return family, parsed, architecture
    nearest: list[str] = []
    matches: list[tuple[Family, Config, str]] = []
    full = pruned.whole(system)
    # T5's heads may be narrower than its states: then none is missing.
    described = {name: (system, {}) for name in families.names() if name not in pruned.READERS}
    for name in pruned.READERS:
        described[name] = (system, {}) if full is None else (full, pruned.field(system))
    for name in families.names():
        described_system, more = described[name]
        family = families.get(name)
        try:
            architecture = family.architecture_of(system)
            fields = {
                "model_type": name,
                "architectures": [architecture],
                **family.config(described_system),
                **more,
            }
            parsed = Config(fields)
            difference = _same(family, parsed, architecture, system)
        except (UserError, AttributeError, KeyError, TypeError, ValueError):
            continue
        if difference is None:
            matches.append((family, parsed, architecture))
            if family.build(parsed, architecture).paper == system.paper:
                return matches[-1]
            continue
        nearest.append(f"{name}: {difference}")
    if matches:
        return matches[0]
    reason = min(nearest, key=len) if nearest else "none has its heads and layers"
    if full is not None:
        reason = (
            f"its layers lack heads, which {pruned.FIELD} describes for "
            f"{', '.join(pruned.READERS)} alone"
        )
    raise UserError(
        f"{system.name} is no architecture of the Hugging Face library ({reason}); export a "
        "system of one of "
        f"{', '.join(families.names())}"
    )


def _same(family: Family, config: Config, architecture: str, system: System) -> str | None:
    """Returns the first relevant difference between the towers of a system and of a config.
    None if there is none."""

    def plain(value):
        return spec.respell(value, Vocab, Vocab(size=value["main"].encoder.embed.vocab.size))

    system = family.published(system)
    built = pruned.smaller(family.build(config, architecture), config)
    if architecture == family.bare and "pool" not in system.towers["main"].heads:
        built = without_pooler(built)
    for name, theirs, here in spec.differences(plain(built.towers), plain(system.towers)):
        if name.rpartition(".")[2] not in ("precision", "initializer", "remat", "std"):
            return f"{name} is {spec.to_line(here)}, there {spec.to_line(theirs)}"
    return None


def _with_zeros(params: Mapping[str, Any], family: Family, system: System) -> Mapping[str, Any]:
    """Returns the parameters of the main tower with the zeros of `Family.published`."""
    described = family.published(system)
    if described == system:
        return params
    shapes = towers.abstract(described.towers, example(described))["main"]
    flat, full = flatten(params), flatten(shapes)
    zeros = {path: np.zeros(full[path].shape, np.float32) for path in full if path not in flat}
    return unflatten({**flat, **zeros})


def task_names(objective: Objective, heads: Mapping[str, Any], labels: Any) -> dict[str, Any]:
    """Returns the fields of a config.json that name the classes and the kind of a task.

    They are the `labels` of a head of classes, if known, and the kind of a text's.
    """
    fields, head = {}, heads.get("classify", heads.get("tag"))
    if (
        isinstance(head, slots.ClassHead)
        and isinstance(labels, tuple)
        and len(set(labels)) == head.classes
    ):
        fields = label_fields(head.classes, labels)
    if "classify" in heads:
        kinds = {kind: name for name, kind in PROBLEMS.items()}
        default = "number" if head.classes == 1 else "classes"
        fields["problem_type"] = kinds[label_kind(objective) or default]
    return fields


def write(
    folder: str | os.PathLike,
    system: System,
    params: Mapping[str, Any],
    *,
    config: Mapping[str, Any] | None = None,
    named: Mapping[str, Any] | None = None,
    dtype: str = "float32",
    max_shard_bytes: int = 5_000_000_000,
) -> list[Path]:
    """Writes a directory that Transformers can load (config.json and safetensors).
    Returns the files. Raises UserError.

    `named` are fields of config.json that do not describe the network (`task_names`)."""
    family, fields, architecture = published(system, config)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    lines, bare = (
        pruned.lines(family.lines(fields, architecture), system),
        architecture == family.bare,
    )

    def write_own(tower):
        return engine.write(tower, family, lines, bare=bare)

    params = {"main": _with_zeros(params["main"], family, system)}
    rounded = quantised.is_quantised(params["main"])
    tensors = quantised.write(params["main"], write_own) if rounded else write_own(params["main"])
    root = family.root if architecture == family.bare else ""
    constants = (
        (name.removeprefix(root), value)
        for name, value in family.constants(fields, architecture).items()
    )
    everything = ((name, np.asarray(value)) for name, value in itertools.chain(tensors, constants))
    written = write_tensors(folder, everything, dtype=dtype, max_shard_bytes=max_shard_bytes)
    facts = {**fields, **(named or {}), "architectures": [architecture], "dtype": dtype}
    facts.pop("quantization_config", None)
    facts |= quantised.config(params["main"]) if rounded else {}
    draft = folder / "config.draft"
    draft.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf8")
    return [*written, draft.replace(folder / "config.json")]
