"""Statistics per token of the scores over the vocabulary, computed without an array of scores, also
over several devices.

The statistics are the log of the sum of exponentials, the label's score, the mean and the greatest
score, and the mean score under a teacher's distribution. The losses of this package are computed
from them. Each statistic has one gradient g per token, and the gradient of a score is

    dz_tv = g_log_sum p_tv + g_label [v = label] + g_mean / V + g_soft q_tv

with the softmax p and the teacher's softmax q. A pass over blocks of words computes dz one block at
a time.

Under a layout every device has its own tokens and, if the vocabulary is split, its own words.
Devices exchange the greatest score, the sum of exponentials and the label's score of every token
(Shoeybi et al. 2019, section 3).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from ptm_jax.core.constraint import current
from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Array, record, static

LOW = -1e30


@record
class Linear:
    """Factors of the scores features [.., D] . table [V, D] + bias [V]; `bias` may be None.

    `cap` limits the scores softly: cap tanh(score / cap) (Gemma 2, arXiv 2408.00118, section 2).
    """

    features: Any
    table: Any
    bias: Any = None
    cap: float | None = static(None)

    def flat(self) -> Linear:
        """Flattens the dimensions of tokens into one."""
        features = self.features.reshape(-1, self.features.shape[-1])
        return dataclasses.replace(self, features=features)

    def capped(self, scores: Array) -> Array:
        """Returns the scores with their limit."""
        return scores if self.cap is None else self.cap * jnp.tanh(scores / self.cap)

    def slope(self, scores: Array) -> Array | float:
        """Returns the derivative of `capped` as a function of its results."""
        return 1.0 if self.cap is None else 1.0 - jnp.square(scores / self.cap)


@record
class Scored:
    """Statistics per token [..], float32, of the scores z.

    Statistics that were not requested are None.

    log_sum   log sum_v exp z_v          mean      the mean of z_v over the words
    label     z of the label             soft      sum_v q_v z_v, q the teacher's softmax
    top       the greatest z             entropy   -sum_v q_v log q_v

    `soft_log_sum` is the teacher's log-sum. `top`, `entropy` and `soft_log_sum` have no gradient.
    """

    log_sum: Any
    label: Any
    top: Any
    mean: Any = None
    soft: Any = None
    entropy: Any = None
    soft_log_sum: Any = None


@record
class Sums:
    """Sums per token over one device's words, with scores z and a teacher's scores u.

    total   sum exp(z - top)             mixed   sum exp(u - soft_top) z
    all     sum of z                     soft_sum  sum exp(u - soft_top) u
    """

    top: Any
    total: Any
    label: Any
    all: Any = None
    soft_top: Any = None
    soft_total: Any = None
    mixed: Any = None
    soft_sum: Any = None


class Operands(NamedTuple):
    """What a backward pass reads: the scores, the labels [T], and a teacher's scores or None."""

    student: Linear
    labels: Array
    teacher: Linear | None


@dataclasses.dataclass(frozen=True)
class Plan:
    """Static arguments of the computation.

    kernel      a module with `forward(plan, student, labels, teacher, first) -> Sums` and
                `backward(plan, operands, log_sums, grads, first) -> (d features, d table, d bias)`
                for one device's tokens [T] and words, float32; `first` is the number of its first
                word, or None
    words       size of the whole vocabulary
    padded      whether a device may have rows of zeros beyond the vocabulary
    interpret   passed to `pallas_call`, to run a kernel without its device
    """

    kernel: Any
    words: int
    precision: Precision
    mean: bool = False
    padded: bool = False
    interpret: Any = False


@dataclasses.dataclass(frozen=True)
class _Places:
    """Partition specs under a layout. `tokens`, `words` and `width` are the mesh axes over which
    tokens, words and the width of the table's gradient are split."""

    mesh: Any
    features: P
    tokens: tuple[str, ...]
    words: tuple[str, ...]
    width: tuple[str, ...]

    @property
    def labels(self):
        return P(*self.features[:-1])

    def linear(self, one: Linear):
        """Returns the specs of a `Linear`."""
        words = self.words or None
        bias = None if one.bias is None else P(words)
        return Linear(self.features, P(words, None), bias, one.cap)

    @property
    def parts(self) -> int:
        return math.prod(self.mesh.shape[axis] for axis in self.words)


def scored(
    kernel: Any,
    student: Linear,
    labels: Array,
    *,
    mean: bool = False,
    teacher: Linear | None = None,
    precision: Precision,
    interpret: Any = False,
) -> Scored:
    """Computes `Scored` for labels [..] with a kernel. The teacher gets no gradient."""
    plan = Plan(kernel, len(student.table), precision, mean, interpret=interpret)
    layout = current()
    teacher = jax.lax.stop_gradient(teacher)
    if layout is None:
        shape, flat = labels.shape, lambda one: None if one is None else one.flat()
        result = _scored(plan, None, flat(student), labels.reshape(-1), flat(teacher))
        return jax.tree.map(lambda x: x.reshape(shape), result)
    places = places_of(layout, student)
    student, teacher = padded(student, places.parts), padded(teacher, places.parts)
    plan = dataclasses.replace(plan, padded=len(student.table) != plan.words)
    return _scored(plan, places, student, labels, teacher)


def places_of(layout, student):
    """Returns the `_Places` of a layout.

    A dimension that its mesh axes do not divide is not split, nor is one token [D].
    """
    shape = student.features.shape
    names = (
        ["rows", *["length"] * (len(shape) - 2), None][: len(shape)] if len(shape) > 1 else [None]
    )
    spec = P(*(None if entry is P.UNCONSTRAINED else entry for entry in layout.spec(names, shape)))
    tokens = tuple(
        axis for entry in spec if entry for axis in ((entry,) if isinstance(entry, str) else entry)
    )
    words = tuple(axis for axis in layout.axes("vocab") if axis not in tokens)
    width = tuple(axis for axis in layout.axes("width") if axis in tokens)
    width = width if shape[-1] % math.prod(layout.mesh.shape[axis] for axis in width) == 0 else ()
    return _Places(layout.mesh, spec, tokens, words, width)


def padded(one, parts):
    """Pads the table with rows of zeros so that every device has the same number of words."""
    if one is None or len(one.table) % parts == 0:
        return one
    more = -len(one.table) % parts
    bias = None if one.bias is None else jnp.pad(one.bias, (0, more))
    table = jnp.pad(one.table, ((0, more), (0, 0)))
    return dataclasses.replace(one, table=table, bias=bias)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _scored(plan, places, student, labels, teacher):
    return _forward(plan, places, student, labels, teacher)[0]


def _forward(plan, places, student, labels, teacher):
    if places is None:
        result = _result(plan, plan.kernel.forward(plan, student, labels, teacher, None))
    else:
        inputs = (
            places.linear(student),
            places.labels,
            None if teacher is None else places.linear(teacher),
        )
        result = mapped(places, functools.partial(_share, plan, places), inputs, places.labels)(
            student, labels, teacher
        )
    return result, (student, labels, teacher, result.log_sum, result.soft_log_sum)


def _share(plan, places, student, labels, teacher):
    """Computes the statistics of one device's tokens, with the sums of other devices' words."""
    shape, student = labels.shape, student.flat()
    teacher = None if teacher is None else teacher.flat()
    first = jax.lax.axis_index(places.words) * len(student.table) if places.words else None
    sums = plan.kernel.forward(plan, student, labels.reshape(-1), teacher, first)
    sums = _exchanged(sums, places.words) if places.words else sums
    return jax.tree.map(lambda x: x.reshape(shape), _result(plan, sums))


def _exchanged(sums, axes):
    def add(x):
        return None if x is None else jax.lax.psum(x, axes)

    top = jax.lax.pmax(sums.top, axes)
    total, label, every = add((sums.total * jnp.exp(sums.top - top), sums.label, sums.all))
    if sums.mixed is None:
        return Sums(top, total, label, every)
    soft = jax.lax.pmax(sums.soft_top, axes)
    fade = jnp.exp(sums.soft_top - soft)
    return Sums(
        top,
        total,
        label,
        every,
        soft,
        *add((sums.soft_total * fade, sums.mixed * fade, sums.soft_sum * fade)),
    )


def _result(plan, sums):
    mean = None if sums.all is None else sums.all / plan.words
    scored = Scored(sums.top + jnp.log(sums.total), sums.label, sums.top, mean)
    if sums.mixed is None:
        return scored
    log_sum = sums.soft_top + jnp.log(sums.soft_total)
    entropy = log_sum - sums.soft_sum / sums.soft_total
    return dataclasses.replace(
        scored, soft=sums.mixed / sums.soft_total, entropy=entropy, soft_log_sum=log_sum
    )


def _backward(plan, places, residuals, g):
    student, labels, teacher, log_sum, soft_log_sum = residuals
    grads = Scored(
        g.log_sum, g.label, None, None if g.mean is None else g.mean / plan.words, g.soft
    )
    log_sums, operands = (log_sum, soft_log_sum), Operands(student, labels, teacher)
    if places is None:
        slopes = plan.kernel.backward(plan, operands, log_sums, grads, None)
    else:
        one = places.labels
        soft = None if teacher is None else places.linear(teacher)
        inputs = (Operands(places.linear(student), one, soft), one, one)
        outputs = (
            places.features,
            P(places.words or None, places.width or None),
            places.linear(student).bias,
        )
        share = functools.partial(_share_backward, plan, places)
        slopes = mapped(places, share, inputs, outputs)(operands, log_sums, grads)
    features, table, bias = slopes

    def cast(x, like):
        return None if like is None else x.astype(like.dtype)

    slopes = cast(features, student.features), cast(table, student.table), cast(bias, student.bias)
    return Linear(*slopes, student.cap), None, None


_scored.defvjp(_forward, _backward)


def _share_backward(plan, places, operands, log_sums, grads):
    student, labels, teacher = operands
    shape, flat = student.features.shape, lambda tree: jax.tree.map(lambda x: x.reshape(-1), tree)
    teacher = None if teacher is None else teacher.flat()
    first = jax.lax.axis_index(places.words) * len(student.table) if places.words else None
    operands = Operands(student.flat(), flat(labels), teacher)
    features, table, bias = plan.kernel.backward(plan, operands, flat(log_sums), flat(grads), first)
    # Cast before the psum, so that devices exchange the type of the result, as for every other
    # product.
    features = features.astype(student.features.dtype)
    features = jax.lax.psum(features, places.words) if places.words else features
    other_axes = tuple(axis for axis in places.tokens if axis not in places.width)
    table, bias = jax.lax.psum((table, bias), other_axes) if other_axes else (table, bias)
    if places.width:
        table = jax.lax.psum_scatter(table, places.width, scatter_dimension=1, tiled=True)
        bias = None if bias is None else jax.lax.psum(bias, places.width)
    return features.reshape(shape), table, bias


def mapped(places, function, inputs, outputs):
    return jax.shard_map(
        function, mesh=places.mesh, in_specs=inputs, out_specs=outputs, check_vma=False
    )
