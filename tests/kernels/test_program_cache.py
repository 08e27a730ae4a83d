"""Documents of the cache of programs: a damaged one is absent."""

import gzip
import json
import types

import numpy as np
import pytest

from ptm_jax.core import cache
from ptm_jax.kernels import program_cache

DOCUMENT = {"text": "HloModule step" * 20, "needs": 12345, "limit": None, "whole": True}


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("PTM_CACHE", str(tmp_path))
    program_cache.write("plan", DOCUMENT)
    assert program_cache.read("plan") == DOCUMENT
    return program_cache.folder() / "figures" / "plan.json.gz"


def test_a_damaged_document_is_absent(path):
    """Of 300 bytes and lengths that were changed, none raises, and none is taken for the document.
    Only fields of gzip's head that say nothing of the content are not noticed."""
    whole, draw, read = path.read_bytes(), np.random.default_rng(0), 0
    for number in range(300):
        damaged = bytearray(whole)
        if number % 3:
            damaged[draw.integers(len(whole))] = draw.integers(256)
        else:
            damaged = damaged[: draw.integers(len(whole))]
        path.write_bytes(bytes(damaged))
        document = program_cache.read("plan")
        assert document in (None, DOCUMENT)
        read += document is not None
    assert read < 30


@pytest.mark.parametrize(
    "content",
    [
        [], {}, None, 3, {"document": DOCUMENT}, {"sha256": "0" * 64, "document": DOCUMENT},
        DOCUMENT,
    ],
)  # fmt: skip
def test_a_document_without_its_hash_is_absent(path, content):
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    assert program_cache.read("plan") is None


def test_what_expands_or_is_nested_is_absent(path, monkeypatch):
    monkeypatch.setattr(cache, "LARGEST_JSON", 1000)
    path.write_bytes(gzip.compress(b" " * 100_000 + b"{}"))
    assert program_cache.read("plan") is None
    path.write_bytes(gzip.compress(b"[" * 990))
    assert program_cache.read("plan") is None
    path.unlink()
    path.mkdir()
    assert program_cache.read("plan") is None


@pytest.mark.parametrize(
    "environment, limit", [({}, 0.1), ({"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "5"}, None)]
)
def test_programs_of_small_models_are_stored(monkeypatch, tmp_path, environment, limit):
    """The user's own limit in the environment stays."""
    monkeypatch.delenv(program_cache.LIMIT.upper(), raising=False)
    monkeypatch.setenv("PTM_CACHE", str(tmp_path))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    changes = {}
    config = types.SimpleNamespace(jax_compilation_cache_dir=None, update=changes.__setitem__)
    monkeypatch.setattr(program_cache, "jax", types.SimpleNamespace(config=config))
    program_cache.use()
    assert changes.pop("jax_compilation_cache_dir") == str(program_cache.folder())
    assert changes.get(program_cache.LIMIT) == limit
