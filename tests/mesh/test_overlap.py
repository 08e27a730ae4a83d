"""Which bytes of a program's messages are under way beside products."""

import pytest

from ptm_jax.launch.hardware import FLAGS, GATHERS
from ptm_jax.mesh.collectives import collectives

MESH = {"fsdp": 4}
GROUPS = "replica_groups={{0,1,2,3}}"
HEAD = """\
HloModule step, is_scheduled=true

%product (a: bf16[8,8], b: bf16[8,8]) -> bf16[8,8] {
  %a = bf16[8,8]{1,0} parameter(0)
  %b = bf16[8,8]{1,0} parameter(1)
  ROOT %c = bf16[8,8]{1,0} convolution(%a, %b), dim_labels=bf_io->bf
}

%sum (d: bf16[8,8]) -> bf16[8,8] {
  %d = bf16[8,8]{1,0} parameter(0)
  ROOT %e = bf16[8,8]{1,0} add(%d, %d)
}
"""
PRODUCT = "%p = bf16[8,8]{1,0} fusion(%x, %y), kind=kOutput, calls=%product"
SUM = "%s = bf16[8,8]{1,0} fusion(%x), kind=kLoop, calls=%sum"
GATHER = f"all-gather(%w), channel_id=7, {GROUPS}, dimensions={{0}}"
START = f"%g = (bf16[2,8], bf16[8,8]) all-gather-start(%w), channel_id=7, {GROUPS}"
DONE = "%z = bf16[8,8]{1,0} all-gather-done(%g)"
UPDATE = "%h = (bf16[2,8], bf16[8,8]) all-gather-update(%g)"


def hidden(lines, more=""):
    """The shares of the messages of a program whose entry has these lines."""
    body = "\n".join(f"  {line}" for line in lines)
    text = f"{HEAD}{more}\nENTRY %main (w: bf16[2,8]) -> bf16[8,8] {{\n{body}\n}}\n"
    return [(one.kind, one.bytes, one.hidden) for one in collectives(text, MESH)]


@pytest.mark.parametrize(
    ("lines", "share"),
    [
        ([f"%g = bf16[8,8]{{1,0}} {GATHER}", PRODUCT], 0.0),
        ([START, PRODUCT, DONE], 1.0),
        ([START, SUM, DONE, PRODUCT], 0.0),
        ([PRODUCT, START, DONE], 0.0),
        ([START, SUM, UPDATE, PRODUCT, DONE.replace("%g", "%h")], 1.0),
        ([START, PRODUCT], 0.0),  # no end: it is awaited elsewhere
    ],
)
def test_a_pair_with_a_product_between_is_hidden(lines, share):
    assert hidden(lines) == [("all-gather", 128, share)]


def test_a_chain_of_fusions_is_one_message():
    """The TPU compiler's form: start, a product that carries the message on, end."""
    attributes = 'frontend_attributes={chain_id="0"}'
    more = ""
    for name, product in (("begin", ""), ("middle", "%c = bf16[8,8]{1,0} dot(%k, %k)\n  ")):
        more += f"""
%{name} (k: bf16[2,8]) -> bf16[8,8] {{
  %k = bf16[2,8]{{1,0}} parameter(0)
  {product}ROOT %m = bf16[8,8]{{1,0}} {GATHER.replace("%w", "%k")}, {attributes}
}}
"""
    lines = [
        "%start = bf16[8,8]{1,0} fusion(%w), kind=kCustom, calls=%begin",
        "%step = bf16[8,8]{1,0} fusion(%start), kind=kOutput, calls=%middle",
        "%done = bf16[8,8]{1,0} fusion(%step), kind=kCustom, calls=%begin",
    ]
    assert hidden(lines, more) == [("all-gather", 128, 1.0)]
    assert hidden([lines[0], PRODUCT, lines[2]], more) == [("all-gather", 128, 0.0)]


def compiled():
    """Messages of four layers of products, whose weights are gathered, for 64 chips of a v5p."""
    import dataclasses

    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    from ptm_jax.mesh import chips
    from ptm_jax.mesh import rules as tables

    mesh = tables.make_mesh({"data": 4, "fsdp": 16}, chips.devices(chips.topology("v5p:4x4x4")))

    def shape(size, *axes):
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        return jax.ShapeDtypeStruct(size, jnp.bfloat16, sharding=sharding)

    def loss(w, x):
        def layer(x, w):
            return x + jax.nn.gelu(x @ w[0]) @ w[1], None

        return jax.lax.scan(layer, x, w)[0].astype(jnp.float32).sum()

    w = shape((4, 3072, 12288), None, "fsdp"), shape((4, 12288, 3072), None, "fsdp")
    with jax.set_mesh(mesh):
        program = jax.jit(loss).lower(w, shape((32768, 3072), ("data", "fsdp"))).compile()
    return [dataclasses.asdict(one) for one in collectives(program.as_text(), mesh)]


@pytest.mark.full
def test_the_launchers_flags_put_gathers_beside_products(on_tpu, monkeypatch):
    shares = []
    for flags in ("", " ".join(GATHERS)):
        monkeypatch.setenv(FLAGS, flags)
        messages = on_tpu("v5p:4x4x4", compiled)
        gathers = [one for one in messages if one["kind"] == "all-gather"]
        weights = 4 * 2 * 3072 * 12288 * 2
        assert sum(one["bytes"] * one["count"] for one in gathers) == weights
        sent = sum(one["hidden"] * one["bytes"] * one["count"] for one in gathers)
        shares.append(sent / weights)
    assert shares[0] < shares[1]
