"""Vocabularies of whole words with a least count (word2vec.c's -min-count)."""

import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.data.tokenizers import vocabularies
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec


def test_rare_words_are_unknown_and_the_size_is_a_limit():
    text = ["the cat and the dog", "the cat , rare"]
    found = vocabularies.make(
        TokenizerSpec(kind="word", vocab=1000, specials="t5", min_count=2), text
    )
    assert found.pieces == ["<pad>", "</s>", "<unk>", "the", "cat"]
    assert found.encode("the rare cat").tolist() == [3, 2, 4]
    assert (
        len(
            vocabularies.make(
                TokenizerSpec(kind="word", vocab=4, specials="t5", min_count=2), text
            ).pieces
        )
        == 4
    )


def test_pieces_have_no_least_count():
    with pytest.raises(UserError, match="min_count=5"):
        TokenizerSpec(kind="unigram", min_count=5)
