"""Writes models as runs of no steps: imported, saved and averaged ones."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ptm_jax.convert import checkpoint
from ptm_jax.convert.libraries import sentence_export, sentence_folder
from ptm_jax.core import paths, spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.spec.own_code import made_here, remember, sources_of
from ptm_jax.core.types import Params
from ptm_jax.data.stores import working
from ptm_jax.runs.run import Run
from ptm_jax.training import workdirs
from ptm_jax.training.checkpoints import Checkpoints
from ptm_jax.training.start import init_models, other_files

if TYPE_CHECKING:
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer


GENERATION = "generation_config.json"
"""The published settings of generation, in the folder of an imported model as in that of its
checkpoint."""


def check_free(out: str | os.PathLike) -> None:
    """Raises UserError if an output directory is not empty, or no directory of a disk."""
    out = working.opened(out, "out")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is there already; choose another --out, or remove it")


def write(
    out: str | os.PathLike,
    record: Mapping[str, Any],
    tokenizer: Tokenizer,
    params: Params,
    beside: Sequence[Path] = (),
) -> Run:
    """Writes a run of no steps, atomically.
    It has the record {"config": {"system"}, ...} and copies of the files `beside`.

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
    if record.get("own"):
        remember(record["own"], Path(out))
    return Run.at(out)


def keep(out: str | os.PathLike, model: Any, imported: checkpoint.Checkpoint) -> Run:
    """Writes an imported model as a run of no steps.
    The record contains the published config, for export."""
    record = {
        "config": {"system": spec.to_json(imported.system)},
        "published": dict(imported.config),
    }
    return _kept(out, model, record, generation_of(Path(imported.config.file).parent))


def save(out: str | os.PathLike, model: Any) -> Run:
    """Writes a loaded model as a run of no steps, its adaptations merged into the network.
    Raises UserError."""
    check_free(out)
    system = dataclasses.replace(model.system, adapt=(), compress=())
    record = {"config": {"system": spec.to_json(system)}, "published": dict(model.published)}
    sources = sources_of(system, Path(out))
    run = _kept(out, model, {**record, "own": sources} if sources else record)
    other_files.save(system.examples, run.folder)
    return run


def _kept(
    out: str | os.PathLike, model: Any, record: Mapping[str, Any], beside: Sequence[Path] = ()
) -> Run:
    run = write(out, record, model.tokenizer, model.params, beside)
    if model.sentence is not None and not model.sentence.refused:
        sentence_export.write(run.folder / workdirs.SENTENCE, model.sentence)
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
        mine["sentence settings"] = None if sentence is None else sentence_export.settings(sentence)
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
    averaged = write(out, record, tokenizer, mean, generation_of(models[0]))
    if sentence is not None:
        sentence_export.write(averaged.folder / workdirs.SENTENCE, sentence)
    return mean


def generation_of(model: str | os.PathLike) -> list[Path]:
    """Returns [the file of generation settings] of a run or checkpoint, [] without one."""
    file = Run.at(model).folder / GENERATION
    return [file] if file.is_file() else []


@contextlib.contextmanager
def drafted(out: str | os.PathLike) -> Iterator[Path]:
    """Yields a folder to write to, which is renamed to `out` at the end.
    Raises UserError if it cannot be written."""
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
