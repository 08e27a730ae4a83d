"""`ptm predict`, `export` and `import` with files of word vectors."""

import json

import numpy as np
import pytest

import ptm_jax
from ptm_jax import systems
from ptm_jax.cli.main import main
from ptm_jax.core import spec
from ptm_jax.core.types import Vocab
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.vocabularies import make
from ptm_jax.inference import predicting, uses
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.inference.words.word_vectors import WordVectors
from support.tiny_models import drawn

WORDS = ["king", "queen", "man", "woman", "apple"]
ROWS = np.array([[1, 1, 0.1], [1, -1, 0.1], [0, 1, 0.2], [0, -1, 0.2], [-1, 0.1, -1]], np.float32)


@pytest.fixture
def file(tmp_path):
    WordVectors.of(WORDS, ROWS, [5, 4, 3, 2, 1]).save(tmp_path / "words.txt")
    return str(tmp_path / "words.txt")


def called(capsys, *words):
    status = main([*words])
    return status, capsys.readouterr()


def test_neighbours_and_analogies_are_printed(file, capsys):
    words = [
        "predict",
        file,
        "--task",
        "similar",
        "--text",
        "queen",
        "--text",
        "king - man + woman",
        "--top",
        "2",
    ]
    status, (out, _) = called(capsys, *words)
    assert (
        status == 0 and out.splitlines()[0] == "queen" and out.splitlines()[4].split()[1] == "queen"
    )
    status, (out, _) = called(capsys, *words, "--json", "--method", "3cosmul")
    found = json.loads(out)
    assert found[1]["similar"][0]["text"] == "queen" and len(found[0]["similar"]) == 2
    status, (out, _) = called(capsys, "predict", file, "--task", "embed", "--text", "man")
    assert json.loads(out)[0]["vector"] == pytest.approx([0, 1, 0.2])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--task", "similar", "--text", "kign"],
        "the word 'kign' is not among the 5 words of these vectors. Did you mean"),
        (["--task", "similar", "--text", "king + - man"], "is no sum of words"),
        (["--task", "similar", "--text", "king - "], "ends with"),
        (["--task", "similar", "--text", "king", "--top", "0"], "top is 0"),
        (["--task", "fill-mask", "--text", "king"],
        "give --task similar, links, embed or classify, not fill-mask"),
        (["--task", "classify", "--text", "king"], "without classes"),
        (["--task", "similar", "--text", "king", "--pooling", "mean"],
        "--pooling is for models with an encoder"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_ends_in_one_line(file, capsys, options, why):
    status, (_, err) = called(capsys, "predict", file, *options)
    assert status == 1 and why in err and err.count("\n") == 1


def test_a_use_is_one_entry(file, capsys, monkeypatch):
    def run(model, request):
        return [{"text": text, "rank": list(model.words).index(text)} for text in request.text]

    rank = uses.Use(name="rank", words=True, run=run, help="rank of words", options=("beams",))
    other = uses.Use(name="other", words=True, run=run, help="")
    monkeypatch.setattr(predicting, "kinds", lambda: (rank, other))
    words = ["predict", file, "--text", "man"]
    status, (out, _) = called(capsys, *words, "--task", "rank", "--json", "--beams", "2")
    assert status == 0 and json.loads(out) == [{"text": "man", "rank": 2}]
    status, (_, err) = called(capsys, *words, "--task", "other", "--beams", "2")
    assert status == 1 and "--beams needs --task rank; the task is other" in err
    status, (out, _) = called(capsys, "list", "--uses")
    assert status == 0 and "predict --task rank" in out and "rank of words" in out


@pytest.mark.parametrize(
    ("name", "format"),
    [("o.bin", None), ("o.vec", None), ("o.x", "glove"), ("o", "folder"), ("o.kv", None)],
)
def test_export_writes_a_format_and_import_reads_it(file, tmp_path, capsys, name, format):
    out = str(tmp_path / name)
    chosen = [] if format is None else ["--format", format]
    assert called(capsys, "export", file, "--out", out, *chosen)[0] == 0
    assert called(capsys, "export", file, "--out", out, *chosen)[0] == 1  # it exists
    pickled = ["--allow-pickle"] if name == "o.kv" else []
    if pickled:
        assert "is a pickle" in called(capsys, "import", out, "--out", str(tmp_path / "no"))[1].err
    status, (text, _) = called(
        capsys, "import", out, "--out", str(tmp_path / "model"), "--json", *pickled
    )
    assert status == 0 and json.loads(text)["words"] == 5
    model = ptm_jax.load(tmp_path / "model")
    assert list(model.words) == WORDS and "5 words of width 3" in repr(model)
    np.testing.assert_array_equal(model.vectors, ROWS)


def test_options_of_encoders_are_refused_with_files_and_options_of_files_with_encoders(
    file, tmp_path, capsys
):
    assert (
        "--grow is for models"
        in called(capsys, "import", file, "--out", str(tmp_path / "a"), "--grow", "x")[1].err
    )
    assert (
        "--push is for models"
        in called(capsys, "export", file, "--out", str(tmp_path / "a"), "--push", "x")[1].err
    )
    assert "--method is for word vectors" in called(
        capsys, "predict", str(tmp_path / "no"), "--task", "embed", "--text", "x", "--method",
        "3cosmul"
    )[1].err  # fmt: skip


@pytest.mark.parametrize("name", ["skipgram_mini", "cbow_mini"])
def test_a_trained_table_is_written_without_its_special_pieces(name, tmp_path, monkeypatch, capsys):
    tokenizer = make(
        TokenizerSpec(kind="word", specials="bert", vocab=9), ["the king and the queen"] * 9
    )
    system = spec.respell(systems.get(name), Vocab, tokenizer.vocab)
    model = Pretrained(system, drawn(system), tokenizer)
    monkeypatch.setattr(ptm_jax, "load", lambda path, **options: model)
    assert (
        called(
            capsys, "export", "runs/x", "--out", str(tmp_path / "v.txt"), "--format", "word2vec"
        )[0]
        == 0
    )
    monkeypatch.undo()
    found = ptm_jax.load(tmp_path / "v.txt")
    assert sorted(found.words) == ["and", "king", "queen", "the"]
    rows = np.asarray(model.params["main"]["encoder"]["token"])
    np.testing.assert_array_equal(found["king"], rows[tokenizer.id("king")])


def test_another_model_has_no_format_of_word_vectors(tmp_path, monkeypatch, capsys):
    system = systems.get("bert_mini")
    monkeypatch.setattr(ptm_jax, "load", lambda path, **options: Pretrained(system, {}, None))
    assert (
        "is no table of word vectors"
        in called(capsys, "export", "x", "--out", str(tmp_path / "v"), "--format", "glove")[1].err
    )
