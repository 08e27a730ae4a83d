"""Means of metrics: since the last line of the log, and over a held-out text, of a run or of its checkpoint."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.rebuild import rebuild
from ptm_jax.core.system import Experiment, System
from ptm_jax.core.types import Batch, Ratio
from ptm_jax.data.store import Corpus, open_corpus
from ptm_jax.mesh import tables
from ptm_jax.systems.kinds import kinds_of
from ptm_jax.train import setup
from ptm_jax.train.checkpoints import restore_params
from ptm_jax.train.step import program


class Window:
    """Sums of metrics since the last line of the log; they lie on the device until somebody asks."""

    def __init__(self, sums: Mapping[str, Any] | None = None):
        self._sums = dict(sums or {})
        self._pending: list[Mapping[str, Any]] = []

    def add(self, metrics: Mapping[str, Any]) -> None:
        self._pending.append(metrics)

    def sums(self) -> dict[str, Any]:
        """{name: [sums, weights]} in float64, and the number of steps under ''; the caller's own, to keep or write."""
        for metrics in jax.device_get(self._pending):
            self._sums[""] = self._sums.get("", 0) + 1
            for name, value in metrics.items():
                pair = (value.sum, value.weight) if isinstance(value, Ratio) else (value, 1.0)
                new = [np.atleast_1d(np.asarray(x, np.float64)) for x in pair]
                old = self._sums.get(name, [0.0, 0.0])
                self._sums[name] = [(np.asarray(a) + b).tolist() for a, b in zip(old, new, strict=True)]
        self._pending = []
        return dict(self._sums)

    def infinite(self, *names: str) -> str | None:
        """The first of `names` whose sum is NaN or infinite, or None."""
        sums = self.sums()
        return next((n for n in names if n in sums and not all(map(math.isfinite, sums[n][0]))), None)

    def close(self) -> tuple[dict[str, float], int, float]:
        """(means, steps, tokens) since the last call; the loss is the sum of its terms' means."""
        sums, self._sums = self.sums(), {}
        steps = int(sums.pop("", 0))
        tokens = sum(sums.pop("tokens", [[0.0]])[0])
        means = {
            name: sum(s / w if w else 0.0 for s, w in zip(total, weight, strict=True))
            for name, (total, weight) in sums.items()
        }
        return means, steps, tokens


def evaluate(
    step: Callable[..., tuple[Mapping[str, Any], Any]], params: Any, stream: Iterable[Batch], *, mesh, carry: Any = None,
    batches: int = 0,
) -> tuple[dict[str, float], int]:  # fmt: skip
    """(means of the metrics, rows that hold a token) over a stream of one epoch, or its first `batches` batches.

    `step` is a jitted `Program.evaluate`. It draws the corruption of batch i from i, so that two evaluations of one
    model agree.
    """
    total, rows = Window(), 0
    for index, batch in enumerate(stream):
        if batches and index >= batches:
            break
        rows += int(batch["segment_ids"].any(1).sum()) if "segment_ids" in batch else len(batch["rows"])
        metrics, carry = step(params, tables.place_batch(batch, mesh), index, carry)
        total.add(metrics)
    return total.close()[0], rows


def unigram_baseline(train: np.ndarray, text: np.ndarray, specials: Iterable[int] = ()) -> float:
    """Nats per token of a text under the training text's unigram distribution (add-one), special ids left out.

    Both are counts [V]. What a model that knows word frequencies and nothing else would reach on masked or next tokens.
    NaN for a text without tokens."""
    keep = np.ones(len(train), bool)
    keep[list(specials)] = False
    train, text = train[keep] + 1.0, np.asarray(text, np.float64)[keep]
    if text.sum() == 0:
        return float("nan")
    return float(-(text / text.sum()) @ np.log(train / train.sum()))


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Metrics of the checkpoint of `step` over `examples` rows."""

    step: int
    examples: int
    metrics: Mapping[str, float]


def newest(workdir: Path, config: Experiment, corpus: Corpus, split: str, batches: int = 0) -> Evaluation:
    """The metrics of a run's newest checkpoint on a split of a corpus, in rows of the phase that it lies in.

    On the run's own held-out text they are those of its log. The mesh may be another one than the run's.
    """
    mesh, rules = _mesh(config)
    with setup.building(config.system):
        work, state = program(config.system, config.seed).on(mesh, rules, setup.example(config, corpus))
    params, meta, step = restore_params(workdir, like=state.params, true=work.padding.true)
    setup.check_tokenizer(workdir, meta["tokenizer"])
    phase = meta["position"]["phase"]
    stream = setup.stream(config, corpus, phase, split, epochs=1)
    with jax.set_mesh(mesh), setup.building(config.system):
        carry = work.initial_carry(params, setup.example(config, corpus, phase))
        metrics, rows = evaluate(jax.jit(work.evaluate), params, stream, mesh=mesh, carry=carry, batches=batches)
    return Evaluation(step, rows, metrics)


def config_of(record: Mapping[str, Any], given: Experiment | None = None) -> Experiment:
    """The Experiment of a run's `setup.record_of`, as the run resolved it, without a tokenizer: the workdir has that.

    Slots that are the user's own code come from `given`. Raises UserError where one is missing, or another one.
    """
    config = record["config"]
    own = None if given is None else setup.resolve(given, setup.vocab_of(record)).system
    slots = {name: _slot(name, part, own) for name, part in config["system"].items() if name not in ("kind", "tokenizer")}
    run = {name: part for name, part in config.items() if name not in ("kind", "system", "tokenizer")}
    return Experiment(system=System(**slots), **rebuild(run, kinds_of()))


def corpus_of(workdir: Path, record: Mapping[str, Any]) -> Corpus:
    """The corpus that a run was trained on. Raises UserError where it is not there any more, or another one."""
    places = [workdir / "data", Path(record["corpus"].get("path", workdir / "data"))]
    found = [place for place in places if (place / "manifest.json").is_file()]
    if not found:
        raise UserError(f"the corpus of {workdir} is not in {places[-1]} any more; put it back")
    corpus = open_corpus(found[0])
    if corpus.manifest["digest"] != record["corpus"]["digest"]:
        raise UserError(f"{corpus.dir} is not the corpus that {workdir} was trained on; put that one back")
    return corpus


def _slot(name: str, part: Any, own: System | None) -> Any:
    """A slot of a record rebuilt, or where its kind is not the library's, the given system's, which must be the same."""
    function = name in ("objective", "corruption", "examples") and isinstance(part, str)
    try:
        if not function:
            return rebuild(part, kinds_of(), f"system.{name}")
    except UserError as error:
        if own is None:
            raise UserError(f"{error} Where it is defined in your config file, give that as --config") from error
    if own is None:
        raise UserError(f"the {name} of this run is your own {part}; give its file as --config")
    value = getattr(own, name)
    if spec.to_json(value) != part:
        found = "; ".join(f"{path or name}: {a} there, {b} here" for path, a, b in spec.differences(part, value)[:3])
        raise UserError(f"the {name} of --config is not the one of the run; {found}")
    return value


def _mesh(config: Experiment):
    """The run's mesh and rules where there are as many devices as it had, else all devices on `data`."""
    sizes = dict(config.mesh)
    if math.prod(sizes.values()) == jax.device_count():
        return tables.make_mesh(sizes), config.rules
    return tables.make_mesh(), "replicated"
