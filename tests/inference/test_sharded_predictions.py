"""`ptm predict` with its output in shards: the bytes of one output, whoever writes the shards, and
wherever a writer died."""

import gzip
import itertools
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.inference.streams import divided
from support import deaths, tiny_models

WORDS = "the king queen sees loves house hat of city".split()
ROOT = Path(__file__).parents[2]


def predicted(capsys, *words):
    capsys.readouterr()
    status = main(["predict", *map(str, words)])
    out, err = capsys.readouterr()
    return status, out, err


def joined(folder, pattern):
    return b"".join(path.read_bytes() for path in sorted(folder.glob(pattern)))


def written(folder, draw):
    """Five files of lines, an empty one and an archive among them; one has no last line feed, and
    one a mark and a blank line. Returns (paths, the texts of their lines)."""
    texts, paths = [], []
    for number, count in enumerate((9, 0, 1, 14, 6)):
        mine = [f"{number} {' '.join(draw.choices(WORDS, k=draw.randint(0, 5)))}" for _ in
            range(count)]  # fmt: skip
        if number == 3:
            mine[5], mine[7] = "", "\N{ZERO WIDTH NO-BREAK SPACE}inside"
        data = "\n".join(mine) + "\n" * (draw.random() < 0.5 and count > 0)
        raw = (b"\xef\xbb\xbf" if number == 3 else b"") + data.encode()
        path = folder / f"{number}.txt{'.gz' if number == 4 else ''}"
        path.write_bytes(gzip.compress(raw) if number == 4 else raw)
        texts, paths = texts + mine, [*paths, path]
    return paths, texts


@pytest.mark.parametrize("starts", [divided.STARTS, 12])
def test_shards_have_each_line_once(starts, tmp_path, monkeypatch):
    monkeypatch.setattr(divided, "STARTS", starts)
    for seed, count in itertools.product(range(3), (1, 4, 7)):
        paths, texts = written(tmp_path, random.Random(seed))
        source = divided.source_of(str(tmp_path / "*.txt*"))
        made = divided.division(paths, count)
        shards = [list(made.shard(number, source).lines()) for number in range(made.count)]
        lines = [line for shard in shards for line in shard]
        assert [line.number for line in lines] == [*range(1, len(texts) + 1)]
        assert [line.text for line in lines] == [text.strip() for text in texts]
        assert lines == list(source.lines())
        sizes = [len(shard) for shard in shards]
        if starts > len(texts):
            assert max(sizes) - min(sizes) <= 1
        else:  # one start of eight at least is held
            assert min(sizes) > 0 and max(sizes) <= len(texts) // count + 8
        assert sum(file.lines for file in made.files) == len(texts)


def test_a_division_is_read_again_and_refuses_other_files(tmp_path, monkeypatch):
    paths, _ = written(tmp_path, random.Random(0))
    record, path = {"model": "a"}, tmp_path / "v.shards.json"
    made = divided.read_or_made(path, paths, 4, record)
    with monkeypatch.context() as patch:
        patch.setattr(divided, "division", None)  # the files are not read again
        assert divided.read_or_made(path, paths, None, record) == made
        with pytest.raises(UserError, match="has 4 shards, not 5; give another --output"):
            divided.read_or_made(path, paths, 5, record)
        with pytest.raises(UserError, match="with other options or another model"):
            divided.read_or_made(path, paths, 4, {"model": "b"})
    os.utime(paths[0], (1, 1))  # the same bytes
    assert divided.read_or_made(path, paths, None, record).starts == made.starts
    path.write_bytes(path.read_bytes()[:50])  # of a process that died
    assert divided.read_or_made(path, paths, 4, record).starts == made.starts
    paths[0].write_text("another line\n")
    with pytest.raises(UserError, match="the input has changed since"):
        divided.read_or_made(path, paths, None, record)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    return tiny_models.save_run(folder / "run", tiny_models.build("bert"))


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """61 lines in three files, and in one; a line is empty, and one is longer than the model."""
    folder, draw = tmp_path_factory.mktemp("texts"), random.Random(3)
    rows = [" ".join(draw.choices(WORDS, k=draw.randint(1, 12))) + " [MASK]" for _ in range(61)]
    rows[7], rows[20] = "", " ".join(WORDS * 9) + " [MASK]"
    for name, some in (("a1", rows[:10]), ("a2", rows[10:37]), ("a3", rows[37:]), ("one", rows)):
        (folder / f"{name}.txt").write_text("\n".join(some))
    return folder


def test_the_shards_are_one_output_and_go_on_where_they_were_cut(
    bert, texts, tmp_path, capsys, monkeypatch
):
    words = (bert, "--task", "fill-mask", "--top", "1")
    one, out = tmp_path / "one.jsonl", tmp_path / "out" / "rows.jsonl"
    assert predicted(capsys, *words, "--input", texts / "one.txt", "--output", one)[0] == 0
    several, four = (*words, "--input", texts / "a*.txt", "--output"), ("--shards", "4")
    assert predicted(capsys, *several, tmp_path / "plain.jsonl")[0] == 0
    assert (tmp_path / "plain.jsonl").read_bytes() == one.read_bytes()
    with monkeypatch.context() as patch:
        deaths.killed_after(patch, 9)
        status, _, err = predicted(capsys, *several, out, *four, "--block", "7")
        assert status == 1 and "Cut" in err and "rows-00001-of-00004.jsonl: 15 rows" in err
    assert sorted(path.name for path in out.parent.glob("*.jsonl")) == [
        "rows-00000-of-00004.jsonl", "rows-00001-of-00004.jsonl"
    ]  # fmt: skip
    status, _, err = predicted(capsys, *several, out, *four)
    assert status == 0 and err.startswith("2 of 4 shards were there\n")
    assert "rows-00002-of-00004.jsonl: 15 rows, 14 of them before" in err
    assert "wrote 2 of 4 shards (31 rows)" in err and "all 4 shards are complete: 61 rows" in err
    assert joined(out.parent, "rows-*.jsonl") == one.read_bytes()
    status, _, err = predicted(capsys, *several, out, *four)
    assert err == "4 of 4 shards were there\nall 4 shards are complete: 61 rows\n"
    status, _, err = predicted(capsys, *several, out, *four, "--top", "2")
    assert status == 1 and "begun with other options" in err and err.count("\n") == 1
    more = ("--output", out, "--shards", "3", "--overwrite")
    assert predicted(capsys, *several[:-1], *more)[0] == 0
    assert joined(out.parent, "rows-*-of-00003.jsonl") == one.read_bytes()
    assert not list(out.parent.glob("*-of-00004*"))


@pytest.mark.full
def test_a_folder_of_the_default_shards_and_an_array(bert, texts, tmp_path, capsys):
    words = (bert, "--task", "embed", "--input", texts / "one.txt", "--output")
    assert predicted(capsys, *words, tmp_path / "one.npy")[0] == 0
    status, _, err = predicted(capsys, *words, tmp_path / "out" / "v.npy", "--shards", "2")
    assert status == 0 and "(lines 8, 21); their rows are NaN" in err
    paths = sorted((tmp_path / "out").glob("v-*.npy"))
    whole = np.concatenate([np.load(path) for path in paths])
    assert whole.tobytes() == np.load(tmp_path / "one.npy").tobytes() and len(paths) == 2
    with pytest.MonkeyPatch.context() as patch:  # as one of two hosts has it
        patch.setattr(divided, "SHARDS", 3)
        patch.setenv("JAX_PROCESS_ID", "1")
        patch.setenv("JAX_NUM_PROCESSES", "2")
        patch.setenv("JAX_COORDINATOR_ADDRESS", "127.0.0.1:1")
        status, _, err = predicted(capsys, *words, tmp_path / "folder")
    assert status == 0 and err.startswith("predictions-00001-of-00003.jsonl: 20 rows\n")
    rows = joined(tmp_path / "folder", "predictions-*-of-00003.jsonl").splitlines()
    assert [json.loads(row)["line"] for row in rows] == [*range(1, 62)]


@pytest.mark.parametrize(("line", "message"), [
    ("--task embed --input one.txt --shards 2", "give --output"),
    ("--task embed --shards 2 --output o", "give --input"),
    ("--task search --input one.txt --text a --shards 2 --output o", "the task is search"),
    ("--task embed --input one.txt --shards 0 --output o", "--shards is 0; there is at least one"),
    ("--task embed --input one.txt --shards 99 --output o", "--shards is 99; the input has 61 l"),
    ("--task embed --input t.csv --shards 2 --output o", "lines of text or of .jsonl"),
    ("--task embed --input [t]*.csv --output o.npy", "is .csv; a pattern is for files of text"),
    ("--task embed --input x*.txt --shards 2 --output o", "nothing matches x*.txt"),
    ("--task embed --input one.txt --workers 2 --output o", "--workers is for a pipeline; add"),
    ("--task embed --input one.txt --shards 2 --workers 2 --output o", "add --runner direct"),
    ("--task embed --input one.txt --runner flink --output o", "needs flink_master; add"),
    ("--task embed --input one.txt --output o --runner dataflow --runner-options project=p "
     "region=r temp_location=gs://b sdk_container_image=i", "--input and --output as gs:// URLs"),
    ("--task mrpc --input one.txt --shards 2", "--shards is for lines of text"),
])  # fmt: skip
def test_refusals_are_one_line(line, message, bert, texts, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("text\na\n")
    Path("one.txt").write_bytes((texts / "one.txt").read_bytes())
    status, _, err = predicted(capsys, bert, *line.split())
    assert status == 1 and message in err and err.count("\n") == 1


def test_the_options_of_a_pipeline_are_printed(bert, texts, tmp_path, capsys):
    words = (bert, "--task", "embed", "--input", texts / "one.txt", "--output", tmp_path / "o")
    cluster = ("flink_master=h:8081", "environment_config=IMAGE")
    more = ("--runner", "flink", "--dry-run", "--runner-options", *cluster)
    status, out, _ = predicted(capsys, *words, *more)
    assert status == 0 and out.splitlines()[-2:] == [f"--{option}" for option in cluster]
    assert not (tmp_path / "o").exists()


def test_without_beam_there_is_an_install_line(bert, texts, tmp_path, capsys, monkeypatch):
    import ptm_jax.data.corpora

    monkeypatch.setitem(sys.modules, "apache_beam", None)
    monkeypatch.delitem(sys.modules, "ptm_jax.data.corpora.beam", raising=False)
    monkeypatch.delattr(ptm_jax.data.corpora, "beam", raising=False)
    words = (bert, "--task", "embed", "--input", texts / "one.txt", "--output", tmp_path / "o")
    status, _, err = predicted(capsys, *words, "--runner", "direct")
    assert status == 1 and "run pip install 'ptm_jax[beam]'" in err and err.count("\n") == 1


@pytest.mark.full
def test_a_killed_host_is_replaced_by_the_other(bert, texts, tmp_path, capsys):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(deaths.DIES)
    words = ("--task", "fill-mask", "--top", "1", "--input", str(texts / "one.txt"))
    assert predicted(capsys, bert, *words, "--output", tmp_path / "one.jsonl")[0] == 0
    predict = (str(bert), *words, "--output", str(tmp_path / "out" / "rows.jsonl"))
    launch = ("launch", "local", "predict", "--workdir", str(tmp_path / "out"), "--hosts", "2")
    ended = subprocess.run(
        [sys.executable, "-m", "ptm_jax.cli.main", *launch, "--run", "--", *predict,
        "--shards", "4", "--block", "5"], capture_output=True, text=True, timeout=600, check=False,
        env={**os.environ, "PYTHONPATH": f"{tmp_path / 'site'}:{ROOT}",
        "PTM_TEST_DIED": str(tmp_path / "died")},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "[host 1] rows-00001-of-00004.jsonl: 15 rows" in ended.stdout
    assert "[host 0] rows-00003-of-00004.jsonl: 16 rows, 10 of them before" in ended.stdout
    assert "[host 0] wrote 3 of 4 shards" in ended.stdout
    assert "a host ended with status 137; another one did its shards" in ended.stdout
    assert joined(tmp_path / "out", "rows-*.jsonl") == (tmp_path / "one.jsonl").read_bytes()
    assert predicted(capsys, *predict, "--shards", "4")[2].startswith("4 of 4 shards were there")
