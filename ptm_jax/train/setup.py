"""What happens before the first step: the corpus, the resolved experiment, and the agreement with the workdir."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.precision import Precision
from ptm_jax.core.system import Experiment, System
from ptm_jax.core.types import Vocab
from ptm_jax.data.prepare import prepare
from ptm_jax.data.store import open_corpus

# What may change between two runs of one workdir: how often something is written, and where arrays lie.
FREE = ("log_every", "eval_every", "eval_batches", "save_every", "keep", "mesh", "rules")


def experiment(target: System | Experiment, data: tuple[str, ...] = ()) -> Experiment:
    """An Experiment of a bare System with the defaults, or the given one; `data` replaces its sources."""
    if isinstance(target, System):
        target = Experiment(system=target)
    return dataclasses.replace(target, data=tuple(data)) if data else target


def corpus_of(config: Experiment, workdir: Path, progress: Callable | None = None):
    """The prepared corpus of an experiment: the directory it names, or one made in the workdir from its sources."""
    if len(config.data) == 1 and (Path(config.data[0]) / "manifest.json").is_file():
        return open_corpus(config.data[0])
    tokenizer = config.tokenizer or config.system.tokenizer
    if tokenizer is None:
        raise UserError(f"{config.system.name} names no tokenizer; set tokenizer=TokenizerSpec(...) in the config")
    return prepare(
        config.data,
        workdir / "data",
        tokenizer=tokenizer,
        heldout=config.heldout,
        seed=config.seed,
        progress=progress,
    )


def resolve(config: Experiment, vocab: Vocab) -> Experiment:
    """The experiment with the corpus's vocabulary and its precision in every slot, checked against its own tables.

    Raises UserError for a token that the vocabulary lacks, and for rows longer than a position table.
    """
    system = spec.respell(config.system, Vocab, vocab)
    system = spec.respell(system, Precision, Precision(config.precision))
    for path, value in _parts(system.towers, "towers"):
        limit = getattr(value, "limit", None)
        for phase in system.recipe.phases:
            if isinstance(limit, int) and phase.length > limit:
                raise UserError(
                    f"rows of {phase.length} tokens are longer than the position table of {limit} ({path}); "
                    f"set recipe.phases.N.length to at most {limit}"
                )
    return dataclasses.replace(config, system=system)


def agree(config: Experiment, workdir: Path, corpus) -> None:
    """Write `config.json`, or compare with the one there; a workdir of another config is an error that says where."""
    record = {
        "config": spec.to_json(config),
        "corpus": {"digest": corpus.manifest["digest"], "tokenizer": corpus.manifest["tokenizer"]["hash"]},
    }
    path = workdir / "config.json"
    if path.is_file():
        there = json.loads(path.read_text(encoding="utf8"))
        changes = [d for d in spec.differences(there, record) if d[0].removeprefix("config.").split(".")[0] not in FREE]
        if changes:
            listed = "; ".join(
                f"{name.removeprefix('config.')}: {_short(old)} there, {_short(new)} here" for name, old, new in changes[:4]
            )
            more = f" (+{len(changes) - 4} more)" if len(changes) > 4 else ""
            raise UserError(f"{workdir} holds a run of another config; {listed}{more}. Choose another --workdir")
    workdir.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(record, indent=1), encoding="utf8")
    draft.replace(path)
    (workdir / "config.txt").write_text(spec.to_text(config) + "\n", encoding="utf8")


def unigram_baseline(corpus, vocab: Vocab) -> float:
    """Nats per token of the held-out text under the training text's unigram distribution (add-one), specials left out.

    What a model that knows word frequencies and nothing else would reach on masked or next tokens."""
    train, heldout = (np.asarray(corpus.counts(split), np.float64) for split in ("train", "heldout"))
    keep = np.ones(len(train), bool)
    keep[list(vocab.specials)] = False
    train, heldout = train[keep] + 1.0, heldout[keep]
    if heldout.sum() == 0:
        return float("nan")
    return float(-(heldout / heldout.sum()) @ np.log(train / train.sum()))


def _parts(value: Any, path: str):
    """(path, part) of a spec, depth first."""
    yield path, value
    if spec.is_spec(value):
        items = [(name, getattr(value, name)) for name in spec.field_names(value)]
    elif hasattr(value, "items"):
        items = list(value.items())
    else:
        return
    for name, part in items:
        yield from _parts(part, f"{path}.{name}")


def _short(value: Any) -> str:
    text = spec.to_line(value)
    return text if len(text) <= 60 else text[:57] + "..."
