"""Decoding against the `transformers` library's generate, on a random GPT-2 with the same weights."""

import numpy as np
import pytest

from ptm_jax.core.paths import unflatten
from ptm_jax.core.towers import Tower
from ptm_jax.tasks import decoding
from ptm_jax.tasks.generation import Generation

pytestmark = [pytest.mark.full, pytest.mark.status("gpt2", "matches")]
EOS, LONGEST = 60, 12


@pytest.fixture(scope="module")
def both():
    """(our tower, the oracle)"""
    pytest.importorskip("torch")
    import golden_oracles
    from golden_families import small

    model = golden_oracles.build("gpt2", seed=3)
    params = unflatten(golden_oracles.tree("gpt2", golden_oracles.parameters(model)))
    return Tower(small("gpt2").towers["main"], params), model


def theirs(model, prompts, **options):
    """Answers of the oracle, one prompt at a time, without what is after the first EOS; and its scores of beams."""
    import torch

    answers, scores = [], []
    for prompt in prompts:
        ids = torch.tensor(prompt)[None].long()
        found = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=LONGEST, do_sample=False, eos_token_id=EOS,
            pad_token_id=EOS, return_dict_in_generate=True, output_scores=True, **options,
        )  # fmt: skip
        for row in found.sequences.numpy()[:, len(prompt) :].tolist():
            answers.append(row[: row.index(EOS) + 1] if EOS in row else row)
        if "sequences_scores" in found:
            scores.extend(found.sequences_scores.tolist())
    return answers, scores


def ours(tower, prompts, **options):
    found = decoding.decode(tower, prompts, Generation(max_new_tokens=LONGEST, **options), eos=EOS)
    pairs = zip(found.tokens, found.lengths, strict=True)
    return [list(t[:n]) for tokens, lengths in pairs for t, n in zip(tokens, lengths, strict=True)], found.scores.ravel()


def prompts():
    draw = np.random.default_rng(5)
    return [draw.integers(0, 60, n).astype(np.int32) for n in (3, 8, 1, 6)]


@pytest.mark.parametrize(
    "mine, its",
    [
        ({}, {}),
        ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
        ({"no_repeat_ngram": 2}, {"no_repeat_ngram_size": 2}),
        ({"min_new_tokens": 9}, {"min_new_tokens": 9}),
        ({"forced_eos": EOS}, {"forced_eos_token_id": EOS}),
        (
            {"repetition_penalty": 0.7, "no_repeat_ngram": 3, "min_new_tokens": 4},
            {"repetition_penalty": 0.7, "no_repeat_ngram_size": 3, "min_new_tokens": 4},
        ),
    ],
)
def test_greedy(both, mine, its):
    tower, model = both
    assert ours(tower, prompts(), **mine)[0] == theirs(model, prompts(), **its)[0]


@pytest.mark.parametrize("extra", [{}, {"repetition_penalty": 1.4}])
def test_beams_without_length_penalty(both, extra):
    tower, model = both
    answers, scores = ours(tower, prompts(), beams=4, answers=3, length_penalty=0.0, **extra)
    expected, sums = theirs(model, prompts(), num_beams=4, num_return_sequences=3, length_penalty=0.0, **extra)
    assert answers == expected
    np.testing.assert_allclose(scores, sums, rtol=1e-4)


def test_beams_with_length_penalty(both):
    """The penalties differ, so answers may; ours are worth what full forward passes say, and no less than theirs."""
    import torch

    tower, model = both
    alpha = 0.8
    answers, scores = ours(tower, prompts(), beams=4, length_penalty=alpha)
    expected, _ = theirs(model, prompts(), num_beams=4, length_penalty=alpha)

    def worth(prompt, answer):
        ids = torch.tensor([*prompt, *answer]).long()
        with torch.no_grad():
            scores = torch.log_softmax(model(ids[None]).logits[0], -1)
        total = sum(scores[len(prompt) - 1 + i, token].item() for i, token in enumerate(answer))
        return total / ((5 + len(answer)) / 6) ** alpha

    for prompt, answer, score, its in zip(prompts(), answers, scores, expected, strict=True):
        np.testing.assert_allclose(score, worth(prompt, answer), rtol=1e-4)
        assert score >= worth(prompt, its) - 1e-3
