"""The supersenses of a vocabulary's words: those of WordNet's lemmas, by its rules of detachment
and its exceptions."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Vocab
from ptm_jax.knowledge.english_words import SUPERSENSES
from ptm_jax.knowledge.supersenses import VocabularySenses
from ptm_jax.knowledge.word_classes import PARTS

PIECES = """
    [PAD] [UNK] dogs dog child children running bigger larger churches boxes wolves saw sawing that
    were cats axes flies ##s fliers women Dogs""".split()
SENSES = """child%1:18:00:: dog%1:05:00:: dog%2:38:00:: run%2:38:00:: run%1:04:00:: big%3:00:00::
large%3:00:00:: were%1:05:00::
    church%1:14:00:: box%1:06:00:: box%2:35:00:: saw%1:06:00:: saw%2:30:00:: see%2:39:00::
    that%4:02:00:: ax%1:06:00::
    axis%1:15:00:: axe%1:06:00:: axe%2:30:00:: fly%1:05:00:: fly%2:38:00:: woman%1:18:00::
    wolf%1:05:00:: running%1:04:00::
    the%1:10:00::""".split()
# WordNet's own exc files have these lines
EXCEPTIONS = {
    "noun.exc": "children child\naxes ax axis\nwolves wolf\n",
    "verb.exc": "saw see\nrunning run\n",
    "adj.exc": "bigger big\n",
    "adv.exc": "best well\n",
}
# by hand: the lexicographer files (lexnames(5WN)) of every lemma of a part of speech
ALLOWED = {
    "dogs": "noun.animal verb.motion",
    "Dogs": "noun.animal verb.motion",
    "child": "noun.person",
    "children": "noun.person",
    "running": "noun.act verb.motion",
    "bigger": "adj.all",
    "larger": "adj.all",
    "churches": "noun.group",
    "boxes": "noun.artifact verb.contact",
    "wolves": "noun.animal",
    "sawing": "verb.change",
    "axes": "noun.artifact noun.location verb.change",
    "flies": "noun.animal verb.motion",
    "women": "noun.person",
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "index.sense").write_text("".join(f"{sense} 1 1 0\n" for sense in SENSES))
    for name, text in EXCEPTIONS.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def tokenizer():
    def starts():
        return np.array([not piece.startswith(("##", "[")) for piece in PIECES])

    def encode(texts):
        return [np.array([PIECES.index(part) for part in text.split()]) for text in texts]

    special = {piece: PIECES.index(piece) for piece in ("[PAD]", "[UNK]")}
    vocab = Vocab(size=len(PIECES), pad=0, unk=1)
    return types.SimpleNamespace(
        pieces=PIECES, special_pieces=special, word_starts=starts, encode_batch=encode, vocab=vocab
    )


def kinds(row):
    return {SUPERSENSES[i] for i in range(45) if (row[2] >> i if i < 24 else row[3] >> i - 24) & 1}


def test_words_allow_the_supersenses_of_their_lemmas(folder):
    """Short words (saw, dog), stop words (that, were), pieces inside words and unknown words (cats,
    fliers) have none."""
    lexicon = VocabularySenses(file=str(folder / "index.sense"), exceptions=str(folder))
    found = lexicon.entries(tokenizer())
    assert {word: kinds(row) for word, row in found.items()} == {
        word: {*text.split()} for word, text in ALLOWED.items()
    }
    assert PARTS[found["larger"][0] - 1] == "a" and PARTS[found["running"][0] - 1] == "n"


def test_without_exceptions_lemmas_are_those_of_the_rules(folder):
    found = VocabularySenses(file=str(folder / "index.sense")).entries(tokenizer())
    assert {*found} == {*ALLOWED} - {"children", "bigger"}  # wolves: the rule ves -> f gives wolf
    assert kinds(found["running"]) == {"noun.act"} and kinds(found["axes"]) == {
        "noun.artifact",
        "verb.change",
    }


def test_a_row_has_the_supersenses_of_whole_words(folder):
    lexicon = VocabularySenses(file=str(folder / "index.sense"), exceptions=str(folder))
    lexicon = lexicon.filled(lexicon.of_tokenizer(tokenizer()))
    ids = jnp.array([[PIECES.index(piece) for piece in "dogs dogs ##s that axes children".split()]])
    classes = jax.jit(lexicon.classes)({"input_ids": ids})
    low, high = np.asarray(classes["senses"]).transpose(2, 0, 1)
    rows = [kinds((0, 0, int(a), int(b))) for a, b in zip(low[0], high[0], strict=True)]

    def of(word):
        return {*ALLOWED[word].split()}

    assert rows == [of("dogs"), set(), set(), set(), of("axes"), of("children")]


def test_a_broken_file_of_exceptions_is_one_line(folder):
    (folder / "verb.exc").write_text("saw see\nwent\n")
    with pytest.raises(UserError, match=r"verb.exc.* line 2 is 'went'"):
        VocabularySenses(file=str(folder / "index.sense"), exceptions=str(folder)).entries(
            tokenizer()
        )
