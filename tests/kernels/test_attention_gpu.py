"""Attention on a Hopper GPU, without one: the kernels lower for CUDA, and in JAX's Mosaic GPU
interpreter they agree with the float64 reference to 2e-2 of the largest number."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import mosaic_interpreter as machine
import pytest
from cases import MASKS, SCORES, Case, agree, cases, grid, numbers, scores_of, visibility
from hypothesis import assume, given

from ptm_jax.core.errors import UserError
from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Visibility
from ptm_jax.kernels import attention, reference
from ptm_jax.kernels.attention import gpu, gpu_slant
from ptm_jax.kernels.attention.arguments import Arguments
from ptm_jax.kernels.scores import ByKey, Relative, Scores

interpreter = pytest.mark.skipif(machine.absent() is not None, reason=machine.absent() or "")
HALF = Precision("bfloat16")


def check(case, races=False):
    def run(q, k, v, **given):
        return gpu.attention(q, k, v, Arguments(**given, precision=HALF))

    with machine.interpreted(races) as simulated:
        agree(run, dataclasses.replace(case, relative=1), 2e-2, jnp.bfloat16, least=1e-4)
        assert not races or not simulated.interpret_call.get_races().races_found


CASES = {
    "everything that is added, with dropout, over packed causal rows": Case(
        width=24,
        order="causal",
        extras=frozenset({"bias", "distances", "types"}),
        shared=frozenset({"rows"}),
        dropout=0.2,
    ),
    "relative keys and values across tiles, with dropout": Case(
        keys=75, rows=1, heads=1, width=16, extras=frozenset({"relative", "values"}), dropout=0.1
    ),
    "disentangled scores across tiles": Case(
        70, 75, rows=1, heads=1, width=16, extras=frozenset({"relative", "by_key"})
    ),
    "one query of wide heads, keys of another length, a shared bias": Case(
        1,
        67,
        rows=1,
        width=130,
        extras=frozenset({"bias", "distances"}),
        shared=frozenset({"rows", "heads"}),
    ),
    "a window across tiles, with an order": Case(
        75, 75, rows=1, heads=1, order="causal", extras=frozenset({"window"})
    ),
    "a visible matrix, groups and a strict order": Case(
        20, 20, rows=1, heads=1, order="strict", extras=frozenset({"allow", "group"})
    ),
}


@pytest.mark.full
@interpreter
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_reference(name):
    check(CASES[name])


@pytest.mark.full
@interpreter
def test_two_teams_walk_the_blocks_that_are_seen_and_do_not_race():
    check(Case(130, 130, rows=1, heads=1, width=16, order="causal"), races=True)


@interpreter
@pytest.mark.full
@grid(9)
@given(
    case=cases(
        queries=[1, 3, 37, 64, 65, 129],
        keys=[1, 3, 37, 64, 65, 129],
        rows=[1, 2],
        width=[8, 33, 64, 72],
        extras=[*SCORES, *MASKS],
    )
)
def test_any_lengths_widths_masks_and_scores(case):
    """A query's gradients of its scores add up to 0. Where all its keys are farther than the table
    reaches, they meet in one entry of it, and what is left is rounding without a relative error:
    these cases are left out."""
    assume("relative" not in case.extras or case.queries <= case.keys)
    check(case)


@interpreter
def test_a_shard_of_heads_and_rows_draws_the_bits_of_the_whole():
    case = Case(width=16)
    x, seen = numbers(case)[0], visibility(case)
    q, k, v = (jnp.asarray(x[name], jnp.bfloat16) for name in "qkv")
    given = {"scale": 0.25, "dropout": 0.3, "key": jax.random.key(1)}
    whole, _ = reference.attention(q, k, v, visibility=seen, rows=jnp.asarray([5, 6]), **given)
    place = {
        "rows": jnp.asarray([6]),
        "full_size": (2, 40, 40),
        "first_head": jnp.asarray(1),
        "precision": HALF,
    }
    args = Arguments(jax.tree.map(lambda x: x[1:], seen), **given, **place)
    with machine.interpreted():
        got = jax.block_until_ready(
            jax.jit(gpu.attention)(*(x[1:, :, 1:] for x in (q, k, v)), args)
        )
    machine.near(got, whole[1:, :, 1:], 2e-2)


def visited(*fields):
    """The number of tiles that the forward kernel computes."""
    x, args = jnp.zeros((1, 1024, 1, 64)), Arguments(Visibility(*fields), 1.0)
    plan = gpu._plan(x, x, args)
    return plan.teams * int(gpu._fields(plan, args)["many_keys"].sum())


def test_the_work_follows_the_sum_of_squared_lengths():
    order = jnp.arange(1024)[None]
    documents, one = 1 + order // 128, jnp.ones_like(order)
    assert visited(documents, documents) == 8 * 4
    assert visited(one, one, order, order) == 8 * 2 * (2 + 16) // 2


LOWERED = {
    "plain": Case(70, 70, rows=1, width=64, order="causal"),
    "types and a bias": Case(
        70, 70, rows=1, width=64, extras=frozenset({"bias", "types"}), shared=frozenset({"heads"})
    ),
    "distances and dropout, heads of 256": Case(
        70, 70, rows=1, width=256, extras=frozenset({"distances"}), dropout=0.1
    ),
    "disentangled scores": Case(
        70, 70, rows=1, width=64, extras=frozenset({"relative", "by_key"}), relative=1
    ),
    "relative keys and values": Case(
        70, 70, rows=1, width=64, extras=frozenset({"relative", "values"}), relative=1
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("name", LOWERED)
def test_the_kernels_and_their_gradients_lower_for_cuda(name):
    case = LOWERED[name]

    def loss(x):
        noise = {"dropout": case.dropout, "key": jax.random.key(0)}
        args = Arguments(visibility(case), 1.0, scores_of(case, x), precision=HALF, **noise)
        return gpu.attention(x["q"], x["k"], x["v"], args).astype(jnp.float32).sum()

    text = machine.lowered(jax.grad(loss), jax.tree.map(jnp.bfloat16, numbers(case)[0]))
    assert text.count("mosaic_gpu") >= 3 + len(case.extras - {"types"})
    if "bias" not in case.extras:  # no matrix of queries by keys, padded or not
        assert not re.search(r"(70x70|128x128)x(bf16|f32|i1|i32)>", text)


def test_shifted_lines_are_not_read_by_four_threads_at_once():
    """JAX 0.11 reads groups of four by ldmatrix, which faults on lines that start anywhere (seen on
    an H200)."""
    layout = gpu_slant.LOOSE.to_mgpu()
    assert layout.tiled_tiling_shape[layout.lane_dims[-1]] % 4


def test_attend_takes_it_on_a_gpu(monkeypatch):
    monkeypatch.setattr(attention.choice, "platform", lambda: "gpu")
    segments = jnp.ones((1, 9), jnp.int32)
    given = {"visibility": Visibility(segments, segments), "scale": 1.0, "precision": HALF}
    x = jnp.zeros((1, 9, 1, 16), jnp.bfloat16)
    text = machine.lowered(lambda x: attention.attention(x, x, x, impl="pallas", **given), x)
    assert text.count("mosaic_gpu") >= 1
    assert "mosaic_gpu" not in machine.lowered(
        lambda x: attention.attention(x, x, x, impl="auto", **given), x
    )


def test_what_it_cannot_compute_is_refused():
    def zeros(width):
        return jnp.zeros((1, 8, 1, width))

    ones, places, table = (
        jnp.ones((1, 8), jnp.int32),
        jnp.arange(8)[None],
        lambda width: jnp.zeros((9, 1, width)),
    )

    def refused(width=16, precision=HALF, **scores):
        args = Arguments(Visibility(ones, ones), 1.0, Scores(**scores), precision=precision)
        return gpu.refusal(zeros(width), zeros(width), args)

    assert refused() is None
    assert "bfloat16 only" in refused(precision=Precision())
    assert "at most 256" in refused(320)
    assert "one after the other" in refused(
        distances=jnp.zeros((1, 9)), q_places=places, k_places=places
    )
    assert "wider than the heads" in refused(relative=Relative(zeros(32), table(32)))
    assert "wider than the heads" in refused(by_key=ByKey(zeros(32), table(32)))
    both = {"relative": Relative(zeros(64), table(64)), "by_key": ByKey(zeros(64), table(64))}
    assert refused(64, **both) is None
    assert "shared memory" in refused(
        256, relative=Relative(zeros(256), table(256)), values=table(256)
    )
    assert refused(128, relative=Relative(zeros(128), table(128)), values=table(128)) is None
    with pytest.raises(UserError, match="impl='xla'"):
        gpu.attention(zeros(16), zeros(16), zeros(16), Arguments(Visibility(ones, ones), 1.0))
