"""`ptm list` and `ptm list --rows`: width, folding, filters, JSON; the rows of the survey and the
values that name them."""

import json
import os
import re
import subprocess
import sys
from collections import defaultdict

import pytest

from ptm_jax.adapt import catalogue as adaptations
from ptm_jax.cli import list_pages, listing, options
from ptm_jax.cli.main import main
from ptm_jax.compress import catalogue as compressions
from ptm_jax.core.spec.classes import kinds_of
from ptm_jax.systems.survey import rows as survey
from ptm_jax.systems.survey import trainings
from ptm_jax.tasks.catalogue import catalogue as tasks

FIELDS = (
    "name rows group section paper towers corruption objective adapt compress status overdue"
).split()


@pytest.fixture(autouse=True)
def late(monkeypatch):
    """Names of overdue trainings: none, whatever the history of this checkout is."""
    names = set()
    monkeypatch.setattr(trainings, "overdue", lambda system: system.name in names)
    return names


@pytest.fixture
def ptm(capsys):
    def call(*words):
        status = main(["list", *words])
        out, err = capsys.readouterr()
        assert status == 0, err
        return json.loads(out) if "--json" in words else out

    return call


def test_a_line_for_each_family_in_80_columns(ptm):
    out = ptm()
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80 and lines[0].split() == [
        "name",
        "row",
        "corruption",
        ">",
        "objective",
        "status",
    ]
    families = lines[1 : lines.index("")]
    assert len(families) < len(listing.systems()) / 2 and re.search(
        r"^bert_L{2..12}_H{128..768} +66 ", out, re.M
    )
    assert [
        line
        for line in families
        if re.match(r"bert_tiny, _mini +66 +TokenMasking > MLM +b t$", line)
    ]
    assert all(re.search(rf"^  {word} +\w", out, re.M) for word in survey.WORDS)


def test_an_overdue_training_shows(ptm, late):
    late |= {"bert_mini", "gpt_mini"}
    lines = ptm("--status", "trains").splitlines()
    (bert,) = (line for line in lines if line.startswith("bert_mini "))
    (tiny,) = (line for line in lines if line.startswith("bert_tiny "))
    assert bert.endswith(" b (t)") and tiny.endswith(" b t")
    entries = {one["name"]: one["overdue"] for one in ptm("--json")}
    assert {name for name, words in entries.items() if words} == late
    assert re.search(r"^bert_tiny, _mini .* b t$", ptm(), re.M), "a size of the family is not late"
    rows = {one["row"]: one for one in ptm("--rows", "--json")}
    assert {e["value"] for one in rows.values() for e in one["earned"] if e["overdue"]} == late
    assert "trains (overdue)" in ptm("--rows", "--text", "gpt_mini")


def test_json_has_the_fields_of_every_system(ptm):
    entries = ptm("--json")
    assert len(entries) == len(listing.systems()) and all(list(one) == FIELDS for one in entries)
    bert = next(one for one in entries if one["name"] == "bert_base")
    assert bert["rows"] == [44] and bert["towers"] == {"main": "Transformer"}
    assert bert["status"] == ["built", "matches", "sized"]


def test_filters_keep_a_line_for_each_system(ptm):
    found = ptm("--status", "matches", "--text", "T5", "--json")
    assert {one["name"] for one in found} == {"t5_base", "t5_1_1_base"}
    lines = ptm("--text", "albert_xx").splitlines()
    assert [line.split()[0] for line in lines[1 : lines.index("")]] == [
        "albert_xxlarge",
        "albert_xxlarge_v2",
    ]
    assert {one["group"] for one in ptm("--group", "encoder-dec", "--json")} == {"Encoder-decoders"}
    assert not ptm("--status", "none", "--json") and ptm("--text", "nowhere") == "nothing matches\n"


def test_the_documented_examples_run(ptm):
    """All but --matrix, which `tests/systems/test_matrix.py` covers."""
    for line in re.findall(r"^  ptm list *(.*)$", listing.__doc__, re.M):
        assert "--matrix" in line or ptm(*line.split())


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--status", "biult"], "Did you mean 'built'?"),
        (["--rows", "--tasks"], "--rows and --tasks are two lists"),
        (["--matrix", "--text", "x"], "leave --matrix out"),
        (["--missing"], "give --rows too"),
    ],
)
def test_bad_filters(capsys, words, part):
    assert main(["list", *words]) == 1 and part in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["bert_base", "bert_large", "bert_base_cased"], "bert_base, _large, _base_cased"),
        (["gpt2", "gpt2_xl", "gpt_mini"], "gpt2, _xl, gpt_mini"),
        (["a_L2_H8", "a_L2_H16", "a_L4_H8", "a_L4_H16"], "a_L{2..4}_H{8..16}"),
        (["r_base_cn", "r_large_cn"], "r_base_cn, _large_cn"),
    ],
)
def test_fold(names, short):
    assert list_pages.fold(names) == short


def test_the_rows_of_the_survey():
    rows = survey.rows()
    assert [row.number for row in rows] == [*range(1, 271)] and len(
        {row.name for row in rows}
    ) == 270
    assert {row.kind for row in rows} == {"system", "task", "corpus", "method"}
    sizes = [29, 12, 26, 30, 18, 12, 14, 13, 9, 25, 18, 40, 18, 6]
    assert [sum(row.table == f"A{i}" for row in rows) for i in range(1, 15)] == sizes


def test_every_row_that_a_value_names_is_there_and_every_part_exists():
    named = [row for system in listing.systems() for row in system.rows]
    named += [row for name in tasks.names() for row in tasks.get(name).rows]
    named += [row for _, rows in adaptations.NAMES.values() for row in rows]
    named += [row for _, rows in compressions.NAMES.values() for row in rows]
    assert {*named} <= {*range(1, 271)} and len({*named}) > 50
    commands = {part for row in survey.rows() for part in row.parts if part.startswith("ptm ")}
    assert {part for row in survey.rows() for part in row.parts} - commands <= {*kinds_of()}
    for system in listing.systems():  # the survey is of 2020
        assert system.rows or int(re.search(r"\b\d{4}\b", system.paper)[0]) > 2020, system.paper


OTHER_WORDS = {"vectors", "words", "adversarial", "heads", "layers"}
"""Names that mean another thing than the row in whose name they stand."""


def test_a_name_that_stands_in_the_name_of_a_row_has_this_row():
    def bare(text):
        return re.sub(r"[^a-z0-9]", "", text.lower())

    count, claims = 0, defaultdict(set)
    for name, (_, numbers) in [*adaptations.NAMES.items(), *compressions.NAMES.items()]:
        claims[name] |= {*numbers}
    words = {
        row.number: {
            bare(word)
            for cut in (r"$", r"[\s,/()]+", r"[\s,/()-]+")
            for word in re.split(cut, row.name)
        }
        for row in survey.rows()
    }
    for name, numbers in claims.items():
        named = {number for number, spelled in words.items() if bare(name) in spelled}
        if named and name not in OTHER_WORDS:
            count += 1
            assert named & numbers, f"{name}: rows {numbers}, and the survey's are {named}"
    assert count > 25


def test_an_adaptation_with_the_row_of_a_system_cites_its_paper():
    """By the first author, in the text of the class or of its file."""
    authors = defaultdict(set)
    for system in listing.systems():
        for row in system.rows:
            authors[row].add(system.paper.split()[0])
    cited = {}
    for name, (kind, rows) in adaptations.NAMES.items():
        for row in {*rows} & authors.keys():
            if isinstance(kind, type):
                text = f"{kind.__doc__} {sys.modules[kind.__module__].__doc__}"
                cited[name, row] = any(author in text for author in authors[row])
    assert len(cited) > 10 and all(cited.values()), cited


def test_the_help_of_a_command_that_a_row_names_has_its_words(capsys):
    named = [
        part.split()[1:] for row in survey.rows() for part in row.parts if part.startswith("ptm ")
    ]
    assert len(named) > 5
    for command in {words[0] for words in named}:
        assert main([command, "--help"]) == 0
        shown = set(re.findall(r"[\w-]+", capsys.readouterr().out))
        assert {word for words in named if words[0] == command for word in words[1:]} <= shown


def test_rows_as_json_carry_values_and_the_run_that_earned_each_word(ptm):
    found = ptm("--rows", "--json")
    assert len(found) == 270 and set(found[0]) >= {
        "row",
        "name",
        "section",
        "table",
        "kind",
        "values",
        "status",
    }
    bert, mlm, glue, lora = (found[n - 1] for n in (44, 70, 207, 202))
    assert "bert_base" in bert["values"] and bert["status"] == ["built", "matches", "sized"]
    assert mlm["values"] == ["MLM", "TokenMasking"] and mlm["status"] == ["built"]
    assert "cola" in glue["values"] and glue["kind"] == "task" and "lora" in lora["values"]
    for one in bert["earned"]:
        assert one["value"] in bert["values"] and re.fullmatch(r"\d{4}-\d\d-\d\d", one["date"])
        assert re.fullmatch(r"[0-9a-f]{7,}\+?", one["commit"])
    assert [one["row"] for one in ptm("--rows", "--group", "A14", "--json")] == [*range(265, 271)]
    assert all(one["status"] for one in ptm("--rows", "--status", "trains", "--json"))


def test_what_a_row_lacks(ptm):
    """The words of its kind that neither a value nor the row itself earned."""
    found = {one["row"]: one for one in ptm("--rows", "--missing", "--json")}
    every = {one["row"]: one for one in ptm("--rows", "--json")}
    assert {number for number, one in every.items() if one["missing"]} == found.keys()
    for number, one in every.items():
        expected = survey.EXPECTED[one["kind"]]
        assert one["missing"] == [word for word in expected if word not in one["status"]], number
    assert {*survey.EXPECTED} == {row.kind for row in survey.rows()}
    out = ptm("--rows", "--missing", "--group", "A10")
    assert max(map(len, out.splitlines())) <= 80
    assert "\n  170  I-BERT " in out and "lacks built trains matches sized reproduces\n" in out
    assert "\n       built trains: ib_bert_mini, mobilebert_mini\n" in out


def test_a_row_earns_words_by_its_own_name(ptm, monkeypatch):
    run = {"Distributed training": {"matches": ["2026-01-01", "abcdef0"]}}
    monkeypatch.setattr(survey, "status", lambda: run)
    (row,) = [one for one in ptm("--rows", "--json") if one["status"]]
    assert row["row"] == 267 and row["status"] == ["matches"]
    assert row["earned"][0]["value"] == "Distributed training"


def test_rows_as_text(ptm):
    out = ptm("--rows", "--group", "a3")
    assert max(map(len, out.splitlines())) <= 80
    assert (
        "A3  Transformer models (survey 2.4.2" in out
        and "\n   44  BERT " in out
        and "\n       bert_base, _large" in out
    )
    assert (
        re.search(r"\n       built matches \d{4}-\d\d-\d\d [0-9a-f]{7}", out)
        and out.count("\n   ") > 26
    )


def test_table_cuts_the_widest_column():
    text = options.table(("a", "b"), [("x" * 50, "y"), ("z", "w" * 8)], width=30)
    assert [len(line) for line in text.splitlines()] == [23, 23, 30] and "…" in text


def test_families_of_checkpoints_have_their_classes_and_no_code_is_run(ptm):
    out, document = ptm("--checkpoints"), ptm("--checkpoints", "--json")
    classes = {one["model_type"]: one["classes"] for one in document}
    assert classes["neobert"][0] == "NeoBERT" and "EsmForMaskedLM" in classes["esm"]
    assert all(name in out for name in classes) and "No code of a checkpoint is ever run" in out


COMMANDS = (["list"], ["show", "bert_mini"])
CALL = """
import sys
from ptm_jax.cli.main import main
status = [main(words.split()) for words in sys.argv[1:]]
print(status, "jax" in sys.modules, file=sys.stderr)
"""


@pytest.mark.full
def test_list_and_show_are_the_same_from_the_cache(tmp_path, capsys):
    """The first process of each command makes the value, the last one reads all of them."""
    environment = {**os.environ, "PTM_CACHE": str(tmp_path)}

    def call(*commands):
        words = [sys.executable, "-c", CALL, *map(" ".join, commands)]
        done = subprocess.run(words, capture_output=True, env=environment, text=True, check=True)
        return done.stdout, done.stderr.splitlines()[-1]

    made = [call(command) for command in COMMANDS]
    assert {loaded for _, loaded in made} == {"[0] True"}
    assert call(*COMMANDS) == ("".join(text for text, _ in made), "[0, 0] False")
    assert main(["show", "bert_mini"]) == 0 and capsys.readouterr().out == made[1][0]
