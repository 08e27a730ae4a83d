"""Checkpoint files against the libraries that define them: safetensors, flax.serialization,
huggingface_hub."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from comparing import bits, flax_tree, refused
from flax import serialization

from ptm_jax.convert.files import open_tensors
from ptm_jax.convert.formats import tensors as formats
from ptm_jax.convert.saving import Lazy, write_tensors
from ptm_jax.core.errors import UserError

DTYPES = ["?", "u1", "i1", "i2", "u2", "f2", ml_dtypes.bfloat16, "i4", "u4", "f4", "f8", "i8", "u8"]


def arrays(seed: int = 0) -> dict[str, np.ndarray]:
    """One array of every element type, and odd shapes: a scalar, empty ones, one with a unit
    axis."""
    draw = np.random.default_rng(seed)
    found = {
        f"of.{np.dtype(kind).name}": (4 * draw.standard_normal((5, 3, 2))).astype(kind)
        for kind in DTYPES
    }
    found["of.float32"][0, 0] = np.nan, np.inf
    found["of.bfloat16"][0, 0] = np.nan, -np.inf
    more = {
        "scalar": np.array(3.0, "f4"),
        "none": np.zeros((0, 3), "f4"),
        "é": draw.random((1, 7)).astype("f4"),
    }
    return {**found, **more}


def same(found, expected: dict[str, np.ndarray]) -> None:
    """A table of tensors, or {name: array}, holds the expected names, shapes, types and bits."""
    read = (
        found.__getitem__ if isinstance(found, dict) else functools.partial(found.read, keep=True)
    )
    assert {name: bits(read(name)) for name in found} == {
        name: bits(array) for name, array in expected.items()
    }


def test_every_type_is_read_as_the_library_wrote_it(tmp_path):
    expected = arrays()
    safetensors.numpy.save_file(expected, tmp_path / "model.safetensors")
    tensors = open_tensors(tmp_path)
    assert set(tensors) == set(expected) == set(tensors.names()) and len(tensors) == len(expected)
    assert (
        tensors.files == ("model.safetensors",)
        and tensors.file("é") == tmp_path / "model.safetensors"
    )
    for name, array in expected.items():
        assert name in tensors and tensors.shape(name) == array.shape
        assert bits(tensors.read(name, keep=True)) == bits(array)
        as_float = jax.numpy.issubdtype(array.dtype, np.floating)
        assert bits(tensors.read(name)) == bits(array.astype("f4") if as_float else array), name
    assert tensors.dtype("of.bfloat16") == "BF16" and tensors.dtype("of.int64") == "I64"
    with pytest.raises(UserError, match="no tensor 'scaler'.*'scalar'"):
        tensors.read("scaler")


def test_bfloat16_is_widened_exactly():
    every = np.arange(1 << 16, dtype=np.uint16)
    out = np.empty(every.shape, "f4")
    formats.convert(every.view(ml_dtypes.bfloat16), out)
    number = every.view(ml_dtypes.bfloat16).astype("f4")
    same = ~np.isnan(number)
    assert bits(out[same]) == bits(number[same]) and np.isnan(out[~same]).all()


@pytest.mark.parametrize("piece", [1 << 22, 64])
def test_a_slice_is_that_of_the_whole(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(formats, "_PIECE", piece)
    draw = np.random.default_rng(1)
    whole = {
        "a": draw.random((7, 5, 9)).astype("f4"),
        "b": draw.random((12, 11)).astype("f2"),
        "c": draw.random(40),
    }
    whole["d"] = (10 * draw.random((3, 4, 2, 5))).astype("i4")
    safetensors.numpy.save_file(whole, tmp_path / "model.safetensors")
    (tmp_path / "flax_model.msgpack").write_bytes(
        serialization.msgpack_serialize({k: {"kernel": v} for k, v in whole.items()})
    )
    stored, turned = open_tensors(tmp_path), open_tensors(tmp_path, prefer="flax")
    for _ in range(60):
        name = draw.choice(list(whole))
        array = whole[name] if whole[name].dtype.kind == "i" else whole[name].astype("f4")
        flipped = array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T
        for tensors, key, truth in ((stored, name, array), (turned, f"{name}.weight", flipped)):
            ends = [
                sorted(draw.integers(0, n + 1, 2))
                for n in truth.shape[: draw.integers(0, truth.ndim + 1)]
            ]
            index = tuple(
                slice(None) if draw.random() < 0.3 else slice(int(i), int(j)) for i, j in ends
            )
            assert bits(tensors.read_slice(key, index)) == bits(truth[index])
    assert bits(stored.read_slice("c", (slice(-3, 100),))) == bits(whole["c"][-3:].astype("f4"))
    with pytest.raises(ValueError, match="without steps"):
        stored.read_slice("c", (slice(None, None, 2),))


def test_what_was_read_stays_when_more_is_read(tmp_path):
    """Memory is used again only when nobody holds it."""
    whole = {str(i): np.full((64, 3), i, "f4") for i in range(6)}
    safetensors.numpy.save_file(whole, tmp_path / "model.safetensors")
    tensors = open_tensors(tmp_path)
    kept = [tensors.read(name).T[1:] for name in tensors] + [
        jax.numpy.asarray(tensors.read(name)) for name in tensors
    ]
    tensors.read("0")
    for i, array in enumerate(kept):
        assert (np.asarray(array) == i % 6).all()
    first = tensors.read("1").ctypes.data
    assert tensors.read("2").ctypes.data == first


def test_a_written_file_is_the_librarys_to_the_byte(tmp_path):
    expected = arrays()
    safetensors.numpy.save_file(
        expected, tmp_path / "theirs.safetensors", metadata={"format": "pt"}
    )
    (written,) = write_tensors(tmp_path / "ours", expected.items(), dtype=None)
    assert written.name == "model.safetensors"
    assert written.read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()


def test_shards_are_those_of_the_hub_library(tmp_path):
    from huggingface_hub import split_state_dict_into_shards_factory

    draw = np.random.default_rng(2)
    whole = {
        f"layer.{i}": draw.random((int(draw.integers(1, 60)), 3)).astype("f4") for i in range(40)
    }
    whole["layer.7"] = draw.random((300, 3)).astype("f4")
    theirs = split_state_dict_into_shards_factory(
        whole,
        get_storage_size=lambda a: a.nbytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=2000,
    )
    paths = write_tensors(tmp_path, whole.items(), max_shard_bytes=2000)
    assert [path.name for path in paths] == [
        *theirs.filename_to_tensors,
        "model.safetensors.index.json",
    ]
    index = json.loads(paths[-1].read_text())
    assert index["weight_map"] == theirs.tensor_to_filename
    assert index["metadata"] == {
        **theirs.metadata,
        "total_parameters": sum(a.size for a in whole.values()),
    }
    for path in paths[:-1]:
        same(
            safetensors.numpy.load_file(path),
            {n: whole[n] for n in theirs.filename_to_tensors[path.name]},
        )
    for where in (tmp_path, paths[-1]):
        same(open_tensors(where), whole)


def test_a_new_export_leaves_nothing_of_the_old(tmp_path):
    small, large = {"a": np.ones(3, "f4")}, {str(i): np.full(50, i, "f4") for i in range(9)}
    (tmp_path / "config.json").write_text("{}")
    for tensors, limit in ((small, 100), (large, 250), (large, 450), (small, 100), (large, 250)):
        paths = write_tensors(tmp_path, tensors.items(), max_shard_bytes=limit)
        assert sorted(os.listdir(tmp_path)) == sorted(
            ["config.json", *(path.name for path in paths)]
        )
        assert set(open_tensors(tmp_path)) == set(tensors)


def test_writing_that_fails_leaves_the_old_checkpoint(tmp_path):
    write_tensors(tmp_path, [("a", np.ones(3, "f4"))])
    before = (tmp_path / "model.safetensors").read_bytes()

    def fail():
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write_tensors(tmp_path, [("a", np.zeros(3)), ("b", Lazy((4,), fail))], max_shard_bytes=12)
    assert (
        os.listdir(tmp_path) == ["model.safetensors"]
        and (tmp_path / "model.safetensors").read_bytes() == before
    )
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="could not be written"):
        write_tensors(tmp_path / "file" / "below", [("a", np.ones(3))])


def test_tensors_are_made_when_they_are_written(tmp_path):
    log: list[str] = []

    def make(name):
        return lambda: log.append(name) or np.full((2, 2), len(name), "f8")

    write_tensors(
        tmp_path,
        [("bb", Lazy((2, 2), make("bb"), "f8")), ("a", make("a")), ("j", jax.numpy.ones(3))],
    )
    assert log == ["a", "a", "bb"]
    found = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    assert bits(found["bb"]) == bits(np.full((2, 2), 2, "f4")) and bits(found["j"]) == bits(
        np.ones(3, "f4")
    )


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_what_floating_point_becomes(tmp_path, dtype):
    whole = {
        "f": np.random.default_rng(3).standard_normal(50),
        "i": np.arange(5),
        "inf": np.array([np.inf, np.nan]),
    }
    write_tensors(tmp_path, whole.items(), dtype=dtype)
    tensors = open_tensors(tmp_path)
    assert (
        bits(tensors.read("f", keep=True)) == bits(whole["f"].astype(dtype))
        and tensors.dtype("i") == "I64"
    )
    assert np.isinf(tensors.read("inf")[0]) and np.isnan(tensors.read("inf")[1])


def test_what_cannot_be_written_is_refused(tmp_path):
    for message, tensors in {
        "'big' holds 70000.0, too large for float16": [("big", np.array([1.0, 7e4], "f4"))],
        "'c' is of type complex64": [("c", np.ones(2, "c8"))],
        "__metadata__": [("__metadata__", np.ones(2))],
        "same name": [("a", np.ones(2)), ("a", np.ones(2))],
    }.items():
        with pytest.raises((UserError, ValueError), match=message):
            write_tensors(tmp_path, tensors, dtype="float16")
    assert not os.listdir(tmp_path)


def flat(tree: dict) -> dict[str, np.ndarray]:
    return {
        "/".join(k.key for k in path): leaf
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }


def expected_of(tree: dict) -> dict[str, np.ndarray]:
    """The tensors under torch's names, in its layouts."""
    turned = {"kernel": lambda a: a.transpose(3, 2, 0, 1) if a.ndim == 4 else a.T}
    split = [(*name.rpartition("/"), leaf) for name, leaf in flat(tree).items()]

    def last(name):
        return "weight" if name in ("embedding", "kernel", "scale") else name

    return {
        f"{a}{s}{last(b)}".replace("/", "."): turned.get(b, np.asarray)(leaf)
        for a, s, b, leaf in split
    }


@pytest.mark.parametrize("chunk", [2**30, 40, 7])
def test_flax_files_have_torchs_names_and_layouts(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(
        serialization, "MAX_CHUNK_SIZE", chunk
    )  # arrays above it are cut into pieces
    tree = flax_tree()
    (tmp_path / "flax_model.msgpack").write_bytes(serialization.to_bytes(tree))
    same(open_tensors(tmp_path), expected_of(tree))
    same(open_tensors(tmp_path / "flax_model.msgpack"), expected_of(tree))
    (tmp_path / "flax_model.msgpack").write_bytes(serialization.to_bytes({"params": tree}))
    same(open_tensors(tmp_path), expected_of(tree))


def test_flax_shards_and_flax_safetensors(tmp_path):
    tree = flax_tree(1)
    head = {name: tree[name] for name in ("final_logits_bias", "x")}
    places = {
        "model": "flax_model-00001-of-00002.msgpack",
        "rest": "flax_model-00002-of-00002.msgpack",
    }
    (tmp_path / places["model"]).write_bytes(serialization.to_bytes({"model": tree["model"]}))
    (tmp_path / places["rest"]).write_bytes(serialization.to_bytes(head))
    weight_map = {
        name: places["model" if name.startswith("model/") else "rest"] for name in flat(tree)
    }
    (tmp_path / "flax_model.msgpack.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
    same(open_tensors(tmp_path), expected_of(tree))
    dotted = {name.replace("/", "."): np.asarray(leaf) for name, leaf in flat(tree).items()}
    safetensors.numpy.save_file(dotted, tmp_path / "model.safetensors", metadata={"format": "flax"})
    same(open_tensors(tmp_path), expected_of(tree))
    (tmp_path / places["rest"]).write_bytes(serialization.to_bytes({"x": head["x"]}))
    refused(tmp_path, places["rest"], "'final_logits_bias'", "is not there", prefer="flax")


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_a_flax_model_is_what_transformers_made_of_it(family):
    """Golden files of transformers 4.57.6, see tests/golden/make_flax.py."""
    folder = Path(__file__).parents[1] / "golden" / "flax" / family
    flax, torch = open_tensors(folder, prefer="flax"), open_tensors(folder)
    assert flax.files == ("flax_model.msgpack",) and torch.files == ("model.safetensors",)
    same(flax, {name: torch.read(name) for name in torch})
