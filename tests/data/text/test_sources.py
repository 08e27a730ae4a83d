"""Every format, every compression, every way in which a source is bad."""

import bz2
import functools
import gzip
import json
import sys

import pyarrow
import pyarrow.parquet
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.data.text import pydocs, sources
from ptm_jax.data.text.documents import LONGEST, Document, split_sentences

TEXTS = [
    "The first one is here. It has two sentences.",
    "Ένα δεύτερο κείμενο.",
    'Cried he: "no, never!" Then he left.',
]
EXPECTED = [Document(tuple(split_sentences(text))) for text in TEXTS]


def table(path):
    pyarrow.parquet.write_table(
        pyarrow.table({"id": ["aaaa", "b", "c"], "text": TEXTS, "n": [1, 2, 3]}), path
    )
    return path.read_bytes()


def encoded(suffix: str, tmp_path) -> bytes:
    if suffix == ".parquet":
        return table(tmp_path / "written-first")
    quoted = ['"' + text.replace('"', '""') + '"' for text in TEXTS]
    return {
        ".txt": "\n\n".join(TEXTS) + "\n",
        ".jsonl": "\n".join(json.dumps({"title": "no", "text": text}) for text in TEXTS),
        ".csv": "\ufeffid,text\r\n" + "\r\n".join(f"{i},{text}" for i, text in enumerate(quoted)),
        ".tsv": "id\tsentence\n" + "\n".join(f"{i}\t{text}" for i, text in enumerate(TEXTS)),
    }[suffix].encode()


ZST = functools.partial(pyarrow.Codec("zstd").compress, asbytes=True)
PACK = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".zst": ZST}


def test_lines_of_json_have_one_field_of_text(tmp_path):
    """A known name, else the longest, as in tables; not whichever comes first."""
    file = tmp_path / "a.jsonl"
    for body in ("inhalt", "content"):
        rows = [{"url": "https://x.org/a", "title": "no", body: text} for text in TEXTS]
        file.write_text("\n".join(map(json.dumps, rows)))
        made = [" ".join(one.sentences) for one in sources.documents([str(file)])]
        assert [" ".join(text.split()) for text in TEXTS] == made


@pytest.mark.parametrize(("name", "text", "message"), [
    ("a.csv", "id,text\n1,one two\n2,three, four\n",
    r"a\.csv:3: 3 columns, the first line has 2; write quotes"),
    ("a.csv", "id,text\n1,one two\n2\n", r"a\.csv:3: 1 columns, the first line has 2"),
    ("a.csv", 'id,text\n1,"one\ntwo"\n2,"three\n3,four\n4,five\n',
    r"a\.csv:4 is not CSV \(a quote is never closed\)"),
    ("a.csv", 'id,text\n1,"one\n2,"two"\n', r"a\.csv:2 is not CSV"),
    ("a.tsv", "id\ttext\n1\tone\n\n2\tthree\tfour\n",
    r"a\.tsv:4: 3 columns, the first line has 2; write blanks"),
])  # fmt: skip
def test_ragged_rows_and_open_quotes_name_their_line(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        list(sources.documents([str(tmp_path / name)]))


@pytest.mark.parametrize("packed", PACK)
@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".csv", ".tsv", ".parquet"])
def test_formats(tmp_path, suffix, packed):
    folder = tmp_path / "in"
    folder.mkdir()
    path = folder / f"data{suffix}{packed}"
    path.write_bytes(PACK[packed](encoded(suffix, tmp_path)))
    assert list(sources.documents([str(path)])) == EXPECTED
    assert list(sources.documents([str(folder)])) == EXPECTED
    assert list(sources.documents([str(folder / "*")])) == EXPECTED
    assert len(sources.fingerprints([str(path)])[0]["sha256"]) == 64


@pytest.mark.parametrize("text, expected", [
    ("a,b\nshort,this is the longer column\nx,so it is the text\n",
    ["this is the longer column", "so it is the text"]),
    ("one plain line\nanother line\n", ["one plain line", "another line"]),
])  # fmt: skip
def test_csv_without_a_known_column(tmp_path, text, expected):
    (tmp_path / "x.csv").write_text(text)
    assert [d.sentences[0] for d in sources.documents([str(tmp_path / "x.csv")])] == expected


def test_txt_layouts(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes(b"\xef\xbb\xbfOne.\r\nTwo.\r\n \r\n\r\nThree.")
    assert list(sources.documents([str(path)])) == [
        Document(("One.", "Two.")),
        Document(("Three.",)),
    ]
    path.write_text(
        " \n = Title = \n \n Text one . It goes on . \n = = Part = = \n \n More . \n = "
        "Second = \n End .\n"
    )
    first, second = sources.documents([str(path)])
    assert first.sentences == ("= Title =", "Text one .", "It goes on .", "= = Part = =", "More .")
    assert second.sentences == ("= Second =", "End .")


@pytest.mark.parametrize("line, expected", [
    ("Mr. Smith met J. S. Bach. He left.", ["Mr. Smith met J. S. Bach.", "He left."]),
    ("It is 3.5 m long, e.g. here. 7 more.", ["It is 3.5 m long, e.g. here.", "7 more."]),
    ('"Go!" He went (home.) And slept?', ['"Go!"', "He went (home.)", "And slept?"]),
    ("你好。再见！好", ["你好。", "再见！", "好"]),
    ("  spaced \t out ", ["spaced out"]),
    ("", []),
])  # fmt: skip
def test_sentences(line, expected):
    assert split_sentences(line) == expected


def test_endless_line_is_cut():
    pieces = split_sentences("word " * 2000)
    assert max(map(len, pieces)) <= LONGEST and " ".join(pieces).split() == ["word"] * 2000


@pytest.mark.parametrize("name, content, message", [
    ("x.txt", b"", "holds no text"),
    ("x.txt", b" \n\n", "holds no text"),
    ("x.txt", b"good\nb\xffd\n", "x.txt is not UTF-8 at byte 6"),
    ("x.jsonl", b'{"text": "a"}\n{"text": \n', r"x.jsonl:2 is not JSON"),
    ("x.jsonl", b'{"text": "a"}\n{"n": 1}\n', r"x.jsonl:2 has no string field"),
    ("x.txt.gz", gzip.compress(b"word " * 5000, mtime=0)[:40], "damaged archive"),
    ("x.txt.gz", b"not gzip", "damaged archive"),
    ("x.txt.zst", b"not zstd", "cannot be read"),
    ("x.txt.bz2", b"not bzip", "cannot be read"),
    ("x.parquet", b"not parquet", "not a readable parquet"),
    ("x.pdf", b"%PDF", "no format that is read"),
    ("x.csv", b"text,text\na,b\n", "x.csv:1: 2 columns are named 'text'"),
    ("x.csv", b"id,Text,TEXT\n1,a,b\n", "x.csv:1: 2 columns are named 'text'"),
    ("x.tsv", b"n\tbody\tbody\n1\tlong text\tb\n2\tlong text\tb\n", "2 columns are named 'body'"),
    ("x.jsonl", b'{"text": "a", "text": "b"}\n', "x.jsonl:1: 2 fields are named 'text'"),
    ("x.txt", "good\n".encode("utf-16"), "x.txt is UTF-16 text; convert it, as `iconv -f UTF-16"),
    ("x.csv", "text\ngood\n".encode("utf-16"), "x.csv is UTF-16 text; convert it"),
    ("x.jsonl", '{"text": "a"}\n'.encode("utf-32"), "x.jsonl is UTF-32 text; convert it"),
])  # fmt: skip
def test_bad_files(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        list(sources.documents([str(tmp_path / name)]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given, message", [
    (["nothing.txt"], r"no such data source: .*Did you mean 'nothings.txt'"),
    (["*.csv"], "no file matches"),
    (["empty"], "no text files below"),
    ([], "no data source"),
])  # fmt: skip
def test_missing(tmp_path, given, message):
    (tmp_path / "nothings.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=message):
        next(sources.documents([str(tmp_path / name) for name in given]))


@pytest.mark.parametrize("kind", sources.SOURCES, ids=lambda kind: kind.kind)
def test_each_spelling_is_of_one_kind(kind):
    for form in kind.forms:
        assert [other.kind for other in sources.SOURCES if other.detect(form)] == [kind.kind]


def test_a_kind_is_one_entry(monkeypatch):
    def check(name):
        if name == "verse:":
            raise UserError("verse: names no poem")

    verse = sources.Source(
        kind="verse",
        forms=("verse:NAME",),
        help="poems",
        documents=lambda name: iter([sources.Document((name,))]),
        fingerprint=lambda name: name * 2,
        check=check,
    )
    monkeypatch.setattr(sources, "SOURCES", (*sources.SOURCES, verse))
    monkeypatch.setitem(sources.KINDS, "verse", verse)
    assert [d.sentences for d in sources.documents(["verse:a", "verse:b"])] == [
        ("verse:a",),
        ("verse:b",),
    ]
    assert sources.fingerprints("verse:a") == [{"source": "verse:a", "sha256": "verse:averse:a"}]
    with pytest.raises(UserError, match="names no poem"):
        sources.expand("verse:")


def test_pydocs():
    found = list(pydocs.documents(max_bytes=200_000))
    assert found == list(pydocs.documents(max_bytes=200_000))
    assert len(set(found)) == len(found) > 50
    text = " ".join(s for d in found for s in d.sentences)
    assert 200_000 <= len(text) < 300_000
    assert text.count(" the ") > 1000 and ">>>" not in text


def test_pydocs_knows_no_other_package():
    roots = [str(root) for root in pydocs._roots()]
    assert roots and not any("torch" in root or "transformers" in root for root in roots)


@pytest.mark.full
def test_tfds_without_tensorflow(tmp_path, monkeypatch):
    import numpy as np
    import tensorflow_datasets as tfds

    class TinyProse(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")
        BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="plain")]

        def _info(self):
            features = {"text": tfds.features.Text(), "label": tfds.features.Scalar(dtype=np.int64)}
            return tfds.core.DatasetInfo(
                builder=self, features=tfds.features.FeaturesDict(features)
            )

        def _split_generators(self, _):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            yield from ((i, {"text": text, "label": i}) for i, text in enumerate(TEXTS))

    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(tfds, "display_progress_bar", lambda *_: None, raising=False)
    assert set(sources.documents(["tfds:tiny_prose/plain"])) == set(EXPECTED)
    assert sources.fingerprints(["tfds:tiny_prose/plain"]) == sources.fingerprints(
        ["tfds:tiny_prose/plain"]
    )
    assert "tensorflow" not in sys.modules
    with pytest.raises(UserError, match="tfds:no_such_prose cannot be loaded"):
        list(sources.documents(["tfds:no_such_prose"]))


@pytest.mark.full
@pytest.mark.parametrize(
    "name, documents", [("wikitext-2/valid.txt", 60), ("tinyshakespeare", 7222)]
)
def test_real_text(data, name, documents):
    found = list(sources.documents([str(data / "lm" / name)]))
    assert len(found) == documents
    assert sum(len(s) for d in found for s in d.sentences) > 1_000_000
