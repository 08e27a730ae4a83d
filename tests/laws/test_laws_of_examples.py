"""The laws of every way of cutting rows: the declared fields, no token lost, segments and positions
that fit the text.

What stands in a row is tested against the papers' descriptions in tests/data.
"""

import dataclasses

import numpy as np
import pytest

from ptm_jax.core import facts, slots, spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Vocab
from ptm_jax.data.rows import annotated, columns, examples, text_pairs
from ptm_jax.data.rows.bitext import Translations
from ptm_jax.data.rows.echoed import Echoed
from ptm_jax.data.rows.knowledge import entities
from ptm_jax.data.rows.languages.multilingual import Paraphrases, Translated
from ptm_jax.data.rows.languages.shares import Shares
from ptm_jax.data.rows.sentences import sentence_pairs, sentence_slots
from ptm_jax.data.rows.sentences.dialogues import Dialogues
from ptm_jax.data.rows.spelled import Spelled
from ptm_jax.data.rows.trees import Trees
from ptm_jax.data.rows.windows import Chunks
from support import cutting, registered
from support.cutting import FIRST, VOCAB

OWN = {
    "bare": examples.Packed(begin=None, end="eos", least=2),
    "documents": annotated.Annotated(fields=("documents", "sentences", "word_starts")),
    "sentences of documents": sentence_slots.DocumentSentences(),
    "even pairs": sentence_pairs.OrderedPairs(short_probability=0.9),
    "columns": columns.WithColumns(),
    "entities": entities.WithEntities(),
    "trees": Trees(classes="phrases"),
    "alternating": Translated(kind="alternating"),
    "paraphrases": Paraphrases(),
    "shares": Shares(examples=examples.Packed(), shares=(("old", 0.5),)),
    "few next": text_pairs.SentencePairs(next_probability=0.1, short_probability=0.5),
}
SLOTS = {"sentences": 4, "width": 8}


def small(value):
    """The value in the sizes of the block, without a segmenter, which is a package of its own."""
    value = spec.respell(
        value, annotated.Annotated, lambda part: dataclasses.replace(part, segmenter=None)
    )
    value = spec.respell(
        value, sentence_slots.DocumentSlots, lambda part: dataclasses.replace(part, **SLOTS)
    )
    value = facts.stand_ins(value, VOCAB)
    return spec.respell(value, Spelled, lambda part: dataclasses.replace(part, length=8))


GIVEN = registered.values("examples") | OWN
ELSEWHERE = {
    type(value) for value in GIVEN.values() if slots.overrides(value, "blocks", slots.Examples)
}
"""Their blocks are not of text: tests/statistics/test_cooccurrences.py."""
CASES = registered.distinct(
    {name: small(value) for name, value in GIVEN.items() if type(value) not in ELSEWHERE}
)
PAIRS = text_pairs.PairRows, sentence_pairs.XLNetPairs, Paraphrases, Dialogues
"""Kinds that cut sentences to fit, and take some of them twice."""
LENGTHS = 32, 45

each = registered.each(CASES)


def has(name, kinds):
    return any(isinstance(part, kinds) for part in registered.parts(CASES[name]))


def lengths(name):
    return (
        (SLOTS["sentences"] * SLOTS["width"],)
        if has(name, sentence_slots.DocumentSlots)
        else LENGTHS
    )


def rows(name, length, seed=0):
    return cutting.cut(CASES[name], cutting.block(seed=1), length, seed)


def test_every_kind_is_here():
    assert not registered.missing("ptm_jax.data.rows", slots.Examples, CASES) - ELSEWHERE


@each
def test_rows_are_what_the_spec_declares_and_a_draw_of_the_generator(name):
    for length in lengths(name):
        found, declared = rows(name, length), CASES[name].spec(length, VOCAB)
        assert {*declared} == {*found} and {"input_ids", "segment_ids", "positions"} <= {*declared}
        for field, (shape, dtype) in declared.items():
            assert (
                found[field].shape[1:] == shape
                and found[field].dtype == dtype
                and len(found[field])
            )
        again = rows(name, length)
        assert all(np.array_equal(found[field], again[field]) for field in found)


@each
def test_padding_is_at_the_end_and_segments_count(name):
    for length in lengths(name):
        found = rows(name, length)
        ids, segments, positions = (
            found[field] for field in ("input_ids", "segment_ids", "positions")
        )
        assert (
            np.array_equal(segments == 0, ids == VOCAB.pad) and not positions[segments == 0].any()
        )
        if has(name, sentence_slots.DocumentSlots):
            width = SLOTS["width"]
            segments, positions = (field.reshape(-1, width) for field in (segments, positions))
            assert set(np.unique(segments)) <= {*range(SLOTS["sentences"] + 1)}
        else:
            steps = np.diff(segments, axis=1, prepend=0)
            assert (
                set(segments[:, 0]) == {1} and ((steps == 0) | (steps == 1) | (segments == 0)).all()
            )
        assert ((segments[:, 1:] == 0) | (segments[:, :-1] > 0)).all(), "padding is at the end"
        for row, places in zip(segments, positions, strict=True):
            for number in set(row[row > 0]):
                counted = places[row == number]
                if name == "Translated":  # positions begin anew at the translation
                    second = np.flatnonzero(counted == 0)[-1]
                    counted = np.concatenate([counted[:second], counted[second:] + second])
                assert np.array_equal(counted, np.arange((row == number).sum()))


@each
def test_every_token_is_in_one_place(name):
    for length in lengths(name):
        given = cutting.block(seed=1)
        found = rows(name, length)
        found = found["input_ids"] * found.get(
            "centres", 1
        )  # the words beside a chunk are centres of others
        text = np.sort(found[found >= FIRST])
        assert set(text) <= {*given.tokens}
        if has(
            name, examples.Coded
        ):  # the first token of a document is its code, written at the head of its rows
            given.tokens[given.document_tokens[:-1]] = FIRST
            found = cutting.cut(CASES[name], given, length)["input_ids"]
            text = np.sort(np.append(found[found > FIRST], [FIRST] * len(given.documents)))
        text = np.unique(text) if has(name, Echoed) else text
        if not has(name, PAIRS) and name != "alternating":  # it leaves one of two sentences out
            assert np.array_equal(text, np.sort(given.tokens))


@each
def test_a_vocabulary_without_specials_and_rows_without_room_are_refused(name):
    with pytest.raises(UserError) as error:
        CASES[name].spec(0, VOCAB)
    assert registered.one_clause(str(error.value))
    if has(name, (examples.Contiguous, examples.Coded, Chunks, Translations, Trees)):
        return  # they may do without specials
    bare, length = Vocab(size=VOCAB.size, pad=0), lengths(name)[0]
    with pytest.raises(UserError, match="no (cls|sep|eos|bos) token"):
        CASES[name].spec(length, bare)


@each
def test_the_record_gives_the_value_back(name):
    assert registered.rebuilt(CASES[name]) == CASES[name]
