"""Streams of predictions and their indexes: inputs and files at which nothing may be wrong in
silence, read again by Python's csv and json."""

import csv
import io
import json
import os

import numpy as np
import pytest

from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.inference.streams import lines
from ptm_jax.tasks.tables import prediction_tables
from support import tiny_models

TEXTS = ("the king", "the queen", "the house", "the hat")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "run"
    return str(tiny_models.save_run(folder, tiny_models.build("bert")))


def predicted(capsys, model, task, *words):
    """(status, output, errors) of `ptm predict`."""
    status = main(["predict", model, "--task", task, *map(str, words)])
    return (status, *capsys.readouterr())


def read(folder, name, text):
    """The lines of a file with these contents, checked."""
    path = folder / name
    path.write_bytes(text.encode())
    return list(lines.Source(path).lines())


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("x.csv", "text,text\na,b\n", "two columns are named 'text'"),
        ("x.tsv", "text\ttext\na\tb\n", "two columns are named 'text'"),
        ("x.csv", "content,label\na,b,c\n", ""),
        ("x.csv", 'text\n"a\n', "is not CSV"),
        ("x.tsv", "title\na\n", "has no column text"),
    ],
)
def test_tables_of_texts(name, text, why, tmp_path):
    if why:
        with pytest.raises(UserError, match=why):
            read(tmp_path, name, text)
    else:
        assert read(tmp_path, name, text)[0].fault == "it has 3 columns, not 2"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"text": "a", "text": "b"}', "two fields are named 'text'"),
        ('{"text": "a", "x": 1, "x": 2}', "two fields are named 'x'"),
        ('{"text": ["a"]}', "its field text is no text"),
        ('{"text": null}', "its field text is no text"),
        ('["a"]', "it is no JSON object"),
        ('{"text": "a\\ud83d"}', "it is not UTF-8 text"),
        ('{"text": " "}', "it is empty"),
    ],
)
def test_lines_of_json(text, fault, tmp_path):
    good, bad = read(tmp_path, "x.jsonl", f'{{"text": "fine"}}\n{text}\n')
    assert (good.text, good.fault) == ("fine", "") and fault in bad.fault


def test_tabs_are_read_as_pandas_writes_them(tmp_path):
    """Quotes around cells are no part of them, unless they are ordinary characters of the file."""
    rows = read(tmp_path, "x.tsv", 'text\tn\n"a ""b"" c"\t1\n"two\nlines"\t2\n')
    assert [row.text for row in rows] == ['a "b" c', "two\nlines"]
    plain = read(tmp_path, "y.tsv", 'text\tn\n"Yes" he said\t1\nso "it" is\t2\n')
    assert [row.text for row in plain] == ['"Yes" he said', 'so "it" is']


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_every_text_comes_back_from_a_table(ending, model, tmp_path, capsys):
    """Carriage returns, quotes, separators and lines inside a text are inside one cell."""
    texts = ["a\rb", 'say "x"', "a,b\tc", "two\nlines", "win\r\ndows", "x\u2028y", "=1+1"]
    source, output = tmp_path / "x.jsonl", tmp_path / f"y{ending}"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    assert predicted(capsys, model, "embed", "--input", source, "--output", output)[0] == 0
    with output.open(newline="", encoding="utf8") as file:
        quoting = csv.QUOTE_MINIMAL if ending == ".csv" else csv.QUOTE_NONE
        rows = list(
            csv.DictReader(file, delimiter="," if ending == ".csv" else "\t", quoting=quoting)
        )
    if ending == ".csv":
        assert [row["text"] for row in rows] == texts
    else:
        assert [row["text"].split() for row in rows] == [text.split() for text in texts]
    cells = [{"text": text, "prediction": "p"} for text in texts]
    table = "".join(prediction_tables.lines(cells, ","))
    assert [row[0] for row in csv.reader(io.StringIO(table, newline=""))][1:] == texts


@pytest.mark.parametrize("kind", ["same", "symlink", "link"])
def test_the_input_is_never_the_output(kind, model, tmp_path, capsys):
    path, output = tmp_path / "x.jsonl", tmp_path / "y.jsonl"
    content = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    path.write_text(content)
    if kind == "same":
        output = path
    else:
        (os.symlink if kind == "symlink" else os.link)(path, output)
    words = ("--input", path, "--output", output, "--overwrite")
    status, _, error = predicted(capsys, model, "embed", *words)
    assert status == 1 and "a file that is read; give another path" in error
    assert path.read_text() == content


def test_an_index_whose_vectors_have_changed_is_refused(model, tmp_path, capsys):
    path, folder = tmp_path / "x.txt", tmp_path / "index"
    path.write_text("\n".join(TEXTS) + "\n")
    words = ("--text", "the king", "--index", folder, "--json")
    status, wanted, _ = predicted(capsys, model, "search", *words, "--input", path)
    assert status == 0 and json.loads(wanted)[0]["found"][0]["text"] == "the king"
    vectors = folder / "vectors.npy"
    content = vectors.read_bytes()
    swapped = np.load(vectors)[::-1].copy()
    for changed in (content[:-40] + b"\x40" * 40, content[:-64] + swapped.tobytes()[-64:],
                    content.replace(b"'shape': (4, 16), }", b"'shape': (8, 8), } ")):  # fmt: skip
        assert len(changed) == len(content) and changed != content
        vectors.write_bytes(changed)
        status, _, error = predicted(capsys, model, "search", *words)
        assert status == 1 and "has changed since it was written; give --overwrite" in error
    status, again, _ = predicted(capsys, model, "search", *words, "--overwrite")
    assert status == 0 and again == wanted
