"""The mesh and the rule tables: where tensors lie, and errors that come before compilation."""

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from ptm_jax.core import paths, towers
from ptm_jax.core.errors import UserError
from ptm_jax.core.spec.registry import catalogue, discover
from ptm_jax.mesh import rules as tables

discover("ptm_jax.systems")


def mesh(**sizes):
    shape = tuple(sizes.get(name, 1) for name in tables.AXES)
    return AbstractMesh(shape, tables.AXES, axis_types=(AxisType.Auto,) * len(tables.AXES))


def bert_shapes(name="bert_base"):
    ids = jax.ShapeDtypeStruct((2, 16), np.int32)
    return paths.flatten(towers.abstract(catalogue.get(name).towers, {"input_ids": ids}))


def test_megatron_splits_columns_then_rows_and_the_vocabulary():
    shapes = bert_shapes()
    spec = {path: tables.spec_of(path, leaf.shape, tables.MEGATRON, mesh(model=2)) for path, leaf in shapes.items()}
    block = "main/encoder/stack/block"
    assert spec[f"{block}/attention/query/kernel"] == PartitionSpec(None, None, "model", None)
    assert spec[f"{block}/attention/out/kernel"] == PartitionSpec(None, "model", None, None)
    assert spec[f"{block}/ffn/up/kernel"] == PartitionSpec(None, None, "model")
    assert spec[f"{block}/ffn/up/bias"] == PartitionSpec(None, "model")
    assert spec[f"{block}/ffn/down/kernel"] == PartitionSpec(None, "model", None)
    assert all(axis is None for axis in spec[f"{block}/ffn_norm/scale"])


def test_vocabulary_is_split_where_it_divides():
    shape = (30528, 768)
    assert tables.spec_of("main/encoder/embed/token", shape, tables.MEGATRON, mesh(model=8))[0] == "model"


@pytest.mark.parametrize("table", ["fsdp", "megatron", "megatron_fsdp"])
def test_nearly_all_bytes_of_gpt2_are_split(table):
    shapes = {k: v for k, v in bert_shapes("gpt2_medium").items() if "token" not in k and "position" not in k}
    on = mesh(model=4) if table == "megatron" else mesh(fsdp=4) if table == "fsdp" else mesh(fsdp=2, model=2)
    split = whole = 0
    for path, leaf in shapes.items():
        size = int(np.prod(leaf.shape))
        axes = [a for a in tables.spec_of(path, leaf.shape, tables.table(table), on) if a]
        split, whole = split + (size if axes else 0), whole + size
    assert split / whole > 0.99


def test_optimizer_state_lies_with_its_parameter():
    tree = {"mu": {"main": {"x": {"up": {"kernel": jax.ShapeDtypeStruct((2, 8, 16), np.float32)}}}}}
    one = tables.make_mesh({"data": 1}, jax.devices()[:1])
    placed = tables.place(tree, tables.MEGATRON, one)
    assert placed["mu"]["main"]["x"]["up"]["kernel"].spec == PartitionSpec(None, None, "model")


def test_a_factored_moment_of_size_one_is_not_split():
    assert tables.spec_of("row/x/up/kernel", (8, 1), tables.MEGATRON, mesh(model=4)) == PartitionSpec(None, None)


def test_indivisible_size_names_tensor_axis_and_sizes():
    with pytest.raises(UserError, match=r"main/encoder/embed/token \(30522, 768\).*30522.*'model' of 4"):
        tables.spec_of("main/encoder/embed/token", (30522, 768), tables.MEGATRON, mesh(model=4))


def test_one_axis_twice_is_refused():
    rules = (("width", "model"), ("hidden", "model"))
    with pytest.raises(UserError, match="two dimensions of x/up/kernel"):
        tables.spec_of("x/up/kernel", (8, 16), rules, mesh(model=4))


@pytest.mark.parametrize(
    ("sizes", "words"), [({"data": 7}, "needs 7 devices"), ({"dat": 1}, "Did you mean 'data'"), ({"model": 3}, "model=3")]
)
def test_impossible_meshes_are_refused(sizes, words):
    with pytest.raises(UserError, match=words):
        tables.make_mesh(sizes, jax.devices()[:1])


def test_unknown_table_lists_what_there_is():
    with pytest.raises(UserError, match="megatron_fsdp"):
        tables.table("megatorn")


def test_a_batch_that_does_not_divide_is_refused():
    batch = {"input_ids": np.zeros((6, 4), np.int32)}
    with pytest.raises(UserError, match="6 rows does not divide"):
        tables.check_batch(6, mesh(data=4))
    assert tables.place_batch(batch, tables.make_mesh({"data": 1}, jax.devices()[:1]))["input_ids"].shape == (6, 4)
