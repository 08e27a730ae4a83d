"""Shared pieces of languages, against sets of pieces in plain Python."""

import types

import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.data.languages.fake import shifted
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.vocabularies import make
from ptm_jax.runs.evaluations import Request
from ptm_jax.tasks import vocabulary_overlap

ENGLISH = ["the house is old", "an old man reads the news", "houses of old men"]
GERMAN = ["das Haus ist alt", "ein alter Mann liest die News", "♥ Häuser"]


@pytest.mark.status("ptm evaluate --task overlap", "built")
def test_shares_are_those_of_sets_and_fake_english_shares_nothing(tmp_path, monkeypatch):
    texts = {"en": ENGLISH, "de": GERMAN, "en_Fake": [shifted(text) for text in ENGLISH]}
    known = [*ENGLISH, *GERMAN[:2], *texts["en_Fake"]]
    tokenizer = make(TokenizerSpec(kind="bpe", vocab=120), known)
    monkeypatch.setattr(vocabulary_overlap, "best_checkpoint", lambda path: path)
    model = types.SimpleNamespace(_tokenizer=lambda: tokenizer)
    monkeypatch.setattr(vocabulary_overlap, "load", lambda path: model)
    for code, lines in texts.items():
        (tmp_path / f"{code}.txt").write_text("\n\n".join(lines) + "\n")
    data = tuple(f"language:{code}={tmp_path}/{code}.txt" for code in texts)
    report = vocabulary_overlap.report(Request(task="overlap", model="m", data=data))
    pieces = {
        code: [int(i) for text in lines for i in tokenizer.encode(text)]
        for code, lines in texts.items()
    }
    unknown = tokenizer.vocab.unk
    source, target = {*pieces["en"]}, [one for one in pieces["de"] if one != unknown]
    both = source & {*target}
    assert report.document["languages"]["de"] == pytest.approx({
        "common": len(both) / len(source | {*target}),
        "types": len(both) / len({*target}),
        "tokens": sum(one in source for one in target) / len(target),
    })  # fmt: skip
    assert unknown in pieces["de"] and 0 < len(both) < len({*target})
    assert report.document["languages"]["en_Fake"] == {"common": 0, "types": 0, "tokens": 0}
    assert report.document["examples"] == sum(
        one != unknown for part in pieces.values() for one in part
    )
    assert [row[0] for row in report.table] == ["language", "de", "en_Fake"]


@pytest.mark.parametrize("data", [("language:de=a.txt",), ("language:de-en=a", "language:fr=b")])
def test_texts_of_two_languages_are_needed(data):
    with pytest.raises(UserError, match="give texts of two languages"):
        vocabulary_overlap.report(Request(task="overlap", model="m", data=data))
