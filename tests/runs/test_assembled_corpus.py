"""`ptm import --assemble` with the tokenizer of a prepared corpus (RuBERT)."""

import pytest

from ptm_jax.cli.main import main
from ptm_jax.data.corpora.store import open_corpus
from ptm_jax.inference.loading import load
from support import tiny_checkpoint


@pytest.mark.full
@pytest.mark.status("rubert", "matches")
def test_the_pieces_of_a_corpus_begin_as_means_of_old_ones(tmp_path, capsys):
    folder = tiny_checkpoint.write(tmp_path / "old", architectures=["BertForMaskedLM"])
    (tmp_path / "a.txt").write_text("the film was good\nthe good films\n" * 50)
    text = ["prepare", "--data", str(tmp_path / "a.txt"), "--out", str(tmp_path / "new")]
    assert main([*text, "--vocab", "40"]) == 0
    command = ["import", str(folder), "--out", str(tmp_path / "model"), "--assemble"]
    assert main([*command, str(tmp_path / "new")]) == 0
    old, new = load(str(folder)), load(str(tmp_path / "model"))
    pieces = open_corpus(tmp_path / "new").tokenizer().pieces
    assert new.tokenizer.pieces == pieces
    before, after = (model.params["main"]["encoder"]["embed"]["token"] for model in (old, new))
    known = [piece for piece in pieces if old.tokenizer.id(piece) is not None]
    assert known
    for piece in known:
        assert (after[pieces.index(piece)] == before[old.tokenizer.id(piece)]).all()
    assert main([*text[:-1], str(tmp_path / "other"), "--tokenizer", "word", "--vocab", "7"]) == 0
    capsys.readouterr()
    command[3] = str(tmp_path / "another")
    assert main([*command, str(tmp_path / "other")]) == 1
    assert "prepare a wordpiece" in capsys.readouterr().err
