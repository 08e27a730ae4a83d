"""A speedrun of encoders: the fewest seconds to a fixed held-out loss, on a fixed text.

A record is a system with its recipe, in one file of `configs/speedrun`. Text, tokenizer, held-out
split, masks, target and seed are constants of this file. The network of a record gets tokens
without labels, and the loss is computed here from its logits, so a record cannot change what is
measured. The idea is that of modded-nanogpt's speedrun for decoders.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core import slots, spec
from ptm_jax.core import towers as core_towers
from ptm_jax.core.errors import UserError
from ptm_jax.core.spec.own_code import import_file
from ptm_jax.core.streams import stream
from ptm_jax.core.system import Experiment, System, in_effect
from ptm_jax.core.types import Array, Batch, Params, Vocab
from ptm_jax.corruptions.masking.token import TokenMasking
from ptm_jax.data.corpora.stream import Stream
from ptm_jax.data.rows.examples import Packed
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.objectives.base import makes_one_pass
from ptm_jax.runs import resolving
from ptm_jax.runs.run import Run
from ptm_jax.training import loop
from ptm_jax.training.logs import logs
from ptm_jax.training.start import differing, setup
from ptm_jax.training.steps import flops
from ptm_jax.training.steps.step import program

if TYPE_CHECKING:
    from ptm_jax.data.corpora.store import Corpus


TARGET = 4.0
"""Held-out loss to reach, in nats per masked token."""
RATE = 0.15
"""Share of the held-out tokens that are masked: 80% [MASK], 10% random words, 10% kept."""
DATA = ("pydocs",)
DIGEST = "898f36f4cb3d399085af1d334301af4d7b78d9363e774a8e2cb758b1d00b4939"
"""Hash of the prepared text of the published records. Other versions of the packages give another
text and another hash."""
TOKENIZER = TokenizerSpec(kind="wordpiece", vocab=4096, lowercase=True)
HELDOUT, SEED = 0.02, 0
LENGTH, BATCH = 64, 64
"""Shape of the held-out batches."""
VISIBLE = ("input_ids", "segment_ids", "positions", "rows")
"""Fields of a held-out batch that a network gets."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """A run that reached the target.

    seconds     of training on two cores, without compilation and evaluation: wall time of a quiet
                machine, or processor time of one that others use
    operations  of its products: the steps times `steps.flops.flops`
    loss        held-out loss, at most `TARGET`
    commit      of the package that made it
    """

    system: System
    seconds: float
    operations: float
    loss: float
    commit: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a run: `digest` is the hash of its text."""

    steps: int
    seconds: float
    operations: float
    loss: float
    digest: str

    @property
    def counts(self) -> bool:
        """Whether the run is a record's: the target is reached, on the published text."""
        return self.loss <= TARGET and self.digest == DIGEST


COLUMNS = ("record", "seconds", "TFLOP", "loss", "steps", "recipe", "commit")


def names() -> list[str]:
    """Returns the names of the records, sorted."""
    return sorted(path.stem for path in (resolving.CONFIGS / "speedrun").glob("*.py"))


def load(name: str) -> Record:
    """Returns the record of a file, or of configs/speedrun by its name. Raises UserError."""
    path = Path(name) if name.endswith(".py") else resolving.CONFIGS / "speedrun" / f"{name}.py"
    if not path.is_file():
        raise UserError(f"no such record: {name}; the records are {', '.join(names())}")
    value = vars(resolving.guard(lambda: import_file(path), path)).get("record")
    if not isinstance(value, Record):
        raise UserError(f"{path} defines no `record`; give it a value of tuning.speedrun.Record")
    return value


def rows() -> list[dict[str, Any]]:
    """Returns the table of the records as {column: value}, the fastest first."""
    records = {name: load(name) for name in names()}
    return [
        {
            "record": name,
            "seconds": record.seconds,
            "TFLOP": round(record.operations / 1e12, 2),
            "loss": record.loss,
            "steps": record.system.recipe.steps,
            "recipe": described(record.system),
            "commit": record.commit,
        }
        for name, record in sorted(records.items(), key=lambda item: item[1].seconds)
    ]


def lines(name: str, outcome: Outcome) -> list[str]:
    """Returns the text of a run's outcome, with the fields of its record."""
    reached = "reached" if outcome.loss <= TARGET else "not reached"
    text = [
        f"{name}: held-out loss {outcome.loss:.4f} after {outcome.steps:,} steps, target "
        f"{TARGET:g} {reached}",
        f"  seconds={outcome.seconds:.1f}, operations={outcome.operations:.4g}, "
        f"loss={outcome.loss:.4f}",
    ]
    if outcome.digest != DIGEST:
        text.append(
            "  the text is not that of the published records, as other versions of the packages "
            "are installed: compare runs on this machine alone"
        )
    return text


def described(system: System) -> str:
    """Returns a recipe in a few words: shape, rate, optimizer, schedule."""
    recipe = system.recipe
    shapes = ", ".join(f"{p.steps:,} of {p.batch} x {p.length}" for p in recipe.phases)
    kinds = type(recipe.optimizer).__name__, type(recipe.schedule).__name__
    return f"{shapes}; lr {recipe.lr:g}, {', '.join(kinds)}"


def experiment(system: System) -> Experiment:
    """Returns the experiment of a record's system. Only the system is the record's."""
    return Experiment(
        system=dataclasses.replace(system, tokenizer=TOKENIZER),
        data=DATA,
        heldout=HELDOUT,
        seed=SEED,
        save_every=0,
        eval_every=0,
        log_every=50,
        metrics=(),
    )


def run(system: System, workdir: str | Path, quiet: bool = False) -> Outcome:
    """Trains a system to the end of its recipe in a workdir, or resumes it there, and measures it.

    Raises UserError.
    """
    check(system)
    config = experiment(system)
    result = loop.train(config, workdir, quiet=quiet)
    if result.stopped:
        raise UserError(f"stopped after step {result.step}; the same command goes on")
    finished = Run(Path(workdir))
    corpus, params = finished.corpus(), finished.restore()[0]
    config = differing.with_facts(differing.resolve(config, corpus.vocab), lambda: corpus)
    last = [line for line in logs.read(workdir) if line["split"] == "train"][-1]
    return Outcome(
        steps=result.step,
        seconds=last["seconds"],
        operations=operations(config, corpus),
        loss=heldout_loss(config.system, params, corpus),
        digest=corpus.manifest["digest"],
    )


def check(system: System) -> None:
    """Raises UserError for a system that the speedrun does not take."""
    objective = slots.objective(system.objective)
    if not makes_one_pass(objective) or "mlm" not in slots.heads_of(system):
        raise UserError(
            f"{system.name} predicts no masked words; a record has a tower `main` with the head "
            "`mlm`, and an objective of one pass"
        )
    modules = {type(part).__module__ for _, part in spec.walk(system) if spec.is_spec(part)}
    foreign = sorted(name for name in modules if not name.startswith("ptm_jax."))
    if foreign:
        raise UserError(f"a record is made of classes of ptm_jax; {foreign[0]} is another module")


def heldout_loss(system: System, params: Params, corpus: Corpus) -> float:
    """Returns the mean of -log p(token) over the masked tokens of the held-out text, in nats."""
    step = jax.jit(functools.partial(_loss, system, corpus.vocab))
    batches = Stream(corpus, "heldout", Packed(), length=LENGTH, batch=BATCH, seed=SEED, epochs=1)
    sums = np.zeros(2)
    for index, batch in enumerate(batches):
        sums += np.asarray(step(params, batch, index), np.float64)
    return float(sums[0] / sums[1])


def _loss(system: System, vocab: Vocab, params: Params, batch: Batch, index: Array) -> Array:
    """Returns (sum of losses, number of masked tokens) of a batch, [2]."""
    batch = TokenMasking(vocab=vocab, rate=RATE)(stream(SEED, "speedrun", index), batch)
    shown = {name: batch[name] for name in VISIBLE if name in batch}
    asked = {name: batch[name] for name in ("mlm_positions", "mlm_weights")}
    tower = core_towers.bind(system.towers, in_effect(system, params))["main"]
    objective = slots.objective(system.objective)
    logits, _ = objective.predictions(tower, tower(shown), {**shown, **asked})["mlm"]
    labels = batch["mlm_labels"][..., None]
    nll = -jnp.take_along_axis(jax.nn.log_softmax(logits.astype(jnp.float32)), labels, -1)[..., 0]
    weights = batch["mlm_weights"]
    return jnp.stack([(nll * weights).sum(), weights.sum()])


def operations(config: Experiment, corpus: Corpus) -> float:
    """Returns the operations of a resolved experiment's products: all steps of all phases."""
    work = program(config.system, config.seed)
    state = jax.eval_shape(work.init, setup.example(config, corpus))
    return sum(
        phase.steps * flops.flops(work.defined().step, state, setup.example(config, corpus, number))
        for number, phase in enumerate(config.system.recipe.phases)
    )
