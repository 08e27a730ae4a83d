"""`ptm predict` of a run on a user's table: a row for each row, in blocks, resumed."""

import csv
import gzip
import json

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

import ptm_jax
from ptm_jax.cli import main
from ptm_jax.cli.models import predict, predict_tables
from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.inference.streams.lines import Source as LineSource
from ptm_jax.inference.streams.row_formats import Row, Table
from ptm_jax.inference.uses import Use
from ptm_jax.systems import get
from ptm_jax.tasks.formats.tabular import Source
from ptm_jax.tasks.tables import table_stream
from ptm_jax.tasks.tables.own_tables import OwnLabels, OwnQuestions, OwnTags, OwnTexts
from support import tiny_checkpoint
from support import tiny_runs as tiny

DRAW = np.random.default_rng(0)
TEXTS = [" ".join(DRAW.choice(tiny_checkpoint.WORDS, DRAW.integers(2, 9))) for _ in range(30)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    model = tiny_checkpoint.write(folder / "model", scale=0.5)
    with (folder / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [("text", "topic"), *zip(TEXTS, ["yes", "no"] * 15, strict=True)]
        )
    words = ["train", "--init", str(model), "--data", str(folder / "train.csv")]
    words += ["--text-column", "text", "--label-column", "topic", "--heldout", "0.2"]
    words += ["--epochs", "1", "--batch", "8", "--length", "48", "--workdir", str(folder / "run")]
    with tiny.compiling(tmp_path_factory.getbasetemp() / "compiled"):
        assert main.main(words) == 0
        yield str(folder / "run")


HARD = f"""id,text,topic
1,{TEXTS[0]},yes
2,,no
3,"{TEXTS[1]}
{TEXTS[2]}",other

4,{TEXTS[3]}
5,"{TEXTS[4]}"x,yes
6,\udcff,yes
7,{TEXTS[5]},
"""
REASONS = {
    3: "the column text is empty; fill it in, or remove the row",
    6: "it is empty",
    7: "it has 2 columns, not 3",
    8: "it is not CSV (',' expected after '\"')",
    9: "it is not UTF-8 text",
}
"""{line of HARD: why it is refused}."""


def rows_of(path):
    with path.open(encoding="utf8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_out_for_each_row_in(run, tmp_path, capsys):
    table, out = tmp_path / "new.csv", tmp_path / "out.csv"
    table.write_text(HARD, encoding="utf8", errors="surrogateescape")
    words = ["predict", run, "--input", str(table), "--output"]
    assert main.main([*words, str(out)]) == 0
    printed = capsys.readouterr().err
    assert "wrote 8 rows to" in printed
    assert "refused: 5 (lines 3, 6, 7, 8, 9); the reason is in the row" in printed
    rows = rows_of(out)
    assert list(rows[0]) == ["line", "id", "text", "gold", "prediction", "score", "error"]
    assert [row["id"] for row in rows] == ["1", "2", "3", "", "4", "", "6", "7"]
    assert [int(row["line"]) for row in rows] == [2, 3, 4, 6, 7, 8, 9, 10]
    assert {int(row["line"]): row["error"] for row in rows if row["error"]} == REASONS
    good = [row for row in rows if not row["error"]]
    texts = [TEXTS[0], f"{TEXTS[1]}\n{TEXTS[2]}", TEXTS[5]]
    assert [row["text"] for row in good] == texts
    assert [row["gold"] for row in good] == ["yes", "", ""]
    for row, scores in zip(good, ptm_jax.load(run).classify(texts), strict=True):
        assert row["prediction"] == max(scores, key=scores.get)
        assert float(row["score"]) == pytest.approx(max(scores.values()), abs=1e-5)

    assert main.main([*words, str(tmp_path / "s.csv"), "--strict"]) == 1
    assert f"line 3 is refused: {REASONS[3]}; correct it" in capsys.readouterr().err
    assert [row["line"] for row in rows_of(tmp_path / "s.csv.partial")] == ["2"]
    for ending in (".jsonl", ".json"):
        assert main.main([*words, str(tmp_path / f"out{ending}"), "--block", "3"]) == 0
    objects = json.loads((tmp_path / "out.json").read_text())
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert list(map(json.loads, lines)) == objects
    for row, fields in zip(rows, objects, strict=True):
        assert str(fields["line"]) == row["line"] and fields.get("error", "") == row["error"]
        assert fields["id"] == row["id"]
        assert fields.get("prediction", "") == row["prediction"]
        assert "error" in fields or {*fields["scores"]} == {"yes", "no"}


def test_columns_that_the_user_names(run, tmp_path, capsys):
    """Texts under another name than in training, and a column of ids."""
    table, out = tmp_path / "new.csv", tmp_path / "out.csv"
    table.write_text(f"ticket,said\nT-1,{TEXTS[0]}\nT-2,{TEXTS[1]}\n")
    words = ["predict", run, "--input", str(table), "--output", str(out)]
    assert main.main(words) == 1
    error = capsys.readouterr().err
    assert "has no column 'text'" in error and "give the text's as --text-column" in error
    assert main.main([*words, "--text-column", "said", "--id-column", "tickets"]) == 1
    assert "has no column 'tickets'" in capsys.readouterr().err
    assert main.main([*words, "--text-column", "says"]) == 1
    error = capsys.readouterr().err
    assert "has no column 'says'" in error and "--text-column" not in error
    assert main.main([*words[:-1], str(tmp_path / "out.npy")]) == 1
    assert "an --output of .npy holds vectors (--task embed)" in capsys.readouterr().err
    assert not (tmp_path / "out.npy").exists()
    assert main.main([*words, "--text-column", "said", "--id-column", "Ticket"]) == 0
    rows = rows_of(out)
    assert [(row["id"], row["text"]) for row in rows] == [("T-1", TEXTS[0]), ("T-2", TEXTS[1])]
    capsys.readouterr()
    table.write_text(f"text\n{TEXTS[0]}\n")
    assert main.main(["evaluate", run, "--data", str(table)]) == 1
    assert "has no column 'topic'" in (error := capsys.readouterr().err)
    assert "`ptm predict` needs no labels" in error
    assert main.main(["evaluate", run, "--id-column", "ticket"]) == 1
    assert "--id-column names the ids of --predictions" in capsys.readouterr().err


def test_an_evaluation_knows_the_task_of_its_run_and_keeps_ids(run, tmp_path, capsys):
    table, out = tmp_path / "more.csv", tmp_path / "more_predictions.csv"
    rows = [f"{n},{text},{['yes', 'no'][n % 2]}\n" for n, text in enumerate(TEXTS[:6])]
    table.write_text("ticket,text,topic\n" + "".join(rows))
    words = ["evaluate", run, "--data", str(table), "--predictions", str(out)]
    assert main.main([*words, "--id-column", "ticket", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["task"] == "classify" and document["examples"] == 6
    written = rows_of(out)
    assert [(row["id"], row["text"]) for row in written] == [
        (str(n), text) for n, text in enumerate(TEXTS[:6])
    ]
    right = np.mean([row["gold"] == row["prediction"] for row in written])
    assert document["metrics"]["accuracy"] == right
    assert main.main(["evaluate", run, "--task", "classify", "--json"]) == 0
    of_task = json.loads(capsys.readouterr().out)
    assert main.main(["evaluate", run, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == of_task


def test_an_export_names_the_length_of_its_training(run, tmp_path, capsys):
    """The tokenizer keeps the limit of the model, as Transformers does."""
    assert main.main(["export", run, "--out", str(tmp_path / "hf")]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    limit = ptm_jax.load(run).limit
    assert f"at most 48 tokens, and the model reads {limit}" in last and limit == 64
    assert "tokenizer(texts, truncation=True, max_length=48)" in last
    assert "max_length=48" in (tmp_path / "hf" / "README.md").read_text()


def test_more_steps_of_a_run_on_a_table(run, capsys):
    assert main.main(["train", "--workdir", run, "--more", "5"]) == 1
    error = capsys.readouterr().err
    assert "was fine-tuned" in error and f"ptm train --init {run} --data PATH" in error


def test_texts_need_no_task(run, tmp_path, capsys):
    (tmp_path / "new.txt").write_text(TEXTS[0] + "\n")
    printed = []
    for words in (("--text", TEXTS[0]), ("--input", str(tmp_path / "new.txt"))):
        for task in ((), ("--task", "classify")):
            assert main.main(["predict", run, *words, *task]) == 0
            printed.append(capsys.readouterr().out)
    assert len({*printed}) == 1 and "yes" in printed[0]
    assert main.main(["predict", run]) == 1
    assert "name what to do" in capsys.readouterr().err
    assert main.main(["predict", str(tmp_path / "absent"), "--text", "a"]) == 1
    assert "absent is no file or folder here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("task", "use"),
    [
        ("translation", "generate"), ("sst2", "classify"), ("conll2003", "tag"), ("squad2", "qa"),
        ("swag", None), ("mnli+rte", None),
    ],
)  # fmt: skip
def test_a_run_on_a_published_task_has_its_use(task, use, tmp_path):
    record = {"config": {"system": spec.to_json(get("bert_mini"))}}
    (tmp_path / "config.json").write_text(json.dumps(record))
    choice = {"task": task, "step": 1, "examples": 1, "metrics": {}, "ended": "done"}
    (tmp_path / "task.json").write_text(json.dumps(choice))
    assert predict_tables.use_of(predict.Args(model=str(tmp_path))) == use


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".json"])
def test_blocks_and_a_stop_change_no_byte(ending, run, tmp_path, capsys):
    table = tmp_path / "new.tsv"
    rows = [text if n % 7 else "" for n, text in enumerate(TEXTS)]
    table.write_text("".join(f"{n}\t{text}\n" for n, text in [("id", "text"), *enumerate(rows)]))
    out, other = tmp_path / f"a{ending}", tmp_path / f"b{ending}"
    words = ["predict", run, "--task", "classify", "--input", str(table), "--output"]
    assert main.main([*words, str(out)]) == 0
    assert main.main([*words, str(other), "--block", "4"]) == 0
    complete = out.read_bytes()
    assert other.read_bytes() == complete
    record = tmp_path / f"b{ending}.progress"
    entries = record.read_bytes().splitlines(keepends=True)
    record.write_bytes(b"".join(entries[:4]))  # the command, and three blocks
    other.write_bytes(complete[: json.loads(entries[3])["bytes"] - 2])  # cut inside a row
    capsys.readouterr()
    assert main.main([*words, str(other), "--block", "5"]) == 0
    assert "of them before" in capsys.readouterr().err
    assert other.read_bytes() == complete
    assert main.main([*words, str(other)]) == 0
    assert "is complete: 30 rows" in capsys.readouterr().err

    table.write_text(f"id\ttext\n0\t{TEXTS[0]}\n")
    assert main.main([*words, str(other)]) == 1
    assert f"new.tsv has changed since {other} was begun" in capsys.readouterr().err
    assert other.read_bytes() == complete
    assert main.main([*words, str(other), "--overwrite"]) == 0
    assert "wrote 1 rows" in capsys.readouterr().err


REFUSED = {
    "a missing column": ("a,b\n1,2\n", (), "has no column 'text'; its first row names 'a', 'b'"),
    "no rows": ("text\n", (), "has no examples below its first line"),
    "a block of nothing": ("text\na\n", ("--block", "0"), "a block has at least one line"),
    "two columns of a name": ("text,text\na,b\n", (), "two columns are named 'text'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_tables_that_are_refused(name, run, tmp_path, capsys):
    text, more, message = REFUSED[name]
    (tmp_path / "new.csv").write_text(text)
    words = ["predict", run, "--input", str(tmp_path / "new.csv"), *more]
    assert main.main([*words, "--output", str(tmp_path / "out.csv")]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "more", [("--strict",), ("--block", "5"), ("--overwrite",), ("--text-column", "a")]
)
def test_benchmarks_refuse_the_options_of_streams(more, run, tmp_path, capsys):
    (tmp_path / "test.tsv").write_text("index\tsentence\n0\ta good film\n")
    words = ["predict", run, "--task", "sst2", "--input", str(tmp_path / "test.tsv"), *more]
    assert main.main(words) == 1
    err = capsys.readouterr().err
    assert f"{more[0]} is for lines of text and for tables of your own" in err
    assert len(err.splitlines()) == 1


WORDS = ["good film", "a story, of ants"]
READERS = {
    "classify": (OwnTexts(first=("text",), label=("y",), labels=("p", "n")),
                 {"text": WORDS, "y": ["n", "unknown"]}),
    "rate": (OwnTexts(first=("text",), label=("y",), labels=()),
             {"text": WORDS, "y": ["1,5", ""]}),
    "labels": (OwnLabels(columns=("text", "more"), label=("y",), labels=("p", "n")),
               {"text": WORDS, "more": WORDS[::-1], "y": ["p,n", ""]}),
    "ner": (OwnTags(words="text", tags="y", labels=("O", "B-X")),
            {"text": WORDS, "y": ["O B-X", "O O O B-X"]}),
    "answers": (OwnQuestions(asked="q", passage="text", answer="y"),
                {"q": ["who?", "what?"], "text": WORDS, "y": ["film", ""]}),
}  # fmt: skip


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".json", ".parquet", ".csv.gz"])
@pytest.mark.parametrize("name", READERS)
def test_rows_are_the_examples_of_training(name, ending, tmp_path):
    """Of each task and format; the libraries of Python and Arrow write the file."""
    examples, columns = READERS[name]
    path = tmp_path / f"new{ending}"
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if ending == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif ending == ".json":
        path.write_text(json.dumps(rows))
    elif ending == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        opened = gzip.open if ending.endswith(".gz") else open
        with opened(path, "wt", newline="") as file:
            separator = "\t" if ending == ".tsv" else ";"
            csv.writer(file, delimiter=separator).writerows([("", *columns)])
            csv.writer(file, delimiter=separator).writerows((0, *row.values()) for row in rows)
    lines = list(table_stream.TableSource(path, examples=examples).lines())
    assert not any(line.fault for line in lines)
    streamed = [line.example for line in lines]
    read = list(examples.read(path, labels=False))
    if ending in (".json", ".parquet"):  # their places are spelled in another way
        streamed, read = ([one._replace(place="") for one in each] for each in (streamed, read))
    assert streamed == read and len(read) == 2


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".json", ".parquet", ".csv.gz"])
@pytest.mark.parametrize(
    ("names", "asked", "column"),
    [
        (("GUID", "text", "y"), None, "GUID"),
        (("text", "Index", "y"), None, "Index"),
        (("text", "y", "ticket"), "ticket", "ticket"),
        (("text", "y", "ticket"), None, None),
        (("text", "y"), None, None),
    ],
)
def test_ids_of_every_format(names, asked, column, ending, tmp_path):
    """Streamed for `ptm predict`, and by the place of an example for an evaluation."""
    examples, path = OwnTexts(first=("text",), label=("y",), labels=("p",)), tmp_path / f"t{ending}"
    rows = [{name: {"text": text, "y": "p"}.get(name, 7 + n) for name in names}
            for n, text in enumerate(WORDS)]  # fmt: skip
    if ending == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif ending.startswith(".json"):
        lines = [json.dumps(row) for row in rows]
        path.write_text("\n".join(lines) if ending == ".jsonl" else f"[{', '.join(lines)}]")
    else:
        with (gzip.open if ending.endswith(".gz") else open)(path, "wt", newline="") as file:
            separator = "\t" if ending == ".tsv" else ","
            csv.writer(file, delimiter=separator).writerows([names, *(r.values() for r in rows)])
    source = table_stream.TableSource(
        path, examples=examples, asked=table_stream.Columns(id=asked)
    ).with_ids()
    recorded = OwnTexts(first=("text",), label=("y",), labels=("p",), id_column="Ticket")
    by_record = table_stream.TableSource(path, examples=recorded).with_ids().id
    usual = next((name for name in names if name in ("GUID", "Index")), None)
    assert by_record == (("ticket",) if "ticket" in names else (usual,) if usual else ())
    expected = ["7", "8"] if column else [None, None]
    assert source.id == ((column,) if column else ())
    assert [line.id for line in source.lines()] == expected
    ids = examples.ids(Source(str(path)), asked)
    assert [ids.get(example.place) for example in examples.read(path)] == expected


@pytest.mark.parametrize("comma", [True, False])
def test_a_refused_row_has_the_cells_that_were_read(comma, tmp_path):
    """Of a run on pairs, and of any model on a table with pairs."""
    path = tmp_path / "new.csv"
    path.write_text("id,subject,body\n1,,the body\n2,the subject,\n3,,\n")
    examples = OwnTexts(first=("subject",), second=("body",), label=("y",), labels=("p",))
    use = Use(name="pairs", help="", columns=("text", "pair", "gold"))
    plain = LineSource(path, text=("subject",), pair=("body",), id=("id",))
    for source in (table_stream.TableSource(path, examples=examples).with_ids(), plain):
        lines = list(source.lines())
        texts = [(line.text, line.pair) for line in lines]
        assert texts == [("", "the body"), ("the subject", ""), ("", "")]
        rows = [Row(line, None, "it is wrong") for line in lines]
        written = Table(use, comma, True).rows(rows, True).decode().splitlines()
        mark = "," if comma else "\t"
        assert [line.split(mark)[2:] for line in written] == [
            [*pair, "", "it is wrong"] for pair in texts
        ]
        assert rows[0].fields()["pair"] == "the body" and "pair" not in rows[1].fields()


def test_empty_cells_of_an_evaluation(run, tmp_path, capsys):
    path, texts = tmp_path / "more.csv", [*TEXTS[:3], "", *TEXTS[4:6]]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "topic"), *zip(texts, ["yes", ""] * 3, strict=True)])
    words = ["evaluate", run, "--data", str(path)]
    assert main.main(words) == 1
    error = capsys.readouterr().err
    assert "3 rows are wrong: lines 3 (topic), 5 (text), 7 (topic)" in error
    assert main.main([*words, "--skip-empty"]) == 0
    printed = capsys.readouterr().out
    assert "3 examples of" in printed and "  3 rows left out: lines 3, 5, 7" in printed


def test_lists_of_rows_name_faults(tmp_path):
    path, examples = tmp_path / "new.jsonl", READERS["classify"][0]
    path.write_text('{"text": "a"}\n{"text": ["a"]}\n\n[1]\n{"y": "p"}\n{"text": \n{"text": "b"}')
    lines = list(table_stream.TableSource(path, examples=examples).lines())
    assert [line.number for line in lines] == [1, 2, 3, 4, 5, 6, 7]
    assert [line.number for line in lines if not line.fault] == [1, 7]
    begins = ["the column text holds list", "it is empty", "it is no JSON object"]
    begins += [f"{path} has no column 'text'", "it is not JSON"]
    for line, begin in zip(lines[1:-1], begins, strict=True):
        assert line.fault.startswith(begin)


def test_a_table_is_read_as_its_rows_are_taken(tmp_path):
    """The last row changes after the first rows were taken, 20 MB before it."""
    path, examples = tmp_path / "large.csv", OwnTexts(first=("text",), label=("y",), labels=("p",))
    path.write_text("text,y\n" + "".join(f'"{i} {"word, " * 700}",p\n' for i in range(5_000)))
    with path.open("a") as file:
        file.write("last,p\n")
    lines = table_stream.TableSource(path, examples=examples).lines()
    firsts = [next(lines) for _ in range(10)]
    with path.open("r+b") as file:
        file.seek(-len("last,p\n"), 2)
        file.write(b"    ,p\n")
    *others, last = lines
    assert not any(line.fault for line in (*firsts, *others)) and len(others) == 4_990
    assert last.number == 5_002 and "empty" in last.fault


def test_a_file_that_is_not_there(run, tmp_path, capsys):
    assert main.main(["predict", run, "--input", str(tmp_path / "none.csv")]) == 1
    assert "none.csv" in capsys.readouterr().err
    with pytest.raises(UserError, match="none.csv"):
        list(table_stream.TableSource(tmp_path / "none.csv", examples=OwnTexts()).lines())
