"""Records back to values: equal to what was written, and nothing else is ever built."""

import dataclasses
import json
import math

import pytest

from ptm_jax import systems
from ptm_jax.core.errors import UserError
from ptm_jax.core.precision import Precision
from ptm_jax.core.recipe import Phase, Recipe
from ptm_jax.core.spec import legacy, respell
from ptm_jax.core.spec.classes import kinds_of
from ptm_jax.core.spec.describe import to_json
from ptm_jax.core.spec.legacy import renewed
from ptm_jax.core.spec.rebuild import rebuild
from ptm_jax.core.types import Vocab
from ptm_jax.nn.embeddings.parts import Languages, TaskTypes, Types, WordTypes
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.layers import Identity
from ptm_jax.systems.survey.order import ORDER

KINDS = kinds_of()


def through_json(value):
    return json.loads(json.dumps(to_json(value)))


@pytest.mark.parametrize("module", ORDER)
def test_every_system_comes_back(module):
    for name in ORDER[module].split():
        comes_back(systems.get(name))


def comes_back(system):
    parts = {f.name: getattr(system, f.name) for f in dataclasses.fields(system)}
    for slot, value in parts.items():
        again = rebuild(through_json(value), KINDS)
        expected = dict(value) if slot == "towers" else value
        assert again == expected, slot
        assert to_json(again) == to_json(value), slot
    for tower, module in system.towers.items():
        again = rebuild(through_json(module), KINDS, tower)
        assert hash(again) == hash(module)


def test_values_after_respelling_come_back():
    towers = respell(dict(systems.get("bert_tiny").towers), Precision, Precision("bfloat16"))
    towers = respell(towers, Vocab, Vocab(size=300, pad=0, extra=(7, 8)))
    assert rebuild(through_json(towers), KINDS) == towers


@pytest.mark.parametrize(
    ("old", "parts"),
    [
        ({"types": 2, "word_types": False, "languages": 0, "tasks": 3}, (Types(2), TaskTypes(3))),
        (
            {"types": 2, "word_types": True, "languages": 5, "tasks": 0},
            (WordTypes(2), Languages(5)),
        ),
        ({"types": 0}, ()),
    ],
)
def test_a_record_of_the_options_of_embeddings_is_read_as_their_parts(old, parts):
    value = Embeddings(vocab=Vocab(size=7), width=4, parts=parts)
    record = {name: part for name, part in through_json(value).items() if name != "parts"} | old
    assert rebuild(record, KINDS) == value and renewed([record]) == [through_json(value)]


@pytest.mark.parametrize("kind", legacy.FIELDS)
def test_a_record_with_old_names_of_fields_is_read(kind):
    """Each kind, with values for its required fields, from its record with the old names."""
    needed = {"vocab": Vocab(size=7), "heads": 2, "cutoffs": (3,), "task": Identity()}
    needed |= {"embed": Identity(), "kind": "uniform"}
    required = [
        field.name
        for field in dataclasses.fields(KINDS[kind])
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    value = KINDS[kind](**{name: needed[name] for name in required if name in needed})
    record, old = through_json(value), {new: old for old, new in legacy.FIELDS[kind].items()}
    assert {*old} <= record.keys() and not {*old.values()} & record.keys()
    before = {old.get(name, name): part for name, part in record.items()}
    assert before != record and rebuild(before, KINDS) == value


@dataclasses.dataclass(frozen=True)
class Odd:
    limit: float = 1.0
    words: frozenset[str] = frozenset()
    table: tuple[tuple[str, float], ...] = ()
    label: str | None = None
    maybe: float | None = None


@pytest.mark.parametrize(
    "value",
    [
        Odd(math.inf, frozenset({"a", "b"}), (("x", 1.0),), "inf"),
        Odd(limit=-math.inf, maybe=math.inf),
        {"a": (1, 2.5, None, True, "text"), "b": {"c": ()}},
    ],
)
def test_what_json_cannot_hold(value):
    assert rebuild(through_json(value), {"Odd": Odd}) == value


def test_nothing_is_imported_or_evaluated():
    record = {"a": "os:system", "b": "__import__('os')"}
    assert rebuild(record, KINDS) == record
    for name in ("os.system", "builtins.eval", "partial", "array"):
        with pytest.raises(UserError, match=f"unknown kind '{name}'"):
            rebuild({"kind": name, "args": ["true"]}, KINDS)


@pytest.mark.parametrize(
    "record, message",
    [
        ({"kind": "MLMHed"}, "'MLMHed'.*mean 'MLMHead'"),
        ({"a": [{"kind": "Nope"}]}, "a.0 .*'Nope'"),
        ({"kind": "Phase", "steps": 1, "batch": 1, "size": 2}, "field of Phase .*'size'"),
        ({"kind": "Phase", "steps": 1}, "Phase.*batch"),
        ({"kind": "Phase", "steps": 0, "batch": 1, "length": 1}, "at least 1"),
        ({"kind": ["Phase"]}, "unknown kind"),
    ],
)
def test_a_record_that_does_not_fit_is_an_error_with_its_place(record, message):
    with pytest.raises(UserError, match=message):
        rebuild(record, KINDS)


@pytest.mark.parametrize(
    ("old", "field"),
    [
        ({"kind": "HeadRelations", "of": "query"}, "vectors"),
        ({"kind": "WordClass", "size": 3, "of": "polarities"}, "classes"),
        ({"kind": "JointHead", "vocab": None, "of": "first"}, "part"),
    ],
)
def test_a_field_of_its_old_name_is_read(old, field):
    """In every record, as 0.1.0 wrote it."""
    assert getattr(rebuild(old, KINDS), field) == old["of"]
    assert renewed([old])[0][field] == old["of"] and "of" not in renewed([old])[0]


@pytest.mark.parametrize("kind", [*legacy.FIELDS, *legacy.RULES])
@pytest.mark.parametrize("part", ["module:function", 7, None, ["module:function", 2.5], [[1], {}]])
def test_a_current_record_is_not_changed_whatever_its_fields_hold(kind, part):
    """A field may hold a function, which its record names by a string."""
    fields = {field.name: part for field in dataclasses.fields(KINDS[kind])}
    if kind == "Chain":
        fields["parts"] = part if isinstance(part, list) else [part]
    record = {"kind": kind, **fields}
    assert renewed(record) == record


MOVED = """
nn.SequenceHead nn.SummaryHead nn.TokenHead nn.ChoiceHead nn.SpanHead nn.Summary nn.BoundaryHead
nn.Detector nn.Score nn.AnswerHead nn.VerifiedSpanHead nn.PairRanker nn.HopHead nn.AnswerNetwork
adapt.Representation adapt.Recurrent adapt.StackedWords adapt.PooledStates adapt.TagLM
adapt.Aligned adapt.Biattentive
adapt.ConcatPooling adapt.TruncatedGradient adapt.LinearGain
data.SentencePairs data.Packed data.TokenizerSpec
"""


@pytest.mark.parametrize("kind", MOVED.split())
def test_a_class_is_found_in_whichever_file_of_its_room(kind):
    """Records hold the name of a class, with its room where two have the name, and no file."""
    room, _, name = kind.partition(".")
    for spelling in (kind,) if name == "Recurrent" else (name, kind):
        assert KINDS[spelling].__name__ == name
        assert KINDS[spelling].__module__.startswith(f"ptm_jax.{room}.")


def test_kinds_are_unique_and_public():
    assert KINDS["Recipe"] is Recipe and KINDS["Phase"] is Phase
    assert {
        "Vocab",
        "Model",
        "Transformer",
        "MLM",
        "TokenMasking",
        "Packed",
        "TokenizerSpec",
    } <= set(KINDS)
    assert not [name for name in KINDS if name.startswith("_")]
    assert not {cls.__module__.split(".")[1] for cls in KINDS.values()} & {
        "cli",
        "kernels",
        "mesh",
        "train",
    }
