"""Sources with languages: files of translations, and what is wrong with them."""

import json

import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.data.languages import codes
from ptm_jax.data.text import sources

DE, EN = ["Ein Hund.", "", "Zwei  Katzen.", "Drei."], ["A dog.", "", "Two cats.", "Three."]
TMX = """<?xml version="1.0"?><tmx version="1.4"><header srclang="de"/><body>
<tu><tuv xml:lang="de-DE"><seg>Ein <b>Hund</b>.</seg></tuv>
<tuv xml:lang="en"><seg>A dog.</seg></tuv></tu>
<tu><tuv xml:lang="fr"><seg>Un chien.</seg></tuv><tuv xml:lang="en"><seg>A dog.</seg></tuv></tu>
</body></tmx>"""


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(text) + "\n" if isinstance(text, list) else text)


def read(source):
    return [document.sentences for document in sources.documents([source])]


PAIRS = [("Ein Hund.", "A dog."), ("Zwei Katzen.", "Two cats.", "Drei.", "Three.")]


@pytest.mark.parametrize(
    ("files", "path", "documents"),
    [
        ({"t.de": DE, "t.en": EN}, "t", PAIRS),
        ({"t.de": DE, "t.en": EN}, "t.de-en", PAIRS),
        ({"one": DE, "two.x": EN}, "one,{}/two.x", PAIRS),
        (
            {"x/de/a": DE, "x/en/a": EN, "x/de/b/c": ["Ja"], "x/en/b/c": ["Yes"]},
            "x",
            [*PAIRS, ("Ja", "Yes")],
        ),
        ({"t.tmx": TMX}, "t.tmx", PAIRS[:1]),
        (
            {
                "t.jsonl": [
                    json.dumps({"translation": {"de": "Ein Hund.", "en": "A dog."}}),
                    "",
                    json.dumps({"en": "Yes", "de": "Ja"}),
                ]
            },
            "t.jsonl",
            [*PAIRS[:1], ("Ja", "Yes")],
        ),
    ],
)
def test_translations_are_documents_of_alternating_sentences(tmp_path, files, path, documents):
    write(tmp_path, files)
    assert read(f"language:de-en={tmp_path}/{path.format(tmp_path)}") == documents


def test_documents_are_short_and_longer_pairs_are_left_out(tmp_path):
    write(
        tmp_path,
        {
            "t.de": ["wort " * 60] * 9 + ["w" * 2000, "Ja"],
            "t.en": ["word " * 60] * 9 + ["w" * 99, "Yes"],
        },
    )
    documents = read(f"language:de-en={tmp_path}/t")
    assert [len(one) for one in documents] == [6, 6, 6, 2] and documents[-1] == ("Ja", "Yes")


def test_text_of_a_language_is_any_source_and_its_hash_the_texts(tmp_path):
    write(tmp_path, {"a.txt": ["Ein Hund. Eine Katze."]})
    assert read(f"language:de={tmp_path}/a.txt") == [("Ein Hund.", "Eine Katze.")]
    tagged, plain = (
        sources.fingerprints([f"{start}{tmp_path}/a.txt"]) for start in ("language:de=", "")
    )
    assert tagged == plain
    (tmp_path / "a.txt").rename(tmp_path / "a.de")
    assert read(f"language:de={tmp_path}/a.de") == [("Ein Hund.", "Eine Katze.")]


@pytest.mark.parametrize(
    ("files", "source", "message"),
    [
        ({"t.de": DE, "t.en": EN[:-1]}, "de-en={}/t", "t.en: has 3 lines; t.de has 4"),
        (
            {"t.de": DE, "t.en": ["A dog.", *EN[2:], ""]},
            "de-en={}/t",
            "t.de: line 2 is empty, and line 2 of t.en has",
        ),
        ({"t.de": DE}, "de-en={}/t", "needs the file .*t.en, which is not there"),
        ({"x/de/a": DE, "x/en/b": EN}, "de-en={}/x", "x/de/a has no translation .*x/en/a"),
        ({"t.jsonl": ['{"de": "Ja"}']}, "de-en={}/t.jsonl", "line 1 is no object"),
        ({"t.jsonl": ["[", ""]}, "de-en={}/t.jsonl", "line 1 is not JSON"),
        ({"t.tmx": "<tmx><tu>"}, "de-en={}/t.tmx", "line 1 is no XML"),
        ({}, "dee={}/t", "unknown language code 'dee'.*(de|ee)"),
        ({}, "german={}/t", "'german' is no language code; write de"),
        ({}, "Deutsch={}/t", "'Deutsch' is no language code; write de"),
        ({}, "de_De={}/t", "'de_De' ends with 'De'; write a region"),
        ({}, "de-de={}/t", "one language twice"),
        ({}, "de-en-fr={}/t", "names no text"),
        ({}, "de-en", "names no text"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, files, source, message):
    write(tmp_path, files)
    with pytest.raises(UserError, match=message) as error:
        read(f"language:{source.format(tmp_path)}")
    assert "\n" not in str(error.value)


def test_all_sources_have_a_language_or_none():
    given = ["language:pt_BR=a", "language:zh_Hans-en=b", "language:pt_BR=c"]
    assert codes.grouped(given) == {
        "pt_BR": ["language:pt_BR=a", "language:pt_BR=c"],
        "zh_Hans-en": ["language:zh_Hans-en=b"],
    }
    with pytest.raises(UserError, match="x.txt has no language, and language:de=a has one"):
        codes.grouped(["x.txt", "language:de=a"])
