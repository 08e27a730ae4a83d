"""Decoding: the cache against whole passes, the rules against numpy and on every strategy."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.core import spec
from ptm_jax.core.precision import Precision
from ptm_jax.core.towers import Tower
from ptm_jax.inference.decoding import decode as decoding
from ptm_jax.inference.decoding import logits
from ptm_jax.inference.decoding.settings import Generation, bucket
from support.tiny_decoders import causal, full_scores, pair, prompts_of, scores_of

EOS, PAD = 3, 12
RULES = {
    "min_new_tokens": 3,
    "no_repeat_ngram": 2,
    "repetition_penalty": 1.3,
    "forced_bos": 7,
    "forced_eos": EOS,
}
STRATEGIES = {
    "greedy": {},
    "sample": {"temperature": 0.7, "answers": 2},
    "beam": {"beams": 3, "answers": 3},
}


@pytest.fixture(scope="module")
def model():
    return causal()


@pytest.fixture(scope="module")
def greedy(model):
    """(prompts of different lengths, their greedy answers)"""
    prompts = prompts_of(1, 5, 9, 16, 17)
    return prompts, decoding.decode(model, prompts, Generation(max_new_tokens=9))


@pytest.mark.full
def test_positions_count_on_by_themselves_with_a_cache(model):
    ids = prompts_of(6)[0][None]
    run = jax.jit(
        lambda params, ids, cache: Tower(model.module, params)({"input_ids": ids}, cache=cache)
    )
    first = run(model.params, ids[:, :3], model.module.encoder.empty_cache(1, 8))
    second = run(model.params, ids[:, 3:], first.cache)
    whole = jax.jit(lambda params: Tower(model.module, params)({"input_ids": ids}).hidden)(
        model.params
    )
    np.testing.assert_allclose(jnp.concatenate([first.hidden, second.hidden], 1), whole, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_greedy_equals_decoding_without_cache_for_prompts_of_different_lengths(norm):
    model, prompts = causal(norm=norm), prompts_of(1, 5, 9, 16, 17)
    found = decoding.decode(model, prompts, Generation(max_new_tokens=9))
    for prompt, tokens, score in zip(prompts, found.tokens[:, 0], found.scores[:, 0], strict=True):
        sequence, total = list(prompt), 0.0
        for _ in range(9):
            last = full_scores(model, sequence)[-1]
            total += float(last.max())
            sequence.append(int(last.argmax()))
        assert list(tokens) == sequence[len(prompt) :]
        np.testing.assert_allclose(score, total, atol=1e-4)


@pytest.mark.full
def test_cached_passes_of_a_pair_equal_whole_ones():
    """Greedy answers to sources of different lengths are the likeliest tokens under one pass
    without a cache."""
    tower, sources = pair(31, layers=2), prompts_of(3, 8, 1, 12, vocab=31)
    found = decoding.decode(tower, sources, Generation(max_new_tokens=10))
    ids, mask = decoding.pad_left(sources)
    batch = {"input_ids": ids, "segment_ids": mask, "positions": np.maximum(mask.cumsum(1) - 1, 0)}
    start = np.full((len(ids), 1), tower.module.encoder.start)
    batch["decoder_input_ids"] = np.concatenate([start, found.tokens[:, 0, :-1]], 1)
    scores = scores_of(tower.module, tower.params, batch)
    np.testing.assert_array_equal(scores.argmax(-1), found.tokens[:, 0])
    np.testing.assert_allclose(scores.max(-1).sum(1), found.scores[:, 0], rtol=1e-4)


def test_a_decoder_needs_a_token_to_begin_with():
    small = {
        f"{side}_{name}": 2
        for side in ("encoder", "decoder")
        for name in ("ffn_dim", "attention_heads", "layers")
    }
    config = Config(
        {
            "model_type": "mbart",
            "vocab_size": 9,
            "d_model": 8,
            "max_position_embeddings": 9,
            **small,
        }
    )
    system, _ = checkpoint.record_of(config)
    with pytest.raises(ValueError, match="give its id as start"):
        decoding.decode(Tower(system.towers["main"], {}), prompts_of(3), Generation())


def test_buckets():
    assert [bucket(n) for n in (1, 2, 3, 5, 64, 65)] == [1, 2, 4, 8, 64, 128]
    assert bucket(3, least=16) == 16 and bucket(400, largest=500) == 500
    assert [decoding.pad_left(prompts_of(*lengths))[0].shape for lengths in ([7], [3, 16, 2],
        [17])] == [
        (1, 16), (4, 16), (1, 32),
    ]  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rules_hold_whatever_else_is_in_the_batch(model, strategy):
    """Under all rules at once. Other requests of the same buckets run the same program."""
    options = Generation(max_new_tokens=20, **RULES, **STRATEGIES[strategy])
    prompts = prompts_of(3, 11, 6, 4)
    found = decoding.decode(model, prompts, options, eos=EOS, pad=PAD)
    for prompt, answers, lengths in zip(prompts, found.tokens, found.lengths, strict=True):
        for tokens, length in zip(answers, lengths, strict=True):
            assert (
                tokens[0] == 7
                and EOS not in tokens[:3]
                and tokens[length - 1] == EOS
                and (tokens[length:] == PAD).all()
            )
            pairs = list(itertools.pairwise([*prompt, *tokens[:length]]))[len(prompt) - 1 :]
            assert len(set(pairs)) == len(pairs)
    before = decoding._decode._cache_size()
    for row, prompt in enumerate(prompts):
        other = prompts_of(16, 1, 9, seed=row)
        mixed = decoding.decode(
            model, [prompt, *other], options, eos=EOS, pad=PAD, rows=[row, 90, 91, 92]
        )
        np.testing.assert_array_equal(mixed.tokens[0], found.tokens[row])
        np.testing.assert_allclose(mixed.scores[0], found.scores[row], atol=1e-4)
    changed = {"sample": {"temperature": 2.0}, "beam": {"length_penalty": 1.1}}.get(
        strategy, {"repetition_penalty": 1.1}
    )
    decoding.decode(
        model, prompts, dataclasses.replace(options, max_new_tokens=31, **changed), eos=EOS, pad=PAD
    )
    assert decoding._decode._cache_size() == before


@pytest.mark.full
def test_an_answer_is_the_same_alone_ends_with_eos_and_is_padded(model, greedy):
    (*_, prompt), free = greedy[0], greedy[1].tokens[-1, 0]
    eos = int(free[3])
    stop = int(np.argmax(free == eos)) + 1
    found = decoding.decode(model, [prompt], Generation(max_new_tokens=9), eos=eos, pad=PAD)
    assert (
        list(found.tokens[0, 0]) == [*free[:stop], *[PAD] * (9 - stop)]
        and found.lengths[0, 0] == stop
    )


@pytest.mark.full
def test_a_beam_of_one_is_greedy_and_a_wider_one_scores_at_least_as_well(model, greedy):
    prompts, found = greedy
    one = decoding.decode(
        model, prompts, Generation(max_new_tokens=9, strategy="beam", length_penalty=0.0)
    )
    np.testing.assert_array_equal(one.tokens, found.tokens)
    np.testing.assert_allclose(one.scores, found.scores, atol=1e-4)
    wide = decoding.decode(
        model, prompts, Generation(max_new_tokens=9, beams=5, answers=5, length_penalty=0.0)
    )
    assert (wide.scores[:, 0] >= found.scores[:, 0] - 1e-5).all()
    assert (np.diff(wide.scores, axis=1) <= 0).all()
    assert all(len({tuple(a) for a in answers}) == 5 for answers in wide.tokens)


def test_repetition_penalty_and_ngrams():
    scores = jnp.asarray([[2.0, -2.0, 1.0, -1.0, 3.0]])
    tokens, used = jnp.asarray([[4, 0, 1, 0, 0]]), jnp.asarray([[False, True, True, True, False]])
    found = logits.repetition_penalty(scores, tokens, used, 2.0)
    np.testing.assert_allclose(found, [[1.0, -4.0, 1.0, -1.0, 3.0]])
    found = logits.no_repeat_ngram(scores, tokens, used, jnp.int32(4), 2)  # 0 1 0: after 0 came 1
    np.testing.assert_allclose(found, [[2.0, logits.NEVER, 1.0, -1.0, 3.0]])
    assert (logits.no_repeat_ngram(scores, tokens, used, jnp.int32(4), 4) == scores).all()
    found = logits.no_repeat_ngram(scores, tokens, used, jnp.int32(4), 1)
    assert set(np.flatnonzero(np.asarray(found)[0] == logits.NEVER)) == {0, 1}


def test_the_last_token_of_a_bad_word_is_forbidden_after_the_others():
    scores = jnp.zeros((2, 6))
    tokens = jnp.asarray([[0, 5, 1, 2, 0], [9, 9, 9, 1, 0]])
    used = jnp.asarray([[True, True, True, True, False], [False, False, False, True, False]])
    words = Generation(bad_words=((4,), (1, 2, 3), (5, 2), (9, 1, 5), (1, 0)))._bad_words()
    forbidden = np.asarray(logits.bad_words(scores, tokens, used, jnp.int32(4), words)) < -1
    assert [set(np.flatnonzero(row)) for row in forbidden] == [{3, 4}, {0, 4}]
    none = logits.bad_words(scores, tokens[:, :1], used[:, :1], jnp.int32(1), words)
    assert [set(np.flatnonzero(np.asarray(row) < -1)) for row in none] == [{4}, {4}]


def test_contradictory_options_are_refused():
    for options, word in [
        ({"temperature": 0.0}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"beams": 3, "temperature": 0.5}, "sampling"),
        ({"strategy": "greedy", "beams": 3}, "beams"),
        ({"answers": 2}, "answers"),
        ({"strategy": "best"}, "strategy"),
        ({"max_new_tokens": 2, "min_new_tokens": 3}, "min_new_tokens"),
        ({"beams": 2, "length_rule": "wu"}, "'gnmt' or 'power'"),
        ({"beams": 2, "early_stopping": "always"}, "True, False or 'never'"),
    ]:
        with pytest.raises(ValueError, match=word):
            Generation(**options)


def test_the_compiled_shape_does_not_hold_values():
    one, two = (
        Generation(temperature=0.3, top_k=5, top_p=0.2),
        Generation(temperature=2.0, top_k=50, top_p=0.9),
    )
    assert one.shape() == two.shape() == dataclasses.replace(one.shape(), strategy="sample")


@pytest.mark.full
def test_bfloat16_on_a_cpu_is_what_it_is_without_the_shortcuts(monkeypatch):
    """Layers one by one, products by columns and a cache in float32 against scanned layers and a
    cache in bfloat16: the same answers, scores within bfloat16 (a compiler that fuses more leaves
    out some roundings: JAX 0.11; 0.10 gives the same to 1e-5)."""
    model = causal(seed=3)
    half = dataclasses.replace(
        model, module=spec.respell(model.module, Precision, Precision("bfloat16"))
    )
    prompts = prompts_of(3, 5)
    options = Generation(max_new_tokens=4)
    quick = decoding.decode(half, prompts, options)
    assert decoding._kept(half.module.encoder.empty_cache(1, 2)).layers.key.dtype == jnp.float32
    monkeypatch.setattr(decoding, "_by_layer", lambda module, params, cache, rows: (params, cache))
    monkeypatch.setattr(decoding, "CORES", 1)
    monkeypatch.setattr(decoding, "_kept", lambda cache: cache)
    decoding._decode.clear_cache()
    plain = decoding.decode(half, prompts, options)
    np.testing.assert_array_equal(quick.tokens, plain.tokens)
    np.testing.assert_allclose(quick.scores, plain.scores, rtol=2e-2)
