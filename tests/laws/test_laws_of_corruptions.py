"""The laws of every corruption: rows are drawn alone, shapes are static, padding stays padding, the
record is complete.

What a corruption does to a row is tested against its definition in tests/corruptions.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core import facts
from ptm_jax.core import slots as core_slots
from ptm_jax.core.system import refusal
from ptm_jax.corruptions import base, batch_masking, by_task, labels
from ptm_jax.corruptions.masking import (
    diffusion,
    gaps,
    hybrid,
    noise,
    orders,
    sentinels,
    shuffles,
    spans,
    token,
    units,
)
from ptm_jax.corruptions.masking.sentence_masking import SentenceMasking
from ptm_jax.corruptions.masking.source_target import SingleStream
from ptm_jax.corruptions.translation import code_switching
from ptm_jax.encoders.model import Model
from support import corrupting, registered, tiny_systems
from support.corrupting import VOCAB

OWN = {
    "by task": by_task.ByTask(parts=(token.TokenMasking(vocab=VOCAB), None)),
    "code-switching": facts.stand_ins(code_switching.CodeSwitching(vocab=VOCAB), VOCAB),
    "masks of a batch": facts.stand_ins(batch_masking.BatchCountedMasking(vocab=VOCAB), VOCAB),
    "more of everything": token.TokenMasking(vocab=VOCAB, rate=0.6, mask=0.3, random=0.4),
    "scheduled rate": token.ScheduledMasking(
        vocab=VOCAB, training_rate=token.LinearRate(first=0.5, last=0.1, steps=2)
    ),
    "unilm units": units.Masking(
        vocab=VOCAB, units=units.NGrams(shares=(0.2, 0.8), whole_words=False), together=True
    ),
    "normal spans": units.Masking(vocab=VOCAB, units=units.NormalSpans(mean=2.0), rate=0.3),
    "labels": labels.LabelTypes(),
    "noise masking": noise.NoiseMasking(vocab=VOCAB, rate=0.3),
    "deletion": noise.TokenDeletion(vocab=VOCAB, rate=0.3),
    "rotation": base.Chain(
        parts=(noise.DocumentRotation(vocab=VOCAB), noise.SentencePermutation(vocab=VOCAB))
    ),
    "mass": spans.MASSSpan(vocab=VOCAB, rate=0.3),
    "greedy gaps": gaps.GapSentences(vocab=VOCAB, select="seq_uniq", mask_rate=0.1, width=16),
    "random gaps": gaps.GapSentences(vocab=VOCAB, select="random", gap=399),
    "last sentinel": sentinels.SentinelSpans(vocab=VOCAB, rate=0.3, mean=2.0, last=True),
    "single stream": SingleStream(
        part=noise.Reconstruct(vocab=VOCAB, noise=noise.TokenDeletion(vocab=VOCAB))
    ),
    "prefix lm": SingleStream(part=sentinels.SentinelSpans(vocab=VOCAB)),
    "xlnet": orders.PermutationOrder(vocab=VOCAB, k=3, specials="first"),
    "pseudo masks": orders.PseudoMasks(vocab=VOCAB, rate=0.3),
    "pseudo tokens": orders.PseudoTokens(vocab=VOCAB, spans=0.9, pseudo=390),
    "half causal": hybrid.HybridMasking(vocab=VOCAB, causal=0.5),
    "linear noise": diffusion.DiffusionMasking(vocab=VOCAB, noise="linear", strata=3),
    "random lengths": diffusion.DiffusionMasking(vocab=VOCAB, random_length=0.9),
    "pairs shuffled": shuffles.TrigramShuffle(vocab=VOCAB, rate=0.4, size=2),
}
SLOTS = {"sentences": 6, "width": 8}
CASES = {
    name: SentenceMasking(vocab=VOCAB, **SLOTS) if isinstance(value, SentenceMasking) else value
    for name, value in (registered.values("corruption") | OWN).items()
}
FIXED = (
    "labels",
    "pegasus_base",
    "paragraph_vectors",
    "kglm",
    "kglm_mini",
    "kt_net_first",
    "kt_net",
    "kt_net_mini",
    "LeftToRight",
    "simcse_bert_base",
    "CrossLingual",
    "RecoveredWords",
    "mass_unmt",
)
"""Values that draw nothing; in these rows no document repeats a name, of which kt_net would hide
one, and none is a pair, of which they would draw the source."""
REFRAMED = (
    "TwoCrops",
    "NoisyPairs",
    "SentinelSpans",
    "SingleStream",
    "GapSentences",
    "TripleText",
    "EntityReplacement",
)
REFRAMED += ("BatchCountedMasking",)
REFRAMED += (
    "PiecedFragment",
    "SentenceFragment",
    "FakeStories",
    "EntityPairs",
    "DiffusionMasking",
    "LanguageTokens",
    "CrossLingual",
)
"""Corruptions that write specials anew, hide them as they hide words, or cut the end of a row."""

CASES |= registered.by_default("ptm_jax.corruptions", core_slots.Corruption, CASES)

COVERED = {"corruptions": {name: registered.class_names(value) for name, value in CASES.items()}}
each, thinned = registered.each(CASES), registered.each(CASES, covered="corruptions")
"""Every case; and the cases of which `make test` compiles those of the list."""


def kinds(name):
    return {type(part).__name__ for part in registered.parts(CASES[name])}


def batch_of(name):
    if "SentenceMasking" in kinds(name):
        return corrupting.slots(**SLOTS)
    tasks = {"task": jnp.arange(8) % 2} if "ByTask" in kinds(name) else {}
    return corrupting.documents() | tasks


@functools.cache
def compiled(name):
    return jax.jit(CASES[name])


@functools.cache
def drawn(name):
    return jax.tree.map(np.asarray, compiled(name)(jax.random.key(0), batch_of(name)))


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[field], b[field]) for field in a)


def test_every_corruption_is_here():
    missing = registered.missing("ptm_jax.corruptions", core_slots.Corruption, CASES)
    assert not missing, f"give {missing} a value in OWN"


@thinned
def test_a_draw_is_a_function_of_the_key(name):
    run, batch = compiled(name), batch_of(name)
    assert same(drawn(name), run(jax.random.key(0), batch))
    assert same(drawn(name), run(jax.random.key(1), batch)) == (name in FIXED)
    assert run._cache_size() == 1, "shapes are static: one program for all keys"


@thinned
def test_a_row_is_drawn_by_itself_and_its_global_index(name):
    """In another order, among other rows, a row has the result that it had."""
    if "BatchCountedMasking" in kinds(name):
        pytest.skip("as released, it draws from the whole batch")
    run, batch = compiled(name), batch_of(name)
    order = np.roll(np.arange(8), 3)
    rolled = run(jax.random.key(0), {field: value[order] for field, value in batch.items()})
    assert all(np.array_equal(value, drawn(name)[field][order]) for field, value in rolled.items())
    kept = np.arange(8)[::2]
    others = {
        field: value.at[1::2].set(jnp.roll(value, 2, 0)[1::2])
        for field, value in batch.items()
        if field != "rows"
    }
    among = run(jax.random.key(0), {**others, "rows": batch["rows"]})
    assert all(
        np.array_equal(value[kept], drawn(name)[field][kept]) for field, value in among.items()
    )


@thinned
def test_fields_have_their_types_and_unused_places_point_at_nothing(name):
    out = drawn(name)
    assert batch_of(name)["rows"].tolist() == out["rows"].tolist()
    for field, value in out.items():
        assert value.shape[0] == 8 and value.dtype == (
            np.float32 if field.endswith(("_weights", "_scale")) else np.int32
        ), field
        if field.endswith("_weights"):
            assert set(np.unique(value)) <= {0.0, 1.0} and not value[0].any(), (
                "a row of padding predicts nothing"
            )
    for prefix in ("mlm", "plm", "shuffle", "sentence"):
        if f"{prefix}_positions" in out:
            positions, weights = out[f"{prefix}_positions"], out[f"{prefix}_weights"]
            assert not positions[weights == 0].any() and positions.min() >= 0
            assert all(
                len(set(row[used > 0])) == used.sum()
                for row, used in zip(positions, weights, strict=True)
            )
            if prefix != "sentence":
                assert (
                    positions.max() < out["input_ids"].shape[1]
                    and (out[f"{prefix}_labels"] < VOCAB.size).all()
                )


@thinned
def test_padding_and_specials_stay(name):
    before, after = batch_of(name), drawn(name)
    assert (after["input_ids"][after["segment_ids"] == 0] == VOCAB.pad).all()
    assert (
        not after["segment_ids"][0].any()
        and (after["input_ids"] >= 0).all()
        and (after["input_ids"] < VOCAB.size).all()
    )
    if not kinds(name) & {*REFRAMED}:
        for special in (VOCAB.cls, VOCAB.sep):

            def count(batch, special=special):
                return (np.asarray(batch["input_ids"]) == special).sum(1).tolist()

            assert count(before) == count(after)
    if not kinds(name) & {*REFRAMED, "SentenceMasking"}:  # row 1 has no words
        length = before["input_ids"].shape[1]
        assert np.array_equal(after["input_ids"][1, :length], before["input_ids"][1])


@each
def test_the_record_gives_the_value_back(name):
    assert registered.rebuilt(CASES[name]) == CASES[name]


ENCODERS = tiny_systems.encoder(), tiny_systems.encoder(direction="causal")


@each
def test_a_refusal_is_one_clause(name):
    for encoder in ENCODERS:
        module = Model(encoder=encoder, heads={})
        system = tiny_systems.system(
            "law", towers={"main": module}, corruption=CASES[name], objective=None
        )
        assert registered.one_clause(refusal(system))
