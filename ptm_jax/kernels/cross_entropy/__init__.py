"""Cross-entropy of a linear layer over the vocabulary without its scores.

    nll = linear_cross_entropy(features [.., D], table [V, D], bias [V] or None, labels [..], precision=precision)

-log softmax(features . table^T + bias)[label] in nats, with gradients to features, table and bias from one pass over
blocks of words. Scores of tokens x V are never in memory: 125 MB a copy for a thousand tokens and BERT's vocabulary,
a gigabyte for XLM-R's. `impl` says who computes it:

    reference   `plain`: the scores in memory and autodiff; the definition
    xla         `blocked`: blocks of words on any platform
    pallas      `tpu`: a kernel for TPUs. Not run on hardware yet
    auto        reference up to `HELD` scores on a device, xla above; pallas by name only

A word of the same softmax, without its scores either: `draw` (`drawn`).

Label smoothing (Vaswani et al. 2017, section 5.4), the z-loss (Chowdhery et al. 2022, section 5), soft targets of a teacher
(Hinton et al. 2015), a vocabulary that a layout splits (`scored`); losses by samples are in `sampled`.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from ptm_jax.core.errors import UserError
from ptm_jax.core.layout import current
from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Array, record
from ptm_jax.kernels.choice import Impl, named
from ptm_jax.kernels.cross_entropy import blocked, plain, tpu
from ptm_jax.kernels.cross_entropy.drawn import drawn
from ptm_jax.kernels.cross_entropy.plain import logits
from ptm_jax.kernels.cross_entropy.scored import Linear, Scored, scored

__all__ = ["HELD", "Judged", "Linear", "Scored"]
__all__ += ["distillation", "draw", "judge", "linear_cross_entropy", "logits", "race", "score"]

HELD = 1 << 22
"""So many scores on a device are held: 16 MB. On a CPU (768 wide, bfloat16, 30,522 words) the plain way takes 0.7 of the
time of blocks for 40 tokens, the same for 160, and 1.2 times as long for 512."""


@record
class Judged:
    """Of every token [..], float32: `nll` in nats, `loss` (the same smoothed, with its z-loss), and whether no word has a
    greater score than the label."""

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
    """-log p(label) [..] in nats, float32, for features [.., D], table [V, D], bias [V] and labels [..] int32.

    smoothing   this share of the target goes to all V words alike
    z_loss      this times log(Z)^2 is added, which keeps the sum of exponentials near 1
    soft        a teacher of the same words, whose softmax is the target in place of `labels`: -sum_v q_v log p_v. It gets
                no gradient; both sides' scores may be divided by a temperature through features and bias (`distillation`)
    """
    student = Linear(features, table, bias)
    if soft is not None:
        if smoothing or labels is not None:
            raise ValueError("soft targets stand in the place of labels; leave labels None and smoothing 0")
        labels = jnp.zeros(features.shape[:-1], jnp.int32)
        found = score(student, labels, teacher=soft, precision=precision, impl=impl)
        return found.log_sum - found.soft + z_loss * found.log_sum**2
    return judge(student, labels, smoothing=smoothing, z_loss=z_loss, precision=precision, impl=impl).loss


def judge(
    student: Linear,
    labels: Array,
    *,
    smoothing: float = 0.0,
    z_loss: float = 0.0,
    precision: Precision = Precision(),
    impl: Impl = "auto",
) -> Judged:
    """What an objective wants to know of its predictions, by one pass over the vocabulary."""
    found = score(student, labels, mean=smoothing > 0, precision=precision, impl=impl)
    nll = found.log_sum - found.label
    loss = nll if not smoothing else (1 - smoothing) * nll + smoothing * (found.log_sum - found.mean)
    loss = loss if not z_loss else loss + z_loss * found.log_sum**2
    return Judged(nll, loss, jax.lax.stop_gradient(found.label) >= found.top)


def distillation(
    student: Linear,
    teacher: Linear,
    *,
    temperature: float = 1.0,
    precision: Precision = Precision(),
    impl: Impl = "auto",
) -> Array:
    """KL(teacher || student) [..] at a temperature, not yet times its square (Hinton et al. 2015, section 2)."""
    at = lambda one: Linear(
        one.features.astype(jnp.float32) / temperature, one.table, None if one.bias is None else one.bias / temperature
    )
    labels = jnp.zeros(student.features.shape[:-1], jnp.int32)
    found = score(at(student), labels, teacher=at(teacher), precision=precision, impl=impl)
    return found.log_sum - found.soft - found.entropy


def draw(
    one: Linear, seeds: Array, *, temperature: float = 1.0, precision: Precision = Precision(), impl: Impl = "auto"
) -> Array:
    """A word [..] int32 of softmax(scores / temperature) for every token, by its own seed: seeds [..] uint32.

    The draw is a function of scores, seed and word number: of no block, slice or layout. No gradient goes through."""
    return race(one, seeds, temperature=temperature, precision=precision, impl=impl)[0]


def race(
    one: Linear, seeds: Array, *, temperature: float = 1.0, precision: Precision = Precision(), impl: Impl = "auto"
) -> tuple[Array, Array]:
    """(`draw`, the value by which that word is the best [..] float32): of several softmaxes, the best value tells whose."""
    words = len(one.table)
    whole = named(impl) == "reference" or (impl == "auto" and seeds.size * words / _devices() <= HELD)
    return drawn(one, seeds, temperature=temperature, precision=precision, block=words if whole else None)


def score(
    student: Linear,
    labels: Array,
    *,
    mean: bool = False,
    teacher: Linear | None = None,
    precision: Precision = Precision(),
    impl: Impl = "auto",
) -> Scored:
    """`Scored` of labels [..] by the implementation `impl`."""
    if teacher is not None and len(teacher.table) != len(student.table):
        raise ValueError(f"the teacher has {len(teacher.table)} words and the student {len(student.table)}")
    options = {"mean": mean, "teacher": teacher, "precision": precision}
    kernel = choose(impl, labels.size, len(student.table), student.features.shape[-1], teacher is not None)
    return plain.scored(student, labels, **options) if kernel is None else scored(kernel, student, labels, **options)


def choose(impl: str, tokens: int, words: int, width: int, soft: bool = False):
    """The module that computes it, or None for the plain one. Raises UserError where the named one cannot."""
    named(impl)
    if impl == "auto":
        return None if tokens * words / _devices() <= HELD else blocked
    if impl in ("reference", "xla"):
        return None if impl == "reference" else blocked
    if impl == "cudnn":
        raise UserError("cuDNN has no cross-entropy over a vocabulary; take impl='xla'")
    if reason := tpu.refusal(_platform(), width, soft):
        raise UserError(reason)
    return tpu


def _platform() -> str:
    layout = current()
    return jax.default_backend() if layout is None else layout.mesh.devices.flat[0].platform


def _devices() -> int:
    """Over how many devices scores are divided."""
    layout = current()
    return 1 if layout is None else math.prod(layout.parts(name) for name in ("rows", "length", "vocab"))
