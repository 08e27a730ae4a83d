"""Attention on a Hopper GPU, without one: the kernels lower for CUDA, and in JAX's Mosaic GPU interpreter they agree with
the float64 reference to 2e-2 of the largest number."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import mosaic_interpreter as machine
import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Visibility
from ptm_jax.kernels import attention, reference
from ptm_jax.kernels.attention import gpu
from ptm_jax.kernels.choice import choose
from ptm_jax.kernels.scores import Relative, Scores, Types

interpreter = pytest.mark.skipif(machine.absent() is not None, reason=machine.absent() or "")
HALF = Precision("bfloat16")


def documents(*lengths: int, whole: int, rows: int = 1):
    """Segments 1, 2, .. of these lengths, then padding: [rows, whole]."""
    row = np.concatenate([np.full(n, i + 1, np.int32) for i, n in enumerate(lengths)])
    return jnp.asarray(np.tile(np.pad(row, (0, whole - len(row))), (rows, 1)))


def normal(*shape, seed=0, dtype=jnp.bfloat16):
    return jnp.asarray(np.random.default_rng((seed, *shape)).normal(size=shape), dtype)


def compared(q, k, v, scores, races=False, **given):
    """Result and gradients of everything with one, of the kernel and of the reference in float64."""
    g = normal(*q.shape, seed=9)

    def run(function, q, k, v, scores):
        floats, rest = jax.tree.flatten(scores)
        kept = [i for i, x in enumerate(floats) if jnp.issubdtype(x.dtype, jnp.floating)]

        def of(q, k, v, moving):
            leaves = list(floats)
            for i, x in zip(kept, moving, strict=True):
                leaves[i] = x
            return function(q, k, v, scores=jax.tree.unflatten(rest, leaves), **given)

        out, back = jax.vjp(of, q, k, v, [floats[i] for i in kept])
        return out, back(g.astype(out.dtype))

    kernel = lambda *args, **named: gpu.attention(*args, precision=HALF, **named)
    with machine.interpreted(races) as simulated:
        got = jax.block_until_ready(jax.jit(lambda *args: run(kernel, *args))(q, k, v, scores))
        assert not races or not simulated.interpret_call.get_races().races_found
    plain = lambda *args, **named: reference.attention(*args, **named)[0]
    with jax.enable_x64(True):
        wide = lambda x: jnp.asarray(x, np.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x
        wanted = jax.jit(lambda *args: run(plain, *args))(*jax.tree.map(wide, (q, k, v, scores)))
        assert all(x.dtype == np.float64 for x in jax.tree.leaves(wanted) if jnp.issubdtype(x.dtype, jnp.floating))
        wanted = jax.tree.map(np.asarray, wanted)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        machine.near(x, y, 2e-2)
    return got


@interpreter
def test_everything_that_is_added_with_dropout_over_packed_causal_rows():
    rows, length, heads, width = 2, 40, 2, 24
    segments = documents(18, 17, whole=length, rows=rows)
    order = jnp.broadcast_to(jnp.arange(length), segments.shape)
    kinds = np.random.default_rng(0).integers(0, 2, (2, rows, length))
    scores = Scores(
        bias=normal(1, heads, length, length, dtype=jnp.float32),
        distances=normal(heads, 2 * 9 + 1, dtype=jnp.float32),
        types=Types(normal(rows, length, heads, 2), *jnp.asarray(kinds)),
    )
    q, k, v = (normal(rows, length, heads, width, seed=i) for i in range(3))
    visibility = Visibility(segments, segments, order, order)
    noise = {"dropout": 0.2, "key": jax.random.key(3), "rows": jnp.asarray([7, 4])}
    out, (dq, dk, dv, _) = compared(q, k, v, scores, visibility=visibility, scale=width**-0.5, **noise)
    padding = np.asarray(segments) == 0
    for x in (out, dq, dk, dv):  # what lies on padding sees nothing and is not seen: zeros, not NaN
        assert not np.asarray(x, np.float32)[padding].any()


@interpreter
def test_relative_keys_and_values_across_tiles_with_dropout():
    queries, keys, width = 40, 75, 16
    q, k, v = normal(1, queries, 1, width), normal(1, keys, 1, width, seed=1), normal(1, keys, 1, width, seed=2)
    relative = Relative(normal(1, queries, 1, width, seed=3), normal(2 * 40 + 1, 1, width))
    scores = Scores(relative=relative, values=normal(2 * 5 + 1, 1, width))
    visibility = Visibility(jnp.ones((1, queries), jnp.int32), documents(72, whole=keys))
    noise = {"dropout": 0.1, "key": jax.random.key(2)}
    compared(q, k, v, scores, visibility=visibility, scale=0.3, rows=jnp.asarray([3]), **noise)


@interpreter
def test_two_teams_walk_the_blocks_that_are_seen_and_do_not_race():
    q, k, v = (normal(1, 130, 1, 16, seed=i) for i in range(3))
    segments = documents(60, 65, whole=130)
    order = jnp.arange(130)[None]
    compared(q, k, v, Scores(), races=True, visibility=Visibility(segments, segments, order, order), scale=0.3)


@interpreter
def test_one_query_of_wide_heads_over_keys_of_another_length_and_a_shared_bias():
    q, k, v = normal(1, 1, 2, 130), normal(1, 67, 2, 130, seed=1), normal(1, 67, 2, 130, seed=2)
    visibility = Visibility(jnp.ones((1, 1), jnp.int32), documents(66, whole=67))
    scores = Scores(bias=normal(1, 1, 1, 67, dtype=jnp.float32), distances=normal(2, 9, dtype=jnp.float32))
    compared(q, k, v, scores, visibility=visibility, scale=0.1)


@interpreter
def test_a_visible_matrix_groups_and_a_strict_order():
    q, k, v = (normal(1, 20, 1, 8, seed=i) for i in range(3))
    order = jnp.asarray(np.random.default_rng(1).permutation(20)[None])
    group = jnp.asarray(np.random.default_rng(2).integers(0, 3, (1, 20)))
    allow = jnp.asarray(np.random.default_rng(3).random((1, 1, 20, 20)) < 0.7)
    segments = documents(20, whole=20)
    visibility = Visibility(segments, segments, order, order, allow, group, group, strict=True)
    compared(q, k, v, Scores(), visibility=visibility, scale=1.0)


@interpreter
def test_a_shard_of_heads_and_rows_draws_the_bits_of_the_whole():
    q, k, v = (normal(2, 40, 2, 16, seed=i) for i in range(3))
    given = {"scale": 0.25, "dropout": 0.3, "key": jax.random.key(1)}
    seen = lambda rows: Visibility(documents(40, whole=40, rows=rows), documents(40, whole=40, rows=rows))
    whole, _ = reference.attention(q, k, v, visibility=seen(2), rows=jnp.asarray([5, 6]), **given)
    part = [x[1:, :, 1:] for x in (q, k, v)]
    shard = {"whole_heads": 2, "first_head": jnp.asarray(1), "precision": HALF}
    with machine.interpreted():
        kernel = lambda *part: gpu.attention(*part, visibility=seen(1), rows=jnp.asarray([6]), **given, **shard)
        got = jax.block_until_ready(jax.jit(kernel)(*part))
    machine.near(got, whole[1:, :, 1:], 2e-2)


@interpreter
@pytest.mark.full
@pytest.mark.parametrize("seed", range(9))
def test_any_lengths_widths_masks_and_scores(seed):
    draw = np.random.default_rng(seed)
    queries, keys = (int(draw.choice([1, 3, 37, 64, 65, 129])) for _ in range(2))
    rows, heads, width = (int(draw.choice(sizes)) for sizes in ([1, 2], [1, 2], [8, 33, 64, 72]))
    drawn = lambda name, share=0.4: draw.random() < share
    number = lambda *shape: normal(*shape, seed=int(draw.integers(1 << 30)))
    integers = lambda most: [jnp.asarray(draw.integers(0, most, (rows, length))) for length in (queries, keys)]
    fields = dict(zip(("q_segments", "k_segments"), integers(3), strict=True))
    if drawn("order", 0.6):
        fields |= dict(zip(("q_order", "k_order"), integers(50), strict=True)) | {"strict": drawn("strict")}
    if drawn("group"):
        fields |= dict(zip(("q_group", "k_group"), integers(3), strict=True))
    if drawn("allow"):
        fields["allow"] = jnp.asarray(draw.random((draw.choice([1, rows]), draw.choice([1, heads]), queries, keys)) < 0.6)
    scores = {}
    if drawn("bias"):
        scores["bias"] = number(draw.choice([1, rows]), draw.choice([1, heads]), queries, keys).astype(jnp.float32)
    if drawn("distances"):
        scores["distances"] = number(heads, 2 * int(draw.integers(0, 80)) + 1).astype(jnp.float32)
    if drawn("types"):
        scores["types"] = Types(number(rows, queries, heads, 2), *integers(2))
    if drawn("relative"):
        table = number(2 * int(draw.integers(0, 80)) + 1, draw.choice([1, heads]), width)
        scores["relative"] = Relative(number(rows, queries, heads, width), table)
    if drawn("values"):
        scores["values"] = number(2 * int(draw.integers(0, 80)) + 1, draw.choice([1, heads]), width)
    noise = {"dropout": 0.25, "key": jax.random.key(seed)} if drawn("dropout") else {}
    sides = number(rows, queries, heads, width), number(rows, keys, heads, width), number(rows, keys, heads, width)
    given = {"visibility": Visibility(**fields), "scale": width**-0.5, "rows": jnp.arange(rows) + 3}
    compared(*sides, Scores(**scores), **given, **noise)


def test_the_work_follows_the_sum_of_squared_lengths():
    packed = documents(*[128] * 8, whole=1024)
    x = normal(1, 1024, 1, 64)
    assert gpu.blocks_met(Visibility(packed, packed), x, x) == (8 * 4, 256)
    order = jnp.arange(1024)[None]
    done, all_of_them = gpu.blocks_met(Visibility(packed > 0, packed > 0, order, order), x, x)
    assert all_of_them == 256 and done == 8 * 2 * (2 + 16) // 2


LOWERED = {
    "plain": (64, Scores(), False),
    "types and a bias": (
        64,
        Scores(
            bias=jnp.zeros((1, 1, 70, 70)),
            types=Types(jnp.zeros((1, 70, 2, 2)), jnp.zeros((1, 70), jnp.int32), jnp.zeros((1, 70), jnp.int32)),
        ),
        False,
    ),
    "distances and dropout, heads of 256": (256, Scores(distances=jnp.zeros((2, 9))), True),
    "relative keys and values": (
        64,
        Scores(relative=Relative(jnp.zeros((1, 70, 2, 64)), jnp.zeros((9, 2, 64))), values=jnp.zeros((9, 1, 64))),
        False,
    ),
}


@pytest.mark.parametrize("case", sorted(LOWERED))
def test_the_kernels_and_their_gradients_lower_for_cuda(case):
    width, scores, noisy = LOWERED[case]
    segments = jnp.ones((1, 70), jnp.int32)
    visibility = Visibility(segments, segments, segments, segments)

    def loss(q, k, v, floats):
        given = {"dropout": 0.1, "key": jax.random.key(0)} if noisy else {}
        changed = jax.tree.map(lambda x, y: y if jnp.issubdtype(x.dtype, jnp.floating) else x, scores, floats)
        out = gpu.attention(q, k, v, visibility=visibility, scale=1.0, scores=changed, precision=HALF, **given)
        return out.astype(jnp.float32).sum()

    x = jnp.zeros((1, 70, 2, width), jnp.bfloat16)
    text = machine.lowered(jax.grad(loss, argnums=(0, 1, 2, 3), allow_int=True), x, x, x, scores)
    assert text.count("mosaic_gpu") >= 3 + len(set(scores.holds) - {"types"})
    if "bias" not in scores.holds:  # no matrix of queries by keys, padded or not
        assert not re.search(r"(70x70|128x128)x(bf16|f32|i1|i32)>", text)


def test_the_one_door_leads_to_it_on_a_gpu(monkeypatch):
    monkeypatch.setattr(attention, "_platform", lambda: "gpu")
    segments = jnp.ones((1, 9), jnp.int32)
    given = {"visibility": Visibility(segments, segments), "scale": 1.0, "precision": HALF}
    x = jnp.zeros((1, 9, 1, 16), jnp.bfloat16)
    text = machine.lowered(lambda x: attention.attention(x, x, x, impl="pallas", **given), x)
    assert text.count("mosaic_gpu") >= 1
    assert "mosaic_gpu" not in machine.lowered(lambda x: attention.attention(x, x, x, impl="auto", **given), x)


def test_what_it_cannot_compute_it_says():
    x = normal(1, 8, 1, 16)
    seen = Visibility(jnp.ones((1, 8), jnp.int32), jnp.ones((1, 8), jnp.int32))
    refused = lambda scores=Scores(), x=x, precision=HALF: gpu.refusal(
        x, x, visibility=seen, scores=scores, precision=precision
    )
    assert refused() is None
    assert "bfloat16 only" in refused(precision=Precision())
    assert "at most 256" in refused(x=normal(1, 8, 1, 320))
    places = jnp.arange(8)[None]
    assert "one after the other" in refused(Scores(distances=jnp.zeros((1, 9)), q_places=places, k_places=places))
    table = lambda width: jnp.zeros((9, 1, width))
    assert "wider than the heads" in refused(Scores(relative=Relative(normal(1, 8, 1, 32), table(32))))
    wide = normal(1, 8, 1, 256)
    assert "shared memory" in refused(Scores(relative=Relative(wide, table(256)), values=table(256)), wide)
    assert refused(Scores(relative=Relative(wide[..., :128], table(128)), values=table(128)), wide[..., :128]) is None
    with pytest.raises(UserError, match="impl='xla'"):
        gpu.attention(x, x, x, visibility=seen, scale=1.0, precision=Precision())


def test_auto_never_takes_a_kernel_that_was_not_run_on_hardware():
    assert choose("auto", "gpu", 4096, 4096, lambda name: None) != "pallas"
