"""The TPU kernels of attention before the TPU compiler, for chips that are not there: alone and
inside of training steps.

Every kernel is compiled for v4, v5e, v5p and v6e inside of `shard_map` over rows and heads, forward
and backward, with all that scores may hold; and a step of BERT-large, of two layers, by them and by
the kernels of the cross-entropy. Steps of T5, XLNet-large and ModernBERT (a full and a local layer)
too, half a minute each; `CELLS` names the chips. What was compiled holds no [L, L] buffer, in
whatever shape: no two dimensions of a row's length, and none of their product. A step has no
[tokens, V] buffer either: what has the vocabulary's size, whole or a device's share, is a table or
a vector.
"""

import dataclasses
import math
import re

import pytest

from ptm_jax.mesh import chips

pytestmark = pytest.mark.full

CHIPS = {"v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2"}
QUICK = {"exec_time_optimization_effort": -1.0}
STEPS = {"bert_large": 384, "t5_base": 384, "xlnet_large": 384}
STEPS |= {"modernbert_base": 640, "eurobert_610m": 384}
CELLS = [
    ("v4", "bert_large"), ("v5e", "bert_large"), ("v5e", "t5_base"), ("v5p", "t5_base"),
    ("v4", "xlnet_large"), ("v6e", "xlnet_large"),
    ("v5p", "modernbert_base"), ("v6e", "modernbert_base"), ("v5e", "eurobert_610m"),
]  # fmt: skip
"""Each chip and each step stands in a cell; each step but EuroBERT's is compiled for two chips."""
WIDTHS = {"bert_large": 1024, "t5_base": 768, "xlnet_large": 1024}
WIDTHS |= {"modernbert_base": 768, "eurobert_610m": 1152}
CALLS = {
    "bert_large": 6,
    "eurobert_610m": 6,
    "t5_base": 12,
    "xlnet_large": 9,
    "modernbert_base": 6,
}  # three of every attention, three of the cross-entropy
KERNELS = ["attention", "attention_keys", "attention_queries"]


def arrays(text):
    """{as written: dimensions} of every array of a compiled module, those inside of fusions
    included."""
    found = set(re.findall(r"\b(?:f32|bf16|f16|s32|u32|s8|u8|pred)\[([\d,]+)\]", text))
    return {dims: [int(size) for size in dims.split(",")] for dims in sorted(found)}


def square(text, lengths):
    """Shapes of a compiled module that hold the scores of a row: all pairs of its places."""

    def pair(sizes):
        return sum(size in lengths for size in sizes) > 1 or any(
            a * b in sizes for a in lengths for b in lengths
        )

    return [dims for dims, sizes in arrays(text).items() if pair(sizes)]


def worded(text, words, width):
    """Shapes of a compiled module with scores of tokens for every word: a dimension of the
    vocabulary, and others than the width of its table, or than the eight lines on which a TPU keeps
    a vector (the bias's gradient)."""
    found = []
    for dims, sizes in arrays(text).items():
        rest = [math.prod(sizes) // size for size in sizes if size in words]
        if rest and min(rest) not in (1, 8, width):
            found.append(dims)
    return found


def mesh_of(chip):
    from ptm_jax.mesh import rules

    return rules.make_mesh({"data": 2, "model": 2}, chips.devices(chips.topology(CHIPS[chip])))


def of_kernels(chip, case, width, compute):
    """Every feature at once, or plainly, at a realistic block and 1,152 tokens."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    from ptm_jax.core.constraint import use
    from ptm_jax.core.precision import Precision
    from ptm_jax.core.types import Visibility
    from ptm_jax.kernels.attention import attention
    from ptm_jax.kernels.scores import ByKey, Relative, Scores, Types
    from ptm_jax.mesh.layout import layout_of

    mesh = mesh_of(chip)
    rows, length, heads, layout = 4, 1152, 4, layout_of(mesh, "megatron")
    dtype = jnp.dtype(compute)
    whole = NamedSharding(mesh, PartitionSpec())

    def shape(*dims, dtype=dtype):
        return jax.ShapeDtypeStruct(dims, dtype, sharding=whole)

    field, tokens = shape(rows, length, dtype=jnp.int32), shape(rows, length, heads, width)
    table = shape(2 * length + 1, heads, width)
    everything = Scores(
        distances=shape(heads, 257, dtype=jnp.float32),
        relative=Relative(tokens, table),
        types=Types(shape(rows, length, heads, 2, dtype=jnp.float32), field, field),
        values=shape(129, 1, width),
        by_key=ByKey(tokens, table),
    )
    t5 = Scores(distances=everything.distances)
    names = "q_segments", "k_segments", "q_order", "k_order", "q_group", "k_group"
    cases = {"everything": (everything, 6), "t5": (t5, 4), "plain": (Scores(), 2)}
    scores, fields = cases[case]
    visibility = dict.fromkeys(names[:fields], field)

    def loss(x, visibility, key):
        q, k, v, scores = x
        noise = {"dropout": 0.1, "key": jax.random.wrap_key_data(key), "rows": jnp.arange(rows)}
        given = {
            "visibility": Visibility(**visibility, strict=True),
            "precision": Precision(compute),
            "impl": "pallas",
        }
        with use(layout):
            return (
                attention(q, k, v, scale=0.125, scores=scores, **given, **noise)
                .astype(jnp.float32)
                .sum()
            )

    with jax.set_mesh(mesh):
        step = jax.jit(jax.grad(loss, allow_int=True))
        given = (tokens, tokens, tokens, scores), visibility, shape(2, dtype=jnp.uint32)
        text = step.lower(*given).compile(QUICK).as_text()
    kernels = sorted(set(re.findall(r"attention_?[a-z]*(?=[.\d]* = )", text)))
    return {"squares": square(text, {length}), "kernels": kernels}


def of_step(chip, name):
    """A training step of two layers: squares, arrays of scores over the words, and how many kernels
    it calls."""
    from ptm_jax.core import spec
    from ptm_jax.core.system import Experiment
    from ptm_jax.nn.blocks import Stack
    from ptm_jax.nn.heads.vocabulary import LMHead, MLMHead
    from ptm_jax.plan import lowering
    from ptm_jax.systems import get

    system, length = get(name), STEPS[name]
    shallow = spec.respell(system.towers, Stack, lambda old: dataclasses.replace(old, layers=2))
    shallow = spec.respell(
        shallow, (MLMHead, LMHead), lambda old: dataclasses.replace(old, impl="pallas")
    )
    phase = dataclasses.replace(system.recipe.phases[-1], batch=64, length=length)
    recipe = dataclasses.replace(system.recipe, phases=(phase,), accumulate=1)
    system = dataclasses.replace(system, towers=shallow, recipe=recipe)
    config = lowering.published(
        Experiment(system=system, precision="bfloat16", rules="megatron", impl="pallas")
    )
    step = lowering.step_of(config, mesh_of(chip), 0)
    text = step.lowered.compile(QUICK).as_text()
    memory = system.towers["main"].encoder.memory if name == "xlnet_large" else 0
    lengths = {length, length + memory}
    size = lowering.vocab_of(config).size
    shares = {size, -(-size // 2), 2 * -(-size // 2)}  # whole, a device's, and padded to be divided
    assert any(words in sizes for words in shares for sizes in arrays(text).values())
    return {
        "squares": square(text, lengths),
        "scores": worded(text, shares, WIDTHS[name]),
        "kernels": text.count("tpu_custom_call"),
    }


@pytest.mark.full
@pytest.mark.parametrize("width,compute", [(64, "bfloat16"), (128, "float32")])
@pytest.mark.parametrize("case", ["everything", "t5", "plain"])
@pytest.mark.parametrize("chip", CHIPS)
def test_the_kernels_compile(on_tpu, chip, case, width, compute):
    found = on_tpu(CHIPS[chip], of_kernels, chip, case, width, compute)
    assert (found["squares"], found["kernels"]) == ([], KERNELS)


@pytest.mark.full
@pytest.mark.parametrize(("chip", "name"), CELLS)
def test_a_training_step_holds_no_scores(on_tpu, chip, name):
    step = on_tpu(CHIPS[chip], of_step, chip, name)
    assert step["squares"] == step["scores"] == [] and step["kernels"] == CALLS[name], step


def of_one_chip():
    """The calls of kernels for CPUs in a step that is lowered for one chip."""
    from ptm_jax.core.system import Experiment
    from ptm_jax.mesh.chips import devices, topology
    from ptm_jax.mesh.rules import make_mesh
    from ptm_jax.plan import lowering
    from ptm_jax.systems import get

    config = lowering.published(Experiment(system=get("bert_tiny")))
    mesh = make_mesh({}, devices(topology("v5e:1x1")), config.rules, 1)
    text = lowering.step_of(config, mesh, 0).lowered.as_text()
    return {"calls": text.count("@ptm_"), "products": text.count("dot_general") > 0}


@pytest.mark.full
def test_a_step_for_one_chip_holds_no_kernels_for_cpus(on_tpu):
    assert on_tpu("v5e:1x1", of_one_chip) == {"calls": 0, "products": True}
