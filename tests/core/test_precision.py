"""Products: float32 equals numpy, bfloat16 accumulates in float32 in both directions, gradients
follow the product rule."""

import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.bench import programs
from ptm_jax.core import precision
from ptm_jax.core.precision import Precision
from ptm_jax.kernels import integers
from ptm_jax.training.steps.step import program

SPECS = {
    "md,df->mf": ((5, 7), (7, 3)),
    "mf,df->md": ((5, 3), (7, 3)),
    "md,mf->df": ((5, 7), (5, 3)),
    "bqhd,bkhd->bhqk": ((2, 5, 3, 4), (2, 6, 3, 4)),
    "bhqk,bkhd->bqhd": ((2, 3, 5, 6), (2, 6, 3, 4)),
}


def operands(spec, dtype=np.float32):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in SPECS[spec]]


@pytest.mark.full
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(("compute", "tolerance"), [("float32", 1e-6), ("bfloat16", 2e-2)])
def test_product_and_gradients(spec, compute, tolerance):
    a, b = operands(spec)
    product = Precision(compute).einsum
    value = product(spec, a, b, jnp.float32)
    expected = np.einsum(spec, *[np.asarray(x, np.float64) for x in (a, b)])
    np.testing.assert_allclose(value, expected, atol=tolerance * 10)
    g = jnp.asarray(np.random.default_rng(1).normal(size=expected.shape), jnp.float32)
    found = jax.grad(lambda a, b: (product(spec, a, b, jnp.float32) * g).sum(), (0, 1))(a, b)
    wanted = jax.grad(lambda a, b: (jnp.einsum(spec, a, b, precision="highest") * g).sum(), (0, 1))(
        a, b
    )
    for x, y in zip(found, wanted, strict=True):
        assert x.dtype == jnp.float32
        np.testing.assert_allclose(x, y, atol=tolerance * 10)


def test_dense_contracts_several_axes():
    x, kernel = jnp.ones((2, 3, 4, 5)), jnp.arange(4 * 5 * 6.0).reshape(4, 5, 6)
    np.testing.assert_allclose(
        Precision().dense(x, kernel, axes=2), np.einsum("abcd,cde->abe", x, kernel), rtol=1e-6
    )


@pytest.mark.parametrize("spec", SPECS)
def test_a_widened_product_is_that_of_the_rounded_numbers(spec, monkeypatch):
    """Compiled, since the compiler may leave out a rounding that nothing reads."""
    monkeypatch.setattr(precision, "widens", lambda: True)
    call = jax.jit(lambda a, b: Precision("bfloat16").einsum(spec, a, b, jnp.float32))
    a, b = operands(spec)
    assert "xbf16>, tensor" not in "".join(
        line for line in call.lower(a, b).as_text().splitlines() if "dot_general" in line
    )
    rounded = [np.asarray(x.astype(jnp.bfloat16), np.float64) for x in (a, b)]
    np.testing.assert_allclose(call(a, b), np.einsum(spec, *rounded), rtol=1e-6, atol=1e-6)


def test_every_bfloat16_product_accumulates_in_float32_both_ways(monkeypatch):
    monkeypatch.setattr(precision, "widens", lambda: False)
    a, b = operands("md,df->mf")

    def loss(a, b):
        return (Precision("bfloat16").einsum("md,df->mf", a, b) ** 2).astype(jnp.float32).sum()

    text = jax.jit(jax.grad(loss, (0, 1))).lower(a, b).as_text()
    dots = re.findall(r"stablehlo\.dot_general.*?: \((.*?)\) -> (\S+)", text)
    assert len(dots) >= 3
    for inputs, output in dots:
        assert inputs.count("bf16") == 2, inputs
        assert output.startswith("tensor<") and output.endswith("xf32>"), output


SCAN = """
import sys
import jax, jax.numpy as jnp, numpy as np
from ptm_jax.core.precision import Precision

def loss(weights, compute):
    def layer(x, w):
        h = compute.dense(x, w)
        scores = compute.einsum("bqhd,bkhd->bhqk", *[h.reshape(4, 32, 4, 16)] * 2, jnp.float32)
        mixed = compute.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), h.reshape(4, 32, 4, 16))
        return mixed.reshape(128, 64).astype(x.dtype), None
    return jax.lax.scan(layer, x, weights)[0].astype(jnp.float32).var()

rng = np.random.default_rng(0)
x = jnp.asarray(rng.normal(size=(128, 64)), jnp.float32)
for layers in (1, 3):
    weights = jnp.asarray(rng.normal(size=(layers, 64, 64)) / 8, jnp.float32)
    found = jax.jit(jax.grad(lambda w: loss(w, Precision("bfloat16"))))(weights)
    wanted = jax.grad(lambda w: loss(w, Precision("float32")))(weights)
    assert np.abs(found - wanted).max() < 0.05 * np.abs(wanted).max()

weights, table = rng.uniform(size=(2, 3, 5, 8)), rng.normal(size=(8, 4))  # NEZHA's values
for spec, a in (("bhqt,td->bqhd", weights), ("bqhd,td->bhqt", rng.normal(size=(2, 5, 3, 4)))):
    product = lambda a, b: Precision("bfloat16").einsum(spec, jnp.exp(a), b, jnp.float32)
    wanted = np.einsum(spec, np.exp(a), table)
    assert np.abs(jax.jit(product)(a, table) - wanted).max() < 0.02 * np.abs(wanted).max()
"""


@pytest.mark.full
def test_scanned_bfloat16_products_run_on_this_cpu():
    """Weight gradients inside a scan once failed at run time: 'Unsupported element type for
    DotThunk'. So did a product whose result has another order than its operand.

    In a process of its own, at the optimisation level that users have."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", SCAN], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_one_row_is_the_first_of_several():
    """A CPU doubles a row that is alone; the product and its gradients are the same."""
    rng = np.random.default_rng(0)
    x, kernel = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((3, 16), (16, 5)))
    product = Precision("bfloat16").dense
    value, pull = jax.vjp(product, x[:1], kernel)
    assert value.shape == (1, 5) and value.dtype == jnp.bfloat16
    np.testing.assert_array_equal(value, product(x, kernel)[:1])
    one = pull(value)
    many = jax.vjp(lambda x, kernel: product(x, kernel)[:1], x, kernel)[1](value)
    np.testing.assert_array_equal(one[0], many[0][:1])
    np.testing.assert_allclose(one[1], many[1], atol=1e-6)


@pytest.mark.full
def test_no_product_of_a_compiled_step_accumulates_in_bfloat16(monkeypatch):
    """Read from the optimized module of a whole training step: forward, backward, and update. It
    has no kernels for CPUs, whose products are in C++ (`tests/kernels/test_attention_cpu.py`)."""
    monkeypatch.setattr(precision, "widens", lambda: False)
    sizes = programs.Sizes(layers=1, width=32, heads=2, vocab=200, batch=2, length=16)
    batch = programs.rows(sizes)
    work = program(programs.bert(sizes, "bfloat16"), 0)
    state = jax.eval_shape(work.init, batch)
    with integers.portable():
        lines = jax.jit(work.step).lower(state, batch).compile().as_text().splitlines()
    kinds = {
        m[1]: m[2]
        for line in lines
        if (m := re.match(r"\s*(?:ROOT )?%?([\w.-]+) = \(?(\w+)\[", line))
    }
    dot = r"= (\w+)\[[^ ]* dot\((?:\S+ )?%?([\w.-]+), (?:\S+ )?%?([\w.-]+)\)"
    products = [m for line in lines if (m := re.search(dot, line))]
    assert len(products) >= 3 * (
        6 + 2 + 2
    )  # a layer's kernels, its attention, the head: each in both directions
    found = {(m[1], kinds[m[2]], kinds[m[3]]) for m in products}
    assert (
        found <= {("f32", "bf16", "bf16"), ("f32", "f32", "f32")}
        and ("f32", "bf16", "bf16") in found
    )
