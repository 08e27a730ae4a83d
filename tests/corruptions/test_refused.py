"""What corruptions refuse: impossible values, batches that lack a field, systems that do not read
the result."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from ptm_jax.core import slots
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.base import Chain
from ptm_jax.corruptions.masking.gaps import GapSentences
from ptm_jax.corruptions.masking.noise import (
    NoiseMasking,
    Reconstruct,
    SentencePermutation,
    TextInfilling,
    TokenDeletion,
)
from ptm_jax.corruptions.masking.noisywords import NoisyPairs, NoisyWords
from ptm_jax.corruptions.masking.orders import MaskMixture, PermutationOrder, PseudoMasks
from ptm_jax.corruptions.masking.sentence_masking import SentenceMasking
from ptm_jax.corruptions.masking.sentinels import SentinelSpans
from ptm_jax.corruptions.masking.shuffles import TrigramShuffle
from ptm_jax.corruptions.masking.source_target import SingleStream
from ptm_jax.corruptions.masking.spans import MASSSpan
from ptm_jax.corruptions.masking.token import TokenMasking
from ptm_jax.corruptions.masking.units import Masking, NGrams, NormalSpans, Spans, WholeWords
from ptm_jax.corruptions.views import NGramView, TwoCrops
from support.corrupting import VOCAB

IDS = {"input_ids": jnp.full((1, 8), 9, jnp.int32)}
VALUES = [
    (TokenMasking, {"rate": 0.0}, "rate"), (TokenMasking, {"rate": 1.5}, "rate"),
    (TokenMasking, {"mask": 0.95, "random": 0.1}, "shares"),
    (TokenMasking, {"mask": -0.1}, "shares"),
    (Masking, {"units": WholeWords(), "rate": 0.0}, "rate"), (PseudoMasks, {"rate": 0.0}, "rate"),
    (PseudoMasks, {"longest": 1}, "at least"), (PermutationOrder, {"k": 0}, "at least"),
    (PermutationOrder, {"specials": "last"}, "specials"),
    (NoiseMasking, {"rate": 0.0}, "rate is 0"),
    (TokenDeletion, {"rate": 0.0}, "rate is 0"), (TextInfilling, {"rate": 0.0}, "rate is 0"),
    (TextInfilling, {"mean": 0.0}, "mean is 0"), (TrigramShuffle, {"rate": 0.0}, "rate"),
    (TrigramShuffle, {"rate": 2.0}, "rate"), (TrigramShuffle, {"size": 1}, "size"),
    (NoisyWords, {"places": 0}, "positive"),
    (GapSentences, {"select": "best"}, "one of ind_orig"),
    (GapSentences, {"gap": 300}, "gap is id 300, a word"),
    (GapSentences, {"rate": 1.0}, "rate 1.0"), (SentinelSpans, {"rate": 1.0}, "rate 1.0"),
    (MASSSpan, {"rate": 0.0}, "must be"), (MASSSpan, {"mask": 0.95, "random": 0.1}, "must be"),
    (MASSSpan, {"ends": 0.6}, "must be"), (SentenceMasking,
    {"sentences": 2, "width": 4, "rate": 0.0}, "rate is 0"),
    (TwoCrops, {"share": 0.0}, "share"), (TwoCrops, {"share": 1.1}, "share"),
    (NGramView, {"longest": 0}, "longest"),
]  # fmt: skip
BARE = [
    (MaskMixture, {"causal": 0.5}, "add up"), (NGrams, {"shares": (0.5, 0.4)}, "shares"),
    (NGrams, {"shares": ()}, "shares"),
    (Spans, {"p": 0.0}, "longest"), (Spans, {"longest": 0}, "longest"),
    (NormalSpans, {"deviation": 0.0}, "deviation"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "fields", "words"), [(k, {"vocab": VOCAB, **f}, w) for k, f, w in VALUES] + BARE
)
def test_impossible_values(kind, fields, words):
    with pytest.raises(ValueError, match=words):
        kind(**fields)


SHORT = Vocab(size=20, pad=0, eos=1, extra=(19, 18))


@pytest.mark.parametrize(
    ("corruption", "batch", "words"),
    [
        (TokenMasking(vocab=Vocab(size=10)), IDS, "no mask token"),
        (Reconstruct(vocab=Vocab(size=9), noise=Chain(parts=())), IDS, "no eos token"),
        (SentencePermutation(vocab=VOCAB), IDS, "no `sentences`"),
        (GapSentences(vocab=VOCAB), IDS, "no `sentences`"),
        (Masking(vocab=VOCAB, units=WholeWords()), IDS, "word_starts"),
        (
            NoisyPairs(vocab=VOCAB),
            {"input_ids": jnp.ones((1, 6), jnp.int32)},
            "a pair needs at least",
        ),
        (
            SentinelSpans(vocab=SHORT),
            {"input_ids": jnp.ones((1, 128), int)},
            "up to 6 spans, and there are 2 sentinels",
        ),
        (
            SentenceMasking(vocab=VOCAB, sentences=20, width=8),
            IDS,
            "rows have 8 tokens; 20 sentences of 8 are 160",
        ),
        (
            SingleStream(part=NoiseMasking(vocab=VOCAB)),
            IDS,
            "NoiseMasking writes no decoder_input_ids",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, slots.Corruption) else "",
)
def test_batches_and_vocabularies_that_lack_something(corruption, batch, words):
    with pytest.raises(ValueError, match=words):
        jax.eval_shape(corruption, jax.random.key(0), batch)


def system(**facts):
    encoder = type("Facts", (slots.Encoder,), facts)()
    return SimpleNamespace(towers={"main": encoder})


@pytest.mark.parametrize(
    ("corruption", "words"),
    [
        (MaskMixture(), "who sees whom"),
        (PermutationOrder(vocab=VOCAB), "who sees whom"),
        (PseudoMasks(vocab=VOCAB), "who sees whom"),
        (SingleStream(part=SentinelSpans(vocab=VOCAB)), "reads who sees whom from the batch"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_encoder_that_obeys_no_order(corruption, words):
    assert words in corruption.refusal(system(types=6))
    assert corruption.refusal(system(types=6, obeys_order=True)) is None


def test_too_few_token_types():
    assert "Types(6)" in MaskMixture().refusal(system(types=2, obeys_order=True))
    assert MaskMixture(types=False).refusal(system(types=2, obeys_order=True)) is None


class Objects(slots.Corruption):
    def refusal(self, system):
        return "not with this"


@pytest.mark.parametrize(
    "around",
    [
        lambda part: Chain(parts=(TrigramShuffle(vocab=VOCAB), part)),
        lambda part: Reconstruct(vocab=VOCAB, noise=part),
        lambda part: SingleStream(part=part),
    ],
    ids=["chain", "reconstruct", "stream"],
)
def test_the_objection_of_a_part_is_the_wholes(around):
    assert around(Objects()).refusal(system(obeys_order=True)) == "not with this"
    assert around(NoiseMasking(vocab=VOCAB)).refusal(system(obeys_order=True)) is None
