"""Decoding of GPT-2, T5 and BART with random weights gives the tokens of `transformers` under equal
settings.

The library divides a beam's score by n ** alpha (our length rule "power"), GNMT by ((5 + n) / 6) **
alpha. For GNMT's rule the library counts from five tokens before the answer, which ranks as GNMT
does; scores differ by 6 ** alpha.
"""

import json

import numpy as np
import pytest

import ptm_jax
from ptm_jax.convert import checkpoint
from ptm_jax.core.towers import Tower
from ptm_jax.inference.decoding import decode
from ptm_jax.inference.decoding import logits as rules
from ptm_jax.inference.decoding.settings import Generation
from ptm_jax.inference.text import generating

pytestmark = pytest.mark.full

LONGEST, SIZE, EOS = 10, 13, 2
HALF = dict(
    hidden_size=12,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=9,
    max_position_embeddings=48,
)
HALF |= dict(vocab_size=SIZE, model_type="bert")
FAMILIES = {
    "EncoderDecoderModel": dict(
        encoder=HALF, decoder={**HALF, "is_decoder": True, "add_cross_attention": True},
        decoder_start_token_id=3,
        pad_token_id=0,
    ),
    "GPT2LMHeadModel": dict(n_embd=12, n_layer=2, n_head=2, n_positions=48),
    "T5ForConditionalGeneration": dict(
        d_model=12, num_heads=2, d_kv=5, d_ff=9, num_layers=2, relative_attention_num_buckets=8,
        decoder_start_token_id=0, pad_token_id=0,
    ),
    "BartForConditionalGeneration": dict(
        d_model=12, encoder_layers=1, decoder_layers=2, encoder_ffn_dim=9, decoder_ffn_dim=11,
        encoder_attention_heads=2,
        decoder_attention_heads=3, max_position_embeddings=48, forced_eos_token_id=None,
        decoder_start_token_id=3,
        pad_token_id=1,
    ),
}  # fmt: skip
NAMES = {
    "no_repeat_ngram": "no_repeat_ngram_size",
    "forced_eos": "forced_eos_token_id",
    "forced_bos": "forced_bos_token_id",
}
NAMES |= {"beams": "num_beams", "answers": "num_return_sequences"}
"""{our option: the library's}"""
NAMES |= {"bad_words": "bad_words_ids"}
BAD = {"bad_words": ((5,), (7, 8), (EOS,), (4, 4), (12, 9, 6), (9, 11), (10, 10, 10))}
BOTH = {"repetition_penalty": 1.5, "no_repeat_ngram": 2}
ALONE = [
    {"repetition_penalty": 1.5}, {"no_repeat_ngram": 2}, {"min_new_tokens": 9}, {"forced_eos": EOS},
    {"repetition_penalty": 0.7, "no_repeat_ngram": 3, "min_new_tokens": 4},
]  # fmt: skip
GREEDY = [(name, options) for name in FAMILIES for options in ({}, BOTH, BAD)] + [
    ("GPT2LMHeadModel", one) for one in ALONE
]


@pytest.fixture(scope="module")
def both(request, tmp_path_factory):
    """(our tower, the oracle), of one directory."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    name, folder = request.param, tmp_path_factory.mktemp("model")
    kind = getattr(transformers, name)
    fields = {"eos_token_id": EOS, "bos_token_id": None, **FAMILIES[name]}
    model = kind(kind.config_class(vocab_size=SIZE, attn_implementation="eager", **fields)).eval()
    torch.manual_seed(3)
    with torch.no_grad():
        for key, p in model.named_parameters():
            p.copy_(torch.randn_like(p) * 0.25 + float(p.ndim == 1 and key.endswith("weight")))
    model.save_pretrained(folder)
    found = checkpoint.read(folder)
    return Tower(found.system.towers["main"], found.params["main"]), model


def prompts():
    draw = np.random.default_rng(9)
    return [draw.integers(4, SIZE, n).astype(np.int32) for n in (3, 8, 1, 12)]


def listed(value):
    """Lists, as the library wants them, in the place of tuples."""
    return [list(part) for part in value] if isinstance(value, tuple) else value


def theirs(model, monkeypatch=None, **options):
    """(answers of the oracle, one prompt at a time, without what is after the first EOS; scores of
    beams)."""
    import torch

    if monkeypatch is not None:
        for name in ("_update_finished_beams", "_check_early_stop_heuristic"):
            inner = getattr(model, name)

            def shifted(*a, inner=inner, decoder_prompt_len, **k):
                return inner(*a, decoder_prompt_len=decoder_prompt_len - 5, **k)

            monkeypatch.setattr(model, name, shifted)
    answers, scores = [], []
    for prompt in prompts():
        ids = torch.tensor(prompt)[None].long()
        found = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=LONGEST, do_sample=False,
            eos_token_id=EOS,
            pad_token_id=EOS, return_dict_in_generate=True, output_scores=True,
            **{NAMES.get(name, name): listed(value) for name, value in options.items()},
        )  # fmt: skip
        begun = 1 if model.config.is_encoder_decoder else len(prompt)
        for row in found.sequences.numpy()[:, begun:].tolist():
            answers.append(row[: row.index(EOS) + 1] if EOS in row else row)
        if "sequences_scores" in found:
            scores.extend(found.sequences_scores.tolist())
    return answers, np.array(scores)


def ours(tower, **options):
    found = decode.decode(tower, prompts(), Generation(max_new_tokens=LONGEST, **options), eos=EOS)
    pairs = zip(found.tokens, found.lengths, strict=True)
    return [
        list(t[:n]) for tokens, lengths in pairs for t, n in zip(tokens, lengths, strict=True)
    ], found.scores.ravel()


def marked(cases):
    """Cases of GPT-2 earn its status."""

    def status(name):
        return [pytest.mark.status("gpt2", "matches")] if name.startswith("GPT2") else []

    return [pytest.param(name, *rest, marks=status(name)) for name, *rest in cases]


@pytest.mark.full
@pytest.mark.parametrize(("both", "options"), marked(GREEDY), indirect=["both"])
def test_greedy(both, options):
    tower, model = both
    answers = ours(tower, **options)[0]
    assert answers == theirs(model, **options)[0]
    assert len({tuple(answer) for answer in answers}) > 1  # the prompt or source matters


@pytest.mark.full
@pytest.mark.parametrize(
    ("both", "alpha"), marked((n, a) for n in FAMILIES for a in (0.0, 0.8)), indirect=["both"]
)
def test_beams_with_the_length_penalty_of_gnmt(both, alpha, monkeypatch):
    tower, model = both
    options = {"beams": 4, "answers": 4, "length_penalty": alpha}
    answers, scores = ours(tower, **options)
    expected, found = theirs(model, monkeypatch, early_stopping="never", **options)
    assert answers == expected and len(set(map(len, answers))) > 1
    np.testing.assert_allclose(scores, found * 6**alpha, rtol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("both", FAMILIES, indirect=True)
def test_beams_under_every_rule(both, monkeypatch):
    tower, model = both
    options = {
        "repetition_penalty": 1.3,
        "no_repeat_ngram": 2,
        "min_new_tokens": 4,
        "forced_eos": EOS,
    }
    options |= {"beams": 3, "answers": 2, "length_penalty": 0.8, **BAD}
    if (
        model.config.is_encoder_decoder
    ):  # of a decoder alone the library forces the first token of the prompt
        options["forced_bos"] = 7
    assert (
        ours(tower, **options)[0]
        == theirs(model, monkeypatch, early_stopping="never", **options)[0]
    )


SEEDS = (
    48,
    49,
    2,
    27,
    4,
    41,
    6,
    55,
    32,
    33,
    58,
    59,
)  # under most, another early_stopping or alpha gives other tokens
SETTINGS = [
    (family, early, 2 + (i + j) % 4, SEEDS[4 * i + j]) for i,
    early in enumerate((True, False, "never"))
    for j, family in enumerate(("T5", "Bart", "Pegasus", "Bart"))
]  # fmt: skip
SIDES = ("encoder", "decoder")


def published(folder, family, early, beams, seed):
    """Writes a random checkpoint with random settings: in generation_config.json, or as older ones
    in config.json alone. Returns the model of the library that reads them."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    draw = np.random.default_rng(seed)

    def some(least, most):
        return int(draw.integers(least, most + 1))

    size, heads = 2 * some(3, 7), some(1, 2)
    shape = {
        f"{side}_{name}": value
        for side in SIDES
        for name, value in (("layers", some(1, 2)), ("ffn_dim", some(5, 20)))
    }
    shape |= {f"{side}_attention_heads": heads for side in SIDES} | {"max_position_embeddings": 48}
    if family == "T5":
        shape = {
            "num_heads": heads,
            "d_kv": some(3, 6),
            "d_ff": some(5, 20),
            "num_layers": some(1, 2),
        }
    kind = getattr(transformers, f"{family}ForConditionalGeneration")
    ids = {
        "eos_token_id": EOS,
        "bos_token_id": 3,
        "pad_token_id": 0 if family == "T5" else 1,
        "decoder_start_token_id": 0,
    }
    config = kind.config_class(vocab_size=some(13, 16), d_model=size, **shape, **ids)
    model = kind(config)
    torch.manual_seed(seed)
    with torch.no_grad():
        for key, p in model.named_parameters():
            if family != "Pegasus" or "embed_positions" not in key:  # PEGASUS has a fixed table
                p.copy_(torch.randn_like(p) * 0.25 + float(p.ndim == 1 and key.endswith("weight")))
    settings = {
        "num_beams": beams, "early_stopping": early,
        "length_penalty": round(float(draw.uniform(0.6, 2.0)), 2),
        "no_repeat_ngram_size": some(0, 3), "min_length": some(0, 4), "max_length": some(12, 20),
        "forced_bos_token_id": some(5, 12) if seed % 3 == 0 else None,
        "forced_eos_token_id": EOS if seed % 2 else None,
    }  # fmt: skip
    model.generation_config = transformers.GenerationConfig(**ids, **settings)
    model.save_pretrained(folder)
    if seed % 5 < 2:
        (folder / "generation_config.json").unlink()
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))
    return kind.from_pretrained(folder, attn_implementation="eager").eval()


@pytest.mark.full
@pytest.mark.status("ptm predict --task generate", "matches")
@pytest.mark.parametrize(("family", "early", "beams", "seed"), SETTINGS)
def test_published_settings_give_the_published_tokens(family, early, beams, seed, tmp_path):
    import torch

    oracle = published(tmp_path, family, early, beams, seed)
    model = ptm_jax.load(tmp_path)
    plan, start = generating.plan_of(model), generating.start_of(model)
    assert (plan.beams, plan.early_stopping, plan.length_rule) == (beams, early, "power")
    tower = Tower(model.module, model.params[model.tower])
    found = decode.decode(tower, prompts(), plan, head=model.head, eos=model.vocab.eos, start=start)
    answers, expected = (
        [list(t[0][: n[0]]) for t, n in zip(found.tokens, found.lengths, strict=True)],
        [],
    )
    for prompt in prompts():
        ids = torch.tensor(prompt)[None].long()
        given = {
            "attention_mask": torch.ones_like(ids),
            "return_dict_in_generate": True,
            "output_scores": True,
        }
        out = oracle.generate(ids, **given)
        row = out.sequences[0, 1:].tolist()
        expected.append(
            (row[: row.index(EOS) + 1] if EOS in row else row, float(out.sequences_scores[0]))
        )
    assert answers == [row for row, _ in expected]
    np.testing.assert_allclose(found.scores[:, 0], [score for _, score in expected], rtol=1e-4)


def test_what_sampling_keeps_is_what_the_library_keeps():
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    scores = np.random.default_rng(2).normal(size=(6, SIZE)).astype(np.float32) * 3
    given = torch.tensor(scores)
    for mine, its, values in (
        (rules.top_k, transformers.TopKLogitsWarper, (1, 5, 40, 90)),
        (rules.top_p, transformers.TopPLogitsWarper, (0.01, 0.05, 0.3, 0.8, 0.999, 1.0)),
    ):
        for value in values:
            kept = torch.isfinite(its(value)(None, given)).numpy()
            np.testing.assert_array_equal(np.asarray(mine(scores, value)) > rules.NEVER, kept)
