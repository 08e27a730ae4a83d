"""The selections of the laws: every class and every pair of classes of a case stands in one."""

import importlib

import pytest

from support import covering

SUITES = {
    name: suite
    for suite in ("corruptions", "objectives", "encoders")
    for name in importlib.import_module(f"test_laws_of_{suite}").COVERED
}
TRAITS = {"a": {"X"}, "b": {"X", "Y"}, "c": {"Y", "Z"}, "d": {"Z"}, "e": {"X", "Z"}}


def test_a_selection_has_each_trait_and_each_pair():
    assert covering.greedy(TRAITS) == ["b", "c", "e"]
    assert covering.greedy(TRAITS, ["a"]) == ["a", "c", "b", "e"]


def test_a_case_with_a_new_trait_is_selected_unlisted(monkeypatch):
    monkeypatch.setattr(covering, "listed", lambda name: ["b", "c", "e", "gone"])
    assert covering.covering("n", TRAITS) == ["b", "c", "e"]
    assert covering.covering("n", {**TRAITS, "f": {"New"}}) == ["b", "c", "e", "f"]
    marks = {one.values[0]: one.marks for one in covering.params("n", TRAITS)}
    assert {case for case, found in marks.items() if found} == {"a", "d"}


@pytest.mark.parametrize("name", SUITES)
def test_a_list_names_cases_and_covers_all(name):
    traits = importlib.import_module(f"test_laws_of_{SUITES[name]}").COVERED[name]
    cases = covering.listed(name)
    assert len(cases) == len(set(cases)) and {*cases} <= {*traits}, (
        "run python tests/support/covering.py"
    )
    selection = covering.covering(name, traits)
    reached = set().union(*(covering.goals(traits[case]) for case in selection))
    assert reached == set().union(*map(covering.goals, traits.values()))
    assert len(selection) < len(traits)
