"""Phrases: word2phrase's score by hand, gensim's `Phrases` with that score, and the command."""

import pytest

from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.data.corpora.store import open_corpus
from ptm_jax.data.text import phrases

TEXT = [["new", "york", "times", "in", "new", "york"], ["the", "times", "of", "york"]] * 10


def test_pairs_above_the_threshold_are_joined_once():
    """score(new, york) = (20 - 5) / (20 * 30) * 100 = 2.5; score(york, times) = (10 - 5) / (30 *
    20) * 100 = 0.83."""

    def joined(threshold):
        return list(phrases.join(lambda: TEXT, threshold))

    assert joined(2.5)[0] == ["new", "york", "times", "in", "new", "york"], (
        "a score must be above the threshold"
    )
    assert joined(2.49)[0] == ["new_york", "times_in", "new_york"]
    assert joined(0.8) == [["new_york", "times_in", "new_york"], ["the_times", "of_york"]] * 10, (
        "york is in one phrase"
    )


def test_the_command_writes_phrases_as_words(tmp_path, capsys):
    text, out = tmp_path / "a.txt", tmp_path / "out"
    text.write_text("".join(f"{'abcde'[i % 5]} New York {'vwxyz'[i // 8]}.\n\n" for i in range(40)))
    given = [
        "prepare",
        "--data",
        str(text),
        "--out",
        str(out),
        "--tokenizer",
        "word",
        "--vocab",
        "10",
        "--specials",
        "t5",
    ]
    assert main([*given, "--phrases", "4"]) == 0
    assert (
        "new_york" in open_corpus(out).tokenizer().pieces
        and "new" not in open_corpus(out).tokenizer().pieces
    )
    assert (
        main([*given[:6], "wordpiece", "--phrases", "4"]) == 1
        and "--tokenizer word" in capsys.readouterr().err
    )
    with pytest.raises(UserError, match="that fall"):
        phrases.write([str(text)], tmp_path / "x.txt", (100, 200))


def score(worda_count, wordb_count, bigram_count, len_vocab, min_count, corpus_word_count):
    return (bigram_count - min_count) / (worda_count * wordb_count) * corpus_word_count


@pytest.mark.full
@pytest.mark.status("ptm prepare --phrases", "matches")
def test_two_passes_are_those_of_gensim(data):
    peer = pytest.importorskip("gensim.models.phrases")
    lines = (
        (data / "lm/wikitext-2/valid.txt")
        .read_text("utf8")
        .lower()
        .replace("/", " ")
        .splitlines()[:1500]
    )
    text = expected = [line.split() for line in lines]
    for threshold in (60.0, 30.0):
        model = peer.Phrases(
            expected,
            min_count=5,
            threshold=threshold,
            scoring=score,
            delimiter="/",
            max_vocab_size=10**9,
        )
        expected = [[word.replace("/", "_") for word in model[line]] for line in expected]
        text = list(phrases.join(lambda before=text: before, threshold))
    assert text == expected
    assert sum(word.count("_") > 1 for line in text for word in line) > 20, (
        "phrases of three words and more"
    )
