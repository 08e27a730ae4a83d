"""Every reader of characters gives the ids of `encode`, and every piece at its characters."""

import numpy as np
import published_families as families
import pytest

from ptm_jax.data.tokenizers import published_words, vocabularies
from ptm_jax.data.tokenizers.pieces import pieces_of
from ptm_jax.data.tokenizers.published import read_published, write_published
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.words import spaced
from ptm_jax.inference.text import answering
from ptm_jax.tasks.formats import hops as hops_format
from ptm_jax.tasks.formats import hotpot, marked
from support import nasty_texts

KINDS = {
    "uncased": TokenizerSpec(kind="wordpiece", vocab=700),
    "cased": TokenizerSpec(kind="wordpiece", vocab=700, lowercase=False),
    "bytebpe": TokenizerSpec(kind="bytebpe", vocab=400, specials="roberta"),
    "unigram": TokenizerSpec(kind="unigram", vocab=350, specials="t5"),
    "bpe": TokenizerSpec(kind="bpe", vocab=500, specials="t5"),
    "word": TokenizerSpec(kind="word", vocab=130),
    "spaced": TokenizerSpec(kind="spaced", vocab=80, lowercase=False),
}
FAMILIES = ("bert", "roberta", "gpt2", "openai-gpt", "ctrl", "albert", "xlnet", "mt5", "t5",
            "camembert", "xlm-roberta", "mbart", "pegasus")  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer_of(tmp_path_factory):
    """{name: tokenizer}: every kind trained here on the texts, every family as published, and a
    tokenizer.json."""
    root, known = tmp_path_factory.mktemp("spans"), {}

    def made(name):
        if name in KINDS:
            spec = KINDS[name]
            return vocabularies.make(spec, [line for line in nasty_texts.LINES * 2])
        if name == "open":
            return spaced()
        if name == "json":
            write_published(of("unigram"), root / name)
            (root / name / "config.json").write_text("{}")
            return read_published(root / name)
        lines = [line.replace("\x00", "") for line in nasty_texts.LINES * 3]
        return read_published(families.make(root / name, name, lines, 600))

    def of(name):
        if name not in known:
            known[name] = made(name)
        return known[name]

    return of


@pytest.mark.parametrize("name", [*KINDS, "open", "json", *FAMILIES])
def test_ids_are_those_of_encode(tokenizer_of, name):
    tokenizer = tokenizer_of(name)
    for text, read in zip(nasty_texts.LINES, pieces_of(tokenizer, nasty_texts.LINES), strict=True):
        assert read.ids.tolist() == tokenizer.encode(text).tolist(), ascii(text)
        assert len(read.starts) == len(read.ends) == len(read.ids)
        assert (0 <= read.starts).all() and (read.starts <= read.ends).all(), ascii(text)
        assert (read.ends <= len(text)).all() and (np.diff(read.starts) >= 0).all(), ascii(text)
        for start, end in zip(read.starts, read.ends, strict=True):
            assert text[start:end] == text[start:end].strip(), ascii(text)


@pytest.mark.parametrize("name", ["uncased", "bytebpe", "unigram", "bpe"])
def test_questions_hops_and_mentions_read_the_ids_of_encode(tokenizer_of, name):
    tokenizer, texts = tokenizer_of(name), nasty_texts.LINES
    for text, record in zip(texts, answering.records_of(tokenizer, texts, texts), strict=True):
        assert record["ids"].tolist() == tokenizer.encode(text).tolist(), ascii(text)
        assert record["question"].tolist() == tokenizer.encode(text).tolist(), ascii(text)
    hops = [hops_format.Hop(text, (("t", (text,)),), "", "x:1", "1") for text in texts]
    for hop, record in zip(hops, hotpot.HopReading().encode(tokenizer, hops), strict=True):
        assert record["ids"].tolist() == tokenizer.encode(hop.text(0)).tolist(), ascii(hop)
        assert record["question"].tolist() == tokenizer.encode(hop.question).tolist()
    mentions = [f"[E1] {text} [/E1] {text}" for text in texts if "[" not in text]
    for text, record in zip(mentions, marked.placed(tokenizer, mentions, 1), strict=True):
        assert record["first"].tolist() == tokenizer.encode(text).tolist(), ascii(text)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("nai\u0308ve cafe\u0301", "n a i v e c a f e"),
        ("T\u0010his is te\u0010st", "T h i s i s t e s t"),
        ("Donau\u00addampf", "D o n a u d a m p f"),
        ("naïve", "n a ï v e"),
    ],
)
def test_letters_stand_at_their_characters(text, parts):
    letters = [*"abcdefghijklmnopqrstuvwxyz"]
    backend = vocabularies.wordpiece(
        {p: i for i, p in enumerate(["[UNK]", *letters, *("##" + one for one in letters)])},
        "[UNK]",
        lowercase=True,
    )
    tokenizer = vocabularies.Tokenizer(
        vocabularies.HuggingFace(backend), kind="wordpiece", lowercase=True
    )
    read = pieces_of(tokenizer, [text])[0]
    assert [text[a:b] for a, b in zip(read.starts, read.ends, strict=True)] == parts.split()
    names = [tokenizer.piece(i).removeprefix("##") for i in read.ids]
    assert names == parts.lower().replace("ï", "i").split()


def test_an_answer_keeps_the_marks_of_its_last_letter():
    text = "the cafe\u0301 is here"
    scores = np.zeros((2, 5), np.float32)
    scores[0, 2] = scores[1, 2] = 9.0
    rows = [answering.Window(0, 0, 4, 1, 0, np.zeros(5, np.int32), np.zeros(5, np.int32))]
    characters = (np.array([0, 4, 10, 13]), np.array([3, 8, 12, 17]))
    answer = answering.best_answer(
        text, characters, rows, [np.ones(4, bool)], [scores[0]], ends=[scores[1]]
    )
    assert answer.text == "cafe\u0301" and answer.best[0].end == 9


def test_words_that_were_normalised_are_found_in_order():
    text = "“Naïve”, 5,000 gu\u0308nstig … x"
    words = ['"', "naive", '"', ",", "5", "@,@", "000", "gunstig", "...", "unknown!", "x"]
    places = published_words.word_places(text, words)
    read = [text[a:b] for a, b in places]
    assert read[:3] == ["“", "Naïve", "”"] and read[7:9] == ["gu\u0308nstig", "…"]
    assert read[3:7] == [",", "5", ",", "000"] and read[-1] == "x"
    assert all(a <= b for a, b in places)
