"""What is printed of a corpus: its languages, the loss of each, and a system that fits it."""

import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.cli.main import main
from ptm_jax.data.languages import mix
from ptm_jax.data.tokenizers import saved
from ptm_jax.runs import heldout
from ptm_jax.training.start import setup

WORDS = ["hund", "katze", "läuft", "ein", "dog", "cat", "runs", "a", "the", "mann"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Two files of 60 lines, of the first and the last words."""
    folder, draw = tmp_path_factory.mktemp("texts"), np.random.default_rng(0)
    for name, words in (("de", WORDS[:6]), ("en", WORDS[4:])):
        lines = [" ".join(draw.choice(words, 6)) for _ in range(60)]
        (folder / f"a.{name}").write_text("\n".join(lines) + "\n", encoding="utf8")
    return folder


def prepared(texts, capsys, *words):
    """Returns (the lines that `ptm prepare` prints, its folder)."""
    out = texts / f"data{len(list(texts.iterdir()))}"
    assert main(["prepare", "--out", str(out), *(word.format(texts) for word in words)]) == 0
    return capsys.readouterr().out.splitlines(), out


PAIRS = ("--data", "language:de={}/a.de", "language:de-en={}/a", "--tokenizer", "unigram")


def test_the_languages_and_the_next_commands_of_translations(texts, capsys):
    lines, out = prepared(texts, capsys, *PAIRS, "--specials", "roberta", "--vocab", "32")
    head, german, pairs = (line.split() for line in lines[1:4])
    assert head[:6] == ["language", "documents", "sentences", "tokens", "share", "pieces"]
    assert german[:3:2] == ["de", "60"] and pairs[:3:2] == ["de-en", "120"]
    assert pairs[-1].endswith("%") and float(german[4].rstrip("%")) < 50
    tokenizer, words = saved.load(out / "tokenizer"), 6 * 60
    ids = tokenizer.encode_batch((texts / "a.de").read_text(encoding="utf8").splitlines())
    assert float(german[5]) == pytest.approx(sum(map(len, ids)) / words, abs=0.005)
    assert f"next: ptm train xlm_mini --data {out} --workdir DIR" in lines
    assert lines[-1].startswith("to translate: ptm train xlm_translation_mini --task translation")


FITS = {
    "bert_mini": ("--data", "{}/a.en", "--vocab", "40"),
    "roberta_mini": ("--data", "{}/a.en", "--vocab", "275", "--tokenizer", "bytebpe"),
    "gpt_mini": ("--data", "{}/a.en", "--vocab", "22", "--tokenizer", "unigram"),
    "t5_mini": (
        "--data", "{}/a.en", "--vocab", "54", "--tokenizer", "unigram", "--sentinels", "32"
    ),
    "skipgram_mini": ("--data", "{}/a.en", "--vocab", "9", "--tokenizer", "word"),
    "glove_mini": (
        "--data", "{}/a.en", "--vocab", "9", "--tokenizer", "word", "--cooccurrence", "2"
    ),
    "bert_multilingual_mini": (
        "--data", "language:de={}/a.de", "language:en={}/a.en", "--vocab", "60"
    ),
    "xlm_r_mini": (
        "--data", "language:de={}/a.de", "language:en={}/a.en", "--vocab", "30",
        "--tokenizer", "unigram", "--specials", "roberta",
    ),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("name", FITS)
def test_the_named_system_reads_the_corpus(name, texts, tmp_path, capsys):
    lines, out = prepared(texts, capsys, *FITS[name], "--heldout", "0.1")
    assert lines[-1] == f"next: ptm train {name} --data {out} --workdir DIR"
    config = setup.experiment(systems.get(name), [str(out)])
    config, corpus = setup.begin(config, tmp_path / "run", None)
    assert next(iter(setup.stream(config, corpus, 0)))


@pytest.mark.full
def test_an_evaluation_reads_each_language_once(texts, tmp_path, capsys):
    words = ("--vocab", "32", "--specials", "roberta", "--heldout", "0.1")
    _, out = prepared(texts, capsys, *PAIRS, *words)
    config = setup.experiment(systems.get("xlm_mini"), [str(out)])
    config, corpus = setup.begin(config, tmp_path / "run", None)
    parts = mix.each(config.system.examples, corpus, "train")
    read = {}
    for name, stream in setup.of_parts(config, 0, parts, "train"):
        ids = np.concatenate([batch["input_ids"].ravel() for batch in stream])
        read[name] = int((ids > corpus.vocab.mask).sum())
    special = sum(corpus.counts("train")[: corpus.vocab.mask + 1])
    sizes = {name: part["splits"]["train"]["tokens"] for name, part in corpus.languages.items()}
    assert sum(read.values()) == sum(sizes.values()) - special
    assert read["de-en"] > read["de"] > 0 and not mix.each(
        config.system.examples.examples, corpus, "train"
    )


def test_the_table_of_an_evaluation_has_a_row_for_each_language():
    languages = {"de": (3, {"mlm_nll": 2.0}), "en": (1200, {"mlm_nll": 1.0})}
    measured = heldout.Measured(8, 1203, {"mlm_nll": 1.25}, languages)
    assert heldout.by_language(measured) == [
        ["language", "rows", "mlm_nll"], ["de", "3", "2.0000"], ["en", "1,200", "1.0000"],
    ]  # fmt: skip
    assert heldout.by_language(heldout.Measured(8, 3, {"nll": 1.0})) == []
