"""Dictionaries of three formats, and words with the tokens of their translation."""

import gettext
import gzip
import io
import struct
import types

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.knowledge.from_text.dictionaries import BilingualDictionary, pairs_of
from support.corrupting import VOCAB

FREEDICT = """Notes:

 * Database Status: stable

Abend /ˈɑːbənt/ <masc, n, sg>
evening <n>, eve <n>
 see: {Abende}

laufen; rennen /lˈaʊfən/ <v, intr>
   Synonym: {im Gange sein}
 [ugs.] to run (fast) <v>
"""


def catalogue(messages, order):
    """A compiled catalogue of gettext: header, table of originals, of translations, texts."""
    columns = [[text.encode() + b"\0" for text in column] for column in zip(*messages, strict=True)]
    count, at, tables, texts = len(messages), 28 + 16 * len(messages), b"", b""
    for text in (*columns[0], *columns[1]):
        tables += struct.pack(f"{order}2I", len(text) - 1, at + len(texts))
        texts += text
    head = struct.pack(f"{order}7I", 0x950412DE, 0, count, 28, 28 + 8 * count, 0, 28)
    return head + tables + texts


def test_formats_of_dictionaries(tmp_path):
    pairs = [("Abend", "evening"), ("Abend", "eve"), ("laufen", "run"), ("rennen", "run")]
    (tmp_path / "a.dict.dz").write_bytes(gzip.compress(FREEDICT.encode()))
    (tmp_path / "a.dict").write_text(FREEDICT, encoding="utf8")
    (tmp_path / "a.txt").write_text("".join(f"{a}\t{b}\n\n" for a, b in pairs), encoding="utf8")
    for name in ("a.dict.dz", "a.dict", "a.txt"):
        assert pairs_of(tmp_path / name) == pairs
    messages = [("", "Content-Type: text/plain; charset=UTF-8\n"), ("Chad", "Tschad")]
    messages += [("Name\4Chad", "Tschad"), ("Germany", "Deutschland")]
    for order in "<>":
        (tmp_path / "a.mo").write_bytes(raw := catalogue(messages, order))
        assert gettext.GNUTranslations(io.BytesIO(raw)).gettext("Germany") == "Deutschland"
        assert pairs_of(tmp_path / "a.mo") == [("Chad", "Tschad"), ("Germany", "Deutschland")]


def test_broken_dictionaries_are_one_line(tmp_path):
    broken = {
        "a.txt": (b"Haus house\nHund\n", "a.txt: line 2 is 'Hund'; expected two words"),
        "a.mo": (b"\xde\x12\x04\x95" + b"\xff" * 16, "a.mo: is no compiled catalogue"),
        "a.dict.dz": (gzip.compress(b"Haus" * 99)[:-9], "a.dict.dz: is damaged"),
    }
    for name, (raw, message) in broken.items():
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(UserError, match=message):
            pairs_of(tmp_path / name)
    with pytest.raises(UserError, match="set its `file`"):
        BilingualDictionary().of_tokenizer(types.SimpleNamespace(vocab=VOCAB))


def test_a_word_has_its_shortest_translation(tmp_path):
    words = {"Hund": [30], "mine car": [40, 41], "dog": [42], "hound": [43], "xyz": [VOCAB.unk]}
    tokenizer = types.SimpleNamespace(
        vocab=VOCAB,
        encode_batch=lambda texts: [np.array(words[text.strip()]) for text in texts],
    )
    (tmp_path / "a.txt").write_text("Hund\txyz\nHund\tmine car\nHund\tdog\nHund\thound\n")
    lexicon = BilingualDictionary(file=str(tmp_path / "a.txt"), width=2)
    assert lexicon.entries(tokenizer) == {"Hund": [1, 42, 0]}
