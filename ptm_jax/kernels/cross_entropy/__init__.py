"""Cross-entropy of a linear layer over the vocabulary, without scores [tokens, V] in memory.

    nll = linear_cross_entropy(features, table, bias, labels, precision=precision)

The shapes are features [.., D], table [V, D], bias [V] (or None) and labels [..].

Computes -log softmax(features . table^T + bias)[label] in nats, and the gradients of features,
table and bias in one pass over blocks of words. The scores would take 125 MB per copy for a
thousand tokens and BERT's vocabulary, 1 GB for XLM-R's. `impl` selects the implementation:

    reference   `plain`: scores in memory and autodiff; defines the result
    native      `held`: scores in memory, and their softmax in C++ for CPUs
    xla         `blocked`: blocks of words, on any platform
    pallas      `tpu`: a kernel for TPUs. Not run on hardware yet
    auto        reference up to `HELD` scores per device; above, native up to `held.MOST`; above,
                xla, or what an attached TPU finds right and fastest

`draw` (module `drawn`) samples a word from the same softmax, also without the scores.

Supports label smoothing (Vaswani et al. 2017, section 5.4), the z-loss (Chowdhery et al. 2022,
section 5), soft targets of a teacher (Hinton et al. 2015) and a split vocabulary (`scored`).
`sampled` has sampled losses.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from ptm_jax.core.constraint import current
from ptm_jax.core.errors import UserError
from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Array, record
from ptm_jax.kernels import deciding
from ptm_jax.kernels.choice import Impl, named, platform
from ptm_jax.kernels.cross_entropy import blocked, held, plain
from ptm_jax.kernels.cross_entropy.drawn import drawn
from ptm_jax.kernels.cross_entropy.plain import logits
from ptm_jax.kernels.cross_entropy.scored import Linear, Scored, scored

__all__ = ["HELD", "Judged", "Linear", "Scored"]
__all__ += ["distillation", "draw", "judge", "linear_cross_entropy", "logits", "race", "score"]

HELD = 1 << 22
"""Maximum scores per device that "auto" holds in memory: 16 MB. On a CPU (width 768, bfloat16,
30,522 words) `plain` takes 0.7 times as long as `blocked` for 40 tokens, as long for 160, and 1.2
times as long for 512."""


@record
class Judged:
    """Results per token [..].

    nll     negative log-likelihood in nats, float32
    loss    nll with label smoothing and z-loss, float32
    right   whether no word has a greater score than the label
    """

    nll: Array
    loss: Array
    right: Array


def linear_cross_entropy(
    features: Array,
    table: Array,
    bias: Array | None,
    labels: Array | None,
    *,
    smoothing: float = 0.0,
    z_loss: float = 0.0,
    soft: Linear | None = None,
    precision: Precision = Precision(),
    impl: Impl = "auto",
) -> Array:
    """Returns -log p(label) [..] in nats, float32.

    features are [.., D], table [V, D], bias [V] and labels [..] int32.

    smoothing   share of the target that is spread evenly over all V words
    z_loss      weight of log(Z)^2, which keeps the sum of exponentials Z near 1
    soft        a teacher over the same words. Its softmax q replaces `labels`: -sum_v q_v log p_v.
                It gets no gradient. For a temperature, divide the features and biases of both sides
                (`distillation`)

    Raises ValueError if `soft` is given with `labels` or `smoothing`.
    """
    student = Linear(features, table, bias)
    if soft is not None:
        if smoothing or labels is not None:
            raise ValueError(
                "soft targets stand in the place of labels; leave labels None and smoothing 0"
            )
        labels = jnp.zeros(features.shape[:-1], jnp.int32)
        scored = score(student, labels, teacher=soft, precision=precision, impl=impl)
        return scored.log_sum - scored.soft + z_loss * scored.log_sum**2
    return judge(
        student, labels, smoothing=smoothing, z_loss=z_loss, precision=precision, impl=impl
    ).loss


def judge(
    student: Linear,
    labels: Array,
    *,
    smoothing: float = 0.0,
    z_loss: float = 0.0,
    precision: Precision = Precision(),
    impl: Impl = "auto",
) -> Judged:
    """Returns the losses and the correctness of predictions, from one pass over the vocabulary."""
    scored = score(student, labels, mean=smoothing > 0, precision=precision, impl=impl)
    nll = scored.log_sum - scored.label
    loss = (
        nll if not smoothing else (1 - smoothing) * nll + smoothing * (scored.log_sum - scored.mean)
    )
    loss = loss if not z_loss else loss + z_loss * scored.log_sum**2
    return Judged(nll, loss, jax.lax.stop_gradient(scored.label) >= scored.top)


def distillation(
    student: Linear,
    teacher: Linear,
    *,
    temperature: float = 1.0,
    precision: Precision = Precision(),
    impl: Impl = "auto",
) -> Array:
    """Returns KL(teacher || student) [..] at a temperature (Hinton et al. 2015, section 2).

    It is not multiplied by the squared temperature."""

    def at(one):
        return Linear(
            one.features.astype(jnp.float32) / temperature,
            one.table,
            None if one.bias is None else one.bias / temperature,
            None if one.cap is None else one.cap / temperature,
        )

    labels = jnp.zeros(student.features.shape[:-1], jnp.int32)
    scored = score(at(student), labels, teacher=at(teacher), precision=precision, impl=impl)
    return scored.log_sum - scored.soft - scored.entropy


def draw(
    one: Linear,
    seeds: Array,
    *,
    temperature: float = 1.0,
    precision: Precision = Precision(),
    impl: Impl = "auto",
) -> Array:
    """Samples a word [..] int32 from softmax(scores / temperature) for every token.

    The seeds are [..] uint32.

    The result depends only on scores, seeds and word numbers, not on blocks or layout. It has no
    gradient.
    """
    return race(one, seeds, temperature=temperature, precision=precision, impl=impl)[0]


def race(
    one: Linear,
    seeds: Array,
    *,
    temperature: float = 1.0,
    precision: Precision = Precision(),
    impl: Impl = "auto",
) -> tuple[Array, Array]:
    """Returns (the word of `draw`, its value [..] float32).

    For several softmaxes, take the word with the greatest value.
    """
    words = len(one.table)
    at_once = named(impl) == "reference" or (
        impl == "auto" and seeds.size * words / _devices() <= HELD
    )
    return drawn(
        one, seeds, temperature=temperature, precision=precision, block=words if at_once else None
    )


def score(
    student: Linear,
    labels: Array,
    *,
    mean: bool = False,
    teacher: Linear | None = None,
    precision: Precision = Precision(),
    impl: Impl = "auto",
) -> Scored:
    """Computes `Scored` for labels [..] with the implementation `impl`."""
    if teacher is not None and len(teacher.table) != len(student.table):
        raise ValueError(
            f"the teacher has {len(teacher.table)} words and the student {len(student.table)}"
        )
    options = {"mean": mean, "teacher": teacher, "precision": precision}
    sizes = labels.size, len(student.table), student.features.shape[-1]
    soft = teacher is not None or student.cap is not None
    kernel = choose(impl, *sizes, soft=soft, compute=precision.compute)
    if kernel in (None, held):
        return (kernel or plain).scored(student, labels, **options)
    return scored(kernel, student, labels, **options)


def choose(
    impl: str, tokens: int, words: int, width: int, *, soft: bool = False, compute: str = "float32"
):
    """Returns the module to use, or None for `plain`.

    Raises UserError if the named implementation cannot compute this.
    """
    named(impl)
    if impl == "auto":
        if tokens * words / _devices() <= HELD:
            return None
        here = platform()
        if not deciding.asks(here):
            return blocked if held.refusal(tokens * words, soft) else held
        from ptm_jax.kernels.cross_entropy import (
            candidates,
        )  # with Pallas, which takes a quarter of a second to import

        return candidates.best(here, tokens, words, width, soft=soft, compute=compute)
    if impl in ("reference", "xla"):
        return None if impl == "reference" else blocked
    if impl == "native":
        if reason := held.refusal(tokens * words, soft):
            raise UserError(f"impl='native' cannot compute this cross-entropy: {reason}")
        return held
    if impl != "pallas":
        raise UserError(
            f"{impl.replace('dnn', 'DNN')} has no cross-entropy over a vocabulary here; take "
            "impl='xla'"
        )
    from ptm_jax.kernels.cross_entropy import tpu

    if reason := tpu.refusal(platform(), width, soft):
        raise UserError(reason)
    return tpu


def _devices() -> int:
    """Returns the number of devices over which the scores are split."""
    layout = current()
    return (
        1
        if layout is None
        else math.prod(layout.parts(name) for name in ("rows", "length", "vocab"))
    )
