"""A system: towers, examples, a corruption and an objective, with optional wrappers.

`core.slots` describes the slots. A plain function with the signature of an objective is an
objective.

Deviation from the design page: `examples`. BERT's sentence pairs, RoBERTa's full sentences, GPT-2's
contiguous blocks and word2vec's windows differ in how rows are cut from documents. A corruption
cannot do this, because it only has rows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import Any, Literal, get_args

import jax.numpy as jnp
from jax import lax

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError, check_range, closest
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.precision import Impl, Precision
from ptm_jax.core.recipe import Phase, Recipe, spec
from ptm_jax.core.spec.overriding import override
from ptm_jax.core.types import Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tie:
    """Shares the parameter at `source` with `path`; both are 'tower/a/b/c'.

    An example is the token table of ELECTRA's generator and discriminator.
    """

    path: str
    source: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference(Tie):
    """Shares the parameter at `source` without its gradient (GDES).

    `path` keeps a parameter, which begins at 0, and the network uses stop_gradient(source) +
    parameter (He et al. 2021, arXiv 2111.09543, Eq. 4).
    """


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class System:
    """A pre-trained model system of the survey, or a user-defined one.

    name, paper     as published; `paper` is authors, year and venue or arXiv number
    rows            row numbers in the survey's catalogue; `section` is the survey's section,
                    `group` its table block
    towers          {name: Linen module}; most systems have one tower, "main"
    tokenizer       the published tokenizer (`data.tokenizers.tokenizing`), for data not yet
                    prepared
    examples        how rows are cut from documents (`data.rows.examples`)
    corruption      applied to every batch inside the step (None: none)
    objective       the loss
    ties            parameters shared between towers
    adapt, compress wrappers around the towers
    recipe          the published training configuration
    """

    name: str
    paper: str
    section: str
    towers: Mapping[str, Any]
    examples: Any
    objective: Any
    recipe: Recipe
    tokenizer: Any = None
    corruption: Any = None
    ties: tuple[Tie, ...] = ()
    adapt: tuple[Any, ...] = ()
    compress: tuple[Any, ...] = ()
    rows: tuple[int, ...] = ()
    group: str = ""

    def __post_init__(self):
        kinds = {
            "examples": slots.Examples,
            "corruption": slots.Corruption,
            "objective": slots.Objective,
        }
        for name, kind in kinds.items():
            cls = type(vars(self)[name])
            if cls.__module__.startswith("ptm_jax.") and not issubclass(cls, kind):
                raise ValueError(
                    f"{name} is {cls.__name__}, which is no core.slots.{kind.__name__}; "
                    "choose another"
                )

    @property
    def wrappers(self) -> tuple[slots.Wrapper, ...]:
        """The adaptations, followed by the compressions."""
        return (*self.adapt, *self.compress)

    def __repr__(self) -> str:
        """A few lines; `core.spec.to_text` has the whole record."""

        def kind(value):
            return value.__name__ if isinstance(value, FunctionType) else type(value).__name__

        def names(values):
            return ", ".join(map(kind, values)) or "none"

        towers = ", ".join(
            f"{name}: {kind(slots.encoder_in(tower) or tower)}"
            for name, tower in self.towers.items()
        )
        recipe, shapes = (
            self.recipe,
            ", ".join(f"{p.steps:,} of {p.batch:,} x {p.length:,}" for p in self.recipe.phases),
        )
        return "\n".join([
            f"System {self.name!r} ({self.paper})",
            f"  towers {towers}; examples {kind(self.examples)}",
            f"  corruption {kind(self.corruption)}, objective {kind(self.objective)}, "
            f"adaptations {names(self.wrappers)}",
            f"  steps {shapes}; lr {recipe.lr:g}, {kind(recipe.optimizer)}, "
            f"{kind(recipe.schedule)}",
        ])  # fmt: skip


@spec
class ChangedPhase(Phase):
    """A phase in which parts of the system have other values.

    The networks keep their parameters, and the optimizer its state. The system itself is the model
    that is exported, as the phases without changes train it.

    changes    pairs (path in the system, value): ("corruption.training_rate", 0.05), ("objective",
               ZLossLM(head="mlm")), ("towers.main.encoder.stack.block.attention.rotary.theta", 1e4)
    continues  whether its rows follow those of the phase before, of the same length; False: it
               reads the text in a new order. For a batch that grows (`batch_warmup`)
    """

    changes: tuple[tuple[str, Any], ...] = ()
    continues: bool = False

    def __post_init__(self):
        super().__post_init__()
        if wrong := [path for path, _ in self.changes if path.startswith(("recipe", "name"))]:
            raise ValueError(f"a phase cannot change {wrong[0]}; it changes parts of the model")


def batch_warmup(
    first: int,
    last: int,
    *,
    rows: int,
    length: int,
    stages: int,
    multiple: int = 1,
    changes: tuple[tuple[str, Any], ...] = (),
) -> tuple[ChangedPhase, ...]:
    """Returns phases whose batch grows from `first` to below `last` rows in equal increments.

    Each of the `stages` reads the same share of about `rows` rows, in whole steps, so that the
    warm-up is measured in text and not in updates (ModernBERT: 768 to 4,608 over 50 billion tokens,
    Warner et al. 2024, Table 3). Batches are multiples of `multiple`, and all have the
    `changes`. The phase that follows should be a `ChangedPhase` with `continues`, too.
    """
    sizes = [first + (last - first) * stage / stages for stage in range(stages)]
    batches = [max(multiple, round(size / multiple) * multiple) for size in sizes]
    return tuple(
        ChangedPhase(
            steps=max(1, round(rows / stages / batch)),
            batch=batch,
            length=length,
            changes=changes,
            continues=number > 0,
        )
        for number, batch in enumerate(batches)
    )


def in_phase(system: System, number: int) -> System:
    """Returns the system with the changes of a phase of its recipe. Raises UserError."""
    changes = dict(system.recipe.phases[number].changes)
    try:
        return override(system, changes) if changes else system
    except UserError as error:
        raise UserError(f"recipe.phases.{number}.changes: {error}") from error


def refusal(system: System) -> str | None:
    """Returns why a system cannot work, checked before compilation, or None (`Slot.refusal`)."""
    for name, tower in system.towers.items():
        encoder = slots.encoder_in(tower)
        if not (encoder is None or isinstance(encoder, slots.Encoder)):
            kind = type(encoder).__name__
            return (
                f"tower {name!r} has a {kind}, which is no core.slots.Encoder; let {kind} "
                "inherit it"
            )
    encoders = [
        encoder
        for tower in system.towers.values()
        if (encoder := slots.encoder_in(tower)) is not None
    ]
    embeddings = [encoder.embeddings for encoder in encoders]
    parts = system.examples, system.corruption, system.objective
    for slot in (*encoders, *embeddings, *parts, *system.wrappers):
        if isinstance(slot, slots.Slot) and (reason := slot.refusal(system)):
            return reason
    return None


def adapted(system: System) -> System:
    """Returns the system with its wrappers applied in order. This system is trained and loaded."""

    def fill(wrappers):
        return tuple(wrapper.within(system) for wrapper in wrappers)

    system = dataclasses.replace(system, adapt=fill(system.adapt), compress=fill(system.compress))
    for wrapper in system.wrappers:
        try:
            system = wrapper.rewrite(system)
            reaches = system.towers if wrapper.towers is None else wrapper.towers
            towers = {
                name: wrapper.wrap(tower) if name in reaches else tower
                for name, tower in system.towers.items()
            }
            system = dataclasses.replace(system, towers=towers)
        except ValueError as error:
            kind = type(wrapper).__name__
            raise UserError(
                f"{system.name or 'this system'} does not take {kind}: {error}; leave it out"
            ) from error
    return system


def tied(params: Params, ties: Iterable[Tie]) -> Params:
    """Returns the parameters with every tied path filled from its source."""
    if not (ties := tuple(ties)):
        return params
    flat = flatten(params)
    filled = {
        tie.path: lax.stop_gradient(flat[tie.source]) + flat[tie.path]
        if isinstance(tie, Difference)
        else flat[tie.source]
        for tie in ties
    }
    return unflatten({**flat, **filled})


def untied(params: Params, ties: Iterable[Tie], fresh: bool) -> Params:
    """Returns the parameters that a run trains, from those that the networks use.

    A plain tie has none. That of a `Difference` is `path` - `source`, or 0 of `fresh` parameters.
    Raises UserError for a tie that names no parameter.
    """
    if not (ties := tuple(ties)):
        return params
    flat = flatten(params)
    for path in [path for tie in ties for path in (tie.path, tie.source)]:
        if path not in flat:
            raise UserError(
                f"a tie names the parameter {path!r}, which no tower has.{closest(path, flat)}"
            )
    differences = {
        tie.path: jnp.zeros_like(flat[tie.path]) if fresh else flat[tie.path] - flat[tie.source]
        for tie in ties
        if isinstance(tie, Difference)
    }
    filled = {tie.path for tie in ties}
    trained = {path: leaf for path, leaf in flat.items() if path not in filled}
    return unflatten({**trained, **differences})


def in_effect(system: System, params: Params) -> Params:
    """Returns {tower: parameters} for inference: low-rank updates are added, averages are taken."""
    for wrapper in system.wrappers:
        params = wrapper.effective(params, False)
    return {name: params[name] for name in system.towers if name in params}


Tiling = Literal["middle", "cyclic", "centre"]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Experiment:
    """A System on data. `configs/` contains experiments and `ptm train` runs them.

    data            sources (paths, globs, `tfds:name/config`, `pydocs`) or one prepared directory
    init            initial model: a workdir or a published checkpoint, or pairs (tower or parameter
                    path, model); a file of word vectors, or ("embeddings", model), fills the
                    embedding layer alone; None: random initialisation
    tiling          how parameters of a smaller initial model fill larger ones
                    (`training.start.tiling`): "middle", "cyclic" or "centre"; None: sizes must be
                    equal
    tokenizer       replaces the system's tokenizer if `data` is not prepared yet
    epochs          number of epochs, in place of the recipe's steps. The recipe then gives only the
                    shares of the phases, of the warm-up and of a last decay. None: the recipe's
                    steps
    heldout         fraction of the documents held out for evaluation
    precision       type of matrix products; parameters and optimizer state stay float32
    impl            attention implementation in every layer (`kernels.choice`; "auto": each layer's
                    own `impl`)
    mesh, rules     device mesh axes and the table that shards parameters over them
    slices          groups of devices between which only the axis `data` lies (`mesh.slices`)
    log_every, eval_every, save_every
                    steps between two logs, evaluations or checkpoints; 0: only at the end
    keep            number of checkpoints that stay on disk
    metrics         writers of metrics in addition to metrics.jsonl: csv, tensorboard, wandb
                    (`training.logs.writers`)
    profile         (first, last) step of a trace in WORKDIR/profile (`training.logs.profile`)
    """

    system: System
    data: tuple[str, ...] = ("pydocs",)
    init: str | tuple[tuple[str, str], ...] | None = None
    tiling: Tiling | None = None
    tokenizer: Any = None
    epochs: float | None = None
    heldout: float = 0.02
    seed: int = 0
    precision: str = "bfloat16"
    impl: Impl = "auto"
    mesh: tuple[tuple[str, int], ...] = ()
    rules: str = "replicated"
    slices: int = 1
    log_every: int = 10
    eval_every: int = 0
    eval_batches: int = 64
    save_every: int = 200
    keep: int = 2
    metrics: tuple[str, ...] = ("tensorboard",)
    profile: tuple[int, int] | None = None

    def __repr__(self) -> str:
        """A few lines: the system, and the fields that differ from their defaults."""
        fields = {field.name: field.default for field in dataclasses.fields(self)}
        changed = [
            f"{name} {vars(self)[name]}"
            for name in fields
            if name != "system" and vars(self)[name] != fields[name]
        ]
        return f"Experiment of {self.system}" + "".join(f"\n  {line}" for line in changed)

    def __post_init__(self):
        Precision(self.precision)
        if self.impl not in get_args(Impl):
            raise ValueError(
                f"impl is {self.impl!r}; it must be one of {', '.join(get_args(Impl))}"
            )
        if self.tiling is not None and self.tiling not in get_args(Tiling):
            raise ValueError(
                f"tiling is {self.tiling!r}; it must be one of {', '.join(get_args(Tiling))}"
            )
        if self.epochs is not None and not 0 < self.epochs < math.inf:
            raise ValueError(
                f"epochs is {self.epochs}; it must be a finite number above 0, or None for "
                "the recipe's steps"
            )
        check_range("experiment.seed", self.seed)
        if not 0 <= self.heldout < 1:
            raise ValueError(f"heldout is {self.heldout}; it must be a fraction in [0, 1)")
        for name in ("log_every", "eval_every", "save_every", "eval_batches"):
            if (every := vars(self)[name]) < 0:
                unit = "batches" if name == "eval_batches" else "steps"
                raise ValueError(f"{name} is {every}; it must be a number of {unit}, at least 0")
