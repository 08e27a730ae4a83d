"""A saved adapter: small, whole, and bound to its base by hash; and what a run begins with from an
adapted one."""

import json

import numpy as np
import pytest

from ptm_jax.convert import adapterfile
from ptm_jax.convert.engine import Report
from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.system import in_effect
from ptm_jax.runs.run import adapter_parts
from ptm_jax.training.start import initial
from ptm_jax.training.start.init_models import Initial
from support.classifier import classifier, run


@pytest.fixture(scope="module")
def lora():
    return run(classifier("lora(rank=2)"), steps=2)


def saved(trace, path):
    own, rest = adapter_parts(trace.states[-1].params, trace.program.freedom)
    record = spec.to_json(classifier("lora(rank=2)"))
    file = adapterfile.AdapterFile(
        own, record, adapterfile.digest(rest), tuple(sorted(rest)), "small"
    )
    return adapterfile.write(path, file), rest


@pytest.mark.full
def test_it_holds_what_was_trained_and_comes_back(lora, tmp_path):
    size, rest = saved(lora, tmp_path / "a.safetensors")
    file = adapterfile.read(tmp_path / "a.safetensors")
    assert size < 12_000 and file.name == "small" and file.system["adapt"][0]["kind"] == "LoRA"
    assert all(path.startswith("lora/") or "/heads_" in path for path in file.params)
    base = {path: leaf for path, leaf in lora.params(0).items() if path.startswith("main/")}
    both = adapterfile.joined(file, base, "base")
    after = lora.params(2)
    assert both.keys() == after.keys() and all(
        both[path].tobytes() == after[path].tobytes() for path in after
    )
    # What the network is given: the updates added, nothing beside the towers.
    given = in_effect(lora.program.system, unflatten(both))
    assert set(given) == {"main"}
    query = "main/encoder/stack/block/attention/query/kernel"
    assert not np.array_equal(flatten(given)[query], base[query]) and set(rest) == set(file.paths)


def test_it_refuses_another_base(lora, tmp_path):
    saved(lora, tmp_path / "a.safetensors")
    file = adapterfile.read(tmp_path / "a.safetensors")
    base = {path: leaf.copy() for path, leaf in lora.params(0).items() if path.startswith("main/")}
    path = "main/encoder/embed/token"
    base[path][3, 3] = np.nextafter(base[path][3, 3], np.float32(9))
    with pytest.raises(UserError, match="was trained on small .* and other is not that model"):
        adapterfile.joined(file, base, "other")
    with pytest.raises(UserError, match="it has no parameter main/encoder/embed/token"):
        adapterfile.joined(file, {k: v for k, v in base.items() if k != path}, "other")


def test_what_is_no_adapter(lora, tmp_path):
    saved(lora, tmp_path / "a.safetensors")
    whole = (tmp_path / "a.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[:-4])
    with pytest.raises(UserError, match="truncated"):
        adapterfile.read(tmp_path / "cut.safetensors")
    (tmp_path / "other.safetensors").write_bytes(
        whole.replace(b"ptm_jax adapter 1", b"ptm_jax adapter 9")
    )
    with pytest.raises(UserError, match="is not an adapter"):
        adapterfile.read(tmp_path / "other.safetensors")
    (tmp_path / "nan.safetensors").write_bytes(whole[:-4] + np.float32(np.nan).tobytes())
    with pytest.raises(UserError, match="nan.safetensors: .* has numbers that are NaN or infinite"):
        adapterfile.read(tmp_path / "nan.safetensors")


def test_a_run_goes_on_with_the_merged_model(lora, tmp_path):
    record = {"config": {"system": spec.to_json(classifier("lora(rank=2)", "layer_decay"))}}
    (tmp_path / "config.json").write_text(json.dumps(record))
    found = flatten(Initial("", str(tmp_path)).merged(lora.states[-1].params))
    expected = flatten(in_effect(lora.program.system, lora.states[-1].params))
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[path], expected[path]) for path in found)


def test_heads_are_drawn_anew_on_demand(lora, monkeypatch):
    """STILTs: the encoder is the intermediate task's, the head is not; what an adaptation adds is
    its own."""
    source = unflatten(
        {path: leaf + 1 for path, leaf in lora.params(0).items() if path.startswith("main/")}
    )
    monkeypatch.setattr(Initial, "params", lambda model, system: (source, Report(0)))
    target = lora.states[0].params
    for words, same in ((("lora(rank=2)",), True), (("lora(rank=2)", "restart"), False)):
        found = flatten(initial.begin(target, "before", classifier(*words)))
        head, table = "main/heads_classify/classes/kernel", "main/encoder/embed/token"
        assert np.array_equal(found[table], flatten(source)[table])
        assert np.array_equal(found[head], flatten(source if same else target)[head])
        assert all(
            np.array_equal(leaf, lora.params(0)[path])
            for path, leaf in found.items()
            if path.startswith("lora/")
        )
