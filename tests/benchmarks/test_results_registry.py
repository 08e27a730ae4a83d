"""The registry of results holds what its sources say, and nothing else."""

import json

from benchmarks import registry


def test_a_config_a_table_and_a_record(monkeypatch):
    monkeypatch.setattr(registry, "written", lambda source, text, date=None: {"commit": "c", "date": date})
    found = {(one["source"], one["name"]): one for one in (*registry.configs(), *registry.tables(), *registry.records())}
    ctrl = found["configs/ctrl.py", "ctrl"]
    assert ctrl["figures"] == {"nll": 6.046, "baseline": 6.422} and ctrl["published"].startswith("1.63 billion parameters")
    assert ctrl["rows"] and ctrl["device"] == "2 CPU cores" and ctrl["seed"] is None
    sst2 = found["benchmarks/tasks.md", "tasks: sst2"]
    assert sst2["figures"]["accuracy"] == 87.4 and sst2["seed"] == [0, 1, 2] and "--task sst2 " in sst2["command"]
    assert any(source.endswith("2-cores.json") for source, _ in found)


def test_the_page_has_every_entry():
    entries = json.loads((registry.ROOT / "benchmarks" / "registry.json").read_text(encoding="utf8"))
    page = (registry.ROOT / "benchmarks" / "registry.md").read_text(encoding="utf8")
    assert page == registry.page(entries) and page.count("\n| ") == len(entries) + 2
    assert all(one["source"] and (one["figures"] or one["text"]) for one in entries)
