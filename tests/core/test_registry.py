"""The catalogue: lazy, without duplicates, helpful about unknown names."""

import sys

import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.core.registry import Catalogue, discover


class Named:
    name = "roberta"


def test_factories_are_called_when_their_name_is_read():
    catalogue, calls, value = Catalogue("system"), [], Named()

    @catalogue.add
    def bert():
        calls.append(1)
        return "a bert"

    assert bert.__name__ == "bert" and not calls
    assert catalogue.get("bert") == "a bert" and calls == [1]
    catalogue.add(value)
    assert catalogue.names() == ("bert", "roberta") and catalogue.get("roberta") is value
    assert "roberta" in catalogue and "gpt" not in catalogue


def test_a_taken_name_and_an_unknown_name_are_errors():
    catalogue = Catalogue("system")
    catalogue.register("bert_base", lambda: 1)
    with pytest.raises(
        ValueError, match="'bert_base' is in the catalogue already, from .*test_registry"
    ):
        catalogue.register("bert_base", lambda: 2)
    with pytest.raises(
        UserError,
        match=r"unknown system 'bert_bsae'; there are: bert_base. Did you mean 'bert_base'",
    ):
        catalogue.get("bert_bsae")


def test_declared_names_are_built_when_asked_for(tmp_path, monkeypatch):
    lines = "class A:\n    name = 'a'\ndef systems():\n    yield A()\n"
    (tmp_path / "declared_systems.py").write_text(lines)
    monkeypatch.syspath_prepend(str(tmp_path))
    catalogue = Catalogue("system")
    catalogue.declare("declared_systems", ("a", "b"))
    assert catalogue.names() == ("a", "b") and "declared_systems" not in sys.modules
    assert catalogue.get("a").name == "a" and catalogue.get("a") is catalogue.get("a")
    with pytest.raises(ValueError, match="yields no 'b'"):
        catalogue.get("b")


def test_discover_imports_every_module_of_a_package(tmp_path, monkeypatch):
    names = ["", ".a", ".b", ".deep", ".deep.c"]
    for name in ("__init__", "a", "b", "deep/__init__", "deep/c"):
        path = tmp_path / "discovered_package" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    discover("discovered_package")
    for name in names:  # KeyError: not imported
        del sys.modules[f"discovered_package{name}"]
