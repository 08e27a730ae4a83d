"""The result of a run. A finished run is read, and no program is built."""

from __future__ import annotations

import dataclasses
import math
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ptm_jax.core import slots
from ptm_jax.core.system import Experiment, System
from ptm_jax.training import shelves, workdirs
from ptm_jax.training.hosts import group
from ptm_jax.training.logs import evaluation, logs
from ptm_jax.training.logs.figures import figure
from ptm_jax.training.logs.goodput import described
from ptm_jax.training.start import setup


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a run.

    heldout        metrics on the held-out text
    baseline       loss of predicting only frequencies, of words or of classes (`baseline_name`), in
                   nats
    compared       the metric of `heldout` to compare with it (`slots.Objective.baseline`), or None
    signal         the signal that stopped a run
    facts          rows of the report of a finished run, without the held-out metrics
    """

    workdir: Path
    step: int
    steps: int
    heldout: Mapping[str, float]
    baseline: float
    resumed_from: int | None
    stopped: bool
    baseline_name: str = "unigram baseline"
    compared: str | None = None
    signal: int = signal.SIGTERM
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def done(self) -> bool:
        return self.step >= self.steps


def finished(config: Experiment, workdir: Path, progress: Callable | None = None) -> Result | None:
    """Returns the result of a run of this experiment that is done, with its files.
    None if anything is left to do.

    Raises UserError if the workdir has a run of another experiment."""
    steps = workdirs.steps_of(workdir)
    complete = (
        steps
        and group.current().count == 1
        and all((workdir / name).is_file() for name in ("report.md", "loss.png"))
    )
    saved = complete and shelves.verified(workdir, steps[-1])
    if not saved or not (workdir / "tokenizer").is_dir():
        return None
    phases = workdirs.read(workdir)["config"]["system"]["recipe"]["phases"]
    if steps[-1] != sum(phase["steps"] for phase in phases):
        return None
    config, corpus = setup.begin(config, workdir, progress)
    text = corpus.counts("heldout")
    heldout = logs.find(workdir, steps[-1], "heldout")
    wanted = setup.facts_of(corpus)["tokenizer"]
    if (
        heldout is None
        and text.sum()
        or saved["meta"]["tokenizer"] != wanted
        or config.system.recipe.steps != steps[-1]
    ):
        return None
    workdirs.check_tokenizer(workdir, wanted)
    baseline = evaluation.unigram_baseline(
        corpus.counts("train"), text, corpus.uncounted, config.system.corruption
    )
    compared = compared_with(baseline, slots.objective(config.system.objective).baseline)
    result = Result(
        workdir,
        steps[-1],
        steps[-1],
        heldout or {},
        baseline,
        steps[-1],
        False,
        corpus.baseline,
        compared,
    )
    meta = saved["meta"]
    return with_facts(result, config.system, meta["tokens"], meta["seconds"], meta.get("goodput"))


def compared_with(baseline: float, metric: str | None) -> str | None:
    """Returns the metric of the held-out text to compare with a baseline; None where the data have
    no frequencies to predict, as texts without classes."""
    return metric if math.isfinite(baseline) else None


def with_facts(
    result: Result, system: System, tokens: float, seconds: float,
    goodput: Mapping[str, float] | None,
) -> Result:  # fmt: skip
    """Returns the result of a finished run with the rows of its report."""
    facts = {
        "system": system.name,
        "paper": system.paper,
        "steps": result.step,
        "tokens": int(tokens),
        "hours": round(seconds / 3600, 3),
        **({"goodput": described(goodput)} if goodput else {}),
        **({f"{result.baseline_name} (nats)": figure(result.baseline)} if result.compared else {}),
    }
    return dataclasses.replace(result, facts=facts)
