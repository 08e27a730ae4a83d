"""Logical axes of parameters: every layer declares them, and no sharding of a system changes
unseen."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from ptm_jax import systems
from ptm_jax.compress import catalogue
from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten
from ptm_jax.core.types import Encoded, Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.mesh import rules as tables
from ptm_jax.mesh.axes import ParameterAxes
from ptm_jax.nn.declared import axes_of
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layers import Dense
from ptm_jax.plan import lowering
from ptm_jax.training.steps.step import program
from support import splitting, tiny_systems
from support.classifier import batch, classifier


@pytest.mark.parametrize("name", splitting.COVER)
def test_every_parameter_has_axes_and_lies_where_it_lay(name):
    """`Program.abstract` raises an error for axes of another rank. The hashes were made from the
    former table of path patterns. To see the lines: python tests/mesh/shardings.py --show NAME.
    `tests/systems/test_catalogue.py` has the other systems."""
    state, _ = splitting.abstract(name)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(state.params))
    assert splitting.undeclared(name) == []
    assert splitting.digest(name) == splitting.hashes()[name]


@pytest.mark.parametrize("name", ["magnitude", "q8bert", "gates", "fastbert", "pd"])
def test_what_a_compression_adds_has_axes(name):
    """Masks, ranges of inputs, gates, branches and a teacher. Adaptations: tests/laws."""
    system = dataclasses.replace(classifier(), compress=(catalogue.read(name),))
    state, axes = program(system, 0).abstract(batch())
    plain = flatten(program(classifier(), 0).abstract(batch())[0].params)
    paths = flatten(state.params).keys()
    assert paths - plain.keys() and [path for path in paths if axes.find(path) is None] == []


VOCAB = Vocab(size=61, pad=0, unk=1, cls=2, sep=3, mask=4)


class Mixture(nn.Module):
    """A layer that no other file of the project knows: a sum of `experts` bilinear maps."""

    logical_axes = {"experts": (None, "width", "hidden"), "mix/kernel": ("hidden", "width")}

    experts: int = 2
    hidden: int = 8

    @nn.compact
    def __call__(self, x):
        kernel = self.param("experts", Normal(0.1), (self.experts, x.shape[-1], self.hidden))
        h = jnp.tanh(jnp.einsum("bld,edh->blh", x, kernel))
        return x + Dense(x.shape[-1], name="mix")(h)


class Toy(slots.Encoder, nn.Module):
    """A table of words, and a scan over `Mixture`s."""

    logical_axes = {"words": ("vocab", "width"), "scale": (None,)}

    direction = "none"
    width = 16

    @nn.compact
    def __call__(self, batch, train=False):
        table = self.param("words", Normal(0.1), (VOCAB.size, self.width))
        x = table[batch["input_ids"]] * self.param("scale", nn.initializers.ones, (1,))

        def layer(mixture, x, _):
            return mixture(x), None

        scan = nn.scan(layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
        return Encoded(scan(Mixture(name="mixtures"), x, None)[0])


BATCH = {"input_ids": jnp.zeros((8, 4), jnp.int32), "rows": jnp.arange(8)}


def test_a_new_layer_is_split_without_an_edit_elsewhere():
    """A stacked layer, a table that is padded, and moments of the optimizer."""
    model = Model(encoder=Toy(), heads={"map": tiny_systems.Project(4)})
    system = tiny_systems.system("toy", towers={"main": model}, objective=len)
    mesh = lowering.abstract_mesh({"fsdp": 2, "model": 4})
    work, state = program(system, 0).on(mesh, "megatron_fsdp", BATCH)
    leaves = flatten(state)
    expected = {
        "words": ((64, 16), PartitionSpec("model", "fsdp")),
        "scale": ((1,), PartitionSpec(None)),
        "mixtures/experts": ((3, 2, 16, 8), PartitionSpec(None, None, "fsdp", "model")),
        "mixtures/mix/kernel": ((3, 8, 16), PartitionSpec(None, "model", "fsdp")),
        "mixtures/mix/bias": ((3, 16), PartitionSpec(None, None)),
    }
    for start in ("params/", "opt_state/mu/", "opt_state/nu/"):
        for path, (shape, spec) in expected.items():
            leaf = leaves[f"{start}main/encoder/{path}"]
            assert (leaf.shape, leaf.sharding) == (shape, jax.sharding.NamedSharding(mesh, spec))
    assert {path for path in work.padding.true if path.startswith("params/")} == {
        "params/main/encoder/words"
    }


class Plain(nn.Module):
    """A layer without declarations."""

    @nn.compact
    def initialise(self, batch):
        return self.param("kernel", Normal(0.1), (4, 4))


class Wrong(Plain):
    logical_axes = {"kernel": ("width",)}


class Inner(Plain):
    logical_axes = {"kernel": (None, "width")}


class Outer(nn.Module):
    logical_axes = {"layer_*/kernel": ("width", None)}

    @nn.compact
    def initialise(self, batch):
        return [Inner(name=name).initialise(batch) for name in ("layer_0", "layer_1", "last")]


def test_what_nobody_declares_is_not_split():
    axes = axes_of({"main": Plain()}, BATCH)
    assert axes.find("main/kernel") is None and axes.of("main/kernel", 2) == (None, None)
    spec = tables.spec_of("x", (4, 4), (None, None), tables.MEGATRON, lowering.abstract_mesh({}))
    assert not any(spec)


def test_fewer_heads_of_keys_than_devices_are_refused_in_one_line():
    """EuroBERT-610m has six heads of keys; it splits over two or three devices, not over four."""
    tower = systems.get("eurobert_610m").towers["main"]
    path, shape = "main/encoder/stack/block/attention/key/kernel", (26, 1152, 6, 64)
    names = axes_of({"main": tower}, BATCH).of(path, 4)
    assert names == (None, "width", "heads", "head")
    for parts in (2, 3):
        mesh = lowering.abstract_mesh({"model": parts})
        spec = tables.spec_of(path, shape, names, tables.table("megatron"), mesh)
        assert spec[2] in ("model", ("model",))
    with pytest.raises(UserError, match="dimension 6 does not divide over mesh axis 'model' of 4"):
        mesh = lowering.abstract_mesh({"model": 4})
        tables.spec_of(path, shape, names, tables.table("megatron"), mesh)


def test_axes_of_another_rank_are_refused():
    with pytest.raises(ValueError, match=r"Wrong.logical_axes gives main/kernel .* has 2 dim"):
        axes_of({"main": Wrong()}, BATCH)


def test_the_outermost_layer_decides_and_a_class_inherits():
    axes = axes_of({"main": Outer()}, BATCH)
    assert axes.declared == {
        "main/layer_0/kernel": ("width", None),
        "main/layer_1/kernel": ("width", None),
        "main/last/kernel": (None, "width"),
    }

    class Again(Inner):
        logical_axes = {"bias": (None,)}

    assert axes_of({"main": Again()}, BATCH).declared == {"main/kernel": (None, "width")}


def test_copies_and_moments_of_a_parameter_have_its_axes():
    axes = ParameterAxes({"main/table": ("vocab", "width")}, [{"*/a": (None, None)}])
    assert axes.of("opt_state/mu/main/table", 2) == ("vocab", "width")
    assert axes.of("recent/main/table", 3) == (None, "vocab", "width")
    assert axes.of("opt_state/row/main/table", 1) == ()
    assert axes.of("lora/main/table/a", 2) == (None, None) and axes.find("main/a/b") is None
