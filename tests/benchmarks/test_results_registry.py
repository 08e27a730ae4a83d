"""The registry of results holds what its sources say, and nothing else; figures beside published
ones earn `sized` and `reproduces`."""

import dataclasses
import json

import pytest

from benchmarks import registry, reproduced
from ptm_jax.systems.survey import rows as survey

CHECKS = reproduced.checks()


def marked(check):
    marks = [
        pytest.mark.status(check.value, check.word),
        *([pytest.mark.full] if check.data else []),
    ]
    return pytest.param(check, marks=marks, id=f"{check.value}: {check.figure}")


@pytest.mark.full
@pytest.mark.parametrize("check", [marked(check) for check in CHECKS])
def test_a_figure_is_within_the_tolerance_of_a_published_one(check, request):
    if check.data:
        request.getfixturevalue("data")
    assert check.holds(check.ours())


def test_the_registry_holds_these_figures_and_their_tolerances():
    entries = [
        one
        for one in json.loads((registry.ROOT / "benchmarks" / "registry.json").read_text())
        if one["value"]
    ]
    assert {
        one["name"]: (one["reference"], one["tolerance"], one["command"], one["published"])
        for one in entries
    } == {
        f"{check.value}: {check.figure}": (
            check.reference,
            pytest.approx(check.tolerance),
            check.command,
            check.source,
        )
        for check in CHECKS
    }
    for one in entries:
        (ours,) = one["figures"].values()
        assert (
            abs(ours - one["reference"])
            <= one["tolerance"] * (1 + 1e-9)
            <= 0.2 * abs(one["reference"])
        ), one["name"]
        assert one["why"] and one["device"] and one["date"] and one["commit"] and one["rows"], one[
            "name"
        ]
    assert len({row for one in entries for row in one["rows"]}) >= 40
    for word in ("sized", "reproduces"):
        earned = {value for value, words in survey.status().items() if word in words}
        held = {one["value"] for one in entries if one["word"] == word}
        assert earned <= held, f"{word} without a figure in the registry"


def test_a_figure_beyond_its_tolerance_is_refused(monkeypatch):
    monkeypatch.setattr(registry, "written", lambda source, text: {})
    span = next(check for check in CHECKS if check.value == "Spans")
    assert [one["rows"] for one in registry.within([span])] == [[73]]
    for ours in (span.reference + 1.01 * span.tolerance, float("nan")):
        off = dataclasses.replace(span, ours=lambda ours=ours: ours)
        with pytest.raises(ValueError, match=r"Spans, mean length.* is not within 0\.05 of 3\.8"):
            list(registry.within([span, off]))
    with pytest.raises(ValueError, match="has nothing like"):
        reproduced.measured("benchmarks/tasks.md", r"no such (\d+)")


def test_a_config_a_table_and_a_record(monkeypatch):
    monkeypatch.setattr(
        registry, "written", lambda source, text, date=None: {"commit": "c", "date": date}
    )
    found = {
        (one["source"], one["name"]): one
        for one in (*registry.configs(), *registry.tables(), *registry.records())
    }
    ctrl = found["configs/ctrl.py", "ctrl"]
    assert ctrl["figures"] == {"nll": 6.046, "baseline": 6.422} and ctrl["published"].startswith(
        "1.63 billion parameters"
    )
    assert ctrl["rows"] and ctrl["device"] == "2 CPU cores" and ctrl["seed"] is None
    sst2 = found["benchmarks/tasks.md", "tasks: sst2"]
    assert (
        sst2["figures"]["accuracy"] == 87.4
        and sst2["seed"] == [0, 1, 2]
        and "--task sst2 " in sst2["command"]
    )
    assert any(source.endswith("2-cores.json") for source, _ in found)


def test_the_page_has_every_entry():
    entries = json.loads(registry.FILE.read_text(encoding="utf8"))
    page = registry.page(entries)
    assert page.count("\n| ") == len(entries) + 2 * len(registry.PARTS)
    assert all(one["source"] and (one["figures"] or one["text"]) for one in entries)
