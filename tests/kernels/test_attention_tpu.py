"""The TPU kernels of attention in interpret mode, against the float64 reference: result and all
gradients."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import EXTRAS, Case, agree, cases, grid, numbers, visibility
from hypothesis import given
from jax.experimental.pallas import tpu as pltpu

from ptm_jax.core.errors import UserError
from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Visibility
from ptm_jax.kernels.attention import tpu
from ptm_jax.kernels.attention.arguments import Arguments
from ptm_jax.kernels.scores import ByKey, Relative, Scores


def check(case, tolerance=1e-5, precision="float32", interpret=True):
    def run(q, k, v, **given):
        args = Arguments(**given, precision=Precision(precision))
        return tpu.attention(q, k, v, args, block=case.block, interpret=interpret)

    agree(run, case, tolerance)


@pytest.mark.full
@grid(3)
@given(case=cases())
def test_agrees_with_the_reference(case):
    check(case)


@pytest.mark.full
@grid(6)
@given(case=cases())
def test_agrees_with_the_reference_on_more(case):
    check(case)


@pytest.mark.full
def test_everything_at_once():
    check(Case(queries=24, keys=40, order="causal", extras=frozenset(EXTRAS), dropout=0.2))


DISENTANGLED = frozenset({"relative", "by_key"})


@pytest.mark.parametrize(
    "length", [64, *(pytest.param(length, marks=pytest.mark.full) for length in (192, 320, 704))]
)
def test_disentangled_scores_of_whole_blocks(length):
    """Padded packed rows with dropout, in the blocks that the kernel chooses."""
    case = Case(length, length, extras=DISENTANGLED, relative=1, heads=1, dropout=0.1, block=None)
    check(dataclasses.replace(case, rows=1 if length > 320 else 2, seed=length))


@pytest.mark.full
def test_tables_that_reach_less_far_than_the_rows():
    """Blocks of equal lines are kept once: tables of 7 and 41 distances in rows of 5 blocks."""
    check(Case(block=8, heads=1, rows=1, extras=frozenset({"values", "by_key"})))


@pytest.mark.full
def test_the_interpreter_of_a_core_agrees():
    """Memory is no number before it is written, and parallel steps of the grid come in any
    order."""
    core = pltpu.InterpretParams(uninitialized_memory="nan", random_seed=3)
    check(Case(queries=8, keys=20, block=8, extras=frozenset(EXTRAS)), interpret=core)


@pytest.mark.full
def test_bfloat16():
    extras = frozenset({"distances", *DISENTANGLED})
    check(Case(extras=extras, shared=frozenset({"rows", "heads"})), 2e-2, "bfloat16")


def plain(q, k, v, visibility, **given):
    return tpu.attention(q, k, v, Arguments(visibility, 1.0, **given), block=8, interpret=True)


@pytest.mark.full
def test_what_is_not_seen_is_not_read():
    """Three documents of a block each: what the third one holds cannot reach the others, were it
    not a number."""
    segments = np.repeat([[1, 2, 3]], 8, 1).astype(np.int32)
    visibility = Visibility(segments, segments)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 1, 24, 1, 4)), jnp.float32)
    x = x.at[1:, :, 16:].set(jnp.nan)

    @jax.jit
    def both(x):
        out, back = jax.vjp(lambda x: plain(*x, visibility), x)
        return out, back(out)[0]

    out, grads = both(x)
    assert np.isfinite(out[:, :16]).all() and np.isnan(out[:, 16:]).all()
    assert np.isfinite(grads[:, :, :16]).all()


@pytest.mark.full
@pytest.mark.parametrize("order", ["blind", "strict"])
def test_a_query_that_sees_nothing_gets_zeros_and_gives_none(order):
    check(Case(12, 12, heads=1, width=4, block=8, order=order))


@pytest.mark.full
def test_dropout_is_that_of_the_whole_on_a_part_of_rows_and_heads():
    case = Case(heads=3)
    x, _ = jax.tree.map(jnp.float32, numbers(case))
    seen, x, rows = visibility(case), [x[name] for name in "qkv"], np.array([3, 11], np.int32)
    noise = {"dropout": 0.5, "key": jax.random.key(1)}
    whole = jax.jit(lambda *x: plain(*x, seen, rows=rows, **noise))(*x)
    second, place = (
        jax.tree.map(lambda x: x[1:], seen),
        {"full_size": (3, 40, 40), "first_head": jnp.int32(2)},
    )
    part = jax.jit(lambda *x: plain(*x, second, rows=rows[1:], **noise, **place))
    np.testing.assert_array_equal(part(*(x[1:, :, 2:] for x in x)), whole[1:, :, 2:])


def test_refusals():
    x, places = jnp.zeros((1, 8192, 1, 64)), jnp.zeros((1, 8192), jnp.int32)

    def refused(**scores):
        return tpu.refusal(x, x, Arguments(Visibility(places, places), 1.0, Scores(**scores)))

    assert refused(q_places=places, k_places=places) is None
    table = {"distances": jnp.zeros((1, 3)), "q_places": places, "k_places": places}
    assert refused(**table) == "distances with places that are not in order; take impl='xla'"
    long = jnp.zeros((2 * 8192 + 1, 1, 64))
    assert "more than a core holds" in refused(values=long)
    assert "more than a core holds" in refused(by_key=ByKey(x, long))
    short = jnp.zeros((2 * 512 + 1, 1, 64))
    assert refused(relative=Relative(x, short), by_key=ByKey(x, short), values=short) is None
    with pytest.raises(
        UserError, match="^the TPU kernel of attention cannot do distances with places"
    ):
        plain(x, x, x, Visibility(places, places), scores=Scores(**table))
    huge, ones = (
        jax.ShapeDtypeStruct((1, 2**16, 1, 64), jnp.float32),
        jnp.ones((1, 2**16), jnp.int32),
    )
    with pytest.raises(UserError, match="2\\^32 probabilities"):
        jax.eval_shape(
            lambda x: plain(x, x, x, Visibility(ones, ones), dropout=0.1, key=jax.random.key(0)),
            huge,
        )
