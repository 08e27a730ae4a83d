"""JSON files of others: fields of other types, and names of files that lead elsewhere."""

import json
import os
import zlib

import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import check_fields, inside
from ptm_jax.data.corpora import store
from ptm_jax.data.tokenizers import saved
from ptm_jax.training import sealing, workdirs
from ptm_jax.training.logs import logs
from support.limits import cpu_limit

ODD = (None, 3, -1, 10**30, 1.5, True, "x", "\x1b[2J", [], [1], {}, {"a": 1})
DEEP = "[" * 100_000


def test_fields_have_their_types(tmp_path):
    fields = {"a": int, "b": {"c": (str, dict)}, "d?": list}
    check_fields(tmp_path, {"a": 1, "b": {"c": "x"}, "more": 1}, fields)
    check_fields(tmp_path, {"a": 1, "b": {"c": {}}, "d": None}, fields)
    for value, line in (
        ([], "the whole is []; expected an object"),
        ({"a": True, "b": {"c": ""}}, "a is True; expected a whole number"),
        ({"a": 1, "b": 3}, "b is 3; expected an object"),
        ({"a": 1, "b": {}}, "b.c is None; expected a text or an object"),
        ({"a": 1, "b": {"c": "\x1b"}, "d": {}}, "d is {}; expected a list"),
    ):
        with pytest.raises(UserError) as error:
            check_fields(tmp_path, value, fields)
        assert str(error.value) == f"{tmp_path}: {line}"


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../x", "a/../../x", "a\0b", "", "a" * 2000, 3, None, []]
)
def test_a_name_that_leads_elsewhere(tmp_path, name):
    with pytest.raises(UserError, match="names the file"):
        inside(tmp_path, name, tmp_path / "list")
    assert inside(tmp_path, "a/b.bin", tmp_path) == tmp_path / "a/b.bin"


def changed(value, depth=3):
    """(copy with one part changed) for each part of a JSON value and each odd value."""
    for key in value if isinstance(value, dict) else range(len(value)):
        for odd in ODD:
            copy = json.loads(json.dumps(value))
            copy[key] = odd
            yield copy
        if depth and isinstance(value[key], dict | list):
            for part in changed(value[key], depth - 1):
                copy = json.loads(json.dumps(value))
                copy[key] = part
                yield copy


def each(path, value, read, seal=lambda value: value):
    """Reads a file with each part changed; the number that were refused, in one line."""
    refused = 0
    for document in [*changed(value), *ODD]:
        path.write_text(json.dumps(seal(document)))
        try:
            read()
        except UserError as error:
            refused += 1
            assert "\n" not in str(error) and len(str(error)) < 700
    for text in (DEEP, "", "{", "\ud800".encode("utf8", "surrogatepass").decode("latin-1")):
        path.write_text(text)
        with cpu_limit(20), pytest.raises(UserError):
            read()
    path.unlink()
    os.mkfifo(path)
    with cpu_limit(20), pytest.raises(UserError):
        read()
    return refused


def test_a_record_of_a_run(tmp_path):
    tower = {"kind": "Model", "encoder": {}}
    value = {
        "config": {"system": {"kind": "System", "name": "a", "towers": {"main": tower}}},
        "corpus": {"digest": "a", "tokenizer": "b", "vocab": {"size": 3}, "path": "c"},
        "command": "ptm train",
    }
    path = tmp_path / "config.json"

    def read():
        if path.is_fifo():
            raise UserError("no regular file is no record")
        workdirs.read(tmp_path, corpus=True)

    assert each(path, value, read) > 90


def test_a_manifest_of_a_corpus(tmp_path):
    (tmp_path / "a").write_bytes(b"1234")
    split = {"documents": 1, "sentences": 1, "tokens": 1, "blocks": 1}
    split["shards"] = [{"file": "a", "bytes": 4, "blocks": 1}]
    value = {
        "format": store.FORMAT, "vocab": {"size": 3}, "tokenizer": {"hash": "a", "kind": "word"},
        "splits": {"train": split, "heldout": split},
    }  # fmt: skip
    path = tmp_path / "manifest.json"

    def sealed(value):
        return {**value, "digest": store.digest(value)} if isinstance(value, dict) else value

    path.write_text(json.dumps(sealed(value)))
    assert store.open_corpus(tmp_path).size()["tokens"] == 1
    assert each(path, value, lambda: store.open_corpus(tmp_path), sealed) > 150


def test_a_record_of_a_checkpoint(tmp_path):
    (tmp_path / "a").write_bytes(b"1234")
    value = {
        "step": 1, "meta": {"position": {"phase": 0}}, "tree": {"params/a": [[2], "float32"]},
        "files": {"a": [4, zlib.crc32(b"1234")]},
    }  # fmt: skip

    def read():
        try:
            sealing.verify(tmp_path)
        except sealing.Damaged as error:
            raise UserError(str(error)) from None

    def sealed(value):
        return {"crc32": zlib.crc32(json.dumps(value, sort_keys=True).encode()), "body": value}

    (tmp_path / "record.json").write_text(json.dumps(sealed(value)))
    read()
    assert each(tmp_path / "record.json", value, read, sealed) > 60


def test_facts_of_a_tokenizer(tmp_path):
    value = {"family": "bert", "files": ["../../etc/passwd"], "rows": 3, "hash": "a"}
    assert each(tmp_path / "tokenizer_spec.json", value, lambda: saved.load(tmp_path)) > 50


def test_lines_of_a_log(tmp_path, capsys):
    line = {"step": 1, "split": "train", "values": {"loss": 1.0}, "tokens": 1, "seconds": 1.0}
    texts = [json.dumps(value) for value in [*changed(line), *ODD]] + [DEEP, "\0" * 100, "\x80"]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*texts, json.dumps(line)]) + "\n")
    with cpu_limit(20):
        lines = list(logs.read(tmp_path))
    assert lines[-1] == line and len(lines) < len(texts) / 2
    for one in lines:
        assert type(one["step"]) is int and type(one["split"]) is str
        assert all(type(value) in (int, float, type(None)) for value in one["values"].values())
    assert "is not readable and left out" in capsys.readouterr().err
