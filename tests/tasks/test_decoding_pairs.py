"""Decoders that read a source: the cached passes equal whole ones, and answers those of the `transformers` library."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.core import towers
from ptm_jax.core.towers import Tower
from ptm_jax.tasks import decoding
from ptm_jax.tasks.generation import Generation

LONGEST, SIZE = 10, 61
SEEDS = {"T5": 2, "Bart": 1}  # of weights under which every source has an answer of its own
FAMILIES = {
    "T5": dict(
        d_model=12, num_heads=2, d_kv=5, d_ff=9, num_layers=2, relative_attention_num_buckets=8, decoder_start_token_id=0,
    ),
    "Bart": dict(
        d_model=12, encoder_layers=1, decoder_layers=2, encoder_ffn_dim=9, decoder_ffn_dim=11, encoder_attention_heads=2,
        decoder_attention_heads=3, max_position_embeddings=48, forced_eos_token_id=None,
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=FAMILIES)
def both(request, tmp_path_factory):
    """(our tower, the oracle, its eos)"""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    name, folder = request.param, tmp_path_factory.mktemp("pair")
    config = getattr(transformers, f"{name}Config")(vocab_size=SIZE, attn_implementation="eager", **FAMILIES[name])
    torch.manual_seed(SEEDS[name])
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            p.copy_(torch.randn_like(p) * 0.5 + float(p.ndim == 1 and key.endswith("weight")))
    model.save_pretrained(folder)
    found = checkpoint.read(folder)
    return Tower(found.system.towers["main"], found.params["main"]), model, config.eos_token_id


def sources():
    draw = np.random.default_rng(5)
    return [draw.integers(3, SIZE, n).astype(np.int32) for n in (3, 8, 1, 12)]


def theirs(model, eos, **options):
    """Answers of the oracle, one source at a time, without the start and what is after the first eos; scores of beams."""
    import torch

    answers, scores = [], []
    for source in sources():
        ids = torch.tensor(source)[None].long()
        found = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=LONGEST, min_new_tokens=0, do_sample=False,
            return_dict_in_generate=True, output_scores=True, **options,
        )  # fmt: skip
        for row in found.sequences.numpy()[:, 1:].tolist():
            answers.append(row[: row.index(eos) + 1] if eos in row else row)
        if "sequences_scores" in found:
            scores.extend(found.sequences_scores.tolist())
    return answers, scores


def ours(tower, eos, **options):
    found = decoding.decode(tower, sources(), Generation(max_new_tokens=LONGEST, **options), eos=eos)
    pairs = zip(found.tokens, found.lengths, strict=True)
    return [list(t[:n]) for tokens, lengths in pairs for t, n in zip(tokens, lengths, strict=True)], found.scores.ravel()


@pytest.mark.full
@pytest.mark.parametrize(
    "mine, its",
    [({}, {}), ({"repetition_penalty": 1.5, "no_repeat_ngram": 2}, {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2})],
)
def test_greedy(both, mine, its):
    tower, model, eos = both
    answers = ours(tower, eos, **mine)[0]
    assert answers == theirs(model, eos, **its)[0]
    assert len({tuple(answer) for answer in answers}) > 1  # the source matters


@pytest.mark.full
def test_beams(both):
    tower, model, eos = both
    answers, scores = ours(tower, eos, beams=4, answers=3, length_penalty=0.0)
    expected, sums = theirs(model, eos, num_beams=4, num_return_sequences=3, length_penalty=0.0)
    assert answers == expected
    np.testing.assert_allclose(scores, sums, rtol=1e-4)


def test_cached_passes_equal_whole_ones():
    """Greedy answers are the likeliest tokens under one pass over source and answer, without a cache."""
    fields = {"model_type": "t5", "vocab_size": SIZE, **FAMILIES["T5"]}
    system, _ = checkpoint.record_of(Config(fields), "T5ForConditionalGeneration")
    drawn = towers.init(system.towers, jax.random.key(0), checkpoint.example(system))["main"]
    tower = Tower(system.towers["main"], jax.tree.map(lambda leaf: leaf * 3, drawn))
    found = decoding.decode(tower, sources(), Generation(max_new_tokens=LONGEST))
    ids, mask = decoding.pad_left(sources())
    positions = np.maximum(mask.cumsum(1) - 1, 0)
    start = np.full((len(ids), 1), tower.module.encoder.start)
    batch = {"input_ids": ids, "segment_ids": mask, "positions": positions}
    batch["decoder_input_ids"] = jnp.asarray(np.concatenate([start, found.tokens[:, 0, :-1]], 1))
    scores = tower.head("lm", tower(jax.tree.map(jnp.asarray, batch)).hidden).logits()
    np.testing.assert_array_equal(scores.argmax(-1), found.tokens[:, 0])
    best = jax.nn.log_softmax(scores).max(-1).sum(1)
    np.testing.assert_allclose(best, found.scores[:, 0], rtol=1e-4)


def test_a_decoder_needs_a_token_to_begin_with():
    system, _ = checkpoint.record_of(Config({"model_type": "mbart", "vocab_size": SIZE, **FAMILIES["Bart"]}))
    with pytest.raises(ValueError, match="give its id as start"):
        decoding.decode(Tower(system.towers["main"], {}), sources(), Generation())
