"""Vocabularies of a WordPiece checkpoint that grow by the words of a text, or are assembled anew:
every old row keeps its bits, every new one is a mean of old ones."""

import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.core.paths import flatten
from support import tiny_checkpoint

pytestmark = pytest.mark.full
TABLES = "main/encoder/embed/token", "main/heads_mlm/bias"
TEXT = "a goodfilm was a badfilm\n\nthe goodfilm\n\na badfilm, goodfilm!\n\n" * 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A BertForMaskedLM with a table and a bias of its words."""
    path = tmp_path_factory.mktemp("masked")
    return tiny_checkpoint.write(path, architectures=["BertForMaskedLM"], scale=0.5)


def tables_of(model):
    arrays = flatten(model.params)
    return [np.asarray(arrays[name]) for name in TABLES]


def imported(folder, out, *words):
    assert main(["import", str(folder), "--out", str(out), *words]) == 0
    return ptm_jax.load(folder), ptm_jax.load(out)


@pytest.mark.status("Domain- and task-adaptive MLM", "built")
def test_words_of_a_text_become_pieces_and_old_rows_keep_their_bits(folder, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    words = ["--grow-from", str(tmp_path / "text.txt"), "--grow-words", "1"]
    old, new = imported(folder, tmp_path / "out", *words)
    assert new.tokenizer.pieces == [*old.tokenizer.pieces, "goodfilm"]
    parts = old.tokenizer.encode("goodfilm")
    for before, after in zip(tables_of(old), tables_of(new), strict=True):
        np.testing.assert_array_equal(after[:-1], before)
        np.testing.assert_array_equal(after[-1], before[parts].mean(0))


def test_an_assembled_vocabulary_has_old_rows_and_means(folder, tmp_path):
    old = ptm_jax.load(folder).tokenizer.pieces
    known = {piece: number for number, piece in enumerate(old)}
    # specials in another order, and fewer pieces
    pieces = ["goodfilm", *reversed(old[5:20]), "##good", "\u00df", *reversed(old[:5])]
    assert "##good" not in known
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    old, new = imported(folder, tmp_path / "out", "--assemble", str(tmp_path / "vocab.txt"))
    assert new.tokenizer.pieces == pieces and new.vocab.size == len(pieces)
    assert new.vocab.pad == pieces.index("[PAD]") and new.vocab.mask == pieces.index("[MASK]")
    for before, after in zip(tables_of(old), tables_of(new), strict=True):
        for place, piece in enumerate(pieces):
            if piece in known:
                np.testing.assert_array_equal(after[place], before[known[piece]])
        parts = old.tokenizer.encode("goodfilm")
        np.testing.assert_array_equal(after[0], before[parts].mean(0))
        np.testing.assert_array_equal(after[pieces.index("\u00df")], before.mean(0))
        spelled = [known[f"##{part}"] for part in longest("good", known)]
        np.testing.assert_array_equal(after[pieces.index("##good")], before[spelled].mean(0))
    assert new.fill_mask(["the [MASK] is good"])


def longest(text, known):
    """The longest pieces of the rest of a word, by hand."""
    parts = []
    while text:
        size = max(n for n in range(1, len(text) + 1) if f"##{text[:n]}" in known)
        parts.append(text[:size])
        text = text[size:]
    return parts


WRONG = {
    "a piece twice": (["--assemble", "FILE"], "[PAD]\nb\nb\n", "'b' twice"),
    "no special piece": (["--assemble", "FILE"], "[PAD]\na\n", "no piece [CLS]"),
    "both ways": (["--assemble", "FILE", "--grow", "FILE"], "a\n", "leave it out"),
    "no new words": (["--grow-from", "FILE"], "the film\n\na\n", "more text"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_vocabulary_is_one_line(name, folder, tmp_path, capsys):
    words, text, message = WRONG[name]
    file = tmp_path / "file.txt"
    file.write_text(text)
    words = [str(file) if word == "FILE" else word for word in words]
    assert main(["import", str(folder), "--out", str(tmp_path / "out"), *words]) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
