"""Configurations of optimizer, schedule and phases of a training run. `train/` implements them."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

from ptm_jax.core.errors import RANGES, Ranged, check_range, range_of

__all__ = ["RANGES", "Ranged", "check_range", "range_of"]
spec = dataclasses.dataclass(frozen=True, kw_only=True)

# BERT's rule (google-research/bert): no decay on normalisation parameters and biases.
NO_DECAY = ((r"(^|/)(bias|scale)$", 0.0),)


@spec
class AdamW(Ranged):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019).

    `bias_correction=False` is BERT's original.
    """

    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01
    decay_rules: tuple[tuple[str, float], ...] = NO_DECAY
    bias_correction: bool = True


@spec
class Adamax(Ranged):
    """Adam with the infinity norm (Kingma & Ba 2015, Algorithm 2) and decoupled weight decay.

    `eps` avoids 0 / 0 for an element that never had a gradient. `bias_correction=False` is MT-DNN's
    original.
    """

    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decay_rules: tuple[tuple[str, float], ...] = NO_DECAY
    bias_correction: bool = True


@spec
class LAMB(Ranged):
    """Layer-wise adaptive Adam (You et al. 2020, Algorithm 2).

    The update of each tensor is scaled by ||w|| / ||u||.
    """

    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01
    decay_rules: tuple[tuple[str, float], ...] = NO_DECAY


@spec
class StableAdamW(Ranged):
    """AdamW whose update of a tensor is divided by max(1, RMS of gradient / sqrt(second moment))
    (Wortsman et al. 2023, arXiv 2304.13013, Algorithm 2): ModernBERT. It needs no clipping of
    gradients."""

    b1: float = 0.9
    b2: float = 0.98
    eps: float = 1e-6
    weight_decay: float = 0.01
    decay_rules: tuple[tuple[str, float], ...] = NO_DECAY


@spec
class Adafactor(Ranged):
    """Factored second moments (Shazeer & Stern 2018).

    `relative=True` scales steps by the parameter's own size.
    """

    decay_rate: float = 0.8
    clip_threshold: float = 1.0
    relative: bool = True
    momentum: float | None = None
    weight_decay: float = 0.0
    decay_rules: tuple[tuple[str, float], ...] = NO_DECAY


@spec
class Adagrad(Ranged):
    """Adagrad (Duchi et al. 2011): ELMo, CTRL.

    `scaled=True` is GloVe's C code: the sum is of the squares of rate * gradient, from `initial`,
    and the gradient is divided by the sum before it.
    """

    initial: float = 0.1
    eps: float = 1e-7
    scaled: bool = False


@spec
class Adadelta(Ranged):
    """Adadelta (Zeiler 2012): Bahdanau et al. 2015, Kim 2014. The paper has the rate 1."""

    rho: float = 0.95
    eps: float = 1e-6


@spec
class SGD(Ranged):
    """Gradient descent with optional momentum: word2vec, AWD-LSTM.

    `nesterov` (Sutskever et al. 2013, in the form of Bengio et al. 2013, which stores the
    look-ahead parameters): fairseq's language models.

    row_limit  maximal norm of the change of a matrix row in an update; a longer change is scaled
               down to it. Without it a table row that sums changes from many places of a batch can
               diverge, although separate updates would not
    """

    momentum: float = 0.0
    nesterov: bool = False
    row_limit: float | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.row_limit is not None and self.momentum:
            raise ValueError(f"row_limit is {self.row_limit}; it goes without momentum")
        if self.nesterov and not self.momentum:
            raise ValueError(
                "SGD with nesterov=True needs a momentum above 0; give one, or leave nesterov out"
            )


@spec
class Muon(Ranged):
    """Muon (Jordan et al. 2024) for the matrices of layers, AdamW for all other parameters: tables,
    heads, gains and biases.

    The update of a matrix is its momentum with all singular values near 1, by `iterations` of
    Newton-Schulz. Matrices are found by the logical axes that layers declare; each layer of a stack
    and each of several products in one kernel is a matrix of its own.

    rms         the update has this root mean square, near AdamW's, so that both groups share a rate
                (Liu et al. 2025, arXiv 2502.16982); None: factor sqrt(max(1, outputs / inputs))
    b1, b2, eps     of AdamW
    other_rate      factor of the rate for AdamW's parameters
    """

    momentum: float = 0.95
    nesterov: bool = True
    iterations: int = 5
    rms: float | None = 0.2
    b1: float = 0.9
    b2: float = 0.95
    eps: float = 1e-8
    other_rate: float = 1.0
    weight_decay: float = 0.01
    decay_rules: tuple[tuple[str, float], ...] = NO_DECAY


@spec
class SOAP(Ranged):
    """SOAP (Vyas et al. 2024, arXiv 2409.11321) for the matrices of layers, AdamW for all others.

    Adam in the eigenbasis of Shampoo's preconditioners, which is refreshed after each `every`
    updates. A side of a matrix longer than `largest` is not rotated. The first step does not move
    matrices.
    """

    b1: float = 0.95
    b2: float = 0.95
    eps: float = 1e-8
    every: int = 10
    largest: int = 10_000
    other_rate: float = 1.0
    weight_decay: float = 0.01
    decay_rules: tuple[tuple[str, float], ...] = NO_DECAY


Optimizer = AdamW | StableAdamW | Adamax | LAMB | Adafactor | Adagrad | Adadelta | SGD | Muon | SOAP


@spec
class Constant(Ranged):
    """The peak rate after a linear warm-up."""

    warmup: int = 0


@spec
class Linear(Ranged):
    """Warms up linearly, then decays linearly to `end` at the last step.

    `end` is a fraction of the peak (BERT, RoBERTa, word2vec).
    """

    warmup: int = 0
    end: float = 0.0


@spec
class Cosine(Ranged):
    """Linear warm-up, then half a cosine down to `end` (a fraction of the peak): GPT, GPT-2."""

    warmup: int = 0
    end: float = 0.0


@spec
class WarmupStableDecay(Ranged):
    """Linear warm-up, the peak rate, then the decay of the last `decay` steps to `end`, a fraction
    of the peak (Hu et al. 2024, arXiv 2404.06395): ModernBERT.

    shape   "sqrt": 1 - sqrt(t) for the finished fraction t of the decay (Hägele et al. 2024, arXiv
            2405.18392, Eq. 1); "linear": 1 - t
    """

    warmup: int = 0
    decay: int
    shape: Literal["sqrt", "linear"] = "sqrt"
    end: float = 0.0


@spec
class InverseSqrt(Ranged):
    """peak * sqrt(warmup / max(step, warmup)), with a linear ramp first unless `ramp` is False.

    The Transformer's schedule (Vaswani et al. 2017, Eq. 3) with the peak d**-0.5 * warmup**-0.5;
    T5's with `ramp=False`, warmup 10,000 and the peak 0.01.
    """

    warmup: int = 4000
    ramp: bool = True

    def __post_init__(self):
        super().__post_init__()
        if self.warmup < 1:
            raise ValueError(f"inversesqrt.warmup is {self.warmup}; it must be at least 1")


@spec
class SlantedTriangular(Ranged):
    """ULMFiT's schedule (Howard & Ruder 2018, Eq. 3).

    The rate rises for `cut` of the steps, then falls to peak / `ratio`.
    """

    cut: float = 0.1
    ratio: float = 32.0


@spec
class OneCycle(Ranged):
    """One cycle of the learning rate (Smith 2018, arXiv 1803.09820) in fastai's form.

    MultiFiT: half a cosine up from peak / `start` for `cut` of the steps, half a cosine down to
    peak / (`start` * `end`). Deviation: the momentum stays.
    """

    cut: float = 0.3
    start: float = 25.0
    end: float = 1e4


@spec
class Staircase(Ranged):
    """The peak rate for `full` steps, then steps down (Zaremba et al. 2014).

    It is divided by `divisor` after `full` steps and again after every `every` steps.
    """

    full: int
    every: int
    divisor: float


Schedule = (
    Constant | Linear | Cosine | WarmupStableDecay | InverseSqrt | SlantedTriangular | OneCycle
    | Staircase
)  # fmt: skip


def stretched(schedule: Schedule, factor: float) -> Schedule:
    """Returns the schedule whose warm-up and decay have `factor` times their steps."""
    steps = {name: vars(schedule).get(name) for name in ("warmup", "decay")}
    scaled = {name: max(1, round(count * factor)) for name, count in steps.items() if count}
    return dataclasses.replace(schedule, **scaled)


@spec
class Phase(Ranged):
    """A part of training with one batch shape.

    It makes `steps` updates on `batch` rows of `length` tokens.
    """

    changes: ClassVar[tuple[tuple[str, Any], ...]] = ()
    continues: ClassVar[bool] = False

    steps: int
    batch: int
    length: int


@spec
class ClipByTower(Ranged):
    """Clips the gradient of each tower to the norm `clip`, as with an optimizer for each tower.

    DeBERTa-v3's released code.
    """

    clip: float = 1.0


@spec
class SkipSpikes(Ranged):
    """Leaves out updates whose gradient is not finite, or far larger than before: parameters and
    moments do not change, and the rows are not read again.

    clip      of the other updates, as `Recipe.clip`
    ratio     largest norm of a gradient / mean norm of the updates before; None: any finite norm
    memory    factor of that moving mean for each update
    after     updates before `ratio` applies
    patience  updates left out between two lines of the log after which the run returns to its last
              checkpoint and goes on with the next rows; None: never
    """

    clip: float | ClipByTower | None = 1.0
    ratio: float | None = 10.0
    memory: float = 0.98
    after: int = 100
    patience: int | None = None


@spec
class Recipe(Ranged):
    """The published training configuration of a system.

    lr            peak learning rate
    phases        phases in order, under one schedule (BERT: length 128, 512 in the last 10%)
    accumulate    micro-batches per update: the same update with less memory
    updates       successive updates within a step, at one learning rate, each on batch / updates
                  rows (word2vec). Not for objectives with a carry
    clip          maximum global norm of the mean loss's gradient; `ClipByTower`, `SkipSpikes`; None
    lr_rules      learning-rate multipliers by parameter path, first match wins
    """

    phases: tuple[Phase, ...]
    lr: float
    optimizer: Optimizer = AdamW()
    schedule: Schedule = Linear()
    accumulate: int = 1
    updates: int = 1
    clip: float | ClipByTower | SkipSpikes | None = 1.0
    lr_rules: tuple[tuple[str, float], ...] = ()

    def __post_init__(self):
        if not self.phases:
            raise ValueError(
                "recipe.phases is empty; a recipe needs at least one Phase(steps, batch, length)"
            )
        super().__post_init__()
        for before, phase in zip((None, *self.phases), self.phases, strict=False):
            if phase.continues and (before is None or before.length != phase.length):
                raise ValueError(
                    "a phase continues the rows of a phase of the same length before it; set "
                    "continues to False"
                )
        for phase in self.phases:
            for name in ("updates", "accumulate"):
                if vars(self)[name] < 1 or phase.batch % vars(self)[name]:
                    raise ValueError(
                        f"recipe.{name} is {vars(self)[name]}, which does not divide the "
                        f"batch of {phase.batch} rows"
                    )
            if phase.batch % (self.accumulate * self.updates):
                raise ValueError(
                    f"recipe.updates {self.updates} times accumulate {self.accumulate} does "
                    f"not divide the batch of {phase.batch} rows"
                )

    @property
    def steps(self) -> int:
        """Total number of updates of all phases."""
        return sum(phase.steps for phase in self.phases)

    def chain(self, number: int) -> range:
        """Returns the phases that read on in one order of the text, of which `number` is one."""
        first, after = number, number + 1
        while self.phases[first].continues:
            first -= 1
        while after < len(self.phases) and self.phases[after].continues:
            after += 1
        return range(first, after)


Remat = Literal["none", "full", "dots"]
