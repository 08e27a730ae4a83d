"""The masked softmax against its definition in numpy float64: values and gradient, rows without a
visible key included; and where a device may take the kernel."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Visibility
from ptm_jax.kernels import choice, deciding
from ptm_jax.kernels import softmax as softmaxes
from ptm_jax.kernels.attention import attend
from ptm_jax.kernels.scores import Scores
from ptm_jax.kernels.softmax import candidates, plain, scale_mask_softmax, tpu
from ptm_jax.mesh.layout import layout_of, use
from ptm_jax.mesh.rules import make_mesh
from support import elsewhere

INTERPRETED = functools.partial(tpu.softmax, interpret=True)
WAYS = {"reference": plain.softmax, "tpu": INTERPRETED}


@pytest.mark.full
@pytest.mark.parametrize(
    ("way", "dtype"), [("reference", "float32"), ("tpu", "float32"), ("tpu", "bfloat16")]
)
def test_values_and_gradients_are_those_of_the_definition(way, dtype):
    draw = np.random.default_rng(0)
    logits, g = (jnp.asarray(draw.normal(size=(2, 3, 7, 37)), dtype) for _ in range(2))
    seen = jnp.asarray(draw.random((2, 1, 7, 37)) < 0.5).at[0, :, 2].set(False)
    result, pull = jax.vjp(lambda x: WAYS[way](x, seen, 0.3), logits)
    z, slopes = np.asarray(logits, np.float64) * 0.3, np.asarray(g, np.float64)
    weights = np.where(seen, np.exp(z), 0)
    p = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30)
    bound = 1e-5 if dtype == "float32" else 2e-2
    assert result.dtype == dtype
    np.testing.assert_allclose(np.asarray(result, np.float64), p, atol=bound)
    expected = 0.3 * p * (slopes - (p * slopes).sum(-1, keepdims=True))
    (gradient,) = pull(g)
    np.testing.assert_allclose(np.asarray(gradient, np.float64), expected, atol=bound)
    assert (np.asarray(result)[0, :, 2] == 0).all() and (np.asarray(gradient)[0, :, 2] == 0).all()


def test_what_the_kernel_refuses():
    assert "8192" in tpu.refusal("tpu", 9000, "float32")
    assert tpu.refusal("tpu", 512, "float32") is None
    assert "float64" in tpu.refusal("tpu", 512, "float64")
    logits, seen = jnp.zeros((1, 1, 1, 4)), jnp.ones((1, 1, 1, 4), bool)
    with pytest.raises(UserError, match="for TPUs, and this is cpu; take impl='reference'"):
        scale_mask_softmax(logits, seen, impl="pallas")
    with pytest.raises(UserError, match="'cudnn' has no masked softmax; impl is one of auto, refe"):
        scale_mask_softmax(logits, seen, impl="cudnn")


@pytest.fixture
def attached(monkeypatch, tmp_path):
    """A process on a TPU whose kernel runs in the interpreter. Returns the shapes it computed."""
    shapes = []

    def softmax(logits, seen, scale=1.0):
        shapes.append(logits.shape)
        return INTERPRETED(logits, seen, scale)

    here = deciding.Device("TPU v5 lite", "tpu", ("jax 0.10.2",))
    kernel = dataclasses.make_dataclass("Kernel", ())()
    kernel.softmax, kernel.refusal = softmax, tpu.refusal
    monkeypatch.setenv("PTM_CACHE", str(tmp_path))
    monkeypatch.setattr(deciding, "device", lambda: here)
    monkeypatch.setattr(deciding, "_known", {})
    monkeypatch.setattr(choice, "platform", lambda: "tpu")
    given = (candidates.CANDIDATES[0], deciding.Candidate("pallas", lambda: kernel, ("tpu",)))
    monkeypatch.setattr(candidates, "CANDIDATES", given)
    monkeypatch.setattr(candidates, "TIMED", 1 << 10)
    return shapes


def loss_and_maps(impl="reference", biased=False):
    """Attention of two rows of 6 tokens: the gradient of a loss of its maps, and the maps."""
    draw = np.random.default_rng(1)
    q, slopes = draw.normal(size=(2, 6, 4, 8)), draw.normal(size=(2, 4, 6, 6))
    segments = jnp.asarray([[1] * 6, [1] * 4 + [0] * 2], jnp.int32)
    bias = jnp.asarray(draw.normal(size=(1, 4, 6, 6)), jnp.float32) if biased else None

    def loss(q):
        seen = Visibility(segments, segments)
        _, maps = attend(q, q, q, visibility=seen, scale=0.4, scores=Scores(bias), impl=impl)
        return (maps * slopes).sum(), maps

    return jax.jit(jax.grad(loss, has_aux=True))(jnp.asarray(q, jnp.float32))


@pytest.mark.parametrize("biased", [False, True])
def test_maps_come_from_the_implementation_that_the_device_takes(attached, monkeypatch, biased):
    """The kernel is the faster one, then the slower one."""
    for seconds, taken in (((2.0, 1.0), True), ((1.0, 2.0), False)):
        monkeypatch.setattr(deciding, "_known", {})
        monkeypatch.setattr(
            deciding,
            "_timed",
            lambda programs, seconds=seconds: dict(zip(programs, seconds, strict=True)),
        )
        deciding.forget()
        attached.clear()
        gradient, maps = loss_and_maps(biased=biased)
        (answer,) = deciding.answers(deciding.device()).values()
        assert answer["question"] == {"compute": "float32", "keys": 8}
        assert not answer["answer"]["left_out"]
        assert ((2, 4, 6, 6) in attached) == taken
        with monkeypatch.context() as context:
            context.setattr(choice, "platform", lambda: "cpu")
            plain_gradient, plain_maps = loss_and_maps(biased=biased)
        np.testing.assert_allclose(maps, plain_maps, atol=1e-6)
        np.testing.assert_allclose(gradient, plain_gradient, atol=1e-5)


def test_a_wrong_kernel_is_left_out(attached, monkeypatch):
    monkeypatch.setattr(deciding, "_timed", lambda programs: dict.fromkeys(programs, 1.0))
    kernel = candidates.CANDIDATES[1].load()
    kernel.softmax = lambda logits, seen, scale=1.0: plain.softmax(logits, seen, scale * 1.05)
    loss_and_maps()
    (answer,) = deciding.answers(deciding.device()).values()
    assert "its result is wrong by" in answer["answer"]["left_out"]["pallas"]
    assert [*answer["answer"]["seconds"]] == ["reference"]


def on_devices():
    """Results over eight devices, with how the rows, heads and queries of the result are split."""
    draw = np.random.default_rng(2)
    logits = jnp.asarray(draw.normal(size=(2, 4, 6, 9)), jnp.float32)
    seen = jnp.asarray(draw.random((2, 1, 6, 9)) < 0.7)
    mesh = make_mesh({"fsdp": 2, "seq": 2, "model": 2}, jax.devices()[:8])

    def gradient(softmax, x):
        return jax.grad(lambda x: (softmax(x, seen) ** 2).sum())(x)

    def divided(x, seen):
        return softmaxes._divided(functools.partial(INTERPRETED, scale=0.3), x, seen)

    alone = functools.partial(plain.softmax, scale=0.3)
    expected = alone(logits, seen), gradient(alone, logits)
    with jax.set_mesh(mesh), use(layout_of(mesh, "megatron_sp_fsdp")):
        results = (
            jax.jit(divided)(logits, seen),
            jax.jit(gradient, static_argnums=0)(divided, logits),
        )
    errors = [
        float(jnp.abs(np.asarray(x) - np.asarray(y)).max())
        for x, y in zip(results, expected, strict=True)
    ]
    return errors, results[0].addressable_shards[0].data.shape


@pytest.mark.full
def test_a_layout_gives_each_device_its_rows_heads_and_queries():
    errors, shape = elsewhere.on_devices(8, on_devices)
    assert max(errors) < 1e-6 and tuple(shape) == (1, 2, 3, 9)
