"""What a source of text may cost: endless documents, archives that decompress to gigabytes, files
that are no files."""

import bz2
import gzip
import io
import lzma
import os
import random
import re
import tarfile
import zlib

import pyarrow
import pytest
from pyarrow import parquet

from ptm_jax.core.errors import UserError
from ptm_jax.data.corpora import prepare
from ptm_jax.data.text import parquet as rows_of
from ptm_jax.data.text import sources, textfiles
from ptm_jax.data.text.bounded import DOCUMENT_BYTES
from ptm_jax.data.text.documents import LONGEST, split_sentences
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from support.limits import cpu_limit

MOST = 300_000
WORDS = re.escape(
    "has a document of more than 300,000 bytes (document_bytes); cut it, or raise "
    "--document-bytes of ptm prepare"
)


def zstd(content: bytes) -> bytes:
    return pyarrow.compress(content, "zstd", asbytes=True)


def wet(claimed: int, body: bytes) -> bytes:
    return b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: %d\r\n\r\n" % claimed + body


def packed(name: str, content: bytes) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return whole.getvalue()


LETTERS, BLANKS = b"a" * 4_000_000, b"\n" * 4_000_000
XML = (
    b"<mediawiki><page><ns>0</ns><title>T</title><revision><text>%s</text></revision></page>"
    b"</mediawiki>"
)
BOMBS = {
    "line.txt": LETTERS,
    "blank.txt": BLANKS,
    "lines.txt": b"a word\n" * 400_000,
    "line.jsonl": b'"' + LETTERS + b'"',
    "quote.csv": b'a,"' + b"b\n" * 400_000,
    "line.tsv": LETTERS,
    "line.txt.gz": gzip.compress(LETTERS),
    "line.txt.bz2": bz2.compress(LETTERS),
    "line.txt.xz": lzma.compress(LETTERS),
    "line.txt.zst": zstd(LETTERS),
    "blank.txt.xz": lzma.compress(BLANKS),
    "table.parquet.gz": gzip.compress(b"PAR1" + LETTERS),
    "line.wet.gz": gzip.compress(wet(4_000_000, LETTERS)),
    "header.wet": b"WARC/1.0\r\n" + LETTERS,
    "line.tar": packed("a.txt", LETTERS),
    "urlsf_data.xz": lzma.compress(packed("a.xz", lzma.compress(packed("a.txt", LETTERS)))),
    "wiki.xml": XML % LETTERS,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_document_without_end_is_refused(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(BOMBS[name])
    with pytest.raises(UserError, match=WORDS) as caught:
        list(textfiles.read(path, MOST))
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_the_bound_is_of_a_document_not_of_a_file(tmp_path):
    """Forty documents of 100 kB are read under a bound of 300 kB, in every format."""
    text = "a word. " * 12_500
    lines = {
        "d.txt": "\n\n".join([text] * 40),
        "d.jsonl": f'{{"text": "{text}"}}\n' * 40,
        "d.csv": "text\n" + f'"{text}"\n' * 40,
        "d.tsv": "text\n" + f"{text}\n" * 40,
        "d.wet": wet(len(text), text.encode()).decode() * 40,
    }
    for name, content in lines.items():
        (tmp_path / name).write_bytes(content.encode())
        assert len(list(textfiles.read(tmp_path / name, MOST))) == 40, name
    assert DOCUMENT_BYTES > 100_000_000  # text8


def test_parquet_values_of_a_dictionary_count_where_they_stand(tmp_path):
    """A row of 3 MB, 200 rows of 200 kB, a list of 198 texts of 100 kB: each is kilobytes in the
    file."""
    path, text = tmp_path / "p.parquet", "word " * 40_000

    def write(**columns):
        parquet.write_table(pyarrow.table(columns), path, compression="zstd")
        assert path.stat().st_size < 20_000

    def rows():
        with rows_of.reading(path):
            return list(rows_of.rows(rows_of.opened(path, 1 << 30), path, MOST))

    write(
        text=pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 200, pyarrow.int32()), [text])
    )
    assert rows() == [{"text": text}] * 200 and len(list(textfiles.read(path, MOST))) == 200
    lists = pyarrow.ListArray.from_arrays([0, 2, 200], pyarrow.array([text[:100_000]] * 200))
    write(text=["a"] * 2, words=lists)
    assert len(list(textfiles.read(path, MOST))) == 2
    for columns in ({"words": lists}, {"text": ["b" * 3_000_000]}):
        write(**columns)
        with pytest.raises(
            UserError, match=r"p\.parquet: has a row of more than 300,000 bytes; cut it"
        ):
            rows()
    with pytest.raises(
        UserError,
        match=r"p\.parquet: the column text has parts of 3,0\d\d,\d+ bytes; write smaller",
    ):
        list(textfiles.read(path, MOST))


def test_an_xz_dictionary_that_lies_is_refused(tmp_path):
    """A dictionary of 4 GiB in the header of 40 bytes; several streams and the zeros between them
    are read."""
    path, filters = tmp_path / "a.txt.xz", [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 20}]
    whole = lzma.compress(b"One.\n", filters=filters)
    path.write_bytes(whole + b"\0" * 8 + lzma.compress(b"Two.") + b"\0" * 4)
    assert [item.sentences for item in textfiles.read(path)] == [("One.", "Two.")]
    at = (
        12 + whole[12:].index(b"\x21\x01") + 2
    )  # the size's byte in the block's header, with its CRC behind
    block = whole[12 : 12 + (whole[12] + 1) * 4 - 4]
    block = block[: at - 12] + b"\x28" + block[at - 11 :]
    lying = (
        whole[:12] + block + zlib.crc32(block).to_bytes(4, "little") + whole[12 + len(block) + 4 :]
    )
    for wrong, reason in (
        (lying, "Memory usage limit exceeded"),
        (whole + b"more of it", "format not supported"),
    ):
        path.write_bytes(wrong)
        with pytest.raises(
            UserError, match=rf"a\.txt\.xz is a damaged archive \(.*{reason}.*\); fetch"
        ):
            list(textfiles.read(path))


def test_the_setting_is_that_of_prepare(tmp_path):
    source = tmp_path / "one.txt"
    source.write_text("some words of one text. " * 2000)
    options = {"tokenizer": TokenizerSpec(vocab=40), "block_tokens": 512}
    with pytest.raises(
        UserError, match=r"one.txt has a document of more than 20,000 bytes \(document_bytes\)"
    ):
        prepare.prepare([str(source)], tmp_path / "c", document_bytes=20_000, **options)
    assert prepare.prepare(
        [str(source)], tmp_path / "c", document_bytes=60_000, **options
    ).manifest["splits"]


def test_only_regular_files_are_sources(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "zero.txt").symlink_to("/dev/zero")
    for name in ("pipe.txt", "zero.txt"):
        for read in (
            lambda path: sources.parts([str(path)]),
            lambda path: list(textfiles.read(path)),
        ):
            with pytest.raises(UserError, match=f"{name}: is not a regular file"):
                read(tmp_path / name)


def test_deep_json_lines_are_refused(tmp_path):
    (tmp_path / "deep.jsonl").write_text("[" * 100_000)
    with pytest.raises(UserError, match="deep.jsonl:1 is not JSON"):
        list(textfiles.read(tmp_path / "deep.jsonl"))


@pytest.mark.parametrize(
    "line",
    [
        "a" * 500_000,
        "." * 500_000,
        "a." * 250_000,
        '."' * 250_000,
        "a" * 500_000 + ". B",
        "I. " * 9_999,
    ],
)
def test_a_long_word_takes_time_in_proportion(line):
    with cpu_limit(60):
        pieces = split_sentences(line)
    assert max(map(len, pieces)) <= LONGEST
    assert "".join(pieces).replace(" ", "") == line.replace(" ", "")


def defined(line: str) -> list[str]:
    """A walk over the words: a sentence ends after a word with a stop, before a capital or a
    digit."""
    short = {"mr", "dr", "etc", "e.g"}
    found, words = [[]], line.split()
    for word, after in zip(words, [*words[1:], ""], strict=True):
        found[-1].append(word)
        bare = word.rstrip("'\")]")
        begins = after.lstrip("\"'([")[:1]
        stem = bare.rstrip(".!?")
        stem, stop = stem.lstrip("\"'(["), bare[len(stem) : len(stem) + 1]
        abbreviated = stop == "." and (stem.lower() in short or len(stem) == 1 and stem.isalpha())
        if stop and begins and (begins.isupper() or begins.isdigit()) and not abbreviated:
            found.append([])
    return [" ".join(sentence) for sentence in found if sentence]


def test_sentences_of_drawn_words():
    draw = random.Random(0)
    words = """Mr. dr. e.g. J. a (Be it. so!" No? 1 etc. U.S. wait... 'Go x.) 5. ?!""".split()
    for _ in range(2000):
        line = " ".join(draw.choices(words, k=draw.randint(1, 9)))
        assert split_sentences(line) == defined(line), line
