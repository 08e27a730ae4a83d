"""The catalogue: lazy, without duplicates, helpful about unknown names."""

import sys

import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.core.spec.registry import Catalogue, discover


class Named:
    name = "roberta"


def test_factories_are_called_when_asked_for_and_not_before():
    catalogue, calls = Catalogue("system"), []

    @catalogue.add
    def bert():
        calls.append(1)
        return "a bert"

    assert bert.__name__ == "bert" and not calls
    assert catalogue.get("bert") == "a bert" and calls == [1]


def test_values_and_several_entries_keep_their_order():
    catalogue, value = Catalogue("system"), Named()
    catalogue.add(value)
    catalogue.register("albert", lambda: 2)
    assert catalogue.names() == ("roberta", "albert")
    assert catalogue.get("roberta") is value and "albert" in catalogue and "gpt" not in catalogue


def test_a_duplicate_name_is_an_error():
    catalogue = Catalogue("system")
    catalogue.register("bert", lambda: 1)
    with pytest.raises(ValueError, match="'bert' is in the catalogue already, from .*test_registry"):
        catalogue.register("bert", lambda: 2)


def test_an_unknown_name_lists_what_there_is_and_the_closest():
    catalogue = Catalogue("system")
    catalogue.register("bert_base", lambda: 1)
    with pytest.raises(UserError, match=r"unknown system 'bert_bsae'; there are: bert_base. Did you mean 'bert_base'"):
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


def test_discover_imports_every_module_once(tmp_path, monkeypatch):
    package = tmp_path / "discovered_package"
    (package / "deep").mkdir(parents=True)
    for name in ("__init__.py", "b.py", "a.py", "deep/__init__.py", "deep/c.py"):
        (package / name).write_text("import builtins\nbuiltins._discovered.append(__name__)\n")
    import builtins

    monkeypatch.setattr(builtins, "_discovered", [], raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    discover("discovered_package")
    discover("discovered_package")
    tails = [name.removeprefix("discovered_package") for name in builtins._discovered]
    assert sorted(tails) == ["", ".a", ".b", ".deep", ".deep.c"]
    for name in [m for m in sys.modules if m.startswith("discovered_package")]:
        del sys.modules[name]
