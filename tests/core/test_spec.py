"""Overriding, respelling and describing configurations, over dataclasses, Linen modules, mappings
and tuples."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp
import pytest
from flax.core import FrozenDict

from ptm_jax.core import recipe, spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import LAMB, SGD, AdamW, Cosine, Linear, Phase, Recipe
from ptm_jax.core.system import Experiment, System
from ptm_jax.core.types import Vocab


@recipe.spec
class Tokens:
    rate: float = 0.15
    kind: Literal["token", "word"] = "token"
    vocab: Vocab = Vocab(size=100, mask=4)

    def __post_init__(self):
        if not 0 < self.rate < 1:
            raise ValueError(f"rate is {self.rate}; it must be a fraction in (0, 1)")


@recipe.spec
class Spans:
    mean: int = 3


@recipe.spec
class Elsewhere:
    depth: int = 1


class Attention(nn.Module):
    heads: int = 4
    dropout: float = 0.1


class Block(nn.Module):
    attention: Any = Attention()
    act: Callable = nn.gelu


class Wide(Attention):
    size: int = 1


class Encoder(nn.Module):
    attention: nn.Module | None = Attention()
    first: nn.Module = Attention(heads=1)
    vocab: Vocab = Vocab(size=100, mask=4)
    block: Any = Block()
    width: int = 64
    tables: Any = dataclasses.field(default_factory=dict)


def objective(towers, batch, key):
    return None


def make(towers=None):
    return System(
        name="tiny",
        paper="Someone 2020",
        section="3.1",
        towers=towers or {"main": Encoder()},
        examples=None,
        corruption=Tokens(),
        objective=objective,
        recipe=Recipe(
            phases=(Phase(steps=9, batch=8, length=16), Phase(steps=1, batch=4, length=32)), lr=1e-4
        ),
    )


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("recipe.lr", "3e-5", 3e-5),
        ("recipe.lr", "1", 1.0),
        ("recipe.clip", "none", None),
        ("recipe.clip", "0.5", 0.5),
        ("recipe.accumulate", "2", 2),
        ("recipe.phases.0.steps", "1e6", 1_000_000),
        ("recipe.phases.1.length", "1_024", 1024),
        (
            "recipe.phases",
            "Phase(steps=5, batch=2, length=8),",
            (Phase(steps=5, batch=2, length=8),),
        ),
        ("recipe.schedule", "Cosine(warmup=100)", Cosine(warmup=100)),
        ("recipe.schedule.warmup", "7", Linear(warmup=7)),
        ("recipe.optimizer", "LAMB", LAMB()),
        ("recipe.optimizer", "LAMB(b1=0.8, decay_rules=())", LAMB(b1=0.8, decay_rules=())),
        ("recipe.optimizer.bias_correction", "false", AdamW(bias_correction=False)),
        ("recipe.lr_rules", "(('a/b', 0.1), ('c', 2))", (("a/b", 0.1), ("c", 2.0))),
        ("corruption", "Spans(mean=5)", Spans(mean=5)),
        ("corruption", "none", None),
        ("corruption.kind", "word", "word"),
        ("corruption.vocab.pad", "0", 0),
        ("towers.main.block.attention.heads", "8", 8),
        ("towers.main.block.attention", "Attention(heads=2)", Attention(heads=2)),
        ("towers.main.attention", "Wide(size=2)", Wide(size=2)),
        ("towers.main.attention", "none", None),
        ("towers.main.first", "Wide", Wide()),
        ("recipe.phases.0", "Phase(steps=3)", Phase(steps=3, batch=8, length=16)),
        ("rows", "44", (44,)),
        ("rows", "44,45", (44, 45)),
        ("name", "'a b'", "a b"),
        ("paper", "Devlin et al. 2019, (NAACL)", "Devlin et al. 2019, (NAACL)"),
    ],
)
def test_texts_are_read_by_the_field_they_are_for(path, text, expected):
    value = spec.override(make(), {path: text})
    steps = path.split(".")
    if isinstance(expected, Linear | AdamW) and "." in path:
        steps = steps[:-1]
    for step in steps:
        value = spec.children(value)[int(step) if step.isdigit() else step]
    assert value == expected and type(value) is type(expected)


def test_nothing_mutates_and_untouched_parts_are_shared():
    before = make()
    text = spec.to_text(before)
    after = spec.override(before, {"recipe.lr": "1", "towers.main.width": "32"})
    assert spec.to_text(before) == text and before.towers["main"].width == 64
    assert after.corruption is before.corruption and after.towers["main"].width == 32


@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        (
            "recipe.lrr",
            "1",
            ["field of recipe (Recipe)", "'lrr'", "accumulate, clip, lr", "Did you mean 'lr'"],
        ),
        ("recipe.steps", "1", ["field of recipe", "Did you mean 'recipe.phases.0.steps'?"]),
        ("lr", "1", ["field of System", "Did you mean 'recipe.lr'?"]),
        ("towers.main.heads", "1", ["Did you mean 'towers.main.attention.heads'?"]),
        ("recpie.lr", "1", ["field of System", "Did you mean 'recipe'"]),
        ("towers.mian.width", "1", ["key of towers", "Did you mean 'main'"]),
        (
            "towers.main.parent",
            "1",
            ["field of towers.main (Encoder)", "block, first, tables, vocab, width"],
        ),
        ("recipe.phases.2.steps", "1", ["recipe.phases has 2 entries, 0 to 1", "'2'"]),
        ("recipe.lr.x", "1", ["recipe.lr is 0.0001, which has no parts"]),
        ("recipe.lr", "fast", ["recipe.lr must be a number; given 'fast'"]),
        ("recipe.lr", "nan", ["recipe.lr must be a number"]),
        (
            "recipe.clip",
            "fast",
            ["must be a number or ClipByTower or SkipSpikes or None; given 'fast'"],
        ),
        ("recipe.accumulate", "1.5", ["recipe.accumulate must be a whole number; given '1.5'"]),
        ("recipe.accumulate", "inf", ["must be a whole number"]),
        ("recipe.accumulate", "3", ["recipe: ", "does not divide the batch of 8"]),
        ("recipe.optimizer.bias_correction", "perhaps", ["must be true or false"]),
        (
            "recipe.optimizer",
            "Adam",
            [
                "kind of recipe.optimizer 'Adam'",
                "AdamW, Adamax, LAMB, Muon, SGD, SOAP",
                "Did you mean",
            ],
        ),
        ("recipe.optimizer", "LAMB(b3=1)", ["field of LAMB 'b3'", "b1, b2"]),
        ("recipe.optimizer", "LAMB(b1=x)", ["recipe.optimizer.b1 must be a number; given 'x'"]),
        ("recipe.optimizer", "LAMB(0.9)", ["write LAMB(name=value, ...)"]),
        (
            "recipe.optimizer",
            "__import__('os').system('x')",
            ["must be one of Adadelta, Adafactor, Adagrad, AdamW"],
        ),
        ("recipe.phases", "Phase(steps=1),", ["Phase needs batch, length"]),
        ("recipe.lr_rules", "(('a',),)", ["recipe.lr_rules.0 must have 2 entries"]),
        (
            "corruption.kind",
            "wrod",
            ["must be one of token, word; given 'wrod'. Did you mean 'word'"],
        ),
        ("corruption.rate", "2", ["corruption: rate is 2.0; it must be a fraction"]),
        ("corruption", "Tokens(rate=7)", ["corruption: rate is 7.0"]),
        (
            "towers.main.first",
            "Tokens",
            ["kind of towers.main.first 'Tokens'", "Attention, Block, Encoder, Wide"],
        ),
        (
            "objective",
            "Other",
            ["objective is ", ":objective, which 'Other' cannot replace", "config file"],
        ),
        ("recipe..lr", "1", ["a path such as", "'recipe..lr'"]),
    ],
)
def test_errors_name_what_is_wrong_and_what_there_is(path, text, words):
    with pytest.raises(UserError) as caught:
        spec.override(make(), {path: text})
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert "\n" not in str(caught.value)


def test_changes_to_one_object_are_made_at_once():
    phases = {"recipe.phases.0.batch": "3", "recipe.phases.1.batch": "6", "recipe.accumulate": "3"}
    assert spec.override(make(), phases).recipe.accumulate == 3
    assert spec.override(Phase(steps=1, batch=2, length=3), {"steps": 5}) == Phase(
        steps=5, batch=2, length=3
    ), "no text"


def test_a_variant_and_then_its_field():
    value = spec.override(make(), {"recipe.schedule": "Cosine", "recipe.schedule.warmup": "5"})
    assert value.recipe.schedule == Cosine(warmup=5)


def test_an_experiment_passes_paths_on_to_its_system():
    before = Experiment(system=make())
    changes = {
        "recipe.lr": "1",
        "corruption.rate": "0.4",
        "seed": "3",
        "system.name": "x",
        "data": "a/*.txt",
    }
    after = spec.override(before, changes)
    assert (after.system.recipe.lr, after.system.corruption.rate, after.seed) == (1.0, 0.4, 3)
    assert after.data == ("a/*.txt",) and after.system.name == "x"
    with pytest.raises(
        UserError, match="unknown field 'sead'.*heldout.*recipe.*Did you mean 'seed'"
    ):
        spec.override(before, {"sead": "1"})
    with pytest.raises(UserError, match="precision is 'int8'"):
        spec.override(before, {"precision": "int8"})


def test_kinds_name_dataclasses_from_elsewhere():
    value = spec.override(
        make(), {"objective": "Elsewhere(depth=2)"}, kinds={"Elsewhere": Elsewhere}
    )
    assert value.objective == Elsewhere(depth=2)


def test_a_slot_without_annotation_takes_what_lives_in_its_package():
    kinds = {"Elsewhere": Elsewhere, "Linear": Linear}
    with pytest.raises(UserError) as caught:
        spec.override(make(), {"corruption": "Linear"}, kinds)
    assert (
        "unknown kind of corruption 'Linear'; there are: Attention, Block, Elsewhere, Encoder"
        in str(caught.value)
    )


def test_pairs():
    assert spec.parse_pairs(["a.b=1", "c==x"]) == {"a.b": "1", "c": "=x"}
    for bad in (["a"], ["=1"], ["a=1", "a=2"]):
        with pytest.raises(UserError, match="--set"):
            spec.parse_pairs(bad)


def test_respell_replaces_everywhere_and_shares_the_rest():
    new = Vocab(size=7)
    frozen = FrozenDict({"x": {"y": Vocab(size=1)}})
    towers = MappingProxyType({"main": Encoder(tables=frozen, block=Block()), "plain": Block()})
    before = make(towers)
    after = spec.respell(before, Vocab, new)
    assert after.corruption.vocab is new and after.towers["main"].vocab is new
    assert after.towers["main"].tables["x"]["y"] is new and type(after.towers) is MappingProxyType
    assert after.towers["plain"] is before.towers["plain"] and after.recipe is before.recipe
    assert before.corruption.vocab.size == 100
    assert spec.respell(before, SGD, SGD()) is before


def test_respell_with_a_function_and_with_a_callable_value():
    after = spec.respell(make(), Vocab, lambda old: dataclasses.replace(old, size=old.size + 1))
    assert after.corruption.vocab == Vocab(size=101, mask=4)
    shared = Attention()
    pair = spec.respell((shared, shared), Attention, lambda old: old.clone(heads=1))
    assert pair[0] is pair[1] and pair[0].heads == 1
    module = Attention(heads=9)
    assert spec.respell((shared,), nn.Module, module) == (
        module,
    )  # callable, but a value of the kind itself


def test_json_form_is_plain_complete_and_its_own_form():
    system = make(
        {
            "main": Encoder(
                tables={"dtype": jnp.bfloat16, "size": jnp.float32(2), "way": float("inf")}
            )
        }
    )
    record = spec.to_json(system)
    assert json.loads(json.dumps(record)) == record == spec.to_json(record)
    assert (
        record["objective"].endswith(":objective")
        and record["recipe"]["phases"][0]["kind"] == "Phase"
    )
    assert list(record["towers"]["main"]) == [
        "kind",
        "attention",
        "first",
        "vocab",
        "block",
        "width",
        "tables",
    ]
    assert (
        record["towers"]["main"]["tables"]["size"] == 2
        and record["towers"]["main"]["tables"]["way"] == "inf"
    )


def test_text_form():
    text = spec.to_text(make())
    assert text.startswith("System\n  name: tiny\n")
    assert (
        "\n  towers:\n    main: Encoder\n      attention: Attention\n        heads: 4\n      "
        "  dropout: 0.1\n" in text
    )
    assert "\n      vocab: Vocab\n        size: 100\n        pad: None\n" in text
    assert "\n  recipe: Recipe\n    phases:\n      0: Phase\n        steps: 9\n" in text
    assert "\n      decay_rules: (('(^|/)(bias|scale)$', 0.0),)\n" in text
    assert "\n  rows: ()\n" in text and "0x" not in text
    assert text == spec.to_text(spec.to_json(make()))


def test_a_field_called_kind_does_not_hide_the_class():
    record = spec.to_json(Tokens(kind="word"))
    assert (
        record["kind"] == "Tokens" and record["kind_"] == "word" and spec.to_json(record) == record
    )
    assert spec.to_text(record).startswith("Tokens\n  rate: 0.15\n  kind: word\n")
    assert spec.to_line(record).startswith("Tokens(rate=0.15, kind='word', ")
    assert spec.differences(Tokens(), record) == [("kind", "token", "word")]
    assert spec.fingerprint(Tokens()) != spec.fingerprint(Tokens(kind="word"))


@pytest.mark.parametrize("value", [Cosine(warmup=3), LAMB(b1=0.5), AdamW()])
def test_a_line_reads_back(value):
    field = "schedule" if isinstance(value, Cosine) else "optimizer"
    assert getattr(spec.override(make().recipe, {field: spec.to_line(value)}), field) == value


def test_differences():
    changes = {
        "recipe.lr": "1",
        "recipe.optimizer": "SGD",
        "recipe.phases.0.steps": "5",
        "rows": "1,2",
    }
    a, b = make(), spec.override(make(), changes)
    b = dataclasses.replace(b, recipe=dataclasses.replace(b.recipe, phases=b.recipe.phases[:1]))
    found = {path: (x, y) for path, x, y in spec.differences(a, b)}
    assert list(found) == [
        "recipe.phases.0.steps",
        "recipe.phases.1",
        "recipe.lr",
        "recipe.optimizer",
        "rows",
    ]
    assert found["recipe.lr"] == (1e-4, 1.0) and found["recipe.phases.1"][1] == "(absent)"
    assert found["recipe.optimizer"][1] == {
        "kind": "SGD",
        "momentum": 0.0,
        "nesterov": False,
        "row_limit": None,
    }
    assert spec.differences(a, make()) == [] and spec.differences({"a": 1}, {"a": True}) == [
        ("a", 1, True)
    ]


def test_fingerprint_is_the_same_in_another_process():
    code = "from ptm_jax.core import spec, recipe; print(spec.fingerprint(recipe.LAMB(b1=0.5)))"
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert other == spec.fingerprint(LAMB(b1=0.5)) != spec.fingerprint(LAMB())
