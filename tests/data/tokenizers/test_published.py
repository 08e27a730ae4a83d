"""Published tokenizers: every family's files give its ids, special tokens and frames; damaged files
give one line."""

import base64
import json
import os
import pickle
import re
import shutil
import struct
import sys

import numpy as np
import published_families as families
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.data.tokenizers import published, published_words, saved, vocabularies
from ptm_jax.data.tokenizers.published import read_published, write_published
from ptm_jax.data.tokenizers.published_families import Source
from ptm_jax.data.tokenizers.published_pieces import PieceModel
from ptm_jax.data.tokenizers.published_words import WordBPE, ctrl_words
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec

GOLDEN = os.path.join(os.path.dirname(__file__), "golden_transfo_xl.json")
MOSES = ("flaubert", "transfo-xl", "xlm")


@pytest.fixture(scope="module")
def lines(text_file):
    return [line for line in text_file.read_text().split("\n") if line][:400]


@pytest.fixture(scope="module")
def made(tmp_path_factory, lines):
    """The directory of a family, made once."""
    root, known = tmp_path_factory.mktemp("published"), {}

    def size(family):
        return 330 if family in families.BYTES else 120

    def of(family: str):
        if family not in known:
            known[family] = families.make(root / family, family, lines, size(family))
        return known[family]

    return of


def copied(folder, target, **files):
    """A copy of a directory with files replaced: bytes, values of JSON, or None for one that is
    taken away."""
    shutil.copytree(folder, target)
    for name, content in files.items():
        if content is None:
            (target / name).unlink()
        else:
            (target / name).write_bytes(
                content if isinstance(content, bytes) else json.dumps(content).encode()
            )
    return target


FRAMES = {
    "bert": ("[CLS] a [SEP]", "[CLS] a [SEP] b:1 [SEP]:1"),
    "roberta": ("<s> a </s>", "<s> a </s> </s> b </s>"),
    "xlnet": ("a <sep> <cls>:2", "a <sep> b:1 <sep>:1 <cls>:2"),
    "t5": ("a </s>", "a </s> b </s>"),
    "pegasus": ("a </s>", "a b </s>"),
    "mbart": ("a </s> en_XX", "a b </s> en_XX"),
    "xlm": ("<s> a </s>", "<s> a </s> b:1 </s>:1"),
    "gpt2": ("a", "a b:1"),
    "ctrl": ("a", "a b"),
}
SAME = {
    **dict.fromkeys((*families.WORDPIECE, "albert"), "bert"),
    **dict.fromkeys(("camembert", "xlm-roberta", "bart"), "roberta"),
    "mt5": "t5", "flaubert": "xlm", "openai-gpt": "gpt2", "transfo-xl": "gpt2",
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("family", families.FAMILIES)
def test_family(tmp_path, made, family, lines):
    if family in MOSES:
        pytest.importorskip("sacremoses")
    tokenizer = read_published(made(family))
    a, b = (tokenizer.encode(line).tolist() for line in lines[:2])
    assert a and b and max(a) < tokenizer.vocab.size == len(tokenizer.pieces)
    for form, texts in zip(FRAMES[SAME.get(family, family)], (lines[:1], lines[:2]), strict=True):
        ids, types = tokenizer.frame(*texts)
        parts = [(p.split(":")[0], int(p.partition(":")[2] or 0)) for p in form.split()]
        spelled = [({"a": a, "b": b}.get(p) or [tokenizer.id(p)], kind) for p, kind in parts]
        assert (
            ids.tolist() == [i for part, _ in spelled for i in part]
            and ids.dtype == types.dtype == np.int32
        )
        assert types.tolist() == [kind for part, kind in spelled for _ in part]
    assert tokenizer.padding == ("left" if family == "xlnet" else "right")
    roles = {
        r: getattr(tokenizer.vocab, r) for r in ("pad", "unk", "cls", "sep", "mask", "bos", "eos")
    }
    named = {r: tokenizer.piece(i) for r, i in roles.items() if i is not None}
    assert {"gpt2": "eos", "ctrl": "unk", "openai-gpt": "unk", "transfo-xl": "eos"}.get(
        family, "pad"
    ) in named
    special = next(p for r, p in sorted(named.items()) if r != "unk" or len(named) == 1)
    assert special == "<unk>" or tokenizer.id(special) not in tokenizer.encode(f"a {special} b")
    assert tokenizer.id(special) in tokenizer.encode(f"a {special} b", specials=True)
    tokenizer.save(tmp_path / "t")
    again = saved.load(tmp_path / "t")
    assert (again.hash, again.vocab, again.pieces) == (
        tokenizer.hash,
        tokenizer.vocab,
        tokenizer.pieces,
    )
    assert again.frame(*lines[:2])[0].tolist() == tokenizer.frame(*lines[:2])[0].tolist()
    write_published(again, tmp_path / "out")
    given = {p.name: p.read_bytes() for p in made(family).iterdir() if p.name != "config.json"}
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == given


def test_spec_reads_a_model_directory(made):
    spec = TokenizerSpec(kind="wordpiece", lowercase=False, path=str(made("roberta")))
    assert vocabularies.make(spec, []).hash == read_published(made("roberta")).hash


@pytest.mark.parametrize(
    "family, offset",
    [("xlm-roberta", 1), ("mbart", 1), ("camembert", 4), ("pegasus", 103), ("t5", 0)],
)
def test_ids_are_the_model_s_plus_an_offset(made, family, offset, lines):
    import sentencepiece

    tokenizer = read_published(made(family))
    file = next(p for p in made(family).iterdir() if p.suffix == ".model")
    original = sentencepiece.SentencePieceProcessor(model_file=str(file))
    unk = original.unk_id()
    for line in (*lines[:20], "Ж ŧ sta, 5,000 ﬁ", "  two  blanks ", "\u3000ｂａｋｅｎ"):
        ids = [tokenizer.vocab.unk if i == unk else i + offset for i in original.encode(line)]
        assert tokenizer.encode(line).tolist() == ids
    assert tokenizer.piece(tokenizer.vocab.unk) == "<unk>"


def test_pieces_of_families(made):
    xlmr, pegasus, t5 = (read_published(made(f)) for f in ("xlm-roberta", "pegasus", "t5"))
    assert (
        xlmr.pieces[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
        and xlmr.vocab.mask == xlmr.vocab.size - 1
    )
    assert (
        pegasus.pieces[:5] == ["<pad>", "</s>", "<mask_1>", "<mask_2>", "<unk_2>"]
        and pegasus.vocab.mask == 3
    )
    assert pegasus.pieces[104:106] == ["<unk_102>", "<unk>"]
    assert (
        t5.vocab.extra[:2] == (t5.vocab.size - 1, t5.vocab.size - 2)
        and t5.piece(t5.vocab.extra[0]) == "<extra_id_0>"
    )
    mbart = read_published(made("mbart"))
    assert mbart.piece(mbart.vocab.size - 2) == "zh_CN" and mbart.vocab.mask == mbart.vocab.size - 1


def test_mbart50_puts_the_language_first(tmp_path, made):
    config = {"tokenizer_class": "MBart50Tokenizer", "src_lang": "fr_XX"}
    tokenizer = read_published(
        copied(made("mbart"), tmp_path / "m", **{"tokenizer_config.json": config})
    )
    ids = tokenizer.frame("sta")[0]
    assert tokenizer.piece(ids[0]) == "fr_XX" and tokenizer.piece(ids[-1]) == "</s>"
    assert tokenizer.piece(tokenizer.vocab.size - 2) == "sl_SI"


def test_albert_cuts_numbers_before_a_comma(tmp_path, made):
    data = (made("albert") / "spiece.model").read_bytes()

    def piece(text, score):
        return (
            b"\x0a"
            + bytes([len(text) + 7, 0x0A, len(text)])
            + text
            + b"\x15"
            + struct.pack("<f", score)
        )

    more = b"".join(piece(t, -1.0) for t in (b"9,", b"9", b","))
    whole = PieceModel.parse(data + more)
    assert whole.pieces[-3:] == (("9,", -1.0, 1), ("9", -1.0, 1), (",", -1.0, 1))
    tokenizer = read_published(
        copied(made("albert"), tmp_path / "a", **{"spiece.model": data + more})
    )
    assert [tokenizer.piece(i) for i in tokenizer.encode("sta9,")][-2:] == ["9", ","]


@pytest.mark.parametrize(
    "options", [{"model_type": "bpe"}, {"byte_fallback": True}], ids=["bpe", "bytes"]
)
def test_what_runs_on_sentencepiece_itself(tmp_path, made, options, lines):
    import sentencepiece

    path = tmp_path / "spiece.model"
    families.pieces(
        path,
        "t5",
        lines,
        340 if "byte_fallback" in options else 90,
        character_coverage=1.0,
        **options,
    )
    tokenizer = read_published(
        copied(made("mt5"), tmp_path / "m", **{"spiece.model": path.read_bytes()})
    )
    original = sentencepiece.SentencePieceProcessor(model_file=str(path))
    assert tokenizer.encode("Ж sta").tolist() == original.encode("Ж sta")
    for line in lines[:20]:
        assert tokenizer.encode(line).tolist() == original.encode(line)
        assert (
            tokenizer.decode(tokenizer.encode(line))
            == original.decode(original.encode(line)).strip()
        )
    ids = tokenizer.encode(f"{lines[0]}</s>{lines[1]}", specials=True).tolist()
    assert ids == [*original.encode(lines[0]), 1, *original.encode(lines[1])]


@pytest.mark.parametrize("family", ["t5", "mt5"])
def test_sentinels_stand_in_texts_and_older_folders_keep_their_ids(family, made, tmp_path):
    """One id for each sentinel, with no piece of a blank before it; a folder of 0.1.0 loads with
    the ids that it had."""
    folder = made(family)
    tokenizer, a, b = (
        read_published(folder),
        *(read_published(folder).encode(word).tolist() for word in "ab"),
    )
    zero = tokenizer.vocab.extra[0]
    assert tokenizer.encode("a <extra_id_0> b", specials=True).tolist() == [*a, zero, *b]
    assert zero not in tokenizer.encode("a <extra_id_0> b")
    files = {"spiece.model": (folder / "spiece.model").read_bytes()}
    older = published.build(files, family, sentinels=False)
    older.save(tmp_path)
    again = saved.load(tmp_path)
    assert (again.hash, again.vocab) == (older.hash, older.vocab) and again.hash != tokenizer.hash


def _defined(word: str, ranks: dict) -> list[str]:
    """BPE as its paper has it: the best pair of the word is joined wherever it stands, until none
    is left."""
    symbols = [*word[:-1], word[-1] + "</w>"]
    while pairs := [p for p in zip(symbols, symbols[1:], strict=False) if p in ranks]:
        best, joined, i = min(pairs, key=ranks.__getitem__), [], 0
        while i < len(symbols):
            whole = tuple(symbols[i : i + 2]) == best
            joined.append("".join(best) if whole else symbols[i])
            i += 1 + whole
        symbols = joined
    return symbols


@pytest.mark.parametrize("mark", ["", "@@"])
def test_word_bpe_is_its_definition(made, mark, lines):
    folder = made("ctrl" if mark else "openai-gpt")
    vocab = json.loads((folder / "vocab.json").read_text())
    merges = [tuple(m.split()) for m in (folder / "merges.txt").read_text().split("\n")[1:] if m]
    ranks = {pair: i for i, pair in enumerate(merges)}
    tokenizer = WordBPE(vocab, merges, str.split, unk="<unk>", continued=mark)

    def named(s):
        return s if not mark else s.removesuffix("</w>") if s.endswith("</w>") else s + mark

    words = [w for line in lines[:60] for w in line.lower().split()] + [
        "b",
        "ж",
        "baжken",
        "xx@@",
        "aaaa",
        "ba</w>x",
    ]
    for word in words:
        assert tokenizer.encode([word])[0].tolist() == [
            vocab.get(named(s), vocab["<unk>"]) for s in _defined(word, ranks)
        ]


def test_ctrl_keeps_the_line_break():
    assert ctrl_words("ab \n c\nd\x1ce\u3000f\n\n") == ["ab", "c\n", "d\x1ce", "f\n"]


def test_transformer_xl_as_its_author_s_tokenizer_has_it(tmp_path):
    """Words and ids of the original, which `published_golden.py` recorded, from the pickle that it
    writes."""
    pytest.importorskip("sacremoses")
    with open(GOLDEN, encoding="utf-8") as file:
        golden = json.load(file)
    (tmp_path / "config.json").write_text('{"model_type": "transfo-xl"}')
    (tmp_path / "vocab.pkl").write_bytes(base64.b85decode(golden["vocab.pkl"]))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(golden["tokenizer_config.json"]))
    tokenizer = read_published(tmp_path)
    texts, ids = zip(*golden["texts"], strict=True)
    assert [row.tolist() for row in tokenizer.encode_batch(texts, specials=True)] == list(ids)
    assert [row.tolist() for row in tokenizer.frame("a dog", "the cat .")] == golden["pair"]
    assert tokenizer.word_starts().sum() > 200 and tokenizer.kind == "word"


class _Code:
    def __reduce__(self):
        return os.system, ("touch executed",)


def test_a_pickle_runs_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = {"idx2sym": ["<eos>", "<unk>", "low"], "counter": _Code(), "pattern": re.compile("x")}
    (tmp_path / "vocab.pkl").write_bytes(pickle.dumps(kept))
    (tmp_path / "config.json").write_text('{"model_type": "transfo-xl"}')
    assert read_published(tmp_path).pieces == ["<eos>", "<unk>", "low"]
    (tmp_path / "vocab.pkl").write_bytes(pickle.dumps(_Code()))
    with pytest.raises(UserError, match="vocab.pkl is not a tokenizer file"):
        read_published(tmp_path)
    assert not (tmp_path / "executed").exists()


def test_without_sacremoses(monkeypatch, made):
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    published_words._moses.cache_clear()
    with pytest.raises(UserError, match=r"needs sacremoses; pip install 'ptm_jax\[moses\]'"):
        read_published(made("xlm")).encode("sta")


def test_files_beside_the_vocabulary(tmp_path, made):
    """Lower-casing, roles and added tokens are the checkpoint's, whichever file has them."""
    plain = read_published(made("bert"))
    size = plain.vocab.size
    folder = copied(
        made("bert"), tmp_path / "b",
        **{
            "tokenizer_config.json": {"do_lower_case": False, "padding_side": "left"},
            "special_tokens_map.json": {"mask_token": {"content": "[M]", "lstrip": True},
            "sep_token": "[SEP]"},
            "added_tokens.json": {"[M]": size, "New": size + 1},
            "config.json": {"model_type": "bert", "vocab_size": size + 5},
        },
    )  # fmt: skip
    tokenizer = read_published(folder)
    assert (tokenizer.vocab.mask, tokenizer.padding, tokenizer.vocab.size) == (
        size,
        "left",
        size + 5,
    )
    assert (
        set(range(size + 2, size + 5)) <= set(tokenizer.vocab.extra)
        and not tokenizer.word_starts()[size + 2]
    )
    assert (
        tokenizer.encode("STA").tolist()
        != tokenizer.encode("sta").tolist()
        == plain.encode("STA").tolist()
    )
    assert tokenizer.encode("sta New").tolist()[-1] == size + 1
    assert tokenizer.encode("sta [M]", specials=True).tolist()[-1] == size


def test_tokenizer_json_comes_first(tmp_path, made, lines):
    source = read_published(made("distilbert"))
    write_published(
        vocabularies.make(TokenizerSpec(path=str(made("distilbert") / "vocab.txt")), []),
        tmp_path / "j",
    )
    (tmp_path / "j" / "config.json").write_text('{"model_type": "distilbert"}')
    tokenizer = read_published(tmp_path / "j")
    assert all(np.array_equal(tokenizer.encode(x), source.encode(x)) for x in lines[:20])
    assert (
        tokenizer.lowercase
        and tokenizer.vocab == source.vocab
        and tokenizer.template == source.template
    )
    whole = json.loads((tmp_path / "j" / "tokenizer.json").read_text())
    whole["post_processor"] = {
        "type": "RobertaProcessing",
        "sep": ["[SEP]", 3],
        "cls": ["[CLS]", 2],
    }
    whole["post_processor"] |= {"trim_offsets": True, "add_prefix_space": True}
    (tmp_path / "j" / "tokenizer.json").write_text(json.dumps(whole))
    config = json.loads((tmp_path / "j" / "tokenizer_config.json").read_text()) | {
        "do_lower_case": False
    }
    (tmp_path / "j" / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = read_published(tmp_path / "j")
    assert [tokenizer.piece(i) for i in tokenizer.frame([9], [8])[0]][2:4] == ["[SEP]", "[SEP]"]
    assert not tokenizer.lowercase and tokenizer.hash != source.hash


@pytest.mark.full
@pytest.mark.parametrize(
    "kind, style",
    [("wordpiece", "bert"), ("bytebpe", "roberta"), ("unigram", "t5"), ("bpe", "xlnet")],
)
def test_what_is_trained_here_is_written(tmp_path, kind, style, lines):
    sentinels = 3 if style == "t5" else 0
    size = {"bytebpe": 330}.get(kind, 120)
    spec = TokenizerSpec(
        kind=kind, vocab=size, specials=style, lowercase=False, sentinels=sentinels
    )
    tokenizer = vocabularies.make(spec, lines)
    write_published(tokenizer, tmp_path / "t")
    assert {p.name for p in (tmp_path / "t").iterdir()} == {
        "tokenizer.json",
        "tokenizer_config.json",
    }
    again = read_published(tmp_path / "t")
    assert (
        again.vocab == tokenizer.vocab and again.pieces == tokenizer.pieces and again.kind == kind
    )
    for line in (*lines[:50], "Ж  sta ", "</s> <mask>[MASK]"):
        assert again.encode(line).tolist() == tokenizer.encode(line).tolist()
    assert again.frame(*lines[:2])[0].tolist() == tokenizer.frame(*lines[:2])[0].tolist()


@pytest.mark.parametrize("family, name, damage, message", [
    ("bert", "vocab.txt", lambda d: d.replace(b"[UNK]\n", b""), "has no '\\[UNK\\]'"),
    ("bert", "vocab.txt", lambda d: d.replace(b"[SEP]\n", b""), "has no '\\[SEP\\]'"),
    ("bert", "vocab.txt", lambda d: b"\xff\xfe" + d, "is UTF-16 text; convert it"),
    ("bert", "vocab.txt", lambda d: None, "no tokenizer in"),
    ("bert", "tokenizer_config.json", lambda d: b"{", "not a tokenizer file"),
    ("bert", "tokenizer_config.json", lambda d: b'{"tokenizer_class": "BertJapaneseTokenizer"}',
    "names BertJapanese"),
    ("bert", "tokenizer_config.json", lambda d: b"[" * 100_000, "not a tokenizer file"),
    ("bert", "tokenizer_config.json", lambda d: b'{"additional_special_tokens": 5}',
    "not a tokenizer file"),
    ("bert", "tokenizer_config.json",
    lambda d: b'{"added_tokens_decoder": {"x": {"content": "y"}}}', "not a token"),
    ("bert", "special_tokens_map.json",
    lambda d: b'{"mask_token": {"content": "x", "lstrip": [1]}}', "not a token"),
    ("bert", "config.json", lambda d: b'{"model_type": "bert", "vocab_size": 99999999999}',
    "has vocab_size"),
    ("bert", "added_tokens.json", lambda d: b'{"[NEW]": 7}', "gives '\\[NEW\\]' the id 7"),
    ("bert", "config.json", lambda d: b'{"model_type": "blip"}', "of model_type 'blip'"),
    ("bert", "tokenizer.json", lambda d: b'{"model": {', "not a tokenizer file"),
    ("bert", "tokenizer.json", lambda d: b'{"model": {}}', "not a tokenizer file"),
    ("bert", "tokenizer.json", lambda d: b"[1]", "not a tokenizer file"),
    ("roberta", "vocab.json", lambda d: d[: len(d) // 2], "not a tokenizer file"),
    ("roberta", "vocab.json", lambda d: b'{"a": 0, "b": 0}', "an id of its own"),
    ("roberta", "vocab.json", lambda d: b'{"a": 99999999999}', "with ids up to"),
    ("roberta", "merges.txt", lambda d: d + b"x yz\n", "merges what vocab.json lacks"),
    ("roberta", "merges.txt", lambda d: d + b"x\n", "is not a pair"),
    ("roberta", "merges.txt", lambda d: None, "has no merges.txt"),
    ("t5", "spiece.model", lambda d: d[: len(d) // 2], "not a tokenizer file"),
    ("t5", "spiece.model", lambda d: b"\x0a\xff\xff\xff\xff\x7f", "ends inside a field"),
    ("t5", "spiece.model", lambda d: b"version https://git-lfs.github.com/spec/v1\n",
    "ends inside a field"),
    ("t5", "spiece.model", lambda d: b"", "holds no pieces"),
    ("t5", "spiece.model", lambda d: d + b"\x1a\x05\x12\x03abc",
    "table of characters is not whole"),
    ("ctrl", "vocab.json", lambda d: b"{}", "an id of its own"),
    ("xlm", "vocab.json", lambda d: b'{"a": 0}', "has no '<unk>'"),
    ("xlm", "merges.txt", lambda d: b"\xff", "not a tokenizer file"),
    ("transfo-xl", "vocab.txt", lambda d: b"low\n", "has no '<unk>'"),
])  # fmt: skip
def test_damaged_files(tmp_path, made, family, name, damage, message):
    path = made(family) / name
    target = copied(
        made(family), tmp_path / "d", **{name: damage(path.read_bytes() if path.exists() else b"")}
    )
    with pytest.raises(UserError, match=message) as caught:
        read_published(target)
    text = str(caught.value)
    assert "\n" not in text and (
        name in text or "no tokenizer in" in text or family == "transfo-xl"
    )


def test_a_merge_is_cut_at_blanks_alone(tmp_path):
    """U+001C is a separator for `str.split`, and a piece of a text for the trainers of the Rust
    library."""
    lines = "#version: 0.2\n\x1c h</w>\nt h 12\r\n\u3000 x\n"
    files = Source(files={"merges.txt": lines.encode()}, config={}, folder=tmp_path)
    assert files.merges(None) == [("\x1c", "h</w>"), ("t", "h"), ("\u3000", "x")]


def test_changed_after_saving(tmp_path, made):
    read_published(made("roberta")).save(tmp_path)
    lines = (tmp_path / "merges.txt").read_text().split("\n")
    (tmp_path / "merges.txt").write_text("\n".join([*lines[:1], *lines[2:]]))
    with pytest.raises(UserError, match="was changed after it was written"):
        saved.load(tmp_path)
