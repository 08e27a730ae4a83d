"""Files that are broken, or lie: one line that names the file and the tensor, and nothing is
run."""

from __future__ import annotations

import json
import math
import struct

import jax
import msgpack
import numpy as np
import pytest
import safetensors.numpy
from comparing import bits, flax_tree, refused
from flax import serialization
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ptm_jax.convert.files import open_tensors
from ptm_jax.convert.saving import write_tensors
from ptm_jax.core.errors import UserError


def raw(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    """The bytes of a safetensors file with that header, true or not."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def one(shape=(2,), offsets=(0, 8), dtype="F32", **more) -> dict:
    return {"w.x": {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}}


W = "tensor 'w.x'"
TWO = {**one(), "v": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}
HOLE = {**one(), "v": {"dtype": "F32", "shape": [1], "data_offsets": [12, 16]}}
LIES = {
    "empty": (b"", ["0 bytes"]),
    "short": (b"\x10\0\0", ["3 bytes"]),
    "huge header": (raw(one(), bytes(8), 1 << 62), ["header claims 4,611,686,018,427,387,904"]),
    "negative header": (raw(one(), bytes(8), (1 << 64) - 1), ["header claims"]),
    "header past the end": (raw(one(), b"", 500), ["header claims 500"]),
    "not JSON": (raw(b'{"w.x": ', b""), ["not JSON"]),
    "not UTF-8": (raw(b'{"\xff": 1}', b""), ["not JSON"]),
    "a list": (raw([1, 2]), ["not JSON"]),
    "a number": (raw(b"7"), ["not JSON"]),
    "no header": (raw(b""), ["not JSON"]),
    "endless nesting": (raw(b'{"a":' * 50000 + b"1" + b"}" * 50000), ["not JSON"]),
    "endless number": (raw(b'{"w.x":' + b"9" * 10000 + b"}"), ["not JSON"]),
    "a name twice": (
        raw(b'{"w.x":' + json.dumps(one()["w.x"]).encode() + b',"w.x":{}}', bytes(8)),
        ["'w.x' twice"],
    ),
    "a field twice": (raw(b'{"w.x":{"dtype":"F32","dtype":"F16"}}'), ["'dtype' twice"]),
    "lone surrogate": (raw(b'{"\\ud800":{}}'), ["not Unicode"]),
    "no table": (raw({"w.x": 3}), [W, "lacks"]),
    "no shape": (raw({"w.x": {"dtype": "F32", "data_offsets": [0, 8]}}, bytes(8)), [W, "lacks"]),
    "unknown type": (raw(one(dtype="F12"), bytes(8)), [W, "'F12'", "BF16"]),
    "type is a list": (raw(one(dtype=["F32"]), bytes(8)), [W, "['F32']"]),
    "negative size": (raw(one([-2]), bytes(8)), [W, "[-2]"]),
    "fractional size": (raw(one([2.0]), bytes(8)), [W, "[2.0]"]),
    "true size": (raw(one([True, 2]), bytes(8)), [W, "[True, 2]"]),
    "shape is a text": (
        raw({"w.x": {"dtype": "F32", "shape": "2", "data_offsets": [0, 8]}}, bytes(8)),
        [W, "shape"],
    ),
    "too many sizes": (raw(one([1] * 70 + [2]), bytes(8)), [W, "do not go together"]),
    "absurd size": (raw(one([1 << 70]), bytes(8)), [W, "do not go together"]),
    "absurd empty size": (raw(one([0, 1 << 70], (0, 0))), [W, "do not go together"]),
    "wrap around": (raw(one([1 << 32, 1 << 32, 2], (0, 0))), [W, "do not go together"]),
    "size lies": (raw(one([3]), bytes(8)), [W, "do not go together"]),
    "negative offset": (raw(one(offsets=[-8, 0]), bytes(8)), [W, "data_offsets"]),
    "reversed offsets": (raw(one(offsets=[8, 0]), bytes(8)), [W, "data_offsets"]),
    "one offset": (raw(one(offsets=[8]), bytes(8)), [W, "data_offsets"]),
    "beyond the end": (raw(one(offsets=[8, 16]), bytes(8)), [W, "ends at byte 16"]),
    "truncated": (raw(one(), bytes(7)), [W, "truncated"]),
    "overlap": (raw(TWO, bytes(12)), ["tensor 'v' overlaps"]),
    "hole": (raw(HOLE, bytes(16)), ["tensor 'v' has bytes before it"]),
    "data behind": (raw(one(), bytes(12)), ["4 bytes after its last tensor"]),
    "odd metadata": (raw({"__metadata__": {"format": 3}}), ["__metadata__"]),
    "a pickle": (b"\x80\x02}q\x00." + bytes(80), ["pickle under another name"]),
    "a zip": (b"PK\x03\x04" + bytes(80), ["pickle under another name"]),
    "TensorFlow's": (raw({"__metadata__": {"format": "tf"}, **one()}, bytes(8)), ["TensorFlow"]),
    "a long wild name": (raw({"\n" + 5000 * "x": 3}), ["'\\nxxx", "lacks"]),
}


@pytest.mark.parametrize("low", [b"\x80\x02", b"\x80\x03", b"\x80\x04", b"PK"])
def test_a_header_whose_length_looks_like_a_pickle(tmp_path, low):
    """The first bytes of a safetensors file are a length; only what follows them decides what the
    file is."""
    length = int.from_bytes(low, "little")
    text = json.dumps(one())
    path = tmp_path / "model.safetensors"
    values = np.array([1.5, -2.0], np.float32)
    path.write_bytes(raw(text.ljust(length).encode(), values.tobytes()))
    assert path.read_bytes()[:2] == low
    assert np.array_equal(safetensors.numpy.load_file(path)["w.x"], values)
    assert np.array_equal(open_tensors(tmp_path).read("w.x"), values)
    path.write_bytes(raw(text.ljust(length).encode())[:-100])
    refused(tmp_path, "truncated")


def test_a_file_that_changes_after_it_was_opened_is_noticed(tmp_path):
    (path,) = write_tensors(tmp_path, [("w.x", np.ones((100, 7)))])
    tensors = open_tensors(tmp_path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(UserError, match="model.safetensors: has changed"):
        tensors.read("w.x")
    path.unlink()
    with pytest.raises(UserError, match="model.safetensors: cannot be read"):
        tensors.read("w.x")


def packed(shape=(2,), dtype="float32", data=bytes(8), code=1) -> msgpack.ExtType:
    return msgpack.ExtType(code, msgpack.packb((shape, dtype, data)))


def chunked(shape, chunks) -> dict:
    return {"__msgpack_chunked_array__": True, "shape": shape, "chunks": chunks}


PACKS = {
    "empty": (b"", ["empty"]),
    "a list": (msgpack.packb([1, 2]), ["no map"]),
    "a number": (msgpack.packb(3), ["no map"]),
    "bytes behind": (msgpack.packb({"a": {"b": packed()}}) + b"\0", ["1 bytes after its end"]),
    "an unused byte": (b"\x81\xa1a\xc1", ["begins no msgpack value"]),
    "huge map": (b"\xdf\xff\xff\xff\xff", ["4,294,967,295 entries"]),
    "huge list": (b"\x81\xa1a\xdd\xff\xff\xff\xff", ["'a'", "4,294,967,295 entries"]),
    "huge bytes": (b"\x81\xa1a\xc6\xff\xff\xff\xff", ["'a'", "4,294,967,295 bytes"]),
    "huge text": (b"\x81\xdb\xff\xff\xff\xff", ["4,294,967,295 bytes"]),
    "huge array": (
        b"\x81\xa1a\xc9\xff\xff\xff\xff\x01" + packed().data,
        ["'a'", "not (shape, type, bytes)"],
    ),
    "nesting": (b"\x81\xa1a" * 500 + b"\x01", ["nested deeper"]),
    "lists of lists": (b"\x81\xa1a" + b"\x91" * 5000, ["nested deeper"]),
    "key is a number": (msgpack.packb({1: packed()}), ["no text"]),
    "key is a list": (b"\x81\x91\x01\x01", ["nested deeper"]),
    "key is not UTF-8": (b"\x81\xa1\xff\x01", ["not UTF-8"]),
    "key twice": (b"\x82\xa1a\x01\xa1a\x01", ["'a' is there twice"]),
    "other extension": (
        msgpack.packb({"a": {"b": msgpack.ExtType(42, b"os.system")}}),
        ["'a.b'", "extension type 42"],
    ),
    "complex number": (
        msgpack.packb({"a": msgpack.ExtType(2, msgpack.packb((1.0, 2.0)))}),
        ["'a'", "extension type 2"],
    ),
    "timestamp": (msgpack.packb({"a": msgpack.Timestamp(1)}), ["'a'", "extension type -1"]),
    "no array": (
        msgpack.packb({"a": msgpack.ExtType(1, b"\x01")}),
        ["'a'", "not (shape, type, bytes)"],
    ),
    "size lies": (msgpack.packb({"a": {"w": packed((3,))}}), ["'a.w'", "not the size"]),
    "negative size": (msgpack.packb({"a": packed((-2,))}), ["'a'", "list of sizes"]),
    "absurd size": (msgpack.packb({"a": packed((1 << 63, 0), data=b"")}), ["'a'", "not the size"]),
    "unknown type": (msgpack.packb({"a": packed(dtype="object")}), ["'a'", "'object'"]),
    "structured type": (msgpack.packb({"a": packed(dtype="V8")}), ["'a'", "'V8'"]),
    "text leaf": (msgpack.packb({"a": {"b": "text"}}), ["'a.b'", "neither"]),
    "none leaf": (msgpack.packb({"a": None}), ["'a'", "neither"]),
    "a name twice": (
        msgpack.packb({"a": {"scale": packed(), "embedding": packed()}}),
        ["'a.weight'", "twice"],
    ),
    "no chunks": (msgpack.packb({"a": chunked({"0": 2}, {})}), ["'a'", "incomplete"]),
    "chunks of another size": (
        msgpack.packb({"a": chunked({"0": 5}, {"0": packed(), "1": packed()})}),
        ["'a'", "[5]"],
    ),
    "a chunk missing": (
        msgpack.packb({"a": chunked({"0": 4}, {"0": packed(), "2": packed()})}),
        ["'a'", "incomplete"],
    ),
    "chunks of two types": (
        msgpack.packb({"a": chunked({"0": 4}, {"0": packed(), "1": packed(dtype="int32")})}),
        ["'a'"],
    ),
}


FILES = {"model.safetensors": LIES, "flax_model.msgpack": PACKS}


@pytest.mark.parametrize(
    ("name", "lie"), [(name, lie) for name, lies in FILES.items() for lie in lies]
)
def test_a_file_that_lies_gets_one_line(tmp_path, name, lie):
    content, words = FILES[name][lie]
    (tmp_path / name).write_bytes(content)
    refused(tmp_path, str(tmp_path / name), *words)


def test_every_truncation_of_a_flax_file_is_refused(tmp_path):
    content = serialization.to_bytes(flax_tree())
    path = tmp_path / "flax_model.msgpack"
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        refused(path, str(path))


EDIT = st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255))
FUZZ = settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
SMALL = {
    "a.b": np.arange(6, dtype="f4").reshape(2, 3),
    "c": np.arange(3, dtype="f2"),
    "d": np.arange(2),
}


def read_or_refused(path, content: bytes, whole: bytes) -> list | None:
    """[(name, bits)] of a damaged file as we read it; None if it is refused, which the whole one is
    not."""
    path.write_bytes(content)
    try:
        tensors = open_tensors(path)
    except UserError as error:
        assert "\n" not in str(error) and content != whole
        return None
    return [(name, bits(tensors.read(name, keep=True))) for name in tensors]


def damage(content: bytes, edits: list[tuple[float, int]], keep: float, within: int) -> bytes:
    """`content` with bytes replaced among its first `within`, and only a part of it kept."""
    damaged = bytearray(content)
    for where, value in edits:
        damaged[math.floor(where * within)] = value
    return bytes(damaged[: math.ceil(keep * len(damaged))])


@pytest.mark.full
@FUZZ
@given(st.lists(EDIT, max_size=4), st.one_of(st.just(1.0), st.floats(0, 1)))
def test_a_damaged_file_is_read_as_its_library_does_or_refused(tmp_path, edits, keep):
    whole = safetensors.numpy.save(SMALL)
    content = damage(whole, edits, keep, len(whole) - 46)
    found = read_or_refused(tmp_path / "model.safetensors", content, whole)
    if found is not None:
        assert dict(found) == {
            name: bits(array) for name, array in safetensors.numpy.load(content).items()
        }
    whole = serialization.to_bytes(SMALL)
    content = damage(whole, edits, keep, len(whole))
    found = read_or_refused(tmp_path / "flax_model.msgpack", content, whole)
    if found is not None:
        leaves = jax.tree.leaves(serialization.msgpack_restore(content))
        assert sorted(value for _, value in found) == sorted(
            bits(np.asarray(leaf)) for leaf in leaves
        )
