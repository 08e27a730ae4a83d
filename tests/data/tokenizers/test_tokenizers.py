"""Tokenizers: training is a function of the text, files round-trip, special tokens cannot be
written into text."""

import json
import subprocess
import sys

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend

from ptm_jax.core.errors import UserError
from ptm_jax.data.tokenizers import published_json, saved, vocabularies
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec

KINDS = [
    ("wordpiece", "bert"),
    ("bytebpe", "roberta"),
    ("bytebpe", "gpt2"),
    ("unigram", "t5"),
    ("bpe", "xlnet"),
]
SIZES = {"wordpiece": 120, "bytebpe": 330, "unigram": 90, "bpe": 90, "word": 60}


@pytest.fixture(scope="module")
def lines(text_file):
    return [line for line in text_file.read_text().split("\n") if line][:600]


def made(kind, style, lines, **changes):
    options = {"kind": kind, "vocab": SIZES[kind], "specials": style, "lowercase": False} | changes
    return vocabularies.make(TokenizerSpec(**options), lines)


@pytest.mark.parametrize("kind, style", KINDS)
def test_text_round_trip(lines, kind, style):
    tokenizer = made(kind, style, lines)
    assert tokenizer.vocab.size == SIZES[kind] == len(tokenizer.pieces)
    ids = tokenizer.encode_batch(lines[:20])
    assert all(row.dtype == np.int32 and row.max() < SIZES[kind] for row in ids)
    wanted = [line.replace(" .", ".") if kind == "wordpiece" else line for line in lines[:20]]
    assert [tokenizer.decode(row) for row in ids] == wanted


@pytest.mark.parametrize("kind, style", [*KINDS, ("word", "t5")])
def test_files_round_trip_and_are_checked(tmp_path, lines, kind, style):
    tokenizer = made(kind, style, lines)
    tokenizer.save(tmp_path)
    assert vocabularies.make(TokenizerSpec(path=str(tmp_path)), []).hash == tokenizer.hash
    again = saved.load(tmp_path)
    assert (again.kind, again.hash, again.pieces, again.vocab) == (
        kind,
        tokenizer.hash,
        tokenizer.pieces,
        tokenizer.vocab,
    )
    both = zip(tokenizer.encode_batch(lines[:20]), again.encode_batch(lines[:20]), strict=True)
    assert all(np.array_equal(a, b) for a, b in both)
    (path,) = (path for path in tmp_path.iterdir() if path.name != "tokenizer_spec.json")
    given = vocabularies.make(TokenizerSpec(kind=kind, path=str(path)), [])
    assert given.pieces == tokenizer.pieces and given.kind == kind
    if path.suffix == ".json":
        facts = json.loads(path.read_text())
        facts["added_tokens"] = facts["added_tokens"][1:]
        path.write_text(json.dumps(facts))
        with pytest.raises(UserError, match="was changed"):
            saved.load(tmp_path)
    path.unlink()
    with pytest.raises(UserError, match="no readable tokenizer"):
        saved.load(tmp_path)


def test_special_tokens_of_families(lines):
    bert, roberta = made("wordpiece", "bert", lines).vocab, made("bytebpe", "roberta", lines).vocab
    assert (bert.pad, bert.unk, bert.cls, bert.sep, bert.mask, bert.bos) == (0, 1, 2, 3, 4, None)
    assert (roberta.cls, roberta.pad, roberta.sep, roberta.unk, roberta.mask) == (0, 1, 2, 3, 4)
    assert made("bytebpe", "gpt2", lines).vocab.eos == 0
    t5 = made("unigram", "t5", lines, sentinels=3)
    assert t5.vocab.extra == (89, 88, 87) and t5.piece(89) == "<extra_id_0>" and t5.vocab.eos == 1


@pytest.mark.parametrize(
    "kind, style, mask", [("wordpiece", "bert", "[MASK]"), ("bytebpe", "roberta", "<mask>")]
)
def test_text_cannot_spell_a_special_token(lines, kind, style, mask):
    tokenizer = made(kind, style, lines)
    text = f"Sta {mask} ken"
    assert tokenizer.vocab.mask not in tokenizer.encode(text)
    ids = tokenizer.encode(text, specials=True)
    assert np.sum(ids == tokenizer.vocab.mask) == 1
    assert mask in tokenizer.decode(ids, skip_specials=False) and mask not in tokenizer.decode(ids)


@pytest.mark.parametrize(
    "kind, style, mask",
    [
        ("wordpiece", "bert", "[MASK]"),
        ("bytebpe", "bert", "[MASK]"),
        ("bytebpe", "roberta", "<mask>"),
    ],
)
def test_a_mask_of_an_exported_tokenizer_takes_the_blank_before_it(lines, kind, style, mask):
    """As `fill_mask` does: the blank belongs to the filling."""
    tokenizer = made(kind, style, lines)
    data = published_json.files_of(tokenizer)["tokenizer.json"]
    ids = Backend.from_str(data.decode()).encode(f"the {mask} of", add_special_tokens=False).ids
    before, after = tokenizer.encode_batch(["the", " of"])
    assert ids == [*before, tokenizer.vocab.mask, *after]


@pytest.mark.parametrize(
    "kind, style, piece",
    [("wordpiece", "bert", "[MASK]"), ("bytebpe", "roberta", "<mask>"),
    ("bytebpe", "roberta", "</s>"),
     ("unigram", "t5", "</s>"), ("bpe", "xlnet", "<mask>")],
)  # fmt: skip
def test_the_option_specials_of_every_call(lines, kind, style, piece):
    """False, the default: a special token that a text spells is text. True: it is that token,
    between the same texts."""
    tokenizer = made(kind, style, lines)
    text, token = f"Sta {piece} ken", tokenizer.id(piece)
    default, asked = tokenizer.encode(text), tokenizer.encode(text, specials=True)
    assert token not in default and asked.tolist().count(token) == 1
    assert default.tolist() == tokenizer.encode(text, specials=False).tolist()
    assert [row.tolist() for row in tokenizer.encode_batch([text, "Sta"])] == [
        default.tolist(),
        tokenizer.encode("Sta").tolist(),
    ]
    assert tokenizer.encode_batch([text], specials=True)[0].tolist() == asked.tolist()

    def around(ids, **options):
        return (
            tokenizer.frame(text, "ken", **options)[0].tolist()
            == tokenizer.frame(ids, "ken")[0].tolist()
        )

    assert around(default) and around(asked, specials=True) and not around(asked)


def test_training_is_deterministic_across_processes(tmp_path, lines):
    (tmp_path / "lines").write_text("\n".join(lines))
    code = (
        "import sys, pathlib; from ptm_jax.data.tokenizers import vocabularies as v, "
        "tokenizing as t;"
        "lines = pathlib.Path(sys.argv[1]).read_text().split('\\n');"
        "print([v.make(t.TokenizerSpec(kind=k, vocab=n, lowercase=False, specials='bert'), "
        "lines).hash"
        " for k, n in [('wordpiece', 120), ('bytebpe', 330), ('unigram', 90), ('bpe', 90)]])"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "lines")]
    there = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    here = [made(kind, "bert", lines, vocab=SIZES[kind]).hash for kind in SIZES if kind != "word"]
    assert there == f"{here}\n"


@pytest.mark.parametrize("kind", ["wordpiece", "bytebpe", "unigram", "bpe"])
def test_vocabulary_too_large(lines, kind):
    with pytest.raises(
        UserError, match=r"larger than the text supports; the largest that works is (\d+)"
    ) as caught:
        made(kind, "bert", lines[:40], vocab=20_000)
    largest = int(str(caught.value).split("works is ")[1].split(":")[0])
    assert made(kind, "bert", lines[:40], vocab=largest).vocab.size == largest


@pytest.mark.parametrize("changes, message", [
    ({"kind": "wordpeice"}, "Did you mean 'wordpiece'"),
    ({"specials": "robert"}, "Did you mean"),
    ({"vocab": 0}, "expected positive"),
])  # fmt: skip
def test_bad_spec(changes, message):
    with pytest.raises(UserError, match=message):
        TokenizerSpec(**changes)


def test_given_files(tmp_path, lines):
    pieces = [
        "[PAD]",
        "[unused0]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "hello",
        "wor",
        "##ld",
        ".",
    ]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    tokenizer = vocabularies.make(TokenizerSpec(path=str(tmp_path / "vocab.txt")), [])
    assert tokenizer.encode("Hello world. Ж").tolist() == [6, 7, 8, 9, 2]
    assert vocabularies.make(TokenizerSpec(path=str(tmp_path)), []).hash == tokenizer.hash
    assert (tokenizer.vocab.unk, tokenizer.vocab.cls, tokenizer.vocab.size) == (2, 3, 10)
    made("bytebpe", "gpt2", lines).save(tmp_path / "hf")
    with pytest.raises(UserError, match="set tokenizer.kind to bytebpe"):
        vocabularies.make(TokenizerSpec(path=str(tmp_path / "hf" / "tokenizer.json")), [])


@pytest.mark.parametrize("name, content, message", [
    ("absent.json", None, "no such tokenizer"),
    ("bad.json", "{", "not a tokenizer that can be read"),
    ("bad.model", "xx", "not a tokenizer that can be read"),
    ("folder/readme", "xx", "no tokenizer in"),
])  # fmt: skip
def test_bad_files(tmp_path, name, content, message):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if content is not None:
        path.write_text(content)
    given = path.parent if name.startswith("folder") else path
    with pytest.raises(UserError, match=message):
        vocabularies.make(TokenizerSpec(path=str(given)), [])


@pytest.mark.parametrize("kind, style", KINDS)
def test_word_starts(lines, kind, style):
    """The pieces from one start to the next spell a word of the text."""
    tokenizer = made(kind, style, lines)
    table = tokenizer.word_starts()
    assert table.dtype == bool and len(table) == tokenizer.vocab.size
    text = " ".join(lines[:20])
    text = text.replace(".", " .") if kind == "wordpiece" else text  # where punctuation is a word
    ids = tokenizer.encode(text)
    words = np.split(ids, np.flatnonzero(table[ids])[1:])
    assert table[ids[0]] and [tokenizer.decode(word).strip() for word in words] == text.split()
    others = [i for i in tokenizer.special_pieces.values() if i != tokenizer.vocab.unk]
    assert (
        not tokenizer.continuations[others].any()
        and not table[others].any()
        and (tokenizer.vocab.unk is None or table[tokenizer.vocab.unk])
    )


def test_word_starts_of_a_mark_at_the_end(lines):
    tokenizer = made("bytebpe", "gpt2", lines)
    tokenizer.pieces[-1] = "low</w>"
    with pytest.raises(UserError, match="marks the end of words"):
        tokenizer.word_starts()
