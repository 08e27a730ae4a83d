"""Where a checkpoint lies."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ptm_jax.convert import hub
from ptm_jax.core.errors import UserError


def test_a_path_is_what_it_is_and_nonsense_is_no_name(tmp_path):
    assert hub.locate(tmp_path) == tmp_path
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert hub.locate(str(tmp_path / "model.safetensors")) == tmp_path / "model.safetensors"
    for name in ("../x", "a/b/c", "/nowhere/at/all", "", "org/", "a..b", "-x", "a b", "x\n", "http://x"):
        with pytest.raises(UserError, match="no such directory") as caught:
            hub.locate(name)
        assert "\n" not in str(caught.value)


def test_weights_are_asked_for_in_order(tmp_path, monkeypatch):
    import huggingface_hub

    asked = []

    def snapshot(name, *, revision, allow_patterns, local_files_only):
        asked.append((name, revision, tuple(allow_patterns)))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert hub.locate("org/name", revision="v1") == tmp_path
    assert [patterns for _, _, patterns in asked] == [hub.SMALL + hub.SAFETENSORS, hub.SMALL + hub.FLAX]
    hub.locate("org/name", allow_pickle=True)
    assert asked[-1][2] == hub.SMALL + hub.PICKLE
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    asked.clear()
    hub.locate("org/name", revision="v1")
    hub.locate("org/name", files=["config.json"])
    assert asked == [("org/name", "v1", hub.SMALL + hub.SAFETENSORS), ("org/name", None, ("config.json",))]


def test_without_a_network_it_says_so_and_where_it_looked(tmp_path):
    """Port 9 of this machine refuses; the cache alone is asked then, and a model that is there is found."""
    code = """
import sys
from pathlib import Path
from ptm_jax.convert.hub import locate
try:
    print(locate(sys.argv[1]))
except Exception as error:
    print(type(error).__name__, error)
repo = Path(sys.argv[2]) / "hub" / "models--org--name"
(repo / "refs").mkdir(parents=True)
(repo / "refs" / "main").write_text("0" * 40)
(repo / "snapshots" / ("0" * 40)).mkdir(parents=True)
(repo / "snapshots" / ("0" * 40) / "model.safetensors").write_bytes(b"")
print(locate(sys.argv[1]))
"""
    ours = lambda name: name.lower().endswith("_proxy") or name in ("HF_HUB_OFFLINE", "HF_HUB_CACHE")
    environment = {name: value for name, value in os.environ.items() if not ours(name)}
    environment |= {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    words = [sys.executable, "-c", code, "org/name", str(tmp_path)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stdout + done.stderr
    assert lines[0].startswith("UserError 'org/name': no such directory") and str(tmp_path / "hub") in lines[0]
    assert "http://127.0.0.1:9 could not be asked (ConnectError" in lines[0]
    assert lines[1] == str(tmp_path / "hub" / "models--org--name" / "snapshots" / ("0" * 40))
