"""MeCab's words and their pieces beside transformers' BertJapaneseTokenizer; text in another form
of Unicode; letters with accents."""

import sys
import unicodedata
from pathlib import Path

import pytest

from ptm_jax.data.languages import segmenters
from ptm_jax.data.tokenizers import saved, vocabularies
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec

SENTENCES = (
    "この文書は、コマンドの使い方を説明します。",
    "ﾌｧｲﾙが見つからない場合は､ｴﾗｰになる｡",
    "２０１９年１２月に公開された①番目のモデルです。",
    "「東京都」に住む人は約１４００万人（２０２０年）。",
    "BERTのtokenizerはWordPieceを使う。",
    "価格は3,980円、送料は500円（税込）です。",
    "ガス料金を払って、パンを買った。",
    "外国人参政権について議論する。",
    "😀は辞書に無い文字です。",
    "彼は　全角の空白　と 半角の空白を使う。",
)


def test_text_in_another_form_knows_the_place_of_each_character():
    for text in (*SENTENCES, "a\u0301e ㍿ ﬁ", "ﾊﾟﾋﾟ"):
        line, places = segmenters.normalised(text, "NFKC")
        assert line == unicodedata.normalize("NFKC", text) and len(places) == len(line)
        for character, (start, stop) in zip(line, places, strict=True):
            assert character in unicodedata.normalize("NFKC", text[start:stop])
    assert segmenters.normalised("ｶﾞ２", "NFKC") == ("ガ2", [(0, 2), (2, 3)])
    assert segmenters.normalised("２", "") == ("２", [(0, 1)])


def test_letters_without_case_may_have_their_accents():
    texts = ["Hän näki Ääniä yöllä", "hän näki ääniä yöllä"] * 8
    plain, accented = (
        vocabularies.make(TokenizerSpec(vocab=30, strip_accents=strip), texts)
        for strip in (True, False)
    )
    assert plain.encode("NÄKI").tolist() == plain.encode("naki").tolist()
    assert accented.decode(accented.encode("NÄKI")) == "näki"
    assert accented.encode("näki").tolist() != accented.encode("naki").tolist()


def test_each_character_is_a_token(tmp_path):
    spec = TokenizerSpec(kind="characters", vocab=11, lowercase=False)
    tokenizer = vocabularies.make(spec, ["かな カナ", "なかまx"])
    assert sorted(tokenizer.pieces[5:]) == sorted("かなカナまx")
    ids = tokenizer.encode("かな まx？")
    assert tokenizer.decode(ids[:4], skip_specials=False) == "かなまx"
    assert ids[4] == tokenizer.vocab.unk and tokenizer.word_starts()[ids].all()
    tokenizer.save(tmp_path)
    assert saved.load(tmp_path).encode("かな まx？").tolist() == ids.tolist()


@pytest.fixture
def mecab(monkeypatch):
    """The folder of `make test-full`, where the packages are not in the environment."""
    monkeypatch.syspath_prepend(Path(sys.prefix) / "japanese")
    pytest.importorskip("ipadic", reason="the Makefile's target .japanese brings it")


@pytest.mark.full
@pytest.mark.status("bert_japanese", "matches")
@pytest.mark.status("bert_japanese_char", "matches")
@pytest.mark.parametrize("kind", ["wordpiece", "characters"])
def test_mecabs_words_and_pieces_are_those_of_transformers(kind, mecab, tmp_path):
    transformers = pytest.importorskip("transformers")
    spec = TokenizerSpec(
        kind=kind,
        vocab={"wordpiece": 160, "characters": 110}[kind],
        lowercase=False,
        segmenter="ipadic",
    )
    tokenizer = vocabularies.make(spec, SENTENCES[:8] * 4)
    (tmp_path / "vocab.txt").write_text("\n".join(tokenizer.pieces), encoding="utf8")
    peer = transformers.BertJapaneseTokenizer(
        tmp_path / "vocab.txt",
        word_tokenizer_type="mecab",
        subword_tokenizer_type={"characters": "character"}.get(kind, kind),
        mecab_kwargs={"mecab_dic": "ipadic"},
    )
    for text, ids in zip(SENTENCES, tokenizer.encode_batch(SENTENCES), strict=True):
        assert [tokenizer.pieces[i] for i in ids] == peer.tokenize(text), text
    assert tokenizer.vocab.unk in tokenizer.encode(SENTENCES[8])
    for text, row in zip(SENTENCES, tokenizer.spans(SENTENCES), strict=True):
        for i, (start, stop) in zip(row.ids, row.characters.tolist(), strict=True):
            piece = tokenizer.pieces[i].removeprefix("##")
            whole = unicodedata.normalize("NFKC", text[start:stop])
            assert i == tokenizer.vocab.unk or piece in whole, (text, piece)
