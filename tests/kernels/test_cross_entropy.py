"""Cross-entropy without scores, by every implementation, against the definition in numpy float64:
values and gradients."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp, softmax

from ptm_jax.core.errors import UserError
from ptm_jax.core.precision import Precision
from ptm_jax.kernels import cross_entropy
from ptm_jax.kernels.cross_entropy import Linear, blocked, held, plain, scored, tpu

KERNELS = {
    "plain": plain.scored,
    "held": functools.partial(cross_entropy.score, impl="native"),
    "blocked": functools.partial(scored, blocked),
    "tpu": functools.partial(scored, tpu, interpret=True),
}
BOUNDS = {"float32": 1e-5, "bfloat16": 2e-2}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """So that a few hundred words are several blocks, the last of another size."""
    monkeypatch.setattr(blocked, "SCORES", 0)
    monkeypatch.setattr(blocked, "LEAST", 128)
    monkeypatch.setattr(tpu, "TOKENS", 16)
    monkeypatch.setattr(tpu, "LINES", 0)


def inputs(tokens, words, width, bias=True, seed=0):
    draw = np.random.default_rng(seed)

    def make(*shape):
        return jnp.asarray(draw.normal(size=shape), jnp.float32)

    labels = jnp.asarray(draw.integers(0, words, tokens), jnp.int32)
    student = Linear(
        make(tokens, width), make(words, width) * width**-0.5, make(words) if bias else None
    )
    return student, labels, Linear(make(tokens, 3), make(words, 3), make(words)), make(5, tokens)


def definition(student, labels, teacher, slopes, mean, soft):
    """(log-sum, label, mean, soft, entropy, top, gradients to features, table and bias) in
    float64."""
    x, w = (np.asarray(a, np.float64) for a in (student.features, student.table))
    z = x @ w.T + (0 if student.bias is None else np.asarray(student.bias, np.float64))
    u = np.asarray(teacher.features @ teacher.table.T + teacher.bias, np.float64)
    p, q, g = softmax(z, -1), softmax(u, -1), np.asarray(slopes, np.float64)
    one = np.eye(z.shape[1])[np.asarray(labels)]
    values = (
        logsumexp(z, -1),
        (one * z).sum(-1),
        z.mean(-1),
        (q * z).sum(-1),
        -(q * np.log(q)).sum(-1),
        z.max(-1),
    )
    dz = g[0][:, None] * p + g[1][:, None] * one
    dz = dz + g[2][:, None] / z.shape[1] if mean else dz
    dz = dz + g[3][:, None] * q if soft else dz
    return values, (dz @ w, dz.T @ x, dz.sum(0))


def found(kernel, student, labels, teacher, slopes, mean, soft, precision):
    def total(student):
        one = KERNELS[kernel](
            student,
            labels,
            mean=mean,
            teacher=teacher if soft else None,
            precision=Precision(precision),
        )
        parts = one.log_sum, one.label, one.mean, one.soft
        return sum(
            (g * part).sum() for g, part in zip(slopes, parts, strict=False) if part is not None
        ), one

    (_, one), grads = jax.jit(jax.value_and_grad(total, has_aux=True))(student)
    return one, grads


def near(got, expected, bound):
    expected = np.asarray(expected)
    np.testing.assert_allclose(got, expected, atol=bound * max(1, np.abs(expected).max()))


def agree(kernel, case, mean=False, soft=False, precision="float32"):
    one, grads = found(kernel, *case, mean, soft, precision)
    values, slopes = definition(*case, mean, soft)
    for name, value in zip(
        ("log_sum", "label", "mean", "soft", "entropy", "top"), values, strict=True
    ):
        if getattr(one, name) is not None:
            near(getattr(one, name), value, BOUNDS[precision])
    assert (one.mean is not None, one.soft is not None) == (mean, soft)
    for got, expected in zip((grads.features, grads.table, grads.bias), slopes, strict=True):
        if got is not None:
            near(got, expected, BOUNDS[precision])


@pytest.mark.full
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("kernel", ["plain", "held", "blocked", "tpu"])
def test_values_and_gradients_are_those_of_the_definition(kernel, precision):
    agree(
        kernel,
        inputs(37, 300, 24),
        mean=True,
        soft=kernel in ("plain", "blocked"),
        precision=precision,
    )


@pytest.mark.full
@pytest.mark.parametrize("shape", [(8, 120, 4), (33, 257, 8)], ids=str)
def test_a_cpu_has_kernels_for_the_layouts_of_narrow_features(shape):
    """For other forms of these products XLA takes layouts that it cannot run in bfloat16."""
    agree("blocked", inputs(*shape), precision="bfloat16")


@pytest.mark.full
@settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    kernel=st.sampled_from(["held", "blocked", "tpu"]),
    tokens=st.sampled_from([1, 7, 33]),
    words=st.sampled_from([5, 128, 257, 400]),
    bias=st.booleans(),
    mean=st.booleans(),
)
def test_any_number_of_tokens_and_words(kernel, tokens, words, bias, mean):
    agree(kernel, inputs(tokens, words, 8, bias, seed=tokens + words), mean=mean)


def test_scores_that_are_held_are_those_of_the_definition():
    """Not a multiple of a vector's numbers, nor of a part's tokens; without a bias too; a second
    derivative is that of the definition."""
    if reason := held.refusal(1, False):
        pytest.skip(reason)
    agree("held", inputs(19, 301, 8), mean=True)
    agree("held", inputs(3, 5, 8, bias=False))
    student, labels, *_ = inputs(5, 21, 4)

    def slope(implementation, features):
        def loss(x):
            one = dataclasses.replace(student, features=x)
            return (implementation(one, labels, precision=Precision()).log_sum ** 2).sum()

        return jax.grad(lambda x: (jax.grad(loss)(x) ** 2).sum())(features)

    near(slope(KERNELS["held"], student.features), slope(plain.scored, student.features), 1e-5)


def test_scores_are_held_on_a_cpu_up_to_a_number():
    if reason := held.refusal(1, False):
        pytest.skip(reason)
    assert cross_entropy.choose("auto", 10, 100, 8) is None
    assert cross_entropy.choose("auto", 1000, 30522, 8) is held
    assert cross_entropy.choose("auto", 1000, 30522, 8, soft=True) is blocked
    assert cross_entropy.choose("auto", 10_000, 30522, 8) is blocked
    with pytest.raises(UserError, match="native.*at most"):
        cross_entropy.choose("native", 10_000, 30522, 8)


@pytest.mark.full
def test_losses_are_arithmetic_on_them():
    student, labels, teacher, _ = inputs(7, 300, 8)
    z, u = (np.asarray(plain.logits(one, Precision()), np.float64) for one in (student, teacher))
    p, q = np.log(softmax(z, -1)), softmax(u, -1)
    nll, uniform = -p[np.arange(7), labels], -p.mean(-1)
    call = functools.partial(
        cross_entropy.linear_cross_entropy,
        student.features,
        student.table,
        student.bias,
        impl="xla",
    )
    near(call(labels), nll, 1e-5)
    near(
        call(labels, smoothing=0.1, z_loss=1e-2),
        0.9 * nll + 0.1 * uniform + 1e-2 * logsumexp(z, -1) ** 2,
        1e-5,
    )
    near(call(None, soft=teacher), -(q * p).sum(-1), 1e-5)
    near(
        cross_entropy.distillation(student, teacher, impl="xla"),
        (q * (np.log(q) - p)).sum(-1),
        1e-5,
    )
    cool, warm = np.log(softmax(z / 3, -1)), softmax(u / 3, -1)
    near(
        cross_entropy.distillation(student, teacher, temperature=3.0),
        (warm * (np.log(warm) - cool)).sum(-1),
        1e-5,
    )
    judged = cross_entropy.judge(student, jnp.asarray(z.argmax(-1)).at[0].add(1), impl="xla")
    assert judged.right.tolist() == [False] + [True] * 6


@pytest.mark.full
def test_a_token_without_weight_has_no_gradient():
    student, labels, *_ = inputs(6, 300, 8)
    weights = jnp.asarray([1.0, 0, 1, 0, 0, 1])

    def total(features, labels):
        nll = cross_entropy.linear_cross_entropy(
            features, student.table, student.bias, labels, impl="xla"
        )
        return (nll * weights).sum()

    grads = jax.grad(total)(student.features, labels)
    assert ((np.abs(grads).sum(-1) > 0) == (weights > 0)).all()
    np.testing.assert_array_equal(
        grads, jax.grad(total)(student.features, jnp.where(weights > 0, labels, -100))
    )


def largest(compiled):
    """The greatest number of elements of an array in the compiled module."""
    shapes = re.findall(r"\b(?:f|bf|s|u|pred)\d*\[([\d,]+)\]", compiled.as_text())
    return max(int(np.prod([int(dim) for dim in shape.split(",")])) for shape in shapes)


def test_the_scores_are_never_in_memory():
    """512 tokens of 8 by 1,024 words: the largest array is a block of 128 words."""
    student, labels, *_ = inputs(512, 1024, 8)

    def total(impl, student):
        judged = cross_entropy.judge(
            student, labels, smoothing=0.1, precision=Precision("bfloat16"), impl=impl
        )
        return judged.loss.sum(), judged.right

    sizes = {}
    for impl in ("xla", "reference"):
        grad = jax.jit(jax.grad(functools.partial(total, impl), has_aux=True))
        sizes[impl] = largest(grad.lower(student).compile())
    assert sizes == {"xla": 128 * 512, "reference": 1024 * 512}


def test_who_computes_it():
    choose = cross_entropy.choose
    assert choose("auto", 128, 30522, 768) is None and choose("auto", 1024, 250_002, 768) is blocked
    assert choose("reference", 9999, 30522, 768) is None and choose("xla", 1, 9, 8) is blocked
    for impl, platform in (("cudnn", "cuDNN"), ("pallas", "for TPUs"), ("triton", "triton")):
        with pytest.raises(UserError, match=platform):
            choose(impl, 9, 9, 8)
    assert tpu.refusal("tpu", 1024, False) is None
    assert "soft" in tpu.refusal("tpu", 1024, True) and "8192" in tpu.refusal("tpu", 8192, False)
    assert blocked.words_of_block(512, 100) == 100 and blocked.words_of_block(1, 300) == 128


def test_a_teacher_has_the_same_words():
    student, labels, teacher, _ = inputs(3, 9, 4)
    fewer = Linear(teacher.features, teacher.table[:-1], None)
    with pytest.raises(ValueError, match="8 words"):
        cross_entropy.score(student, labels, teacher=fewer)
    with pytest.raises(ValueError, match="place of labels"):
        cross_entropy.linear_cross_entropy(
            student.features, student.table, None, labels, soft=teacher
        )
