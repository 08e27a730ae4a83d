"""`ptm predict` over files: blocks, restarts, formats, refused lines."""

import csv
import gzip
import io
import json
import random
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.inference.streams import journal, lines, row_formats, running
from ptm_jax.inference.uses import Request, Use
from support import deaths, tiny_models

WORDS = "the king queen sees loves house hat of city".split()


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """60 lines; line 8 is empty, line 21 longer than the model, and line 33 is not UTF-8."""
    draw, path = random.Random(3), tmp_path_factory.mktemp("lines") / "lines.txt"
    rows = [" ".join(draw.choices(WORDS, k=draw.randint(1, 12))) + " [MASK]" for _ in range(60)]
    rows[7], rows[20] = "", " ".join(WORDS * 9) + " [MASK]"
    raw = "\n".join(rows).encode().split(b"\n")
    raw[32] = b"the k\xefng"
    path.write_bytes(b"\n".join(raw) + b"\n")
    return path


def predicted(capsys, model, *words):
    capsys.readouterr()
    status = main(["predict", str(model), *map(str, words)])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize(
    ("family", "words", "ending"),
    [
        ("bert", ("--task", "embed"), ".npy"),
        ("bert", ("--task", "fill-mask", "--top", "2"), ".csv"),
        ("gpt2", ("--task", "generate", "--temperature", "0.9", "--max-new-tokens", "4"), ".jsonl"),
    ],
)
def test_blocks_and_restarts_change_no_byte(
    family, words, ending, text, tmp_path, capsys, monkeypatch
):
    """Blocks of 5, 60 and 1024 lines, a death after two blocks with a torn row, and a file that is
    cut anywhere: the bytes of one run."""
    model = tiny_models.save_run(tmp_path / "run", tiny_models.build(family))
    words = (*words, "--input", text)
    whole = tmp_path / f"whole{ending}"
    status, _, err = predicted(capsys, model, *words, "--output", whole)
    assert status == 0 and "wrote 60 rows" in err and "(lines 8, 21, 33" in err.replace("line ", "")
    expected = whole.read_bytes()
    other = tmp_path / f"other{ending}"
    assert predicted(capsys, model, *words, "--output", other, "--block", "60")[0] == 0
    assert other.read_bytes() == expected
    other = tmp_path / f"cut{ending}"
    with monkeypatch.context() as patch:
        deaths.killed_after(patch, 2)
        status, _, err = predicted(capsys, model, *words, "--output", other, "--block", "5")
        assert status == 1 and "Cut" in err
    assert not other.exists()  # what looks complete is complete
    with other.with_name(f"cut{ending}.partial").open("ab") as file:
        file.write(b'{"line": 16, "torn')
    status, _, err = predicted(capsys, model, *words, "--output", other, "--block", "7")
    assert status == 0 and "of them before" in err and other.read_bytes() == expected
    assert not other.with_name(f"cut{ending}.partial").exists()
    for size in (len(expected) // 2, 3):
        other.write_bytes(expected[:size])
        status, _, err = predicted(capsys, model, *words, "--output", other, "--block", "9")
        assert status == 0 and other.read_bytes() == expected and "lines 8, 21, 33" in err
    _, _, err = predicted(capsys, model, *words, "--output", other)
    assert f"{other} is complete: 60 rows" in err


def test_an_array_is_that_of_numpy_and_of_one_call(text, tmp_path, capsys):
    bert = tiny_models.build("bert")
    model = tiny_models.save_run(tmp_path / "run", bert)
    path = tmp_path / "v.npy"
    words = ("--task", "embed", "--input", text, "--output", path, "--block", "11")
    assert predicted(capsys, model, *words)[0] == 0
    vectors, texts = np.load(path), text.read_bytes().decode(errors="replace").split("\n")[:-1]
    good = [n for n in range(60) if n not in (7, 20, 32)]
    loaded = ptm_jax.load(model)
    at_once = loaded.encode([texts[n] for n in good], exact=True)
    assert vectors[good].tobytes() == at_once.tobytes() and np.isnan(vectors[[7, 20, 32]]).all()
    saved = io.BytesIO()
    np.save(saved, vectors)
    assert saved.getvalue() == path.read_bytes()


@pytest.mark.full
def test_texts_as_long_as_a_table_that_is_no_power_of_two(tmp_path, capsys):
    """12 texts of 40 tokens, which is the length of the position table: more than a batch has."""
    bert, path = tiny_models.build("bert"), tmp_path / "v.npy"
    texts = [" ".join(["king", "queen"][n % 2 :][:1] * 60) for n in range(12)]
    (tmp_path / "long.txt").write_text("\n".join(texts))
    model = tiny_models.save_run(tmp_path / "run", bert)
    words = ("--task", "embed", "--truncate", "--input", tmp_path / "long.txt", "--output", path)
    assert predicted(capsys, model, *words)[0] == 0
    wanted = ptm_jax.load(model).encode(texts, truncate=True)
    np.testing.assert_allclose(np.load(path), wanted, atol=1e-5)


def test_a_row_for_each_line_in_every_format(text, tmp_path, capsys):
    model = tiny_models.save_run(tmp_path / "run", tiny_models.build("bert"))
    rows = {}
    for ending in ("jsonl", "json", "csv", "tsv", "txt"):
        out = tmp_path / f"out.{ending}"
        words = ("--task", "fill-mask", "--top", "1", "--input", text, "--output", out)
        assert predicted(capsys, model, *words)[0] == 0
        rows[ending] = out.read_text()
    objects = [json.loads(line) for line in rows["jsonl"].splitlines()]
    assert json.loads(rows["json"]) == objects and [one["line"] for one in objects] == [
        *range(1, 61)
    ]
    errors = {one["line"]: one["error"] for one in objects if "error" in one}
    assert errors.keys() == {8, 21, 33} and errors[8] == "it is empty"
    assert "position table holds 40" in errors[21] and errors[33] == "it is not UTF-8 text"
    table = list(csv.DictReader(io.StringIO(rows["csv"])))
    assert [row["error"] for row in table] == [one.get("error", "") for one in objects]
    assert json.loads(table[0]["masks"]) == objects[0]["masks"]
    tabbed = [line.split("\t") for line in rows["tsv"].splitlines()]
    assert tabbed[0] == ["line", "text", "masks", "error"] and {len(row) for row in tabbed} == {4}
    assert "line 8 is refused: it is empty" in rows["txt"].splitlines()


def test_another_model_input_or_option_does_not_go_on(text, tmp_path, capsys):
    model = tiny_models.save_run(tmp_path / "run", tiny_models.build("bert"))
    other_text, out = tmp_path / "other.txt", tmp_path / "out.jsonl"
    other_text.write_text("the king [MASK]\n")
    words = ("--task", "fill-mask", "--output", out)
    assert predicted(capsys, model, *words, "--input", other_text)[0] == 0
    for more, what in (
        (("--input", text), "input"),
        (("--input", other_text, "--top", "2"), "opt"),
    ):
        status, _, err = predicted(capsys, model, *words, *more)
        assert status == 1 and err.count("\n") == 1
        assert f"was begun with another {what}" in err and "--overwrite" in err
    assert predicted(capsys, model, *words, "--input", text, "--overwrite")[0] == 0
    assert len(out.read_text().splitlines()) == 60
    plain = tmp_path / "plain.jsonl"
    plain.write_text("mine\n")
    status, _, err = predicted(capsys, model, *words[:2], "--output", plain, "--input", text)
    assert status == 1 and "exists, without a record" in err and plain.read_text() == "mine\n"
    assert not plain.with_name("plain.jsonl.progress").exists()


def test_strict_ends_at_the_first_refused_line(text, tmp_path, capsys):
    model = tiny_models.save_run(tmp_path / "run", tiny_models.build("bert"))
    out = tmp_path / "out.jsonl"
    words = ("--task", "fill-mask", "--input", text, "--output", out, "--strict")
    status, _, err = predicted(capsys, model, *words)
    assert status == 1 and "line 8 is refused: it is empty" in err
    rows = out.with_name("out.jsonl.partial").read_text().splitlines()
    assert not out.exists() and [json.loads(line)["line"] for line in rows] == [*range(1, 8)]


def test_ctrl_c_says_where_the_rows_are(text, tmp_path, capsys, monkeypatch):
    model = tiny_models.save_run(tmp_path / "run", tiny_models.build("bert"))
    out, real = tmp_path / "out.npy", tmp_path / "real.npy"
    real.touch()
    out.symlink_to(real)
    words = ("--task", "embed", "--input", text, "--output", out)
    with monkeypatch.context() as patch:
        deaths.killed_after(patch, 2, KeyboardInterrupt)
        status, _, err = predicted(capsys, model, *words, "--block", "5")
    assert status == 130 and "are in real.npy.partial: run the same command again" in err
    status, _, err = predicted(capsys, model, *words)
    assert status == 0 and out.is_symlink() and len(np.load(real)) == 60
    assert "line 8: it is empty" in err and "line 33: it is not UTF-8 text" in err
    assert "position table holds 40" in err and "reason is in the row" not in err
    record = out.with_name("out.npy.progress")
    entries = [json.loads(line) for line in record.read_text().splitlines()]
    for entry in entries:  # as older versions wrote it, without reasons
        entry["refused"] = [one[:2] for one in entry.get("refused", [])]
    record.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    status, _, err = predicted(capsys, model, *words)
    assert status == 0 and "is complete: 60 rows" in err and "(lines 8, 21, 33)" in err


def test_a_model_that_does_not_fit_the_task_ends_the_run_at_once(text, tmp_path, capsys):
    model = tiny_models.save_run(tmp_path / "run", tiny_models.build("bert"))
    words = ("--task", "tag", "--input", text, "--output", tmp_path / "out.jsonl")
    status, _, err = predicted(capsys, model, *words)
    assert status == 1 and "does not tag words" in err and err.count("\n") == 1


def test_standard_input_is_continued_where_its_texts_are_the_same(tmp_path, capsys, monkeypatch):
    model = tiny_models.save_run(tmp_path / "run", tiny_models.build("bert"))
    out, words = tmp_path / "out.jsonl", ("--task", "fill-mask", "--block", "2")

    def piped(text):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        return predicted(capsys, model, *words, "--output", out)

    texts = [f"the {word} [MASK]\n" for word in WORDS]
    assert piped("".join(texts))[0] == 0
    expected = out.read_bytes()
    out.write_bytes(expected[: len(expected) // 2])
    assert piped("".join(texts))[0] == 0 and out.read_bytes() == expected
    out.write_bytes(expected[: len(expected) // 2])
    status, _, err = piped("".join(texts[1:]))
    assert status == 1 and "begins with other lines" in err


class Counted:
    """A text whose life is counted."""

    alive = most = 0

    def __init__(self):
        Counted.alive += 1
        Counted.most = max(Counted.most, Counted.alive)
        weakref.finalize(self, Counted.end)

    @staticmethod
    def end():
        Counted.alive -= 1


def test_rows_are_alive_for_a_block_or_two(tmp_path):
    """3,000 lines in blocks of 10: never more than the results of two blocks."""
    Counted.alive = Counted.most = 0
    path, out = tmp_path / "lines.txt", tmp_path / "out.jsonl"
    path.write_text("a\n" * 3000)

    class Result(dict):
        def __init__(self, text):
            super().__init__(text=text)
            self.counted = Counted()

    use = Use(name="echo", run=lambda _, r: [Result(text) for text in r.text], help="")
    source = lines.Source(path)
    stream = running.Stream(use=use, model=None, request=Request(model=""), source=source, block=10)
    summary = running.written(stream, row_formats.JsonLines(), out, {}, overwrite=False)
    assert summary.rows == 3000 and 10 <= Counted.most <= 20
    assert Counted.alive <= 10


def test_rows_carry_the_ids_of_their_lines(tmp_path):
    """In tables and in JSON, for a use of a model on any table; an empty id stays a cell."""
    (tmp_path / "t.csv").write_text("id,text\nA-1,good\n,sad\nA-3,\n")
    use = Use(name="echo", run=lambda _, r: [{"text": text} for text in r.text], help="")
    source = lines.Source(tmp_path / "t.csv", id=("id",))
    stream = running.Stream(use=use, model=None, request=Request(model=""), source=source)
    rows = stream.results(list(source.lines()))
    table = row_formats.Table(use, True, ids=True)
    read = list(csv.DictReader(io.StringIO((table.begin() + table.rows(rows, True)).decode())))
    assert [row["id"] for row in read] == ["A-1", "", "A-3"] and read[2]["error"] == "it is empty"
    objects = [json.loads(line) for line in row_formats.JsonLines().rows(rows, True).splitlines()]
    assert [one["id"] for one in objects] == ["A-1", "", "A-3"]
    assert lines.id_column(["text", "ID"], None) == "ID"
    assert lines.id_column(["text", "id"], None, ("id",)) is None
    assert lines.id_column(["id", "key"], "key") == "key"


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.jsonl", "t.csv.gz"])
def test_tables_have_columns_of_texts_and_pairs(name, tmp_path):
    rows = [("a, b", "c"), ("d", 'e "f"'), ("", "g"), ("h", "")]
    text = io.StringIO(newline="")
    if ".csv" in name:
        csv.writer(text).writerows([("sentence", "pair"), *rows])
    elif ".tsv" in name:
        text.write("sentence\tpair\n" + "".join(f"{a}\t{b}\n" for a, b in rows))
    else:
        text.write("".join(json.dumps({"sentence": a, "pair": b}) + "\n" for a, b in rows))
    path = tmp_path / name
    data = text.getvalue().encode("utf-8-sig")
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    source = lines.Source(path, pair=("pair",))
    read = list(source.lines())
    assert [(line.text, line.pair) for line in read] == rows
    assert [line.fault for line in read] == ["", "", "it is empty", ""]
    first = 1 if "jsonl" in name else 2
    assert [line.number for line in read] == [*range(first, first + 4)]
    if ".jsonl" not in name:
        with pytest.raises(UserError, match="has no column body; it has: sentence, pair"):
            list(lines.Source(path, text=("body",)).lines())


@pytest.mark.parametrize(
    ("name", "data", "faults"),
    [
        ("a.jsonl", b'{"text": "a"}\n[1]\n{"b": 1}\n{"text": 2}\n{x\n\n{"text": "\\ud800"}\n',
        ["", "it is no JSON object", "it has no field text", "its field text is no text",
         "it is not JSON", "it is empty", "it is not UTF-8 text"]),
        ("a.tsv", b"text\tn\na\t1\nb\nc\t1\t2\n",
        ["", "it has 1 columns, not 2", "it has 3 columns, not 2"]),
        ("a.txt", b"\xef\xbb\xbfa\r\n \n\xe2\x80\xa8b\x0bc\n\xff\nlast", ["", "it is empty", "",
         "it is not UTF-8 text", ""]),
    ],
)  # fmt: skip
def test_a_line_that_holds_no_text_has_a_reason(name, data, faults, tmp_path):
    path = Path(tmp_path / name)
    path.write_bytes(data)
    read = list(lines.Source(path).lines())
    assert len(read) == len(faults)
    for line, fault in zip(read, faults, strict=True):
        assert line.fault.startswith(fault) and bool(line.fault) == bool(fault), line


def test_a_line_without_end_is_refused_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "LONGEST", 100)
    path = tmp_path / "long.txt"
    path.write_bytes(b"a\n" + b"b" * 1000 + b"\nc\n")
    read = list(lines.Source(path).lines())
    assert [line.text for line in read] == ["a", "b" * 100, "c"]
    assert read[1].fault == "it has more than 100 bytes"


@pytest.mark.parametrize(
    ("data", "why"), [("a\n".encode("utf-16"), "UTF-16"), (b"\x93NUMPY\0", "not UTF-8 text")]
)
def test_a_file_that_is_no_text_is_refused(data, why, tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes(data)
    with pytest.raises(UserError, match=why):
        list(lines.Source(path).lines())


def test_two_processes_do_not_write_one_output(tmp_path):
    with journal.locked(tmp_path / "o"), pytest.raises(UserError, match="another process writes"):
        journal.locked(tmp_path / "o")


def nearly(out, plain):
    """Whether two documents have the same lines, with cosines to 1e-5: products of other numbers of
    rows have other bits on some CPUs."""
    (one,), (two,) = (json.loads(text) for text in (out, plain))
    cosines = np.array([[hit.pop("cosine") for hit in row["similar"]] for row in (one, two)])
    return one == two and np.allclose(*cosines, rtol=0, atol=1e-5)


def test_an_index_is_made_once_and_refuses_another_file_and_model(
    text, tmp_path, capsys, monkeypatch
):
    model = tiny_models.save_run(tmp_path / "run", tiny_models.build("bert"))
    lines_file, folder = tmp_path / "lines.txt", tmp_path / "index"
    lines_file.write_bytes(text.read_bytes())
    words = ("--task", "search", "--text", "the king", "--text", "hat city", "--top", "4", "--json")
    status, plain, _ = predicted(capsys, model, *words, "--input", lines_file, "--block", "7")
    assert status == 0
    asked = (*words, "--index", folder)
    assert "is no index yet" in predicted(capsys, model, *asked)[2]
    status, out, err = predicted(capsys, model, *asked, "--input", lines_file)
    assert status == 0 and out == plain and "wrote 60 vectors" in err
    status, out, err = predicted(capsys, model, *asked)
    assert status == 0 and out == plain and "wrote" not in err
    bert, texts = ptm_jax.load(model), text.read_bytes().decode(errors="replace").splitlines()
    good = [n for n in range(60) if n not in (7, 20, 32)]
    hits = bert.search(["the king", "hat city"], [texts[n] for n in good], top=4)
    nearest = [[good[hit.index] + 1 for hit in row] for row in hits]
    assert [[one["line"] for one in row["found"]] for row in json.loads(out)] == nearest
    with lines_file.open("a") as file:
        file.write("the queen\n")
    status, _, err = predicted(capsys, model, *asked)
    assert status == 1 and "lines.txt has changed since" in err and "--overwrite" in err
    assert predicted(capsys, model, *asked, "--overwrite")[0] == 0
    similar = ("--task", "similar", "--text", "the king", "--json")
    status, plain, _ = predicted(capsys, model, *similar, "--input", lines_file)
    status, out, _ = predicted(capsys, model, *similar, "--index", folder)  # of search
    assert status == 0 and nearly(out, plain)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the king\n\n")))
    typed = ("--task", "similar", "--json", "--index", folder)
    status, out, _ = predicted(capsys, model, *typed)  # a query of standard input
    assert status == 0 and nearly(out, plain)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\n")))
    assert "give --text, or one text a line on" in predicted(capsys, model, *typed)[2]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n\xff\n")))
    assert "line 2 is refused: it is not UTF-8" in predicted(capsys, model, *typed)[2]
    status, _, err = predicted(capsys, model, *similar, "--index", folder, "--prompt", "a")
    assert status == 1 and "begun with another prompt" in err
    status, _, err = predicted(capsys, model, *similar, "--index", folder, "--pooling", "max")
    assert status == 1 and "begun with another options" in err
    status = 0
    made = predicted(capsys, model, *similar, "--input", lines_file, "--index", tmp_path / "sim")
    again = predicted(capsys, model, *similar, "--index", tmp_path / "sim")
    assert nearly(made[1], plain) and nearly(again[1], plain) and status == again[0] == 0
    moved = lines_file.rename(tmp_path / "moved.txt")
    status, _, err = predicted(capsys, model, *asked)
    assert status == 1 and "lines.txt, which is no longer there; give the file's new place" in err
    assert predicted(capsys, model, *asked, "--input", moved)[0] == 0
    assert predicted(capsys, model, *asked)[0] == 0  # it names the new place now
    other = tiny_models.save_run(tmp_path / "gpt", tiny_models.build("gpt2"))
    assert "another model" in predicted(capsys, other, *asked)[2]
