"""A beam wide enough is exhaustive: on five words and five tokens it finds every answer, ranked as
enumeration ranks them; samples fall as often as the rules on scores say."""

import itertools

import numpy as np
import pytest
import scipy.stats

from ptm_jax.inference.decoding import decode
from ptm_jax.inference.decoding.settings import Generation
from support.tiny_decoders import causal, full_scores, pair, prompts_of, scores_of

WORDS, LONGEST, EOS = 5, 5, 2
COUNT = 4**4 * 5 + sum(4**n for n in range(4))  # answers of five tokens, and those that end before


def answers() -> list[tuple[int, ...]]:
    """Every answer: what ends with the first `eos`, or has the longest length."""
    found = {}
    for tokens in itertools.product(range(WORDS), repeat=LONGEST):
        found[tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens] = None
    return list(found)


@pytest.fixture(scope="module")
def enumerated(request):
    """(tower, prompt, {answer: sum of log-probabilities by whole passes without a cache})"""
    rows = np.array([[*answer, *[0] * (LONGEST - len(answer))] for answer in answers()], np.int32)
    if request.param == "causal":
        model, (prompt,) = causal(vocab=WORDS, seed=3), prompts_of(3, vocab=WORDS)
        batch = {"input_ids": np.concatenate([np.broadcast_to(prompt, (len(rows), 3)), rows], 1)}
    else:
        model, prompt = pair(WORDS), np.array([3, 4, 1], np.int32)
        batch = {
            "input_ids": np.broadcast_to(prompt, (len(rows), 3)),
            "decoder_input_ids": np.pad(rows, ((0, 0), (1, 0))),
        }
    scores = np.asarray(scores_of(model.module, model.params, batch))[
        :, 2 if request.param == "causal" else 0 :
    ]
    table = {
        answer: float(sum(scores[i, n, token] for n, token in enumerate(answer)))
        for i, answer in enumerate(answers())
    }
    return model, prompt, table


def repeats(tokens: tuple[int, ...]) -> bool:
    pairs = list(itertools.pairwise(tokens))
    return len(set(pairs)) < len(pairs)


RULES = {
    "none": ({}, lambda prompt, answer: True),
    "least": ({"min_new_tokens": 3}, lambda prompt, answer: EOS not in answer[:3]),
    "ngrams": ({"no_repeat_ngram": 2}, lambda prompt, answer: not repeats((*prompt, *answer))),
}
# The rules know nothing of the network, and each is a program of its own; the length penalty is a
# number of any of them.
CASES = [
    ("causal", "none", (0.0, 0.6, 1.5, -0.5)),
    ("causal", "least", (0.6,)),
    ("causal", "ngrams", (0.0,)),
]
CASES += [("pair", "none", (0.6, 1.0))]


@pytest.mark.full
@pytest.mark.parametrize(
    ("enumerated", "rule", "alphas"), CASES, indirect=["enumerated"], ids=lambda value: str(value)
)
def test_beam_search_equals_exhaustive_search(enumerated, rule, alphas):
    model, prompt, table = enumerated
    assert len(table) == COUNT
    options, keeps = RULES[rule]
    kept = {
        answer: total for answer, total in table.items() if keeps(tuple(prompt.tolist()), answer)
    }
    for alpha in alphas:
        ranked = sorted(
            ((total / ((5 + len(a)) / 6) ** alpha, a) for a, total in kept.items()), reverse=True
        )
        generation = Generation(
            max_new_tokens=LONGEST, beams=1500, answers=1500, length_penalty=alpha, **options
        )
        found = decode.decode(model, [prompt], generation, eos=EOS)
        count = int((found.lengths[0] > 0).sum())
        pairs = zip(found.tokens[0, :count], found.lengths[0, :count], strict=True)
        mine = {tuple(tokens[:length].tolist()): i for i, (tokens, length) in enumerate(pairs)}
        assert set(mine) == set(kept) and count == len(kept)  # every answer there is, each once
        np.testing.assert_allclose(
            found.scores[0, :count], [score for score, _ in ranked], rtol=1e-4
        )
        assert tuple(found.tokens[0, 0, : found.lengths[0, 0]].tolist()) == ranked[0][1]


@pytest.mark.full
def test_samples_are_a_function_of_the_seed_and_follow_the_rules():
    model, (prompt,) = causal(vocab=WORDS, seed=3), prompts_of(3, vocab=WORDS)
    options = {"temperature": 1.4, "top_k": 4, "top_p": 0.8}
    scores = full_scores(model, prompt)[-1].astype(np.float64) / options["temperature"]
    kept = np.argsort(-scores)[: options["top_k"]]
    chances = np.exp(scores[kept]) / np.exp(scores[kept]).sum()
    reached = int(np.searchsorted(np.cumsum(chances), options["top_p"])) + 1
    kept, chances = kept[:reached], chances[:reached] / chances[:reached].sum()
    expected = np.zeros(WORDS)
    expected[kept] = chances
    generation = Generation(max_new_tokens=1, strategy="sample", answers=1000, **options)

    def sample(seed):
        return decode.decode(model, [prompt] * 4, generation, seed=seed).tokens[..., 0]

    tokens = sample(7)
    np.testing.assert_array_equal(tokens, sample(7))
    assert (tokens != sample(1)).any() and (tokens[0] != tokens[1]).any()
    counts = np.bincount(tokens.ravel(), minlength=WORDS)
    assert set(np.flatnonzero(counts)) <= set(kept.tolist())
    assert (
        len(kept) > 1
        and scipy.stats.chisquare(counts[kept], expected[kept] * counts.sum()).pvalue > 1e-3
    )
