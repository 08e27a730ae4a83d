"""Attention by blocks against the definition in float64: results and all gradients, over generated
cases."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ALL, MASKS, SCORES, Case, agree, cases, grid, numbers, scores_of, visibility
from hypothesis import given

from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Visibility
from ptm_jax.kernels.attention import blocked
from ptm_jax.kernels.attention.arguments import Arguments, meets, spans
from ptm_jax.kernels.scores import ByKey, Relative, Scores

MANY = cases(
    queries=[1, 13, 16, 37],
    keys=[1, 16, 37, 48],
    heads=[1, 2, 3],
    extras=(*SCORES, *MASKS, "by_key", "places", "cap"),
)
SMALL = Case(queries=37, keys=37, extras=frozenset(ALL), dropout=0.3)


def check(case, tolerance=1e-5, precision=Precision()):
    def run(q, k, v, **given):
        return blocked.attention(q, k, v, Arguments(**given, precision=precision), block=case.block)

    agree(run, case, tolerance)


@pytest.mark.full
@grid(3)
@given(case=MANY)
def test_blocks_equal_the_definition(case):
    check(case)


@pytest.mark.full
@grid(20)
@given(case=MANY)
def test_blocks_equal_the_definition_in_many_cases(case):
    check(case)


@pytest.mark.full
@pytest.mark.parametrize("places", [[], ["places"]])
def test_everything_at_once(places):
    shared = frozenset({"rows", "heads"})
    check(
        Case(
            queries=37,
            keys=48,
            order="strict",
            extras=frozenset([*ALL, *places]),
            shared=shared,
            dropout=0.3,
        )
    )


@pytest.mark.full
def test_bfloat16_is_within_its_bits():
    """Blocks of a size for which a CPU takes its own kernels: a column-major operand would fail
    there at run time."""
    held = frozenset({"distances", "relative", "by_key", "values"})
    check(
        Case(300, 300, width=32, order="causal", extras=held, relative=1, block=256),
        2e-2,
        Precision("bfloat16"),
    )


@pytest.mark.full
def test_more_queries_than_keys():
    check(Case(queries=37, keys=5, heads=1, extras=frozenset({"distances"}), dropout=0.3))


@pytest.mark.full
def test_a_row_that_sees_nothing_gives_zeros_and_zero_gradients():
    check(Case(20, 20, order="blind", extras=frozenset({"bias", "values"})))


@pytest.mark.full
@pytest.mark.parametrize("shared", [pytest.param([], marks=pytest.mark.full), ["rows", "heads"]])
def test_rows_and_heads_at_once_are_the_same(shared, monkeypatch):
    """By the branch that other platforms than a CPU take."""
    monkeypatch.setattr(
        blocked.jax.lax, "platform_dependent", lambda *operands, default, cpu: default(*operands)
    )
    check(dataclasses.replace(SMALL, shared=frozenset(shared)))


@pytest.mark.full
def test_a_part_of_the_heads_and_queries_is_a_part_of_the_result():
    """The result of a device that has a part of a row: dropout and distances are those of the
    whole."""
    case = Case(32, 32, heads=4, width=4, order="causal", extras=frozenset({"distances"}))
    x, _ = jax.tree.map(jnp.float32, numbers(case))
    mask, heads, part = visibility(case), slice(2, 4), slice(16, 32)
    args = Arguments(mask, 0.4, scores_of(case, x), dropout=0.3, key=jax.random.key(7))
    run = jax.jit(functools.partial(blocked.attention, block=16))
    whole = run(x["q"], x["k"], x["v"], args)
    cut = Visibility(mask.q_segments[:, part], mask.k_segments, mask.q_order[:, part], mask.k_order)
    place = {"full_size": (4, 32, 32), "first_head": jnp.int32(2), "first_query": jnp.int32(16)}
    args = dataclasses.replace(
        args, visibility=cut, scores=Scores(distances=x["distances"][heads]), **place
    )
    found = run(x["q"][:, part, heads], x["k"][:, :, heads], x["v"][:, :, heads], args)
    np.testing.assert_allclose(found, whole[:, part, heads], atol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_other_platforms_lower_it(platform):
    x, _ = jax.tree.map(jnp.float32, numbers(SMALL))

    def loss(x):
        args = Arguments(
            visibility(SMALL), 1.0, scores_of(SMALL, x), precision=Precision("bfloat16")
        )
        return blocked.attention(x["q"], x["k"], x["v"], args, block=16).astype(jnp.float32).sum()

    assert (
        "while" in jax.jit(jax.grad(loss)).trace(x).lower(lowering_platforms=(platform,)).as_text()
    )


@pytest.mark.full
@pytest.mark.parametrize("distances", ["t5", "deberta"])
def test_no_buffer_holds_the_square(distances):
    """The largest array of the compiled forward and backward pass of T5's and DeBERTa's attention,
    one row and head of 8 x 8 blocks."""
    length = 512
    ones, slots = jnp.ones((1, length), jnp.int32), jnp.arange(length)[None]

    def loss(q, k, v, table):
        scores = Scores(distances=table)
        if distances == "deberta":
            scores = Scores(relative=Relative(q, table), by_key=ByKey(k, 2 * table))
        args = Arguments(Visibility(ones, ones, slots, slots), 1.0, scores)
        return blocked.attention(q, k, v, args, block=64).sum()

    shape = jax.ShapeDtypeStruct((1, length, 1, 8), jnp.float32)
    lines = (1, 2 * 128 + 1) if distances == "t5" else (2 * 128 + 1, 1, 8)
    table = jax.ShapeDtypeStruct(lines, jnp.float32)
    text = (
        jax.jit(jax.grad(loss, (0, 1, 2, 3))).lower(shape, shape, shape, table).compile().as_text()
    )
    shapes = re.findall(r"\b(?:f32|s32|u32|pred|s8)\[([\d,]+)\]", text)
    assert (
        max(int(np.prod([int(n) for n in found.split(",")])) for found in shapes)
        < length * length / 2
    )


@pytest.mark.parametrize("order", ["none", "causal", "strict"])
def test_the_blocks_to_visit_are_those_with_something_to_see(order):
    """What the kernels for every platform visit: work follows the sum of squared lengths, a causal
    order halves it."""
    lengths = [16, 24, 8, 32, 48]
    segments = np.repeat(np.arange(1, 6), lengths)[None].astype(np.int32)
    places = np.arange(128, dtype=np.int32)[None]
    orders = (
        {}
        if order == "none"
        else {"q_order": places, "k_order": places, "strict": order == "strict"}
    )
    args = Arguments(Visibility(segments, segments, **orders), 1.0)
    met = meets(tuple(args.fields()), *args.stacked(1, 128, 128), (8, 8))
    there = np.asarray(args.visibility.dense())[0, 0].reshape(16, 8, 16, 8).any((1, 3))
    np.testing.assert_array_equal(met[0], there)
    for by_query, seen in ((met, there), (met.swapaxes(1, 2), there.T)):
        first, count = (np.asarray(x)[0] for x in spans(by_query))
        np.testing.assert_array_equal(count, seen.sum(1))
        np.testing.assert_array_equal(first[count > 0], seen.argmax(1)[count > 0])
    if order == "none":
        assert met.sum() == sum((length // 8) ** 2 for length in lengths)
