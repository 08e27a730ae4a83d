"""A masked diffusion model writes by replacing masks, against the same loop over `model(...)`."""

import dataclasses

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.objectives.text.diffusion import Diffusion
from support.tiny_models import LIMIT

PROMPTS = ["the king", "the queen sees the hat of", ""]


@pytest.fixture(scope="module")
def diffuser(bert):
    objective = Diffusion(vocab=bert.vocab)
    return dataclasses.replace(
        bert, system=dataclasses.replace(bert.system, name="diffuser", objective=objective)
    )


def greedy(model, prompt, count):
    """At each step the most probable token of all masks is written (LLaDA, Algorithm 5)."""
    vocab = model.vocab
    ids = [*model.tokenizer.encode_batch([prompt])[0], *[vocab.mask] * count]
    row, never = np.array([vocab.cls, *ids, vocab.sep]), [*vocab.specials, vocab.unk]
    for _ in range(count):
        logits = np.array(model(row[None]).logits[0], np.float64)
        logits[:, never] = -np.inf
        top = logits.max(-1) - np.log(np.exp(logits).sum(-1))
        at = np.where(row == vocab.mask, top, -np.inf).argmax()
        row[at] = logits[at].argmax()
    return row[1:-1]


def test_the_most_probable_token_of_all_masks_comes_first(diffuser):
    assert diffuser.generates
    answers = diffuser.generate(PROMPTS, max_new_tokens=4)
    assert answers == diffuser.generate(PROMPTS[::-1], max_new_tokens=4)[::-1]
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        assert answer.startswith(prompt)
        assert answer == diffuser.tokenizer.decode(greedy(diffuser, prompt, 4))


def test_a_sample_is_a_function_of_seed_and_number(diffuser):
    def sample(seed, count=3):
        return diffuser.generate(["the king"] * count, 4, seed, temperature=1.5)

    first = sample(0)
    assert first == sample(0) != sample(1) and len(set(first)) > 1
    assert sample(0, 4)[:3] == first
    assert not any("[MASK]" in text for text in first)


def test_options_of_decoders_and_too_long_answers_are_refused(diffuser):
    for options, message in [
        ({"beams": 2}, "beams is for decoders; a masked diffusion model takes max_new_tokens"),
        ({"top_k": 3, "strategy": "sample"}, "top_k is for decoders"),
        ({"max_new_tokens": LIMIT}, "prompt 1 with its answer"),
    ]:
        with pytest.raises(UserError, match=message):
            diffuser.generate(["the"], **options)
