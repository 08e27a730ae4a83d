"""The mesh, the rule tables and layouts: where tensors lie, what is refused before compilation,
padded vocabularies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from ptm_jax.core import paths, spec, towers
from ptm_jax.core.errors import UserError
from ptm_jax.core.registry import catalogue, discover
from ptm_jax.core.types import Vocab
from ptm_jax.mesh import padding
from ptm_jax.mesh import rules as tables
from ptm_jax.mesh.axes import ParameterAxes
from ptm_jax.mesh.layout import Layout, constrain, layout_of, use
from ptm_jax.nn.declared import axes_of
from ptm_jax.nn.parallel import stream
from ptm_jax.plan import lowering
from support import elsewhere, splitting

discover("ptm_jax.systems")


def mesh(**sizes):
    return lowering.abstract_mesh(sizes)


def test_without_a_layout_nothing_is_constrained():
    x = jnp.zeros((2, 3))
    assert constrain(x, "rows", "width") is x
    with use(None):
        assert constrain(x, "rows", "width") is x


def test_names_are_mesh_axes():
    layout = Layout(mesh(data=2, fsdp=2, seq=2, model=2), tables.table("megatron_sp_fsdp"))

    def spec(*names):
        return layout.spec(names, (8,) * len(names))

    assert spec("rows", "positions", "width") == PartitionSpec(
        ("data", "fsdp"), ("seq", "model"), None
    )
    assert spec("rows", "length", "heads", None) == PartitionSpec(
        ("data", "fsdp"), "seq", "model", None
    )
    assert spec("rows", "length", "vocab") == PartitionSpec(("data", "fsdp"), "seq", "model")
    assert layout.parts("positions") == 4 and layout.axes("width") == ("fsdp",)
    assert layout.spec(("rows", "heads"), (8, 3)) == PartitionSpec(
        ("data", "fsdp"), PartitionSpec.UNCONSTRAINED
    )
    with pytest.raises(ValueError, match="2 names"):
        layout.spec(("rows", "width"), (8, 8, 8))


def test_positions_that_the_mesh_does_not_divide_are_refused():
    with use(Layout(mesh(seq=2, model=4), tables.table("megatron_sp"))):
        with pytest.raises(
            UserError, match=r"\(2, 12, 4\): its 12 positions do not divide over seq=2 x model=4"
        ):
            stream(jnp.zeros((2, 12, 4)))
        pooled = jnp.zeros((2, 4))
        assert stream(pooled) is pooled


def test_megatron_splits_columns_then_rows_and_the_vocabulary():
    modules, batch = catalogue.get("bert_base").towers, {"input_ids": np.zeros((2, 16), np.int32)}
    shapes, declared = paths.flatten(towers.abstract(modules, batch)), axes_of(modules, batch)
    spec = {
        path: tables.spec_of(
            path, leaf.shape, declared.of(path, leaf.ndim), tables.MEGATRON, mesh(model=2)
        )
        for path, leaf in shapes.items()
    }
    for path, axes in {
        "attention/query/kernel": (None, None, "model", None),
        "attention/out/kernel": (None, "model", None, None),
        "ffn/up/kernel": (None, None, "model"), "ffn/up/bias": (None, "model"),
        "ffn/down/kernel": (None, "model", None),
        "ffn_norm/scale": (None, None),
    }.items():  # fmt: skip
        assert spec[f"main/encoder/stack/block/{path}"] == PartitionSpec(*axes)
    assert declared.of(TOKEN, 2) == ("vocab", "width")
    assert tables.spec_of(TOKEN, (30528, 768), TABLE, tables.MEGATRON, mesh(model=8))[0] == "model"


ONE = jax.devices()[:1]
TWICE = (("width", "model"), ("hidden", "model"))
TOKEN = "main/encoder/embed/token"
TABLE, UP = ("vocab", "width"), ("width", "hidden")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (
            lambda: tables.spec_of(TOKEN, (30522, 768), TABLE, tables.MEGATRON, mesh(model=4)),
            r"token \(30522, 768\).*'model' of 4",
        ),
        (
            lambda: tables.spec_of("x/up/kernel", (8, 16), UP, TWICE, mesh(model=4)),
            "two dimensions of x/up/kernel",
        ),
        (lambda: tables.make_mesh({"data": 7}, ONE), "needs 7 devices"),
        (lambda: tables.make_mesh({"dat": 1}, ONE), "Did you mean 'data'"),
        (lambda: tables.make_mesh({"model": 3}, ONE), "model=3"),
        (lambda: tables.table("megatorn"), "megatron_fsdp"),
        (lambda: tables.check_batch(6, mesh(data=4)), "6 rows does not divide"),
    ],
)
def test_what_does_not_fit_a_mesh_is_refused(place, words):
    with pytest.raises(UserError, match=words):
        place()


def test_a_batch_is_placed_as_it_is():
    batch = {"input_ids": np.zeros((6, 4), np.int32)}
    assert tables.place_batch(batch, tables.make_mesh({"data": 1}, ONE))["input_ids"].shape == (
        6,
        4,
    )


@pytest.mark.parametrize(
    ("sizes", "rules", "words"),
    [
        (
            {"data": 8},
            "fsdp",
            "fsdp split parameters over the mesh axis 'fsdp', and the mesh data=8 has one",
        ),
        ({"data": 8}, "megatron", "mesh axis 'model'.*model=2"),
        ({"data": 2, "model": 4}, "megatron_fsdp", "mesh axis 'fsdp'.*other rules"),
    ],
)
def test_rules_that_would_split_nothing_are_refused(sizes, rules, words):
    with pytest.raises(UserError, match=words):
        layout_of(mesh(**sizes), rules)


def test_rules_that_fit_are_taken():
    fitting = {
        "megatron_fsdp": {},
        "zero": {"data": 8},
        "megatron_sp_zero": {"fsdp": 2, "model": 4},
        "replicated": {"seq": 8},
    }
    for rules, sizes in fitting.items():
        assert layout_of(mesh(**sizes), rules).rules == tables.table(rules)


def test_a_vocabulary_is_padded_and_nothing_else():
    state = {
        "params": {
            "main": {"embed": {"token": jnp.ones((61, 4))}, "heads_lm": {"bias": jnp.ones((61,))}}
        },
        "mu": {
            "main": {"embed": {"token": jnp.ones((61, 1))}},
            "x": {"up": {"kernel": jnp.ones((4, 6))}},
        },
    }
    axes = ParameterAxes(
        {"main/embed/token": TABLE, "main/heads_lm/bias": ("vocab",), "x/up/kernel": UP}
    )
    found = padding.padding_of(state, axes, tables.table("megatron"), mesh(model=8))
    assert set(found.true) == {
        "params/main/embed/token",
        "params/main/heads_lm/bias",
        "mu/main/embed/token",
    }
    long = found.fill(state)
    assert long["params"]["main"]["embed"]["token"].shape == (64, 4)
    assert long["mu"]["main"]["embed"]["token"].shape == (64, 1)
    assert not long["params"]["main"]["heads_lm"]["bias"][61:].any()
    jax.tree.map(np.testing.assert_array_equal, found.cut(long), state)
    params = found.cut(long["params"], "params/")
    assert params["main"]["embed"]["token"].shape == (61, 4)
    with pytest.raises(
        UserError,
        match=r"mu/x/up/kernel \(4, 6\): dimension 6 does not divide over mesh axis 'model' of 8",
    ):
        padding.stored(state, found, axes, tables.table("megatron"), mesh(model=8))


def test_each_half_of_the_table_splits_nearly_all_bytes_alone():
    assert all(splitting.share_split("gpt2_medium", rules) > 0.99 for rules in ("fsdp", "megatron"))


def on_eight_devices():
    """{rules: [[phase, kind, count, bytes]]} of a small GPT-2; "drop": [split dropout equals whole,
    its collectives]."""
    from ptm_jax.mesh.collectives import collectives
    from ptm_jax.nn.layers import drop
    from ptm_jax.systems.transformers.bert_gpt import gpt2
    from ptm_jax.training.steps.step import program

    vocab = Vocab(size=61, pad=0, unk=1, cls=2, sep=3, mask=4, bos=5, eos=6)
    system = spec.respell(gpt2("tiny", 3, 16, 8), Vocab, vocab)
    ids = np.arange(128, dtype=np.int32).reshape(8, 16) % 61
    batch = {
        "input_ids": ids,
        "segment_ids": np.ones_like(ids),
        "rows": np.arange(8, dtype=np.int32),
    }
    on = tables.make_mesh({"model": 8})
    found = {}
    for rules in ("megatron", "megatron_sp"):
        work, state = program(system, 0).on(on, rules, batch)
        placed = jax.tree.map(lambda leaf: leaf.sharding, state), tables.replicated(on)
        with jax.set_mesh(on):
            compiled = (
                jax.jit(work.step, out_shardings=placed)
                .lower(state, tables.place_batch(batch, on))
                .compile()
            )
        found[rules] = [
            [c.phase, c.kind, c.count, c.bytes]
            for c in collectives(compiled.as_text(), on)
            if c.bytes > 1000
        ]
    key, rows = jax.random.key(3), batch["rows"]
    grid = tables.make_mesh({"data": 2, "model": 4})
    stream, scores = (8, 16, 32), (8, 4, 16, 16)
    for shape, axes in (
        (stream, ("data", "model")),
        (stream, ("data", None, "model")),
        (scores, ("data", "model")),
    ):
        x = jnp.ones(shape)
        place = jax.sharding.NamedSharding(grid, PartitionSpec(*axes))
        split = (
            jax.jit(lambda x: drop(x, key, rows, 0.1), in_shardings=place, out_shardings=place)
            .lower(x)
            .compile()
        )
        same = np.array_equal(split(jax.device_put(x, place)), drop(x, key, rows, 0.1))
        found.setdefault("drop", []).append([same, len(collectives(split.as_text(), grid))])
    return found


@pytest.mark.full
def test_collectives_of_a_layer_and_dropout_on_eight_devices():
    """A layer has two all-reduces in each direction; that of the split stream gathers and reduces
    twice (on a CPU a reduce-scatter is an all-reduce, of which each device keeps its part). Dropout
    is drawn where its elements lie."""
    eight = elsewhere.on_devices(8, on_eight_devices)

    def layer(found):
        return sorted(
            [phase, kind]
            for phase, kind, count, size in found
            if count == 3 and size >= 8 * 16 * 16 * 4
        )

    once = [["backward", "all-gather"]] * 2 + [["backward", "all-reduce"]] * 2
    assert (
        layer(eight["megatron"])
        == [["backward", "all-reduce"]] * 2 + [["forward", "all-reduce"]] * 2
    )
    assert layer(eight["megatron_sp"]) == once + [["forward", kind] for _, kind in once]
    assert eight["drop"] == [[True, 0]] * 3
