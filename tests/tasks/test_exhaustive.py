"""A beam wide enough is exhaustive: on five words and five tokens it finds every answer, ranked as enumeration ranks them;
samples fall as often as the rules on scores say."""

import itertools

import jax
import numpy as np
import pytest
import scipy.stats
from test_decoding import full_logits, prompts_of, tower

from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.core import towers
from ptm_jax.tasks import decoding
from ptm_jax.tasks.generation import Generation

WORDS, LONGEST, EOS = 5, 5, 2
COUNT = 4**4 * 5 + sum(4**n for n in range(4))  # answers of five tokens, and those that end before


def answers() -> list[tuple[int, ...]]:
    """Every answer: what ends with the first `eos`, or has the longest length."""
    found = {}
    for tokens in itertools.product(range(WORDS), repeat=LONGEST):
        found[tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens] = None
    return list(found)


def filled() -> np.ndarray:
    return np.array([[*answer, *[0] * (LONGEST - len(answer))] for answer in answers()], np.int32)


@pytest.fixture(scope="module")
def causal():
    """(tower, prompt)"""
    return tower(vocab=WORDS, seed=3), prompts_of(3, vocab=WORDS)[0]


@pytest.fixture(scope="module")
def enumerated(request, causal):
    """(tower, prompt, what it is decoded with, {answer: sum of log-probabilities by whole passes without a cache})"""
    rows, more = filled(), {}
    if request.param == "causal":
        model, prompt = causal
        batch = {"input_ids": np.concatenate([np.broadcast_to(prompt, (len(rows), 3)), rows], 1)}
    else:
        fields = {"model_type": "t5", "vocab_size": WORDS, "d_model": 8, "num_heads": 2, "d_kv": 4, "d_ff": 12}
        fields |= {"num_layers": 1, "relative_attention_num_buckets": 8, "decoder_start_token_id": 0}
        system, _ = checkpoint.record_of(Config(fields), "T5ForConditionalGeneration")
        module = system.towers["main"]
        prompt = np.array([3, 4, 1], np.int32)
        batch = {"input_ids": np.broadcast_to(prompt, (len(rows), 3)), "decoder_input_ids": np.pad(rows, ((0, 0), (1, 0)))}
        first = jax.tree.map(lambda leaf: leaf[:1], batch)
        params = jax.jit(lambda: towers.init({"main": module}, jax.random.key(5), first)["main"])()
        draw = np.random.default_rng(0)
        params = jax.tree.map(lambda leaf: leaf + 0.3 * draw.normal(size=leaf.shape).astype(np.float32), params)
        model, more = towers.Tower(module, params), {"start": 0}

    @jax.jit
    def logits(params, batch):
        bound = towers.Tower(model.module, params)
        return jax.nn.log_softmax(bound.head("lm", bound(batch).hidden).logits(), -1)

    scores = np.asarray(logits(model.params, batch))[:, 2 if request.param == "causal" else 0 :]
    table = {answer: float(sum(scores[i, n, token] for n, token in enumerate(answer))) for i, answer in enumerate(answers())}
    return model, prompt, more, table


def repeats(tokens: tuple[int, ...]) -> bool:
    pairs = list(itertools.pairwise(tokens))
    return len(set(pairs)) < len(pairs)


RULES = {
    "none": ({}, lambda prompt, answer: True),
    "penalty": ({"length_penalty": 1.0}, lambda prompt, answer: True),
    "least": ({"min_new_tokens": 3, "length_penalty": 0.6}, lambda prompt, answer: EOS not in answer[:3]),
    "ngrams": ({"no_repeat_ngram": 2, "length_penalty": 0.0}, lambda prompt, answer: not repeats((*prompt, *answer))),
}


# The rules know nothing of the network, and each is a program of its own.
CASES = [*(("causal", rule) for rule in RULES), ("pair", "none"), ("pair", "penalty")]


@pytest.mark.parametrize(("enumerated", "rule"), CASES, indirect=["enumerated"])
def test_beam_search_equals_exhaustive_search(enumerated, rule):
    model, prompt, more, table = enumerated
    assert len(table) == COUNT
    options, keeps = RULES[rule]
    alpha = options.get("length_penalty", 0.6)
    before = (more["start"],) if more else tuple(prompt.tolist())
    kept = {answer: total for answer, total in table.items() if keeps(before, answer)}
    ranked = sorted(((total / ((5 + len(a)) / 6) ** alpha, a) for a, total in kept.items()), reverse=True)
    generation = Generation(max_new_tokens=LONGEST, beams=1500, answers=1500, **options)
    found = decoding.decode(model, [prompt], generation, eos=EOS, **more)
    count = int((found.lengths[0] > 0).sum())
    pairs = zip(found.tokens[0, :count], found.lengths[0, :count], strict=True)
    mine = {tuple(tokens[:length].tolist()): i for i, (tokens, length) in enumerate(pairs)}
    assert set(mine) == set(kept) and count == len(kept)  # every answer there is, each once
    expected = np.array([score for score, _ in ranked])
    np.testing.assert_allclose(found.scores[0, :count], expected, rtol=1e-4)
    assert tuple(found.tokens[0, 0, : found.lengths[0, 0]].tolist()) == ranked[0][1]


def test_samples_fall_as_the_rules_say(causal):
    (model, prompt), options = causal, {"temperature": 1.4, "top_k": 4, "top_p": 0.8}
    scores = full_logits(model, prompt)[-1].astype(np.float64) / options["temperature"]
    kept = np.argsort(-scores)[: options["top_k"]]
    chances = np.exp(scores[kept]) / np.exp(scores[kept]).sum()
    reached = int(np.searchsorted(np.cumsum(chances), options["top_p"])) + 1
    kept, chances = kept[:reached], chances[:reached] / chances[:reached].sum()
    expected = np.zeros(WORDS)
    expected[kept] = chances
    generation = Generation(max_new_tokens=1, strategy="sample", answers=1000, **options)
    tokens = decoding.decode(model, [prompt] * 4, generation, seed=7).tokens[..., 0]
    counts = np.bincount(tokens.ravel(), minlength=WORDS)
    assert set(np.flatnonzero(counts)) <= set(kept.tolist())
    assert len(kept) > 1 and scipy.stats.chisquare(counts[kept], expected[kept] * counts.sum()).pvalue > 1e-3
