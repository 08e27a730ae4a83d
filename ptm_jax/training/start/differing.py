"""Resolves an experiment with its corpus, and compares it with the record of a run."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ptm_jax.core import facts, slots, spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.precision import Precision
from ptm_jax.core.spec import describe
from ptm_jax.core.system import Experiment
from ptm_jax.core.types import Vocab
from ptm_jax.training.workdirs import vocab_of

FREE = (
    "log_every", "eval_every", "eval_batches", "save_every", "keep", "metrics", "profile", "mesh",
    "rules", "slices",
)  # fmt: skip
"""Fields that may change when a workdir is resumed: intervals and places of output, and the
placement of arrays."""

_FASTER = re.compile(r"\.unroll$|^system\.examples\.(id_column|skip_empty)$")
"""Fields of a slot that may change: they alter how numbers are computed, not which. The prepared
rows do not depend on the column of ids, nor on leaving out rows that would be refused."""

_OF_EPOCHS = re.compile(
    r"system\.(recipe\.(phases\.\d+\.(steps|batch)|updates|schedule\.(warmup|decay))"
    r"|examples\.sample)$"
)
"""Fields that a run computes from `Experiment.epochs` and its text (`setup.scheduled`)."""


def resolve(config: Experiment, vocab: Vocab) -> Experiment:
    """Returns the experiment with the corpus's vocabulary, and precision and `impl` in slots."""
    return dataclasses.replace(config, system=_resolved(config.system, vocab, config))


def with_facts(config: Experiment, corpus: Callable[[], Any]) -> Experiment:
    """Returns the experiment with the facts of `corpus()` in its slots (`core.facts`)."""
    return dataclasses.replace(config, system=facts.fill(config.system, corpus))


def _resolved(value: Any, vocab: Vocab, config: Experiment) -> Any:
    value = spec.respell(spec.respell(value, Vocab, vocab), Precision, Precision(config.precision))
    if config.impl == "auto":
        return value

    def chosen(old):
        return dataclasses.replace(old, impl=config.impl) if old.computes == "attention" else old

    return spec.respell(value, slots.Kernel, chosen)


def changes(record: Mapping[str, Any], config: Experiment) -> list[tuple[str, Any, Any]]:
    """Returns [(field, in the record, in the experiment)] for all differences.
    `FREE` fields, `unroll` and `data` do not count.

    Sources are compared elsewhere by the corpus's digest, because files may have been moved."""
    vocab = vocab_of(record)
    config = resolve(config, vocab)
    old = _filled(record["config"], config, lambda value: _resolved(value, vocab, config))
    old, new = facts.without_hashes(old), facts.without_hashes(spec.to_json(config))
    made = _OF_EPOCHS if config.epochs is not None else re.compile("(?!)")
    differences = [
        d for d in spec.differences(old, new) if d[0].split(".")[0] not in (*FREE, "data")
    ]
    return [d for d in differences if not made.match(d[0]) and not _FASTER.search(d[0])]


def refuse(workdir: Path, differences: list[tuple[str, Any, Any]]) -> None:
    """Raises UserError if there are differences."""
    if differences:
        listed = "; ".join(
            f"{name}: {_short(a)} there, {_short(b)} here" for name, a, b in differences[:4]
        )
        more = f" (+{len(differences) - 4} more)" if len(differences) > 4 else ""
        raise UserError(
            f"{workdir} holds a run of another config; {listed}{more}. Choose another --workdir"
        )


def _filled(record: Any, value: Any, resolved: Callable[[Any], Any]) -> Any:
    """Returns the record with current defaults for fields that were added after it was written."""
    if (
        spec.is_spec(value)
        and isinstance(record, Mapping)
        and record.get("kind") == type(value).__name__
    ):
        filled = dict(record)
        for name, default in _defaults(value).items():
            filled.setdefault(describe.key_of(name), spec.to_json(resolved(default)))
        keys = {describe.key_of(name): part for name, part in spec.values_of(value).items()}
        return {
            k: _filled(part, keys[k], resolved) if k in keys else part for k, part in filled.items()
        }
    if isinstance(value, Mapping) and isinstance(record, Mapping):
        return {
            k: _filled(part, value[k], resolved) if k in value else part
            for k, part in record.items()
        }
    if isinstance(value, tuple | list) and isinstance(record, list) and len(record) == len(value):
        return [_filled(part, new, resolved) for part, new in zip(record, value, strict=True)]
    return record


def _defaults(value: Any) -> dict[str, Any]:
    """Returns {field: default} of the configuration fields with a default."""

    def made(field):
        return (
            field.default
            if field.default_factory is dataclasses.MISSING
            else field.default_factory()
        )

    defaults = {
        field.name: made(field)
        for field in dataclasses.fields(value)
        if field.name in spec.field_names(value)
    }
    return {
        name: default for name, default in defaults.items() if default is not dataclasses.MISSING
    }


def _short(value: Any) -> str:
    text = spec.to_line(value)
    return text if len(text) <= 60 else text[:57] + "..."
