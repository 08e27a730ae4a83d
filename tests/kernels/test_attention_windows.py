"""Local windows: each implementation equals the definition and leaves out what is far away."""

import dataclasses

import jax
import jax.numpy as jnp
import mosaic_interpreter as machine
import numpy as np
import pytest
from cases import Case, agree

from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Visibility, Window
from ptm_jax.kernels.attention import blocked, cpu, cudnn, gpu, splash, tokamax, tpu
from ptm_jax.kernels.attention.arguments import Arguments, meets, spans
from ptm_jax.kernels.attention.tpu_block import longest
from ptm_jax.kernels.scores import Scores

HALF = Precision("bfloat16")
LENGTHS = 64, 192, 320, 704
compiled = pytest.mark.skipif(
    isinstance(cpu.native.library(cpu.SOURCE), str), reason="there is no C++ compiler"
)
simulated = pytest.mark.skipif(machine.absent() is not None, reason=machine.absent() or "")


def by_blocks(q, k, v, args):
    return blocked.attention(q, k, v, args, block=64)


def by_core(q, k, v, args):
    return tpu.attention(q, k, v, args, block=64, interpret=True)


def by_native(q, k, v, args):
    assert cpu.refusal(q, k, args) is None
    return cpu.attention(q, k, v, args)


def by_hopper(q, k, v, args):
    args = dataclasses.replace(args, precision=HALF)
    with machine.interpreted(False):
        return jax.block_until_ready(gpu.attention(q, k, v, args))


COMPILED = pytest.param(by_native, id="native", marks=compiled)
INTERPRETED = [
    pytest.param(by_blocks, id="xla", marks=pytest.mark.full),
    pytest.param(by_core, id="pallas on TPUs", marks=pytest.mark.full),
]
CELLS = [pytest.param(by_blocks, length, id=f"xla-{length}") for length in LENGTHS]
CELLS += [pytest.param(by_core, length, id=f"pallas-{length}") for length in (64, 320)]
HOPPER = pytest.param(by_hopper, id="pallas on Hopper", marks=[simulated, pytest.mark.full])


def windowed(length, radius):
    """Arguments of one document with a window, whose radius is traced in a layer."""
    segments, places = jnp.ones((1, length), jnp.int32), jnp.arange(length)[None]
    return Arguments(Visibility(segments, segments, window=Window(places, places, radius)), 0.5)


@pytest.mark.full
@pytest.mark.parametrize(("run", "length"), CELLS)
def test_results_and_gradients_are_those_of_the_definition(run, length):
    """Packed rows, the first with padding; a window shorter and one longer than the row. The kernel
    in C++: tests/kernels/test_attention_cpu.py."""
    for radius in (17, 2 * length):
        case = Case(length, length, heads=1, radius=radius, extras=frozenset({"window"}))
        agree(lambda q, k, v, **given: run(q, k, v, Arguments(**given)), case)


@simulated
@pytest.mark.full
@pytest.mark.parametrize("length", [64, 320])
def test_the_hopper_kernel_equals_the_definition(length):
    case = Case(length, length, rows=1, heads=1, radius=17, extras=frozenset({"window"}))
    with machine.interpreted(False):
        agree(
            lambda q, k, v, **given: gpu.attention(q, k, v, Arguments(**given, precision=HALF)),
            dataclasses.replace(case, relative=1), 2e-2, jnp.bfloat16, least=1e-4,
        )  # fmt: skip


@pytest.mark.parametrize("run", [COMPILED, *INTERPRETED, HOPPER])
def test_keys_out_of_the_window_are_not_read(run):
    """Queries near the start equal those of a short row, though all keys and values far away are
    not numbers: 0 * NaN would show. The gradient of the kernel in C++ is that of "xla"."""
    length, near, radius, tolerance = 320, 128, 20, 2e-2 if run is by_hopper else 1e-5
    draw = np.random.default_rng(0)
    q, k, v, g = (jnp.asarray(draw.normal(size=(1, length, 1, 16)), jnp.float32) for _ in range(4))
    first, far = slice(None, 32), jnp.arange(length)[None, :, None, None] >= 256

    def of(q, k, v, args):
        out = run(q, k, v, args)[:, first]
        return (out * g[:, first]).sum(), out

    step = of if run in (by_native, by_hopper) else jax.grad(of, has_aux=True)
    short = step(*(x[:, :near] for x in (q, k, v)), windowed(near, radius))
    k, v = (jnp.where(far, jnp.nan, x) for x in (k, v))
    result = step(q, k, v, windowed(length, jnp.int32(radius)))
    np.testing.assert_allclose(result[1], short[1], atol=tolerance)
    if step is not of:
        np.testing.assert_allclose(result[0][:, first], short[0][:, first], atol=tolerance)


@pytest.mark.parametrize(("radius", "steps"), [(20, 5), (1 << 30, 32)])
def test_the_grid_of_a_tpu_is_as_long_as_the_longest_span(radius, steps):
    """512 tokens in blocks of 16; the radius of a layer is traced."""

    @jax.jit
    def count(radius):
        args = windowed(512, radius)
        met = meets(tuple(args.fields()), *args.stacked(1, 512, 512), (16, 16))
        return longest(spans(met)), longest(spans(met.swapaxes(1, 2)))

    assert [int(number) for number in count(jnp.int32(radius))] == [steps, steps]


def refusals(queries=128, keys=128, bias=None, window=None):
    """{module: its refusal} of bfloat16."""
    marks = (jnp.ones((2, length), jnp.int32) for length in (queries, keys))
    args = Arguments(Visibility(*marks, window=window), 1.0, Scores(bias=bias), precision=HALF)
    q, k = (jnp.ones((2, length, 1, 64), jnp.bfloat16) for length in (queries, keys))
    return {module: module.refusal(q, k, args) for module in (cudnn, splash, tokamax)}


@pytest.mark.parametrize("keys", [64, 192, 320, 704])
def test_cudnn_refuses_lengths_at_which_its_gradient_may_be_nan(keys):
    assert f"64 of 128, as {keys}" in refusals(keys, keys)[cudnn]
    assert refusals(keys, keys - 2)[cudnn] is refusals(keys, keys + 64)[cudnn] is None


def test_cudnn_refuses_a_bias_for_each_row():
    bias = jnp.ones((2, 1, 128, 128))
    assert "each row" in refusals(bias=bias)[cudnn] and refusals(bias=bias[:1])[cudnn] is None


def test_the_kernels_of_libraries_refuse_a_window():
    places = jnp.arange(128)[None]
    for why in refusals(window=Window(places, places, 3)).values():
        assert "window" in why and "take impl='xla'" in why


def test_cudnn_gets_a_mask_for_each_query_and_a_bias_of_its_type():
    """JAX refuses a mask of one line; the gradient of a bias of float32 is not a number."""
    shapes = {}

    def library(q, k, v, *, bias, mask, scale):
        shapes.update(bias=(bias.shape, bias.dtype), mask=mask.shape)
        return q

    q, segments = jnp.ones((2, 8, 1, 8)), jnp.ones((2, 8), jnp.int32)
    args = Arguments(
        Visibility(segments, segments), 1.0, Scores(bias=jnp.ones((1, 1, 8, 8))), precision=HALF
    )
    cudnn.masked(library, q, q, q, args)
    assert shapes == {"bias": ((1, 1, 8, 8), jnp.bfloat16), "mask": (2, 1, 8, 8)}
