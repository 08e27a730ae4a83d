"""UTF-16 and UTF-32 with and without a byte order mark, in each reader of texts and tables."""

import json

import pytest

from ptm_jax.convert.config import Config
from ptm_jax.convert.words import wordfiles
from ptm_jax.core import reading
from ptm_jax.core.errors import UserError
from ptm_jax.data.text import bitext, cleaning, sources
from ptm_jax.data.tokenizers import vocabularies
from ptm_jax.data.tokenizers.published import read_published
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.trees import treebanks
from ptm_jax.inference.streams import lines
from ptm_jax.inference.words import two_languages
from ptm_jax.knowledge import vector_files
from ptm_jax.knowledge.graphs import tables
from ptm_jax.tasks import properties, wordsets
from ptm_jax.tasks.formats import tabular
from ptm_jax.tasks.tables import table_rows

PLAIN = "a good film\nand a bad one\n"
TABLE = "text\tlabel\ngood\t1\nbad\t0\n"
JSON_LINES = '{"text": "good"}\n{"text": "bad"}\n'
PIECES = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n"


def documents(path):
    return list(sources.documents([str(path)]))


def rows(path):
    return list(tabular.rows(path))


def vocabulary(path):
    return vocabularies.read(TokenizerSpec(kind="wordpiece", path=str(path)))


READERS = {
    "text": ("x.txt", PLAIN, documents),
    "lines of JSON": ("x.jsonl", JSON_LINES, documents),
    "table": ("x.tsv", TABLE, documents),
    "table with commas": ("x.csv", TABLE.replace("\t", ","), documents),
    "texts to predict": ("x.txt", PLAIN, lambda path: list(lines.Source(path).lines())),
    "JSON to predict": ("x.jsonl", JSON_LINES, lambda path: list(lines.Source(path).lines())),
    "task": ("x.tsv", TABLE, rows),
    "task with commas": ("x.csv", TABLE.replace("\t", ","), rows),
    "task of JSON": ("x.json", JSON_LINES, rows),
    "published task": ("x.txt", PLAIN, lambda path: tabular.text_of(path, "latin-1")),
    "own table": ("x.csv", TABLE.replace("\t", ","), lambda path: list(table_rows.rows(path))),
    "similarities": (
        "x.txt",
        "cat dog 3\n",
        lambda path: list(wordsets._lines(path)),
    ),
    "properties": ("x.tsv", "word\tcolour\ncat\tgrey\n", properties.read),
    "treebank": ("x.txt", "(S (N a) (V b))\n", lambda path: list(treebanks.read(path))),
    "dictionary": ("x.txt", "cat Katze\n", two_languages.lines_of),
    "alignments": ("x.txt", "0-0 1-1\n", bitext._lines),
    "triples": ("x.tsv", "a\tr\tb\n", lambda path: list(tables.lines(path))),
    "word vectors": ("x.vec", "2 2\na 1 0\nb 0 1\n", wordfiles.read),
    "vectors of words": (
        "x.vec",
        "a 1 0\nb 0 1\n",
        lambda path: vector_files.vectors_in(path, {"a"}),
    ),
    "words": ("x.txt", "the\nand\n", cleaning.read_words),
    "config": ("config.json", json.dumps({"model_type": "bert"}), Config.read),
    "JSON": ("x.json", json.dumps({"a": 1}), lambda path: reading.read_json(path, "the file")),
    "vocabulary": ("vocab.txt", PIECES, vocabulary),
    "vocabulary of a folder": ("vocab.txt", PIECES, lambda path: read_published(path.parent)),
}


@pytest.mark.parametrize("name", READERS)
def test_every_reader_names_another_encoding(name, tmp_path):
    file, text, read = READERS[name]
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"):
        path = tmp_path / file
        path.write_bytes(text.encode(encoding))
        spelling = encoding.upper().replace("-LE", "LE").replace("-BE", "BE")
        with pytest.raises(UserError) as error:
            read(path)
        wanted = f"{path} is {spelling} text; convert it, as `iconv -f {spelling} -t UTF-8` does"
        assert str(error.value).startswith(wanted)


@pytest.mark.parametrize(
    "text", [PLAIN, "a\nb\nc\n", "слово, и ещё слово\n", "ein Text 世界 mehr\n"]
)
def test_texts_of_other_scripts(text):
    assert reading.encoding_of(text.encode("utf-16-le")) == "UTF-16LE"
    assert reading.encoding_of(text.encode("utf-16-be")) == "UTF-16BE"


@pytest.mark.parametrize(
    "raw",
    [b"", b"\0", b"a\0", b"plain", b"a\0b\0 text with two zeros " * 9, bytes(100), "世界".encode()],
)
def test_other_bytes_are_of_no_such_encoding(raw):
    assert reading.encoding_of(raw) is None
