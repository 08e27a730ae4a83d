"""Tasks for models that read words by their characters: a word that the vocabulary lacks is spelled
too."""

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.data.rows.spelled import Spelled
from ptm_jax.data.tokenizers import vocabularies
from ptm_jax.data.tokenizers.tokenizing import Tokenizer, TokenizerSpec
from ptm_jax.data.tokenizers.words import OpenWords, opened
from ptm_jax.tasks.formats.tagged import Tagged


def test_words_of_a_task_are_spelled(tmp_path):
    (tmp_path / "train.conll").write_text("good O\nNovel B-x\n\nzebra B-x\n")
    (tmp_path / "dev.conll").write_text("unseen O\nzebra B-x\n")
    closed = vocabularies.make(
        TokenizerSpec(kind="word", vocab=4, specials="t5", lowercase=False), ["good good"]
    )
    closed.save(tmp_path / "tokenizer")
    plain = Tagged(labels=("O", "B-x"))
    examples = Tagged(labels=("O", "B-x"), spelling=Spelled(length=10, style="elmo"))
    assert examples.alphabet == 262 and plain.alphabet is None and repr(examples) == repr(plain)
    corpus = examples.corpus(
        [str(tmp_path)], tmp_path / "data", TokenizerSpec(path=str(tmp_path / "tokenizer"))
    )
    tokenizer = corpus.tokenizer()
    assert (
        isinstance(tokenizer, OpenWords)
        and tokenizer.hash == closed.hash
        and opened(tokenizer) is tokenizer
    )
    for split, words in (("train", {"good", "Novel", "zebra"}), ("heldout", {"unseen", "zebra"})):
        batch = next(corpus.stream(split, examples, length=16, batch=2, seed=0))
        assert {name: field.shape[1:] for name, field in batch.items() if name != "rows"} == {
            name: tuple(shape) for name, (shape, _) in examples.batch_spec(16, corpus.vocab).items()
        }
        codes = {tuple(row) for row in batch["characters"][batch["token_weights"] > 0]}
        spelled = [[259, *(byte + 1 for byte in word.encode()), 260] for word in words]
        assert codes == {tuple(row + [261] * (10 - len(row))) for row in spelled}
        assert not np.asarray(batch["characters"])[batch["segment_ids"] == 0].any()


def test_pieces_have_no_spelling():
    whole = vocabularies.make(TokenizerSpec(kind="word", vocab=4, specials="t5"), ["good"])
    with pytest.raises(UserError, match="a wordpiece tokenizer has no whole words"):
        opened(Tokenizer(whole._backend, kind="wordpiece"))
