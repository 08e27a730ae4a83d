"""The softmax kernel and the ring by the TPU compiler, for every chip, forward and backward."""

import pytest

from ptm_jax.mesh import chips

pytestmark = pytest.mark.full

CHIPS = ("v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2")


def counted(name):
    """{what: how often its kernel, or a message to a neighbour, is in the program}."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

    from ptm_jax.core.types import Visibility
    from ptm_jax.kernels import softmax
    from ptm_jax.kernels.ring import Ring, ring_attention
    from ptm_jax.mesh import rules

    devices = chips.devices(chips.topology(name))
    total = lambda x: x.astype(jnp.float32).sum()

    def text(loss, where, *shapes):
        given = [jax.ShapeDtypeStruct(shape, dtype, sharding=where) for shape, dtype in shapes]
        return jax.jit(jax.grad(loss)).lower(*given).compile({"exec_time_optimization_effort": -1.0}).as_text()

    lines = (2, 4, 128, 384), jnp.bfloat16
    one = SingleDeviceSharding(devices[0])
    kernel = text(lambda x, seen: total(softmax._softmax(0.3, True, False, x, seen)), one, lines, (lines[0], bool))

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


@pytest.mark.rotate(4)
@pytest.mark.parametrize("name", CHIPS)
def test_the_compiler_takes_them(on_tpu, name):
    found = on_tpu(name, counted, name)
    assert found["softmax"] >= 2 and found["ring"] >= 2 and not found["whole"], found
