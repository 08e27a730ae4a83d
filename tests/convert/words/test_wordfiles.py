"""Files of word vectors, written and read by us; what is damaged ends in one line. Peers:
test_wordfiles_peers.py."""

import pickle
import struct

import numpy as np
import pytest

from ptm_jax.convert.words import wordfiles
from ptm_jax.convert.words.wordtable import Classes, Subwords, WordTable
from ptm_jax.core.errors import UserError
from ptm_jax.statistics.hashed_ngrams import fnv1a, ngrams_of

DRAW = np.random.default_rng(0)
WORDS = [
    "</s>",
    "the",
    "naïveté",
    "cafés",
    "日本語",
    "a",
    "\udce9t\udce9",
]  # the last one is Latin-1


def table(**fields):
    rows = DRAW.standard_normal((len(WORDS), 5)).astype(np.float32)
    return WordTable(words=WORDS, rows=rows, counts=np.arange(9, 2, -1), **fields)


def with_ngrams(**fields):
    rows = DRAW.standard_normal((40, 5)).astype(np.float32)
    settings = dict(
        shortest=2,
        longest=4,
        buckets=40,
        output=DRAW.standard_normal((len(WORDS), 5)).astype(np.float32),
    )
    return table(
        subwords=Subwords(rows=rows, shortest=2, longest=4, buckets=40), settings=settings, **fields
    )


def by_hand(word, shortest, longest, buckets):
    """fastText's n-grams: over characters, `<` and `>` around, neither of them alone."""
    text, found = f"<{word}>", []
    for start in range(len(text)):
        for size in range(shortest, longest + 1):
            ngram = text[start : start + size]
            if len(ngram) == size and not (size == 1 and start in (0, len(text) - 1)):
                found.append(fnv1a(ngram.encode("utf8", "surrogateescape")) % buckets)
    return found


def test_the_hash_is_the_published_one_with_signed_bytes():
    assert fnv1a(b"") == 2166136261 and fnv1a(b"a") == 0xE40C292C and fnv1a(b"foobar") == 0xBF9CF968
    negative = 0xC3 | 0xFFFFFF00  # fastText's bytes are of the type int8_t
    assert fnv1a(b"\xc3") == ((2166136261 ^ negative) * 16777619) % (1 << 32)


@pytest.mark.parametrize(("shortest", "longest"), [(1, 3), (3, 6), (2, 2), (0, 4)])
def test_ngrams_are_those_of_a_plain_loop(shortest, longest):
    words = ["the", "", "naïveté", "日本語", "a" * 30, "x"]
    ids, bounds = ngrams_of([word.encode() for word in words], shortest, longest, 1009)
    for i, word in enumerate(words):
        assert ids[bounds[i] : bounds[i + 1]].tolist() == by_hand(
            word, max(shortest, 1), longest, 1009
        )
    assert ngrams_of([b"the"], 3, 0, 10)[0].size == 0 and ngrams_of([], 1, 2, 3)[1].tolist() == [0]


@pytest.mark.parametrize("format", wordfiles.FORMATS)
def test_every_format_returns_what_was_written(tmp_path, format):
    for number, given in enumerate((table(), with_ngrams())):
        path = tmp_path / f"{number}"
        files = wordfiles.write(path, given, format)
        assert all(file.is_file() for file in files) and not list(tmp_path.glob("*.draft"))
        found = wordfiles.read(path, allow_pickle=True)
        assert found.words == WORDS and found.format == (
            "fasttext-bin" if format == "folder" and number else format
        )
        np.testing.assert_array_equal(found.whole(), given.whole())
        if format in ("fasttext-bin", "keyed-vectors", "folder"):
            np.testing.assert_array_equal(found.counts, given.counts)
        if found.subwords is not None:
            new = found.vectors(["unseen", "語"], [-1, -1])
            np.testing.assert_array_equal(new, given.vectors(["unseen", "語"], [-1, -1]))
        else:
            assert number == 0 or format not in ("fasttext-bin", "keyed-vectors", "folder")


def test_a_vector_is_the_mean_of_its_row_and_of_its_ngrams():
    given = with_ngrams()
    for word in ("naïveté", "the", "never seen"):
        rows = [given.subwords.rows[i] for i in by_hand(word, 2, 4, 40)]
        rows += [given.rows[WORDS.index(word)]] if word in WORDS else []
        at = WORDS.index(word) if word in WORDS else -1
        np.testing.assert_allclose(given.vectors([word], [at])[0], np.mean(rows, 0), atol=1e-6)
    np.testing.assert_array_equal(given.vectors(["</s>"], [0])[0], given.rows[0])


def test_classes_are_written_and_read(tmp_path):
    classes = Classes(
        names=["__label__a", "__label__b"],
        counts=np.array([4, 3]),
        rows=np.ones((2, 5), "f4"),
        loss="hs",
        word_ngrams=2,
    )
    own = dict(
        model=3, loss=1, word_ngrams=2, buckets=40, shortest=2, longest=4, output=classes.rows
    )
    given = with_ngrams(classes=classes)
    wordfiles.write(tmp_path / "m.bin", WordTable(**{**vars(given), "settings": own}))
    found = wordfiles.read(tmp_path / "m.bin").classes
    assert found.names == classes.names and found.loss == "hs" and found.word_ngrams == 2
    np.testing.assert_array_equal(found.counts, classes.counts)


BAD_TEXTS = {
    "line 1 gives 1,000,000,000 words of 1,000,000,000": b"1000000000 1000000000\na 1 2\n",
    "line 1 gives 2 words of 1,000,000,000": b"2 1000000000\na 1 2\n",
    "holds 1 words; line 1 gives 3": b"3 2\na 1.50000 2.00000\n",
    "line 3: the word 'b' has 1 numbers, expected 2": b"2 2\na 1 2\nb 1\n",
    "line 3: the word 'b' has 3 numbers, expected 2": b"2 2\na 1 2\nb 7 1 2\n",
    "line 2: the word 'b' has 3 numbers, expected 2": b"a 1 2\nb 7 1 2\nc 1 2\n",
    "line 4: 'two' after the word 'b' is no number": b"a 1 2\nb 1 2\nc 1 2\nb two\n",
    "holds 2 words; line 1 gives 4": b"4 2\na 1.25 2.25\nb 1.25 2.25\n",
    "holds 3 words; line 1 gives 4": b"4 2\na 1 2\nb 1 2\nc 1 2",
    "line 4: the word 'c' has 1 numbers": b"4 2\na 1.25 2.25\nb 1.25 2\nc 1",
    "line 2: the vector of 'b' holds NaN": b"a 1 2\nb nan 2\n",
    "line 3: the vector of 'c' holds NaN or infinity": b"a 1 2\nb 1 2\nc 1e60 2\n",
    "line 2: a word of 0 bytes": b"a 1 2\n\nc 1 2\n",
    "line 2: '2,5' after the word 'b' is no number": b"a 1 2\nb 1 2,5\n",
    "is no file of word vectors": b"a story of\nwords\n",
    "is compressed": b"\x1f\x8b0000",
    "is empty": b"",
}


@pytest.mark.parametrize("why", BAD_TEXTS)
def test_a_bad_text_file_ends_in_one_line_with_its_place(tmp_path, why):
    path = tmp_path / "vectors.txt"
    path.write_bytes(BAD_TEXTS[why])
    with pytest.raises(UserError) as error:
        wordfiles.read(path)
    line = str(error.value)
    assert line.startswith(f"{path}: ") and why in line and "\n" not in line and len(line) < 700


def binary(tmp_path, format, **fields):
    path = tmp_path / "vectors.bin"
    wordfiles.write(path, with_ngrams() if format == "fasttext-bin" else table(), format)
    return path, path.read_bytes()


@pytest.mark.parametrize("format", ["word2vec-binary", "fasttext-bin"])
def test_a_binary_file_that_is_cut_off_or_goes_on_is_refused(tmp_path, format):
    path, whole = binary(tmp_path, format)
    for size in [*range(8, len(whole), 7)]:
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match=str(path)) as error:
            wordfiles.read(path)
        assert "\n" not in str(error.value) and len(str(error.value)) < 700
    path.write_bytes(whole + b"xx")
    with pytest.raises(UserError, match="2 bytes follow the last vector"):
        wordfiles.read(path)
    path.write_bytes(whole[:-4] + struct.pack("<f", np.nan))
    with pytest.raises(UserError, match="NaN or infinity"):
        wordfiles.read(path)


@pytest.mark.parametrize("format", ["word2vec-binary", "fasttext-bin"])
def test_random_damage_to_a_binary_file_ends_in_one_line(tmp_path, format):
    """Numbers of the header that lie take no memory: each claim is compared with the size of the
    file first."""
    path, whole = binary(tmp_path, format)
    for seed in range(300):
        draw, damaged = np.random.default_rng(seed), bytearray(whole)
        for _ in range(draw.integers(1, 4)):
            damaged[draw.integers(min(len(damaged), 160))] = draw.integers(256)
        path.write_bytes(bytes(damaged))
        try:
            found = wordfiles.read(path)
            assert found.whole().shape == (len(found.words), found.width)
        except UserError as error:
            assert "\n" not in str(error) and len(str(error)) < 700


def test_a_huge_dictionary_is_refused(tmp_path):
    path, whole = binary(tmp_path, "fasttext-bin")
    for at, value in ((64, 2**31 - 1), (8, 10**9), (40, 2**31 - 1)):
        path.write_bytes(whole[:at] + struct.pack("<i", value) + whole[at + 4 :])
        with pytest.raises(UserError, match=str(path)):
            wordfiles.read(path)


class Evil:
    def __reduce__(self):
        return (pytest.fail, ("code of a pickle ran",))


def test_a_pickle_is_refused_and_its_code_never_runs(tmp_path):
    path = tmp_path / "vectors.kv"
    wordfiles.write(path, table())
    with pytest.raises(UserError, match="is a pickle.*allow_pickle"):
        wordfiles.read(path)
    whole = path.read_bytes()
    for raw in (
        pickle.dumps(Evil()),
        pickle.dumps({"a": Evil()}, 2),
        whole[:100],
        whole[:-1],
        b"\x80\x02r\xff\xff\xff\x7f.",
    ):
        path.write_bytes(raw)
        with pytest.raises(UserError, match="vectors.kv"):
            wordfiles.read(path, allow_pickle=True)
    path.write_bytes(whole)
    beside = tmp_path / "vectors.kv.vectors.npy"
    beside.write_bytes(beside.read_bytes()[:-8])
    with pytest.raises(UserError, match="vectors.npy"):
        wordfiles.read(path, allow_pickle=True)


def test_a_folder_whose_parts_do_not_fit_is_refused(tmp_path):
    wordfiles.write(tmp_path / "f", table())
    names = tmp_path / "f" / "words.txt"
    for content, why in ((b"a\t1\n", "has 1 words"), (b"a\tx\n", "line 1: 'x' is no count")):
        names.write_bytes(content)
        with pytest.raises(UserError, match=why):
            wordfiles.read(tmp_path / "f")


@pytest.mark.parametrize("word", ["new york", "", "a\nb"])
def test_a_word_that_a_format_cannot_hold_is_refused(tmp_path, word):
    given = WordTable(words=[word], rows=np.ones((1, 2), np.float32))
    for format in ("word2vec", "word2vec-binary", "glove"):
        with pytest.raises(UserError, match="holds a blank"):
            wordfiles.write(tmp_path / "x", given, format)
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match="unknown format of word vectors 'npz'"):
        wordfiles.write(tmp_path / "x", given, "npz")


@pytest.mark.parametrize("format", ["word2vec", "glove", "word2vec-binary", "folder"])
@pytest.mark.parametrize("words", ["a b a c", "a a", "x y y y x"])
def test_of_a_word_on_two_lines_the_first_is_kept(tmp_path, capsys, format, words):
    words = words.split()
    rows = np.arange(len(words) * 3, dtype=np.float32).reshape(-1, 3)
    path = tmp_path / "v"
    wordfiles.write(path, WordTable(words=words, rows=rows), format)
    read = wordfiles.read(path)
    assert list(read.words) == list(dict.fromkeys(words))
    assert [row[0] for row in read.rows] == [3.0 * words.index(word) for word in read.words]
    assert f"{len(words) - len(read.words)} words stand there twice" in capsys.readouterr().err


@pytest.mark.parametrize("head", ["2 3\n", ""])
@pytest.mark.parametrize("value", ["1,5", "0,25", "-3,0", "1.5f", "1e", "0x1p3", "1.234,5"])
def test_numbers_in_another_form_are_no_binary_vectors(tmp_path, head, value):
    path = tmp_path / "v.vec"
    path.write_text(head + f"the {value} 0 1\nof 1 {value} 2\n")
    with pytest.raises(UserError) as caught:
        wordfiles.read(path)
    assert ("is no number" in str(caught.value)) == bool(head)
    if head and "," in value and value.count(".") == 0:
        assert "a point in the place of the comma" in str(caught.value)


BLANKS = ["the", ". . .", "at name@domain.com", "1 of", "\u00a0", "new york city"]


@pytest.mark.parametrize("head", ["6 3\n", ""])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_words_that_hold_blanks(tmp_path, head, mark):
    """GloVe's 840B has such words. The width is known from the header, or from the other lines."""
    rows = np.arange(18, dtype=np.float32).reshape(6, 3) / 8
    lines = (f"{w} {' '.join(map(str, row))}\n" for w, row in zip(BLANKS, rows, strict=True))
    path = tmp_path / "v.txt"
    path.write_text(mark + head + "".join(lines), encoding="utf8")
    read = wordfiles.read(path)
    assert list(read.words) == BLANKS and read.format == ("word2vec" if head else "glove")
    np.testing.assert_array_equal(read.whole(), rows)


def test_the_first_word_may_hold_blanks_or_be_one(tmp_path):
    path = tmp_path / "v.txt"
    path.write_text(". . . 0.5 1\na 2 3\nb 4 5\n")
    assert list(wordfiles.read(path).words) == [". . .", "a", "b"]
    path.write_text("2 2\n  0.5 1\na 2 3\n")  # gensim writes its own blank token so
    read = wordfiles.read(path)
    assert list(read.words) == [" ", "a"] and read.whole().tolist() == [[0.5, 1], [2, 3]]


@pytest.mark.parametrize("header", [4, 2, 1])
def test_a_header_that_counts_wrong_is_remarked(tmp_path, capsys, header):
    path = tmp_path / "v.vec"
    path.write_text(f"{header} 2\na 1 0\nb 0.5 0.25\nc 0 1\n")
    read = wordfiles.read(path)
    assert list(read.words) == ["a", "b", "c"] and read.whole()[1].tolist() == [0.5, 0.25]
    assert f"line 1 gives {header} words, and the file has 3" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
def test_another_encoding_is_named(tmp_path, encoding):
    path = tmp_path / "v.vec"
    mark = "\ufeff" if encoding.endswith("be") else ""
    path.write_bytes((mark + "2 2\na 1 0\nb 0 1\n").encode(encoding))
    with pytest.raises(UserError, match=f"is {encoding[:6].upper()} text; convert it, as `iconv"):
        wordfiles.read(path)
