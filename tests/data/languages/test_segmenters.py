"""Segmenters: text without blanks as words, for tokenizers and for whole word masks."""

import configparser
import dataclasses
import re
import sys
import types
from pathlib import Path

import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.data.languages import segmenters
from ptm_jax.data.languages.segmenters import SEGMENTERS
from ptm_jax.data.tokenizers import saved, vocabularies, words
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec

ROOT = Path(__file__).resolve().parents[3]
WORDS = ("东京", "都", "有", "北京", "大学", "ab")


def longest(text):
    """The longest word of `WORDS` at each place; blanks and the mark | are left out."""
    found, place = [], 0
    while place < len(text):
        word = next((w for w in WORDS if text.startswith(w, place)), text[place])
        found += [word] if word.strip(" |") else []
        place += len(word)
    return found


@pytest.fixture
def fake(monkeypatch):
    module = types.ModuleType("rjieba")
    module.cut = longest
    monkeypatch.setitem(sys.modules, "rjieba", module)


def test_words_joined_are_the_text(fake):
    text = "东京都有| 北京大学 x"
    assert segmenters.words("rjieba", text) == "东京/都/有/| /北京/大学/ /x".split("/")
    line, places = segmenters.spaced("rjieba", text)
    assert line == "东京 都 有 |  北京 大学 x"
    assert all(text[a:b] in (c, "") for c, (a, b) in zip(line, places, strict=True))
    assert segmenters.words("rjieba", "") == [] and segmenters.spaced("rjieba", "  ") == ("", [])


def test_every_segmenter_is_in_its_extra_and_absent_ones_are_one_line(monkeypatch):
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = config["options.extras_require"]
    for name, segmenter in SEGMENTERS.items():
        for package in segmenter.package.split():
            assert re.search(rf"^{package}\b", extras[segmenter.extra], re.M), package
        monkeypatch.setitem(sys.modules, segmenter.module, None)
        with pytest.raises(UserError, match=f"{name} is not installed; pip install"):
            segmenters.words(name, "东京")
    with pytest.raises(UserError, match="Did you mean 'jieba'"):
        TokenizerSpec(segmenter="jeiba")
    with pytest.raises(UserError, match="leave out one"):
        TokenizerSpec(segmenter="jieba", path="vocab.txt")


def test_a_segmenter_that_does_not_start(monkeypatch):
    def broken():
        raise OSError("no model\nat all")

    module = types.ModuleType("spacy_pkuseg")
    module.pkuseg = broken
    monkeypatch.setitem(sys.modules, "spacy_pkuseg", module)
    with pytest.raises(UserError, match=r"pkuseg does not start \(no model\)"):
        segmenters.words("pkuseg", "东京")


@pytest.mark.parametrize("kind", ["word", "wordpiece"])
def test_a_tokenizer_of_words(fake, kind, tmp_path):
    text = ["东京都有北京大学", "北京有东京大学", "大学ab都有"] * 3
    spec = TokenizerSpec(kind=kind, vocab=30, segmenter="rjieba", lowercase=False)
    with pytest.raises(vocabularies.TooLarge) as caught:
        vocabularies.make(spec, text)
    made = vocabularies.make(dataclasses.replace(spec, vocab=caught.value.largest), text)
    assert {"东京", "北京", "大学"} < {*made.pieces}
    ids, characters = made.spans(["有东京 大学"])[0]
    assert [made.pieces[i] for i in ids] == ["有", "东京", "大学"]
    assert characters.tolist() == [[0, 1], [1, 3], [4, 6]]
    assert ids.tolist() == made.encode("有东京 大学").tolist()
    made.save(tmp_path)
    again = saved.load(tmp_path)
    assert again.segmenter == "rjieba" and again.hash == made.hash
    assert again.encode("有东京").tolist() == ids[:2].tolist()
    if kind == "word":
        opened = words.opened(made)
        assert [opened.pieces[i] for i in opened.encode("东京北京大学们")][-1] == "们"
        assert words.extended(made, ["们"]).encode("东京们").tolist()[0] == ids[1]


@pytest.mark.full
@pytest.mark.parametrize(
    "name, text, expected",
    [
        ("jieba", "我来到北京清华大学。He is 3.14 元", "我 来到 北京 清华大学 。 He is 3.14 元"),
        ("rjieba", "我来到北京清华大学。He is 3.14 元", "我 来到 北京 清华大学 。 He is 3.14 元"),
        ("pythainlp", "ฉันรักภาษาไทย เพราะ", "ฉัน รัก ภาษาไทย เพราะ"),
    ],
)
def test_the_packages(name, text, expected):
    pytest.importorskip(SEGMENTERS[name].module)
    assert segmenters.spaced(name, text)[0] == expected
    assert "".join(segmenters.words(name, text)) == text
