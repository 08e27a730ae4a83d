"""Evaluates a run's checkpoint on a corpus with the metrics of the run."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import jax

from ptm_jax.core.errors import UserError
from ptm_jax.core.system import Experiment
from ptm_jax.data.corpora import prepare, store
from ptm_jax.data.corpora.store import Corpus
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.mesh import rules as tables
from ptm_jax.runs.run import Run
from ptm_jax.training.logs import evaluation
from ptm_jax.training.start import differing, setup
from ptm_jax.training.steps.building import building
from ptm_jax.training.steps.step import program


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Metrics of the checkpoint of `step` over `examples` rows."""

    step: int
    examples: int
    metrics: Mapping[str, float]


def measure(
    run: Run, config: Experiment, corpus: Corpus, split: str, batches: int = 0
) -> Evaluation:
    """Evaluates a run's checkpoint on a split of a corpus, with the row length of the checkpoint's
    phase.

    On the run's own held-out text the metrics equal those of its log. The mesh may differ from the
    run's.
    """
    config = differing.with_facts(config, run.corpus)
    mesh, rules = _mesh(config)
    with building(config.system):
        work, state = program(config.system, config.seed).on(
            mesh, rules, setup.example(config, corpus)
        )
    params, meta, step = run.restore(like=state.params, true=work.padding.true)
    run.tokenizer(meta)
    phase = meta["position"]["phase"]
    stream = setup.stream(config, corpus, phase, split, epochs=1)
    with jax.set_mesh(mesh), building(config.system):
        carry = work.initial_carry(params, setup.example(config, corpus, phase))
        metrics, rows = evaluation.evaluate(
            jax.jit(work.evaluate), params, stream, mesh=mesh, carry=carry, batches=batches
        )
    return Evaluation(step, rows, metrics)


@contextlib.contextmanager
def text_of(
    run: Run, sources: Sequence[str], split: str, seed: int, progress: Callable | None = None
) -> Iterator[tuple[Corpus, str]]:
    """Yields (corpus, split): of sources a folder prepared with the run's tokenizer, or text that
    is prepared in a temporary one; without any the run's own. Raises UserError."""
    wanted = run.corpus_facts["tokenizer"]
    run.tokenizer({"tokenizer": wanted})
    if not sources:
        yield run.corpus(), split
    elif len(sources) == 1 and (Path(sources[0]) / "manifest.json").is_file():
        corpus = store.open_corpus(sources[0])
        found = corpus.manifest["tokenizer"]["hash"]
        if found != wanted:
            raise UserError(
                f"{corpus.dir} was prepared with another tokenizer ({found[:12]}) than "
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
    if math.prod(sizes.values()) == jax.device_count():
        return tables.make_mesh(sizes), config.rules
    return tables.make_mesh(), "replicated"
