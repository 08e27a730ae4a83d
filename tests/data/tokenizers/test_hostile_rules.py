"""Rules of a tokenizer.json that panic, or make a text longer and longer."""

import json

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from ptm_jax.core.errors import UserError
from ptm_jax.data.tokenizers import backends
from ptm_jax.data.tokenizers.backends import HuggingFace
from ptm_jax.data.tokenizers.published import read_published
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.vocabularies import read


def words(**parts):
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return tokenizer


PANICS = {  # the pattern gives up after many tries, and the library panics
    "pre_tokenizer": pre_tokenizers.Split(Regex("(x+x+)+y"), "isolated"),
    "normalizer": normalizers.Replace(Regex("(x+x+)+y"), "a"),
}


@pytest.mark.parametrize("part", PANICS)
def test_a_pattern_that_panics_is_one_line(part):
    backend = HuggingFace(words(**{part: PANICS[part]}))
    for encode in (backend.encode, backend.spans):
        with pytest.raises(UserError, match="cannot encode a text .*; its vocabulary or one"):
            encode(["x" * 60])


def test_only_a_panic_is_converted():
    for error in (KeyboardInterrupt, SystemExit, KeyError):
        with pytest.raises(error), backends.guarded():
            raise error


def doubling(times, kind=normalizers):
    return kind.Sequence([kind.Replace("a", "aa")] * times)


GROWING = {
    "texts": {"normalizer": doubling(40)},
    "ids": {"decoder": doubling(40, decoders)},
    "one rule": {"normalizer": normalizers.Replace("a", "a" * 5000)},
    "a pattern": {"normalizer": normalizers.Replace(Regex("a"), "a" * 5000)},
    "nested": {"normalizer": normalizers.Sequence([doubling(6), doubling(6)])},
}


@pytest.mark.parametrize("kind", GROWING)
def test_replacements_that_grow_a_text_are_refused(tmp_path, kind):
    path = tmp_path / "tokenizer.json"
    path.write_text(words(**GROWING[kind]).to_str())
    with pytest.raises(UserError, match="can make a text .* times as long"):
        read(TokenizerSpec(kind="word", path=str(path)))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(UserError, match="can make a text .* times as long"):
        read_published(tmp_path)


@pytest.mark.parametrize(
    "rules",
    [
        [("``", '"'), ("''", '"'), ("…", "..."), ("½", "1/2")],
        [("ab", "ba")] * 50,
        [(Regex(" {2,}"), "\u2581")] * 5,
    ],
)
def test_usual_replacements_are_read(rules):
    steps = normalizers.Sequence([normalizers.Replace(*rule) for rule in rules])
    assert HuggingFace(words(normalizer=steps)).encode(["a"])[0].tolist() == [0]
