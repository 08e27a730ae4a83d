"""Attention as networks use it: what `impl` means, and that it changes neither parameters nor
results."""

import dataclasses
import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.constraint import use
from ptm_jax.core.errors import UserError
from ptm_jax.core.precision import Precision
from ptm_jax.core.registry import catalogue, discover
from ptm_jax.core.system import Experiment
from ptm_jax.core.types import Visibility, Vocab
from ptm_jax.kernels import choice, cross_entropy
from ptm_jax.kernels.attention import attend, blocked
from ptm_jax.kernels.cross_entropy import tpu as loss_kernel
from ptm_jax.kernels.scores import Relative, Scores, Types, joint
from ptm_jax.kernels.softmax import scale_mask_softmax
from ptm_jax.mesh.layout import layout_of
from ptm_jax.mesh.rules import make_mesh
from ptm_jax.nn.attention.directed import DirectedScores
from ptm_jax.nn.attention.multihead import Attention, with_maps
from ptm_jax.nn.attention.relative import Alibi, Buckets, RelativeKeysValues, ShiftedScores
from ptm_jax.nn.layers import Context
from ptm_jax.training.start import differing
from support import elsewhere

discover("ptm_jax.systems")
B, L, H, K = 2, 21, 2, 6
SEGMENTS = np.array([[1] * 9 + [2] * 12, [1] * 18 + [0] * 3])
CASES = {
    "t5": (None, Buckets(heads=H, buckets=8, farthest=16), None),
    "alibi": (None, Alibi(heads=H), None),
    "xlnet": (ShiftedScores(segments=True), None, None),
    "xlnet, both directions": (DirectedScores(clamp=7), None, [[1], [-1]]),
    "nezha": (RelativeKeysValues(farthest=4), None, None),
    "nezha, places": (
        RelativeKeysValues(farthest=4),
        None,
        np.random.default_rng(0).integers(0, 9, (B, L)),
    ),
}


RARE = ("alibi", "xlnet", "nezha", "nezha, places")


@pytest.mark.full
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.full) if n in RARE else n for n in CASES]
)
def test_impl_changes_neither_parameters_nor_results(name, monkeypatch):
    monkeypatch.setattr(
        blocked.attention, "__kwdefaults__", {**blocked.attention.__kwdefaults__, "block": 16}
    )
    relative, shared, places = CASES[name]
    segments = jnp.asarray(SEGMENTS, jnp.int32)
    places = None if places is None else jnp.asarray(places, jnp.int32)
    types = jnp.asarray(np.arange(L) % 2 * np.ones((B, 1)), jnp.int32)
    seen = Visibility(jnp.maximum(segments, 1), segments)
    context = Context(seen, jnp.arange(B), places=places, k_places=places, types=types, train=True)
    if shared is not None:
        drawn = shared.init_with_output(jax.random.key(0), context, L, L)[0]
        context = dataclasses.replace(context, scores=drawn)
    x = jax.random.normal(jax.random.key(1), (B, L, H * K))
    layer = Attention(
        heads=H,
        width=H * K,
        relative=relative,
        dropout=0.2,
        initializer=jax.nn.initializers.normal(0.5),
    )

    def run(impl):
        module = dataclasses.replace(layer, impl=impl)
        params = module.init(jax.random.key(2), x, dataclasses.replace(context, train=False))

        def total(params, context):
            out, probabilities, _ = module.apply(
                params, x, context, rngs={"dropout": jax.random.key(3)}
            )
            return (out**2).sum(), probabilities

        (value, maps), grads = jax.jit(jax.value_and_grad(total, has_aux=True))(params, context)
        return value, grads, maps

    (value, grads, maps), (other, others, none) = run("reference"), run("xla")
    assert maps.shape == (B, H, L, L) and none is None
    np.testing.assert_allclose(value, other, rtol=1e-5)
    greatest = max(
        float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(grads)
    )  # that of the keys' bias is zero
    for (path, a), (same, b) in zip(
        *map(jax.tree_util.tree_leaves_with_path, (grads, others)), strict=True
    ):
        assert path == same
        np.testing.assert_allclose(
            a, b, rtol=1e-5, atol=1e-6 * greatest, err_msg=jax.tree_util.keystr(path)
        )


def test_auto_goes_by_a_table():
    def taken(platform, queries, keys):
        return choice.choose("auto", platform, queries, keys, lambda name: "no")

    assert (
        taken("cpu", 128, 128) == taken("tpu", 4096, 4096) == taken("gpu", 512, 512) == "reference"
    )
    assert taken("cpu", 512, 512) == "xla" and taken("cpu", 1, 4096) == "reference"


def test_auto_takes_no_kernel_that_was_not_run_on_hardware():
    """`choice.KERNELS` has a row for every module that launches one, and the table of "auto" leads
    to none without a device there, whose own check is `kernels.deciding`."""
    source = Path(choice.__file__).parent
    launching = {
        ".".join(path.relative_to(source).with_suffix("").parts)
        for path in source.rglob("*.py")
        if re.search(r"\bpl\.pallas_call\b|\bplgpu\.kernel\(", path.read_text(encoding="utf8"))
    }
    assert {kernel.module for kernel in choice.KERNELS} == launching | {"ring"}
    waiting = {kernel.module for kernel in choice.KERNELS if not kernel.ran}
    for kernel in choice.KERNELS:
        assert kernel.hardware == (", ".join(kernel.ran) or "not run on hardware")
    for platform, module in (("tpu", "attention.tpu_block"), ("gpu", "attention.gpu_pipeline")):
        taken = {
            choice.choose("auto", platform, length, length, lambda name: None)
            for length in (1, 128, 8192)
        }
        assert module not in waiting or "pallas" not in taken
    losses = {cross_entropy.choose("auto", tokens, 250_002, 768) for tokens in (1, 1 << 20)}
    assert "cross_entropy.tpu" not in waiting or loss_kernel not in losses
    auto = str(jax.make_jaxpr(lambda x: scale_mask_softmax(x, x > 0))(jnp.ones((1, 1, 8, 128))))
    assert "softmax.tpu" not in waiting or "pallas_call" not in auto


def test_what_cannot_be_computed_is_refused_in_one_line():
    q = jnp.ones((1, 4, 1, 8))
    given = {"visibility": Visibility(*[jnp.ones((1, 4), jnp.int32)] * 2), "scale": 1.0}
    for impl, words in (
        ("pallas", "none for cpu"),
        ("cudnn", "NVIDIA"),
        ("triton", "one of auto, reference, xla"),
    ):
        with pytest.raises(UserError, match=words) as caught:
            attend(q, q, q, impl=impl, **given)
        assert "\n" not in str(caught.value)
    with jax.enable_x64(True), pytest.raises(UserError, match="float64"):
        attend(*[q.astype(jnp.float64)] * 3, impl="xla", **given)


def test_scores_of_a_stack_and_of_a_layer_are_joined():
    places = jnp.zeros((1, 4), jnp.int32)
    own = Scores(values=jnp.ones((3, 1, 8)), q_places=places, k_places=places)
    both = joint(Scores(distances=jnp.ones((1, 3))), own)
    assert both.holds == ("distances", "values") and both.q_places is places
    with pytest.raises(ValueError, match="twice"):
        joint(own, own)


def test_an_experiment_names_the_impl_of_all_its_attention():
    system = catalogue.get("bert_mini")
    config = differing.resolve(
        Experiment(system=system, impl="xla"), Vocab(size=99, pad=0, mask=1, cls=2, sep=3)
    )
    assert config.system.towers["main"].encoder.stack.block.attention.impl == "xla"
    assert with_maps(config.system.towers["main"]).encoder.stack.block.attention.impl == "reference"
    with pytest.raises(ValueError, match="impl"):
        Experiment(system=system, impl="fast")


MESHES = (
    ("heads", {"model": 4}, "megatron"),
    ("rows, heads and queries", {"fsdp": 2, "seq": 2, "model": 2}, "megatron_sp_fsdp"),
)


def on_devices():
    """{mesh: the greatest difference between blocks on it and the definition on one device}."""
    draw = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(draw.normal(size=shape), jnp.float32)

    rows, length, heads = 4, 32, 4
    types = jnp.asarray(draw.integers(0, 2, (rows, length)), jnp.int32)
    scores = Scores(
        distances=normal(heads, 11),
        relative=Relative(normal(rows, length, heads, 5), normal(13, heads, 5)),
        types=Types(normal(rows, length, heads, 2), types, types),
        values=normal(7, 1, K),
    )
    slots = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (rows, length))
    mask = Visibility(slots // 20 + 1, slots // 20 + 1, slots, slots)
    q, k, v = (normal(rows, length, heads, K) for _ in range(3))
    given = {
        "visibility": mask,
        "scale": 0.4,
        "dropout": 0.3,
        "key": jax.random.key(1),
        "rows": jnp.arange(rows),
    }

    def loss(impl, layout):
        def total(q, k, v, tables):
            with use(layout):
                out = attend(
                    q, k, v, scores=dataclasses.replace(scores, **tables), impl=impl, **given
                )[0]
            return (out * jnp.arange(1.0, K + 1)).sum(), out

        tables = {
            "distances": scores.distances,
            "values": scores.values,
            "relative": scores.relative,
        }
        return jax.jit(jax.value_and_grad(total, (0, 1, 2, 3), has_aux=True))(q, k, v, tables)

    expected, found = loss("reference", None), {}
    for name, sizes, rules in MESHES:
        mesh = make_mesh(sizes, jax.devices()[: math.prod(sizes.values())])
        with jax.set_mesh(mesh):
            got = loss("xla", layout_of(mesh, rules))

        def far(a, b):
            return float(
                np.abs(np.asarray(a) - np.asarray(b)).max() / max(1, np.abs(np.asarray(b)).max())
            )

        found[name] = max(jax.tree.leaves(jax.tree.map(far, got, expected)))
    return found


@pytest.mark.full
def test_on_a_mesh_every_device_computes_its_rows_heads_and_queries():
    found = elsewhere.on_devices(8, on_devices)
    assert len(found) == len(MESHES) and max(found.values()) < 1e-5, found


def test_bfloat16_gives_bfloat16():
    q = jnp.ones((1, 4, 1, 8))
    ones = jnp.ones((1, 4), jnp.int32)
    given = {"visibility": Visibility(ones, ones), "scale": 1.0, "precision": Precision("bfloat16")}
    for impl in ("xla", "reference"):
        assert (
            jax.eval_shape(lambda q, impl=impl: attend(q, q, q, impl=impl, **given)[0], q).dtype
            == jnp.bfloat16
        )
