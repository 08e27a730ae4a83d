"""Which file of a directory is read, and what an index may say."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from comparing import refused
from flax import serialization

from ptm_jax.convert.files import open_tensors


def shard(folder: Path, name: str, **tensors: np.ndarray) -> None:
    safetensors.numpy.save_file(tensors, folder / name)


def index(folder: Path, **places: str) -> Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    return path


ONE = np.ones(2, "f4")


def test_the_first_format_is_read_and_another_on_demand(tmp_path):
    (tmp_path / "flax_model.msgpack").write_bytes(serialization.to_bytes({"flax": ONE}))
    shard(tmp_path, "s.safetensors", sharded=ONE)
    (tmp_path / "pytorch_model.bin").write_bytes(b"not looked at")
    assert open_tensors(tmp_path).names() == ("flax",)
    index(tmp_path, sharded="s.safetensors")
    assert open_tensors(tmp_path).names() == ("sharded",)
    shard(tmp_path, "model.safetensors", single=ONE)
    assert open_tensors(tmp_path).names() == ("single",)
    assert open_tensors(tmp_path, prefer="flax").names() == ("flax",)
    assert open_tensors(tmp_path / "s.safetensors").names() == ("sharded",)
    refused(tmp_path, "pytorch_model.bin", "--allow-pickle", prefer="pickle")
    with pytest.raises(ValueError, match="prefer is 'h5'"):
        open_tensors(tmp_path, prefer="h5")


def test_what_is_no_checkpoint_is_refused(tmp_path):
    wanted = "looked for model.safetensors, model.safetensors.index.json, flax_model.msgpack"
    assert "pytorch_model.bin" not in refused(tmp_path, wanted, "there is nothing")
    assert "pytorch_model.bin" in refused(tmp_path, allow_pickle=True)
    (tmp_path / "tf_model.h5").write_bytes(b"")
    refused(tmp_path, "'tf_model.h5'", "not read")
    refused(tmp_path / "tf_model.h5", "is not a checkpoint", ".safetensors")
    refused(tmp_path / "nowhere", "no such directory")
    (tmp_path / "model.safetensors").mkdir()
    refused(tmp_path, "not a regular file")
    (tmp_path / "model.safetensors").rmdir()
    os.mkfifo(tmp_path / "model.safetensors")
    refused(tmp_path, "not a regular file")


def test_extra_tensors_of_shards_are_shown(tmp_path):
    shard(tmp_path, "a.safetensors", a=ONE, both=ONE, extra=ONE)
    shard(tmp_path, "b.safetensors", b=ONE, both=2 * ONE)
    index(tmp_path, a="a.safetensors", b="b.safetensors", both="b.safetensors")
    tensors = open_tensors(tmp_path)
    assert set(tensors) == {"a", "b", "both", "extra"} and tensors.files == (
        "a.safetensors",
        "b.safetensors",
    )
    assert (tensors.read("both") == 2).all()
    index(tmp_path, a="a.safetensors", b="b.safetensors")
    refused(tmp_path, "b.safetensors", "'both'", "a.safetensors", "which counts")


OUTSIDE = [
    "../x.safetensors",
    "/etc/passwd",
    "sub/x.safetensors",
    "..",
    ".",
    "",
    "a\\b.safetensors",
    "C:x.safetensors",
]


@pytest.mark.parametrize("name", [*OUTSIDE, "x\0.safetensors"])
def test_a_shard_lies_beside_its_index(tmp_path, name):
    (tmp_path / "in" / "sub").mkdir(parents=True)
    shard(tmp_path, "x.safetensors", w=ONE)
    shard(tmp_path / "in" / "sub", "x.safetensors", w=ONE)
    path = index(tmp_path / "in", w=name)
    refused(tmp_path / "in", str(path), "tensor 'w'", "not a file beside the index")


def test_a_shard_does_not_link_out_of_its_directory(tmp_path):
    repo, outside = tmp_path / "models--x", tmp_path / "secret.safetensors"
    for folder in (repo / "snapshots" / "abc", repo / "blobs"):
        folder.mkdir(parents=True)
    shard(tmp_path, "secret.safetensors", w=ONE)
    shard(repo / "blobs", "1234", w=ONE)
    snapshot = repo / "snapshots" / "abc"
    index(snapshot, w="x.safetensors")
    (snapshot / "x.safetensors").symlink_to(outside)
    refused(snapshot, "x.safetensors", "outside its directory")
    (snapshot / "x.safetensors").unlink()
    (snapshot / "x.safetensors").symlink_to("../../blobs/1234")  # as in the Hub's cache
    assert open_tensors(snapshot).names() == ("w",)
    (tmp_path / "linked").symlink_to(snapshot)
    assert open_tensors(tmp_path / "linked").names() == ("w",)
    (repo / "blobs" / "1234").unlink()
    refused(snapshot, "x.safetensors", "cannot be read")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["not JSON"]),
        (b"[]", ["no weight_map"]),
        (b'{"weight_map": {}}', ["no weight_map"]),
        (b'{"weight_map": {"w": 3}}', ["no weight_map"]),
        (b'{"weight_map": {"w": "x.safetensors", "w": "y.safetensors"}}', ["'w' twice"]),
        (
            b'{"weight_map": {"w": "gone.safetensors"}}',
            ["tensor 'w'", "'gone.safetensors'", "missing"],
        ),
        (b'{"weight_map": {"v": "x.safetensors"}}', ["x.safetensors", "tensor 'v' is not there"]),
        (b'{"weight_map": {"w": "x.bin"}}', ["tensor 'w'", "'x.bin'", "format"]),
        (
            b'{"weight_map": {"w": "x.safetensors", "v": "torn.safetensors"}}',
            ["torn.safetensors", "truncated"],
        ),
    ],
)
def test_an_index_that_lies_gets_one_line(tmp_path, content, words):
    shard(tmp_path, "x.safetensors", w=ONE)
    (tmp_path / "torn.safetensors").write_bytes((tmp_path / "x.safetensors").read_bytes()[:-1])
    (tmp_path / "x.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    (tmp_path / "model.safetensors.index.json").write_bytes(content)
    refused(tmp_path, *words, allow_pickle=True)


def test_a_pickle_is_refused_and_torch_is_not_needed(tmp_path, monkeypatch):
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch ran'\ntR.")
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.chdir(tmp_path)
    refused(tmp_path, "pytorch_model.bin", "can hold code", "--allow-pickle")
    refused(tmp_path, "pytorch_model.bin", "wants to run os.system", allow_pickle=True)
    assert os.listdir(tmp_path) == ["pytorch_model.bin"]
