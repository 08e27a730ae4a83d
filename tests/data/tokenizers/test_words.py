"""Whole words: the vocabulary against a count, characters against loops, the rows that carry
them."""

import collections
import dataclasses
import re

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.data.corpora.prepare import prepare
from ptm_jax.data.corpora.stream import Stream
from ptm_jax.data.rows.annotated import Annotated
from ptm_jax.data.rows.examples import Packed
from ptm_jax.data.rows.spelled import Spelled
from ptm_jax.data.tokenizers import vocabularies
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.words import spellings

SPEC = TokenizerSpec(kind="word", vocab=60, lowercase=False, specials="t5")


@pytest.fixture(scope="module")
def lines(text_file):
    return text_file.read_text().split("\n")[:400]


@pytest.fixture(scope="module")
def tokenizer(lines):
    return vocabularies.make(SPEC, lines)


def test_the_most_frequent_words_in_their_order(tokenizer, lines):
    count = collections.Counter(word for line in lines for word in re.findall(r"\w+|[^\w\s]", line))
    order = sorted(count, key=lambda word: (-count[word], word))
    assert tokenizer.pieces == ["<pad>", "</s>", "<unk>", *order[:57]]
    assert tokenizer.hash == vocabularies.make(SPEC, lines).hash
    ids = tokenizer.encode(f"{order[3]} Xyzzy,{order[9]}. </s>")
    assert (
        ids.tolist()[:2] == [6, 2] and 1 not in ids
    )  # an unknown word; no special token out of text
    assert tokenizer.decode([6, 12, 1]) == f"{order[3]} {order[9]}"
    starts = tokenizer.word_starts()
    assert starts[2:].all() and not starts[:2].any()


def test_refusals(lines):
    with pytest.raises(UserError, match="gpt2 style lacks"):
        vocabularies.make(dataclasses.replace(SPEC, specials="gpt2"), lines)
    with pytest.raises(UserError, match="larger than the text supports"):
        vocabularies.make(dataclasses.replace(SPEC, vocab=5000), lines)
    with pytest.raises(UserError, match="style of characters"):
        Spelled(style="letters")


def test_characters_are_bytes():
    spec = dataclasses.replace(SPEC, vocab=8, specials="roberta")
    tokenizer = vocabularies.make(spec, ["naïve it it it naïve"] * 2 + ["go"])
    pieces = tokenizer.pieces
    assert pieces == ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "it", "naïve", "go"]
    plain = spellings(tokenizer, 5)
    assert not plain[:5].any()
    assert plain[5].tolist() == [ord("i") + 1, ord("t") + 1, 0, 0, 0]
    assert plain[6].tolist() == [byte + 1 for byte in "naïve".encode()[:5]]
    elmo = spellings(tokenizer, 5, "elmo") - 1
    assert elmo[0].tolist() == [258, 256, 259, 260, 260] and elmo[2].tolist() == [
        258,
        257,
        259,
        260,
        260,
    ]
    assert elmo[5].tolist() == [258, ord("i"), ord("t"), 259, 260]
    assert elmo[6].tolist() == [258, *"naïve".encode()[:3], 259]
    assert (elmo[1] == -1).all()


@pytest.mark.parametrize(
    "inner", [Packed(begin="eos", end="eos"), Annotated(examples=Packed(begin="eos", end="eos"))]
)
def test_rows_carry_the_characters_of_their_words(inner, text_file, tmp_path):
    corpus = prepare(
        [str(text_file)], tmp_path / "corpus", tokenizer=SPEC, heldout=0.1, block_tokens=512
    )
    examples = Spelled(examples=inner, length=8)
    stream = Stream(corpus, "train", examples, length=32, batch=4, seed=0)
    batch = next(stream)
    stream.close()
    assert batch["characters"].shape == (4, 32, 8) and batch["characters"].dtype == np.int32
    table = spellings(corpus.tokenizer(), 8)
    assert (
        np.array_equal(batch["characters"], table[batch["input_ids"]]) and batch["characters"].any()
    )
    assert examples.begin == "eos" and examples.needs_words == isinstance(inner, Annotated)
