"""Whole numbers in place of weights: the definitions of Zafrir et al. 2019 as nlp-architect
computes them, in numpy."""

import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.compress import catalogue
from ptm_jax.compress.quantisation.quantisation import Q8BERT, Grid, Int8
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten
from ptm_jax.core.precision import Precision
from ptm_jax.core.system import in_effect
from ptm_jax.core.types import Loss
from ptm_jax.kernels import integers
from ptm_jax.nn.layers import Dense
from ptm_jax.runs import publishing
from ptm_jax.training.updates.freedom import Freedom
from support import tiny_checkpoint, tiny_models

DRAW = np.random.default_rng(0)
KERNEL = "main/encoder/stack/block/ffn/up/kernel"


def whole(x, threshold, bits=8):
    """nlp-architect's `quantize` with `get_scale`: round(x * (2^(bits - 1) - 1) / threshold),
    clamped."""
    most = 2 ** (bits - 1) - 1
    return np.clip(np.round(x * np.float32(most / threshold)), -most, most)


def linear(x, w, b, threshold, bits=8):
    """nlp-architect's `inference_quantized_forward`: whole inputs, weights and bias, one scale
    each."""
    most = 2 ** (bits - 1) - 1
    sx, sw = most / threshold, most / np.abs(w).max()
    total = whole(x, threshold, bits) @ whole(w, np.abs(w).max(), bits) + np.round(b * sx * sw)
    return total / (sx * sw)


def test_numbers_by_hand():
    """127 / 2 steps a unit: 1 is 63.5, which rounds to 64 (even), -0.5 is -31.75, 2 is 127."""
    w = jnp.asarray([[1.0, -0.5], [2.0, 0.0]])
    grid = Grid.of(w, 8)
    np.testing.assert_array_equal(grid.whole(w), [[64, -32], [127, 0]])
    np.testing.assert_allclose(
        grid.real(grid.whole(w)), np.array([[64, -32], [127, 0]]) * 2 / 127, rtol=1e-6
    )
    np.testing.assert_array_equal(Grid.of(w, 2).whole(w), [[0, 0], [1, 0]])
    np.testing.assert_array_equal(Grid.of(w, 8, None).whole(w), [[64, -127], [127, 0]])
    table, step = Int8(table_bits=3).table(w)  # 3 steps to 2: 1 is 1.5, which rounds to 2
    np.testing.assert_array_equal(table, [[2, -1], [3, 0]])
    assert step == pytest.approx(2 / 3)
    four = Grid.of(jnp.asarray([[0.0, 1.0, 2.0, 3.5]]), 2, symmetric=False)
    codes = four.whole(jnp.asarray([[0.0, 1.0, 2.0, 3.5]]))
    np.testing.assert_array_equal(codes, [[-2, -1, 0, 1]])
    np.testing.assert_allclose(four.real(codes), [[0, 3.5 / 3, 7 / 3, 3.5]], rtol=1e-6)


@pytest.mark.parametrize(
    "portable", [pytest.param(False, marks=pytest.mark.full), True], ids=["kernel", "xla"]
)
@pytest.mark.parametrize("shape", [(1, 5, 3), (7, 33, 17), (50, 64, 40)], ids=str)
def test_a_product_is_its_definition(shape, portable):
    """Rows by their own range or a given one, with offsets, against float64; the kernel and XLA's
    product."""
    if not portable and (why := integers.refusal()):
        pytest.skip(why)
    rows, inner, outer = shape
    x, bias, offset = (
        DRAW.normal(size=s).astype(np.float32) for s in ((rows, inner), outer, outer)
    )
    kernel, scale = (
        DRAW.integers(-127, 128, (inner, outer)).astype(np.int8),
        DRAW.random(outer).astype(np.float32),
    )
    for limit in (0.0, 2.0):
        inputs = np.array([limit, 127], np.float32)
        most = np.abs(x).max(-1, keepdims=True) if limit == 0 else np.float32(limit)
        q, step = np.clip(np.round(x * (np.float32(127) / most)), -127, 127), np.float64(most) / 127
        right = (
            q @ kernel.astype(np.float64) * step * scale
            + step * q.sum(-1, keepdims=True) * offset
            + bias
        )
        with integers.portable() if portable else jax.disable_jit(False):
            found = integers.product(x, kernel, scale, inputs, offset=offset, bias=bias)
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5 * np.abs(right).max())
        if panels := integers.panels(kernel):
            with integers.portable() if portable else jax.disable_jit(False):
                ordered = integers.product(x, panels, scale, inputs, offset=offset, bias=bias)
            np.testing.assert_array_equal(ordered, found)


@pytest.mark.full
def test_a_layer_is_nlp_architects():
    """A dense layer with ranges, served: against the numpy of `QuantizedLinear` in its mode EMA."""
    x, w, b = (DRAW.normal(size=s).astype(np.float32) for s in ((6, 12), (12, 10), 10))
    params = {"main": {"up": {"kernel": jnp.asarray(w), "bias": jnp.asarray(b)}}}
    made = Q8BERT().whole(params, {"main/up/kernel": jnp.float32(1.5)})["main"]["up"]
    found = Dense(10).apply({"params": made}, x)
    np.testing.assert_allclose(found, linear(x, w, b, 1.5), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(made["kernel"], whole(w, np.abs(w).max()))


@pytest.mark.full
def test_training_sees_ranges_and_passes_gradients_straight():
    """Three batches: the moving range (`_update_ema`), the rounded forward pass, gradients that
    pass straight through."""
    wrapper, layer = Q8BERT(decay=0.9), Dense(4, precision=Precision())
    w = DRAW.normal(size=(5, 4)).astype(np.float32)
    params = wrapper.init({"main": {"up": {"kernel": jnp.asarray(w), "bias": jnp.zeros(4)}}}, None)
    freedom, moving = Freedom((wrapper,)), 0.0
    assert (
        freedom.trains("main/up/kernel")
        and not freedom.trains("main/up/kernel_inputs")
        and not freedom.trains("main/up/kernel_seen")
    )
    for _ in range(3):
        x = DRAW.normal(size=(3, 5)).astype(np.float32)

        def loss(params, x=x):
            return layer.apply({"params": wrapper.effective(params, True)["main"]["up"]}, x).sum()

        now = np.abs(x).max()
        moving = now if moving == 0 else moving - (1 - 0.9) * (moving - now)
        q, qw = whole(x, moving) * moving / 127, whole(w, np.abs(w).max()) * np.abs(w).max() / 127
        value, grads = jax.value_and_grad(loss)(params)
        np.testing.assert_allclose(value, (q @ qw).sum(), rtol=1e-5, atol=1e-5)
        grads, seen = freedom.parted(grads)
        np.testing.assert_allclose(
            grads["main"]["up"]["kernel"], np.repeat(q.sum(0)[:, None], 4, 1), rtol=1e-5, atol=1e-6
        )
        np.testing.assert_allclose(seen["main/up/kernel_seen"], [now, 1])
        params["main"]["up"]["kernel_seen"] = (
            params["main"]["up"]["kernel_seen"] + seen["main/up/kernel_seen"]
        )
        params = wrapper.on_step(params, 0)
        np.testing.assert_allclose(
            params["main"]["up"]["kernel_inputs"], [moving, 127, 0.9], rtol=1e-6
        )


@pytest.mark.full
def test_a_model_predicts_saves_and_loads(tmp_path):
    """Eight bits change a small BERT's states by a percent; the folder's predictions have the bits
    of the model's; the other rows of a batch do not matter."""
    model = tiny_models.build("bert")
    params = Int8().whole(model.params)
    flat = flatten(params)
    assert flat[KERNEL].dtype == np.int8 and flat[f"{KERNEL}_scale"].shape == (2, 64)
    small = ptm_jax.inference.pretrained.Pretrained(model.system, params, model.tokenizer)
    ids = np.arange(5, 25).reshape(2, 10)
    exact, found = model(ids).hidden, small(ids).hidden
    assert 0 < np.abs(exact - found).max() < 0.1 * np.abs(exact).max()
    small.save(tmp_path / "small")
    again = ptm_jax.load(tmp_path / "small")
    np.testing.assert_array_equal(again(ids).hidden, found)

    def bytes_of(params):
        return sum(np.asarray(leaf).nbytes for leaf in flatten(params).values())

    assert bytes_of(again.params) < 0.4 * bytes_of(model.params)


@pytest.mark.full
def test_a_trained_model_is_served_in_whole_numbers():
    """`effective` without training gives int8 with the trained ranges; `finish` the parameters in
    float32, untouched."""
    model, wrapper = tiny_models.build("bert"), Q8BERT()
    begun = wrapper.init(model.params, None)
    served = flatten(wrapper.effective(begun, False))
    assert served[KERNEL].dtype == np.int8 and not any(path.endswith("_seen") for path in served)
    for path, leaf in flatten(wrapper.finish(begun)).items():
        np.testing.assert_array_equal(leaf, flatten(model.params)[path])
    assert in_effect(model.system, served) is not None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("int8(bits=9)", "bits is 9; whole numbers have 2 to 8 bits"),
        ("q8bert(input_bits=1)", "input_bits is 1"),
        ("q8bert(decay=1.0)", "decay is 1.0"),
        ("int8(groups=0)", "groups is 0"),
        ("int8(rows=-1)", "rows is -1"),
    ],
)
def test_impossible_settings_are_one_line(text, line):
    with pytest.raises(UserError, match=line) as caught:
        catalogue.read(text)
    assert "\n" not in str(caught.value)


def test_calibration_takes_the_greatest_inputs():
    """Two batches of a layer: the greatest magnitude of both; no batch is refused."""
    layer, wrapper = Dense(4, precision=Precision()), Int8(rows=2)
    tower = types.SimpleNamespace(
        apply=lambda variables, x, **_: layer.apply({"params": variables["params"]["up"]}, x)
    )

    def objective(towers, batch, key):
        return Loss(towers["main"]._apply("up", batch["x"], key=None).sum(), 1.0)

    system = types.SimpleNamespace(objective=objective, towers={"main": tower})
    params = {"main": {"up": {"kernel": jnp.ones((5, 4)), "bias": jnp.zeros(4)}}}
    batches = [{"x": jnp.asarray(DRAW.normal(size=(3, 5)), jnp.float32)} for _ in range(2)]
    _, small = wrapper.smaller(system, params, lambda: batches)
    most = max(float(jnp.abs(batch["x"]).max()) for batch in batches)
    np.testing.assert_allclose(small["main"]["up"]["kernel_inputs"], [most, 127], rtol=1e-6)
    with pytest.raises(ValueError, match="measured on training examples, and there is none"):
        wrapper.smaller(system, params, lambda: [])


def test_groups_must_divide_and_patterns_must_find():
    params = {"main": {"up": {"kernel": jnp.ones((4, 10))}}}
    with pytest.raises(ValueError, match="10 columns cannot be 4 groups"):
        Int8(groups=4).whole(params)
    with pytest.raises(ValueError, match="finds no kernel"):
        Int8(matrices="/nothing$").whole(params)


@pytest.mark.full
@pytest.mark.status("int8", "built")
@pytest.mark.parametrize("method", ["int8", "qbert(layer_bits=(8, 4), groups=8)"])
def test_a_published_folder_has_int8_tensors(tmp_path, method):
    """`ptm export` writes int8 with its scales, and `ptm_jax.load` gives the same parameters and
    predictions."""
    model, wrapper = tiny_models.build("bert"), catalogue.read(method)
    small = ptm_jax.inference.pretrained.Pretrained(
        model.system, wrapper.whole(model.params), model.tokenizer
    )
    files = publishing.export(tmp_path / "served", small)
    assert (
        json.loads((tmp_path / "served" / "config.json").read_text())["quantization_config"][
            "quant_method"
        ]
        == "ptm_jax"
    )
    again = ptm_jax.load(tmp_path / "served")
    for path, leaf in flatten(small.params).items():
        np.testing.assert_array_equal(flatten(again.params)[path], leaf, err_msg=path)
    ids = np.arange(5, 25).reshape(2, 10)
    np.testing.assert_array_equal(again(ids).hidden, small(ids).hidden)
    publishing.export(tmp_path / "float32", model)

    def size(name):
        return sum(
            tensor.nbytes for tensor in load_file(tmp_path / name / "model.safetensors").values()
        )

    assert size("served") < 0.5 * size("float32") and files, (
        "a quarter, and the scales of columns of 16 weights"
    )


@pytest.mark.full
@pytest.mark.parametrize(
    "method", ["q8bert", "qbert(examples=16, steps=3, groups=4, choices=((3, 1.0),))"]
)
def test_a_trained_method_ends_in_a_folder(method, tmp_path, capsys):
    """`ptm compress` with training: int8 with ranges that were seen, bits that were measured; the
    folder has the score."""
    model = tiny_checkpoint.write(
        tmp_path / "bert", architectures=["BertForSequenceClassification"]
    )
    data = str(tiny_checkpoint.written(tmp_path / "data"))
    words = [
        "compress",
        method,
        str(model),
        "--task",
        "sst2",
        "--data",
        data,
        "--batch",
        "8",
        "--epochs",
        "1",
        "--json",
    ]
    assert main([*words, "--out", str(tmp_path / "small")]) == 0
    found = json.loads(capsys.readouterr().out)
    loaded = ptm_jax.load(tmp_path / "small")
    flat = flatten(loaded.params)
    assert (
        flat[KERNEL].dtype == np.int8
        and (flat[f"{KERNEL}_inputs"][:, 0] > 0).all()
        and loaded.system.compress == ()
    )
    assert found["after"]["bytes"] < 0.5 * found["before"]["bytes"]
    if method.startswith("qbert"):
        assert np.abs(np.asarray(flat[KERNEL], int)).max() == 4, "three bits"
    assert (
        main(["evaluate", str(tmp_path / "small"), "--task", "sst2", "--data", data, "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["metrics"] == found["after"]["metrics"]


def test_measured_bits_need_a_fine_tuned_model(tmp_path, capsys):
    model = tiny_checkpoint.write(tmp_path / "bert")
    words = ["--task", "sst2", "--data", str(tiny_checkpoint.written(tmp_path / "data"))]
    assert main(["compress", "qbert", str(model), *words, "--out", str(tmp_path / "small")]) == 1
    assert "has no head 'classify'; run ptm train --init" in capsys.readouterr().err
