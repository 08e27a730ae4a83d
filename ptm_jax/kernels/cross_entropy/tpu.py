"""Cross-entropy on TPUs by Pallas; only a block of scores is in a core's vector memory.

The forward grid is (block of tokens, block of words). It computes z = x W^T on the matrix unit. The
maximum, the sum of exponentials, the label's score and the sum of scores are columns of one
[tokens, 128] scratch, written after the last block of words. The backward pass recomputes the
scores in each of two kernels (Dao et al. 2022, algorithm 4, split in two):

    d x   the forward grid; accumulates dz W over the words
    d W   a grid of (block of words, block of tokens); accumulates dz^T x and the sum of dz over the
          tokens

This saves 2 tokens x V float32 in HBM, which autodiff writes once and reads three times. Features
are cast before the kernel, lines of the table inside it, so the table is not copied. Words beyond
the end of the last block are masked and not written.

Compiled for v4, v5e, v5p and v6e and run in the interpreter; not run on hardware. Refuses other
platforms, soft targets, and features wider than 4,096, because the lines of 128 words would not fit
into vector memory.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ptm_jax.kernels.cross_entropy.scored import LOW, Sums

TOKENS, FEATURES, LINES, WIDEST = 512, 1 << 19, 1 << 18, 4096
"""Maximum tokens, feature elements and table elements of a block, and maximum width of features.

Chosen for 16 MB of vector memory with double buffering. Elements are halved in float32, because its
products are made of several."""

COLUMNS = ("top", "total", "label", "all")


def refusal(platform: str, width: int, soft: bool) -> str | None:
    """Returns why the kernels cannot compute this and what to use instead, or None."""
    if platform != "tpu":
        return f"the cross-entropy kernel is for TPUs, and this is {platform}; take impl='xla'"
    if soft:
        return "the cross-entropy kernel has no soft targets and no soft cap; take impl='xla'"
    if width > WIDEST:
        return (
            f"features of {width} are wider than the {WIDEST} that the cross-entropy kernel "
            "holds; take impl='xla'"
        )
    return None


def forward(plan, student, labels, teacher, first):
    """Returns the `Sums` of tokens [T] over one device's words."""
    del teacher
    shape = _Shape(plan, student, len(labels))
    words, operands = _operands(plan, shape, student, labels, first)
    out = jax.ShapeDtypeStruct((len(operands["x"]), 128), jnp.float32)
    scratch = [pltpu.VMEM((shape.t, 128), jnp.float32)]
    columns_of_tokens = _called(
        plan, shape, _forward, (0, 1), (words, operands),
        out=out, out_specs=shape.column(0, 128), scratch=scratch,
    )  # fmt: skip
    columns = dict(zip(COLUMNS, columns_of_tokens[: len(labels), : len(COLUMNS)].T, strict=True))
    return Sums(
        columns["top"], columns["total"], columns["label"], columns["all"] if plan.mean else None
    )


def backward(plan, operands, log_sums, grads, first):
    """Returns (d features [T, D], d table, d bias or None), float32, for one device's words."""
    student, labels, teacher = operands
    del teacher
    tokens, shape = len(labels), _Shape(plan, student, len(labels))
    words, operands = _operands(plan, shape, student, labels, first)
    mean = jnp.zeros((tokens,), jnp.float32) if grads.mean is None else grads.mean
    columns = jnp.stack([log_sums[0], grads.log_sum, grads.label, mean], 1)
    operands["given"] = jnp.pad(
        columns, ((0, shape.spare), (0, 0))
    )  # padding tokens have no gradient

    def of(*sizes):
        return jax.ShapeDtypeStruct(sizes, jnp.float32)

    x, table = operands["x"].shape, student.table.shape
    features = _called(
        plan, shape, _features, (0, 1), (words, operands),
        out=of(*x), out_specs=shape.tokens(0),
    )  # fmt: skip
    specs = [shape.lines(0), pl.BlockSpec((8, shape.v), lambda i, j, *_: (0, i))]
    table, slopes = _called(
        plan, shape, _table, (1, 0), (words, operands),
        out=[of(*table), of(8, table[0])], out_specs=specs,
    )  # fmt: skip
    return features[:tokens], table, None if student.bias is None else slopes[0]


def _called(plan, shape, kernel, axes, arrays, *, out, out_specs, scratch=()):
    """Runs `kernel(plan, words, refs of operands, *outputs, *scratch)` on arrays (words, operands).

    `axes` are the grid axes of tokens and words.
    """
    (words, operands), (t, v) = arrays, axes
    specs = {
        "x": shape.tokens(t),
        "labels": shape.column(t),
        "given": shape.column(t, 4),
        "lines": shape.lines(v),
        "bias": pl.BlockSpec((1, shape.v), lambda *at: (0, at[v])),
    }
    grid = {t: shape.token_blocks, v: shape.word_blocks}
    return pl.pallas_call(
        functools.partial(kernel, plan),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(grid[0], grid[1]),
            in_specs=[{name: specs[name] for name in operands}],
            out_specs=out_specs,
            scratch_shapes=scratch,
        ),
        out_shape=out,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=plan.interpret,
        name=f"cross_entropy{kernel.__name__}",
    )(words, operands)


class _Shape:
    """Sizes of blocks (t tokens, v words) and block specs of the operands; `axis` is an axis of the
    grid."""

    def __init__(self, plan, student, tokens: int):
        words, self.width = student.table.shape
        share = self.width * (2 if plan.precision.compute == "float32" else 1)
        self.t = min(TOKENS, max(FEATURES // share // 64 * 64, 64), -(-tokens // 16) * 16)
        self.v = min(max(LINES // share // 128 * 128, 128), -(-words // 128) * 128)
        self.token_blocks, self.word_blocks = -(-tokens // self.t), -(-words // self.v)
        self.spare = self.token_blocks * self.t - tokens

    def tokens(self, axis):
        return pl.BlockSpec((self.t, self.width), lambda *at: (at[axis], 0))

    def column(self, axis, columns=1):
        return pl.BlockSpec((self.t, columns), lambda *at: (at[axis], 0))

    def lines(self, axis):
        return pl.BlockSpec((self.v, self.width), lambda *at: (at[axis], 0))


def _operands(plan, shape, student, labels, first):
    """Returns (first word, number of real words) and the operands: padded features and labels [T,
    1], table, bias [1, V].

    The label of padding is -1."""
    labels = jnp.pad(labels.astype(jnp.int32), (0, shape.spare), constant_values=-1)[:, None]
    operands = {
        "x": jnp.pad(student.features.astype(plan.precision.dtype), ((0, shape.spare), (0, 0))),
        "labels": labels,
        "lines": student.table,
    }
    if student.bias is not None:
        operands["bias"] = student.bias[None].astype(jnp.float32)
    first = jnp.int32(0) if first is None else first.astype(jnp.int32)
    return jnp.stack([first, jnp.clip(plan.words - first, 0, len(student.table))]), operands


def _product(plan, a, b, axes):
    exact = jax.lax.Precision.HIGHEST if plan.precision.compute == "float32" else None
    return jax.lax.dot_general(
        a, b, ((axes[:1], axes[1:]), ((), ())), precision=exact, preferred_element_type=jnp.float32
    )


def _scores(plan, words, block, refs):
    """Returns a block's (scores [t, v], lines of the table, word numbers [1, v], mask of real words
    [1, v]).

    Lines beyond the table are zeros."""
    size = refs["lines"].shape[0]
    here = block * size + jax.lax.broadcasted_iota(jnp.int32, (1, size), 1)
    down = block * size + jax.lax.broadcasted_iota(jnp.int32, (size, 1), 0)
    table = jnp.where(down < words[1], refs["lines"][...], 0.0).astype(plan.precision.dtype)
    scores = _product(plan, refs["x"][...], table, (1, 1))
    scores = scores + refs["bias"][...] if "bias" in refs else scores
    return scores, table, words[0] + here, here < words[1]


def _forward(plan, words, refs, out, state):
    block, last = pl.program_id(1), pl.num_programs(1) - 1
    scores, _, numbers, real = _scores(plan, words, block, refs)
    column = jax.lax.broadcasted_iota(jnp.int32, state.shape, 1)

    @pl.when(block == 0)
    def _():
        state[...] = jnp.where(column == 0, LOW, 0.0)

    z = jnp.where(real, scores, LOW)
    before = state[...]
    top = jnp.maximum(before[:, :1], z.max(1, keepdims=True))
    total = before[:, 1:2] * jnp.exp(before[:, :1] - top) + jnp.exp(z - top).sum(1, keepdims=True)
    label = before[:, 2:3] + jnp.where(numbers == refs["labels"][...], z, 0.0).sum(1, keepdims=True)
    after = jnp.where(
        column == 0, top, jnp.where(column == 1, total, jnp.where(column == 2, label, before))
    )
    if plan.mean:
        every = before[:, 3:4] + jnp.where(real, scores, 0.0).sum(1, keepdims=True)
        after = jnp.where(column == 3, every, after)
    state[...] = after

    @pl.when(block == last)
    def _():
        out[...] = after


def _slopes(plan, words, block, refs):
    """Returns (dz [t, v] float32, the block's lines of the table)."""
    scores, table, numbers, real = _scores(plan, words, block, refs)
    log_sum, of_sum, of_label, of_mean = (refs["given"][:, i : i + 1] for i in range(4))
    dz = of_sum * jnp.exp(scores - log_sum) + jnp.where(
        numbers == refs["labels"][...], of_label, 0.0
    )
    dz = dz + of_mean if plan.mean else dz
    return jnp.where(real, dz, 0.0), table


def _features(plan, words, refs, out):
    block = pl.program_id(1)
    dz, table = _slopes(plan, words, block, refs)

    @pl.when(block == 0)
    def _():
        out[...] = jnp.zeros_like(out)

    out[...] += _product(plan, dz.astype(plan.precision.dtype), table, (1, 0))


def _table(plan, words, refs, table, slopes):
    dz, _ = _slopes(plan, words, pl.program_id(0), refs)

    @pl.when(pl.program_id(1) == 0)
    def _():
        table[...] = jnp.zeros_like(table)
        slopes[...] = jnp.zeros_like(slopes)

    table[...] += _product(plan, dz.T.astype(plan.precision.dtype), refs["x"][...], (1, 0))
    slopes[...] += jnp.broadcast_to(dz.sum(0, keepdims=True), slopes.shape)
