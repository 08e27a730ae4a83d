"""The cross-entropy and softmax kernels and the ring by the TPU compiler, for every chip, forward
and backward."""

import re

import pytest

from ptm_jax.mesh import chips

pytestmark = pytest.mark.full

CHIPS = {"v4:2x2x1": 1, "v5e:2x2": 3, "v5p:2x2x1": 1, "v6e:2x2": 1}
ROWS, LENGTH, WORDS, WIDTH = 16, 128, 30522, 1024
CASES = (
    ({"data": 2, "model": 2}, "megatron", "bfloat16"),
    ({"data": 2, "fsdp": 2}, "fsdp", "bfloat16"),
    ({"data": 4}, "replicated", "float32"),
)


def kernels_and_scores(name, count):
    """{how: [how many kernels, arrays of scores]} of so many cases."""
    import jax
    import jax.numpy as jnp

    from ptm_jax.core.precision import Precision
    from ptm_jax.kernels import cross_entropy
    from ptm_jax.kernels.cross_entropy import Linear
    from ptm_jax.mesh import rules as tables
    from ptm_jax.mesh.layout import layout_of, use

    devices = chips.devices(chips.topology(name))
    found = {}
    for sizes, rules, precision in CASES[:count]:
        layout = layout_of(tables.make_mesh(sizes, devices), rules)

        def total(student, labels, layout=layout, precision=precision):
            with use(layout):
                options = {"smoothing": 0.1, "precision": Precision(precision), "impl": "pallas"}
                judged = cross_entropy.judge(student, labels, **options)
            return judged.loss.sum(), judged.right.sum()

        def place(names, dtype, *shape, layout=layout):
            return jax.ShapeDtypeStruct(shape, dtype, sharding=layout.sharding(names, shape))

        features = place(("rows", None, None), jnp.dtype(precision), ROWS, LENGTH, WIDTH)
        table, bias = (
            place(("vocab", "width"), jnp.float32, WORDS, WIDTH),
            place(("vocab",), jnp.float32, WORDS),
        )
        labels = place(("rows", None), jnp.int32, ROWS, LENGTH)
        with jax.set_mesh(layout.mesh):
            step = jax.jit(jax.grad(total, has_aux=True)).lower(
                Linear(features, table, bias), labels
            )
            text = step.compile({"exec_time_optimization_effort": -1.0}).as_text()
        shapes = {tuple(map(int, dims.split(","))) for dims in re.findall(r"\w\[([\d,]+)\]", text)}
        scores = [s for s in shapes if len(s) > 1 and s[-1] >= WORDS // 2 and s[-2] >= 64]
        found[f"{rules} {precision}"] = [
            len(re.findall(r"custom-call.*tpu_custom_call", text)),
            scores,
        ]
    return found


@pytest.mark.full
@pytest.mark.parametrize("name", CHIPS)
def test_the_compiler_takes_the_cross_entropy_and_holds_no_scores(on_tpu, name):
    found = on_tpu(name, kernels_and_scores, name, CHIPS[name])
    assert len(found) == CHIPS[name]
    assert all(kernels == 3 and not scores for kernels, scores in found.values()), found


def softmax_and_ring(name):
    """{what: how often its kernel, or a message to a neighbour, is in the program}."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

    from ptm_jax.core.types import Visibility
    from ptm_jax.kernels.ring import Ring, ring_attention
    from ptm_jax.kernels.softmax import tpu
    from ptm_jax.mesh import rules

    devices = chips.devices(chips.topology(name))

    def total(x):
        return x.astype(jnp.float32).sum()

    def text(loss, where, *shapes):
        given = [jax.ShapeDtypeStruct(shape, dtype, sharding=where) for shape, dtype in shapes]
        return (
            jax.jit(jax.grad(loss))
            .lower(*given)
            .compile({"exec_time_optimization_effort": -1.0})
            .as_text()
        )

    lines = (2, 4, 128, 384), jnp.bfloat16
    one = SingleDeviceSharding(devices[0])
    kernel = text(
        lambda x, seen: total(tpu.softmax(x, seen, 0.3)),
        one,
        lines,
        (lines[0], bool),
    )

    mesh = rules.make_mesh({"seq": 4}, devices)
    seen = Visibility(*[jnp.ones((2, 512), jnp.int32)] * 2)
    with jax.set_mesh(mesh):
        step = text(
            lambda q: total(ring_attention(q, q, q, ring=Ring(mesh), visibility=seen, scale=0.1)),
            NamedSharding(mesh, PartitionSpec(None, "seq")),
            ((2, 512, 2, 64), jnp.bfloat16),
        )
    found = {"softmax": kernel.count("tpu_custom_call"), "ring": step.count("collective-permute")}
    return found | {"whole": step.count("512,512]")}


@pytest.mark.full
@pytest.mark.parametrize("name", CHIPS)
def test_the_compiler_takes_the_softmax_and_the_ring(on_tpu, name):
    found = on_tpu(name, softmax_and_ring, name)
    assert found["softmax"] >= 2 and found["ring"] >= 2 and not found["whole"], found


def checked_programs(number):
    """Names of the candidates whose self-check of a class compiles for a TPU v5e, forward and
    backward, once a case; and whether "auto" asks the topology's devices."""
    import dataclasses
    import functools

    import jax

    from ptm_jax.kernels import deciding
    from ptm_jax.kernels.attention import candidates as attention
    from ptm_jax.kernels.cross_entropy import candidates as losses
    from ptm_jax.kernels.softmax import candidates as softmax
    from ptm_jax.mesh import rules
    from ptm_jax.mesh.layout import layout_of, use

    devices = chips.devices(chips.topology("v5e:2x2"))
    plain = attention.Class("bfloat16", "bfloat16", 64, 512, 512)
    questions = (
        plain,
        dataclasses.replace(plain, extras=("distances", "order", "dropout")),
        dataclasses.replace(plain, queries=1),
        losses.Class("bfloat16", 768, 1024, 32768),
        softmax.Class("float32", 512),
    )
    rooms = {"attention": attention, "cross-entropy": losses, "softmax": softmax}
    room = rooms[questions[number].kind]
    there, names, quick = (
        jax.sharding.SingleDeviceSharding(devices[0]),
        [],
        {"exec_time_optimization_effort": -1.0},
    )
    for one in room.CANDIDATES:
        for case in questions[number].cases() if one.runs_on("tpu") and one.installed else ():
            if case.refusal(module := one.load()) is None:

                def shape(x):
                    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=there)

                given = jax.tree.map(shape, jax.tree.map(jax.numpy.asarray, case.inputs))
                jax.jit(functools.partial(case.call, module)).lower(given).compile(quick)
                names.append(one.name)
    with use(layout_of(rules.make_mesh({"data": 4}, devices), "replicated")):
        return names, deciding.asks("tpu")


BY_ALL = {0: ["pallas", "reference", "splash", "xla"], 1: ["pallas", "reference", "xla"]}
BY_ALL |= {2: BY_ALL[0], 3: ["pallas", "xla"], 4: ["pallas", "reference"]}


@pytest.mark.full
@pytest.mark.parametrize("number", BY_ALL)
def test_the_self_check_of_a_class_compiles(on_tpu, number):
    """Both cases, odd and even, by every candidate that computes them. A topology is not asked."""
    names, asked = on_tpu("v5e:2x2", checked_programs, number)
    assert sorted(names) == sorted(2 * BY_ALL[number]) and not asked
