"""Columns of tokens and fields of rows of any type: from the cutting of rows to a corruption that
moves tokens."""

import dataclasses

import jax
import numpy as np
import pytest

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.fields import Field, move_with_tokens
from ptm_jax.corruptions.masking.noise import SentencePermutation, TextInfilling
from ptm_jax.corruptions.masking.sentinels import SentinelSpans
from ptm_jax.corruptions.masking.shuffles import TrigramShuffle
from ptm_jax.data.corpora.stream import Stream
from ptm_jax.data.rows.annotated import Annotated
from ptm_jax.data.rows.columns import Column, WithColumns
from ptm_jax.data.rows.examples import Packed
from ptm_jax.data.rows.sentences.sentence_pairs import XLNetPairs
from support.cutting import KINDS, VOCAB, block, cut


@dataclasses.dataclass(frozen=True)
class Speech(Column):
    name, dtype = "speech", np.uint8

    def values(self, block):
        return block.tokens % 7 + 1


@dataclasses.dataclass(frozen=True)
class Weights(Column):
    name, dtype, shape = "weights", np.float32, (2,)

    def values(self, block):
        return np.stack([1 / (1 + block.tokens), block.tokens + 0.5], 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Graded(slots.Examples):
    """Packed rows with columns, and how full each row is, as a byte."""

    examples: slots.Examples = WithColumns(
        examples=Annotated(examples=Packed(), fields=("sentences",)), columns=(Speech(), Weights())
    )

    def spec(self, length, vocab):
        return {**self.examples.spec(length, vocab), "fill": Field((), np.uint8)}

    def rows(self, block, *, length, vocab, rng):
        out = self.examples.rows(block, length=length, vocab=vocab, rng=rng)
        return out | {"fill": (out["segment_ids"] > 0).sum(1).astype(np.uint8)}


def check(batch, text):
    """The columns are those of the ids where `text` stands, and 0 elsewhere."""
    ids, speech, weights = (np.asarray(batch[name]) for name in ("input_ids", "speech", "weights"))
    assert speech.dtype == np.uint8 and weights.dtype == np.float32
    assert np.array_equal(speech, np.where(text, ids % 7 + 1, 0))
    wanted = np.stack([1 / (1 + ids), ids + 0.5], -1) * text[..., None]
    np.testing.assert_allclose(weights, wanted, rtol=1e-6)


@pytest.mark.parametrize("kind", [*KINDS, XLNetPairs()], ids=lambda kind: type(kind).__name__)
def test_columns_are_cut_with_their_tokens(kind):
    given = block(30, 1)
    examples = WithColumns(examples=kind, columns=(Speech(), Weights()))
    rows, plain = cut(examples, given), cut(kind, given)
    check(rows, rows["input_ids"] >= 10)
    assert all(np.array_equal(rows[name], plain[name]) for name in plain)
    spec = examples.spec(40, VOCAB)
    assert list(spec) == list(rows)
    assert all(
        rows[name].shape[1:] == shape and rows[name].dtype == dtype
        for name, (shape, dtype) in spec.items()
    )


def test_fields_of_every_type_pass_through_the_stream_and_a_restart(corpus):
    def fresh():
        return Stream(corpus, "train", Graded(), length=64, batch=8, seed=3)

    stream = fresh()
    batches = [next(stream) for _ in range(3)]
    state = stream.state()
    later = [next(stream) for _ in range(3)]
    for batch in batches + later:
        assert batch["fill"].dtype == np.uint8 and np.array_equal(
            batch["fill"], (batch["segment_ids"] > 0).sum(1)
        )
        check(
            batch,
            ~np.isin(batch["input_ids"], [corpus.vocab.pad, corpus.vocab.cls, corpus.vocab.sep]),
        )
    other = fresh()
    other.restore(state)
    for wanted in later:
        found = next(other)
        assert wanted.keys() == found.keys() and all(
            np.array_equal(wanted[k], found[k]) for k in wanted
        )
    stream.close(), other.close()


@pytest.mark.full
@pytest.mark.parametrize(
    "corruption",
    [
        TextInfilling(vocab=VOCAB),
        SentencePermutation(vocab=VOCAB),
        TrigramShuffle(vocab=VOCAB, rate=0.6),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_corruption_moves_columns_with_their_tokens(corruption):
    rows = cut(Graded(), block(12, 2), 48)
    batch = jax.jit(corruption)(
        jax.random.key(0), rows | {"rows": np.arange(len(rows["fill"]), dtype=np.int32)}
    )
    ids = np.asarray(batch["input_ids"])
    assert not np.array_equal(ids, rows["input_ids"]) and np.array_equal(
        batch["fill"], rows["fill"]
    )
    text, masks = ids >= 10, (ids == VOCAB.mask)[..., None]
    check({name: np.where(masks if name == "weights" else masks[..., 0], 0,
        batch[name]).astype(batch[name].dtype)
           for name in ("input_ids", "speech", "weights")}, text)  # fmt: skip


def test_columns_do_not_outlive_their_tokens():
    """Rows that are written anew have other places: columns of the old ones are left out."""
    rows = cut(Graded(), block(3, 2), 48)
    vocab = dataclasses.replace(VOCAB, extra=tuple(range(90_000, 90_020)))
    batch = jax.eval_shape(
        SentinelSpans(vocab=vocab), jax.random.key(0), rows | {"rows": np.arange(len(rows["fill"]))}
    )
    assert not {"speech", "weights", "sentences"} & batch.keys() and "fill" in batch


def test_a_moving_field_must_have_a_place_for_every_token(corpus):
    move_with_tokens("fill_of_rows")

    class Wrong(Packed):
        def spec(self, length, vocab):
            return {**super().spec(length, vocab), "fill_of_rows": Field()}

    with pytest.raises(UserError, match="fill_of_rows moves with tokens"):
        Stream(corpus, "train", Wrong(), length=64, batch=8, seed=3)
