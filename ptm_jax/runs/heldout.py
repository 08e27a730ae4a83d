"""Evaluates a run's checkpoint on a corpus with the metrics of the run.
It is `ptm evaluate` without a downstream task."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import tempfile
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.spec.classes import kinds_of
from ptm_jax.core.system import Experiment, in_phase
from ptm_jax.data.corpora import prepare, store
from ptm_jax.data.corpora.store import Corpus
from ptm_jax.data.languages import mix
from ptm_jax.data.stores import fetched
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.mesh import rules as tables
from ptm_jax.mesh import slices
from ptm_jax.runs import evaluations, resolving
from ptm_jax.runs.run import Run
from ptm_jax.training.logs import evaluation
from ptm_jax.training.logs.figures import figure
from ptm_jax.training.start import differing, setup
from ptm_jax.training.steps.building import building
from ptm_jax.training.steps.phase_work import Phases

PERPLEXITIES = {"nll": "perplexity", "mlm_nll": "mlm_perplexity"}
"""{metric in nats per token: name of its exponential}."""
OBJECTIVES = {"lm": "LM", "mlm": "MLM", "linked": "SampledText"}
"""{value of --task and name of its head: the class of `objectives`}."""
TASK_OPTIONS = ("predictions", "plot", "adapter", "ensemble", "beside", "speed")
NEEDS_A_TASK = (
    "--predictions, --plot, --adapter, --ensemble, --beside, --speed and --split test need a "
    "downstream task; give one as --task"
)


@dataclasses.dataclass(frozen=True)
class Measured:
    """Metrics of the checkpoint of `step` over `examples` rows.

    languages   {language: (its rows, its metrics)} of a text in several languages
    """

    step: int
    examples: int
    metrics: Mapping[str, float]
    languages: Mapping[str, tuple[int, Mapping[str, float]]] = dataclasses.field(
        default_factory=dict
    )


def measure(run: Run, config: Experiment, corpus: Corpus, split: str, batches: int = 0) -> Measured:
    """Evaluates a run's checkpoint on a split of a corpus.
    Rows have the length of the checkpoint's phase.

    On the run's own held-out text the metrics equal the logged ones. The mesh may differ from the
    run's.
    """
    config = differing.with_facts(config, run.corpus)
    mesh, rules = _mesh(config)
    config = dataclasses.replace(config, rules=rules)
    phases = Phases(config, mesh, functools.partial(setup.example, config, corpus))
    base = phases.base
    params, meta, step = run.restore(like=base.state.params, true=base.program.padding.true)
    run.tokenizer(meta)
    phase = meta["position"]["phase"]
    work = phases.at(phase)
    streams = setup.held_out(config, corpus, phase, split)
    with jax.set_mesh(mesh), building(config.system):
        carry = work.program.initial_carry(params, setup.example(config, corpus, phase))
        settings = {"mesh": mesh, "carry": carry, "batches": batches}
        metrics, rows = evaluation.of_parts(work.evaluate, params, streams, **settings)
        parts = mix.each(in_phase(config.system, phase).examples, corpus, split)
        languages = {
            name: evaluation.of_parts(work.evaluate, params, [("", stream)], **settings)[::-1]
            for name, stream in setup.of_parts(config, phase, parts, split)
        }
    return Measured(step, rows, metrics, languages)


@contextlib.contextmanager
def text_of(
    run: Run, sources: Sequence[str], split: str, seed: int, progress: Callable | None = None
) -> Iterator[tuple[Corpus, str]]:
    """Yields (corpus, split) of sources, or of the run without any.

    Sources are a folder prepared with the run's tokenizer, or text that is prepared in a temporary
    one. Raises UserError.
    """
    wanted = run.corpus_facts["tokenizer"]
    run.tokenizer({"tokenizer": wanted})
    if not sources:
        yield run.corpus(), split
    elif len(sources) == 1 and fetched.is_corpus(sources[0]):
        corpus = store.open_corpus(sources[0])
        other = corpus.manifest["tokenizer"]["hash"]
        if other != wanted:
            raise UserError(
                f"{corpus.dir} was prepared with another tokenizer ({other[:12]}) than "
                f"{run.folder} was trained with "
                f"({wanted[:12]}); give the text itself as --data"
            )
        yield corpus, split
    else:
        with tempfile.TemporaryDirectory(prefix="ptm-evaluate-") as folder:
            spec, out = TokenizerSpec(path=str(run.folder / "tokenizer")), Path(folder) / "data"
            yield (
                prepare.prepare(
                    sources, out, tokenizer=spec, heldout=0.0, seed=seed, progress=progress
                ),
                "train",
            )


def _mesh(config: Experiment):
    """Returns the run's mesh and rules if the number of devices is the same, else all devices on
    `data`."""
    sizes = dict(config.mesh)
    number = slices.count(jax.devices())
    if math.prod(sizes.values()) == jax.device_count() and number in (1, config.slices):
        return tables.make_mesh(sizes, slices=number), config.rules
    return tables.make_mesh(slices=number), "replicated"


def kinds() -> tuple[evaluations.Evaluation, ...]:
    """Returns the evaluations on text: with the run's own objective, and with a named one."""
    helps = {
        "lm": "perplexity of a left-to-right model on held-out text",
        "mlm": "perplexity of masked words on held-out text",
        "linked": "KGLM's perplexity by importance sampling",
    }
    refuses = (evaluations.METHOD, (TASK_OPTIONS, NEEDS_A_TASK))
    return tuple(
        evaluations.Evaluation(
            name=name, reads="run", run=functools.partial(report, name), refuses=refuses, help=text
        )
        for name, text in {"": "", **helps}.items()
    )


def report(objective: str, request: evaluations.Request) -> evaluations.Report:
    """Evaluates a run on text with a value of `OBJECTIVES`, "": its own. Raises UserError."""
    if request.split == "test":
        raise UserError(NEEDS_A_TASK)
    run = Run(Path(request.model))
    file = request.config
    defined = None if file is None else resolving.resolve(file, experiment=True)
    config = run.experiment(defined, **_objective(run.system, objective))
    corpus = run.corpus()
    if request.data and config.system.examples.labelled:
        raise UserError(
            f"{run.folder} was fine-tuned; give the task whose data these are as --task "
            "(`ptm list --tasks`)"
        )
    with (
        request.progress() as progress,
        text_of(run, request.data, request.split, config.seed, progress) as (text, split),
    ):
        measured = measure(run, config, text, split, request.batches)
        baseline = evaluation.unigram_baseline(
            corpus.counts("train"), text.counts(split), corpus.uncounted, config.system.corruption
        )
    metrics = dict(measured.metrics)
    for nats, name in PERPLEXITIES.items():
        if nats in metrics:
            metrics[name] = math.exp(min(metrics[nats], 700.0))
    if not math.isnan(baseline):
        metrics["unigram_nll"] = baseline
    value = config.system.objective
    kind = value.__name__ if isinstance(value, types.FunctionType) else type(value).__name__
    document = {
        "task": objective or next((t for t, name in OBJECTIVES.items() if name == kind), kind),
        "examples": measured.examples,
        "metrics": metrics,
        "step": measured.step,
        "split": " ".join(request.data) or split,
    }
    head = "{task}: {examples:,} rows of {split}, checkpoint of step {step}".format(**document)
    if measured.languages:
        document["languages"] = {
            name: {"examples": rows, "metrics": dict(values)}
            for name, (rows, values) in measured.languages.items()
        }
    table = by_language(measured)
    return evaluations.Report(document=document, head=head, width=18, table=table)


def by_language(measured: Measured) -> list[list[str]]:
    """Returns the table of the languages of a text; [] without several."""
    if not measured.languages:
        return []
    names = list(measured.metrics)
    rows = [
        [name, f"{rows:,}", *(figure(values.get(metric)) for metric in names)]
        for name, (rows, values) in measured.languages.items()
    ]
    return [["language", "rows", *names], *rows]


def _objective(system: Mapping[str, Any], task: str) -> dict[str, Any]:
    """Returns {"objective": record of the task's objective}, {} for "".
    Raises UserError for a system without its head."""
    if not task:
        return {}
    objective = spec.to_json(kinds_of()[OBJECTIVES[task]]())
    heads = system["towers"].get(objective["tower"], {}).get("heads", {})
    if task not in heads:
        raise UserError(
            f"{system['name']} has no head for --task {task}; it has: "
            f"{', '.join(sorted(heads)) or 'none'}"
        )
    return {"objective": objective}
