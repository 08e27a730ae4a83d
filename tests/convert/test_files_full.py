"""Checkpoint files with torch at hand."""

from __future__ import annotations

import json
import os

import pytest
from comparing import bits, refused

from benchmarks import streaming
from ptm_jax.convert.files import open_tensors
from ptm_jax.convert.saving import write_tensors
from ptm_jax.core.errors import UserError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.full


def state() -> dict:
    """Tensors of every type, one that shares memory with another, one that is transposed."""
    draw = torch.Generator().manual_seed(0)
    kinds = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64".split()
    found = {
        f"of.{kind}": (4 * torch.randn(5, 3, generator=draw)).to(getattr(torch, kind))
        for kind in kinds
    }
    found["turned"] = torch.randn(4, 6, generator=draw).T
    return {
        **found,
        "tied": found["of.float32"],
        "part": found["of.float32"][1:3],
        "scalar": torch.tensor(2.0),
    }


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_of_tensors_is_read_on_demand(tmp_path, zipped):
    tensors = state()
    torch.save(tensors, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    refused(tmp_path, "pytorch_model.bin", "--allow-pickle")
    found = open_tensors(tmp_path, allow_pickle=True)
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        as_float = tensor.float().numpy() if tensor.is_floating_point() else tensor.numpy()
        assert bits(found.read(name)) == bits(as_float), name
        kept = found.read(name, keep=True)
        assert kept.shape == tuple(tensor.shape) and kept.dtype.name == str(
            tensor.dtype
        ).removeprefix("torch.")
        assert bits(kept.astype("f8")) == bits(tensor.double().numpy())
        if tensor.ndim:
            assert bits(found.read_slice(name, (slice(1, 2),))) == bits(as_float[1:2])


def test_shards_of_pickles(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "pytorch_model-00001-of-00002.bin")
    torch.save({"b": torch.zeros(3)}, tmp_path / "pytorch_model-00002-of-00002.bin")
    places = {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    refused(tmp_path, "--allow-pickle")
    assert set(open_tensors(tmp_path, allow_pickle=True)) == {"a", "b"}
    torch.save({}, tmp_path / "pytorch_model-00002-of-00002.bin")
    refused(
        tmp_path, "pytorch_model-00002-of-00002.bin", "tensor 'b' is not there", allow_pickle=True
    )


class Hostile:
    """A pickle of it calls what it was given."""

    def __init__(self, call, *given):
        self.call, self.given = call, given

    def __reduce__(self):
        return self.call, self.given


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("call", ["os", "builtins", "nested"])
def test_a_pickle_with_code_runs_nothing(tmp_path, zipped, call):
    trace = tmp_path / "ran"
    code = {
        "os": Hostile(os.mkdir, str(trace)),
        "builtins": Hostile(eval, f"open({str(trace)!r}, 'w')"),
    }.get(call)
    content = {
        "w": torch.ones(2),
        "x": {"deep": [Hostile(os.mkdir, str(trace))]} if code is None else code,
    }
    folder = tmp_path / "model"
    folder.mkdir()
    torch.save(content, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    refused(folder, "--allow-pickle")
    refused(
        folder,
        "pytorch_model.bin",
        "nothing was run",
        "eval" if call == "builtins" else "mkdir",
        allow_pickle=True,
    )
    assert not trace.exists()


def test_a_broken_pickle_gets_one_line(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    torch.save(state(), path)
    truncated = [path.read_bytes()[:length] for length in (10, 500, -30, -1)]
    for content in (
        b"",
        b"not a pickle",
        b"PK\x03\x04 half a zip",
        b"\x80\x02}q\x00X\xff\xff\xff\x7f",
        *truncated,
    ):
        path.write_bytes(content)
        refused(tmp_path, str(path), allow_pickle=True)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([torch.ones(2)], ["no table of named tensors"]),
        ({3: torch.ones(2)}, ["no table of named tensors"]),
        ({"model": {"w": torch.ones(2)}}, ["tensor 'model' is no tensor but a dict"]),
        ({"w": torch.ones(2, dtype=torch.complex64)}, ["tensor 'w'", "complex64"]),
        ({"w": torch.eye(2).to_sparse()}, ["tensor 'w'", "sparse"]),
    ],
)
def test_a_pickle_of_other_things_gets_one_line(tmp_path, content, words):
    torch.save(content, tmp_path / "pytorch_model.bin")
    refused(tmp_path, "pytorch_model.bin", *words, allow_pickle=True)


@pytest.mark.parametrize(
    ("shard", "limit"), [("1KB", 1000), ("20KB", 20000), ("5GB", 5_000_000_000)]
)
def test_files_are_those_of_save_pretrained(tmp_path, shard, limit):
    transformers = pytest.importorskip("transformers")
    sizes = dict(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
    )
    model = transformers.BertModel(transformers.BertConfig(**sizes, max_position_embeddings=20))
    model.save_pretrained(tmp_path / "theirs", max_shard_size=shard)
    paths = write_tensors(
        tmp_path / "ours",
        [(n, t.numpy()) for n, t in model.state_dict().items()],
        max_shard_bytes=limit,
    )
    theirs = sorted(
        path.name for path in (tmp_path / "theirs").iterdir() if path.name.startswith("model")
    )
    assert sorted(path.name for path in paths) == theirs
    for path in paths:
        assert path.read_bytes() == (tmp_path / "theirs" / path.name).read_bytes()


def test_a_file_cut_short_imports_nothing(tmp_path):
    streaming.write(tmp_path, width=64, layers=2, vocab=64, shard=100_000)
    last = sorted(tmp_path.glob("*.safetensors"))[-1]
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(UserError, match=f"{last.name}: tensor '.*truncated"):
        open_tensors(tmp_path)
