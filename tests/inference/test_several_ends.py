"""Generation ends at the first of several end tokens, as in `transformers`."""

import dataclasses

import numpy as np
import pytest

import ptm_jax
from ptm_jax.convert.config import Config
from ptm_jax.inference.decoding import decode, defaults
from ptm_jax.inference.decoding.settings import Generation
from ptm_jax.inference.text import generating
from support import tiny_decoders

PROMPTS = [np.array([4, 7, 9], np.int32), np.array([5], np.int32), np.array([8, 3, 3, 6], np.int32)]


def answers(tower, eos, **options):
    found = decode.decode(tower, PROMPTS, Generation(max_new_tokens=12, **options), eos=eos, seed=3)
    return [
        tokens[0][: n[0]].tolist() for tokens, n in zip(found.tokens, found.lengths, strict=True)
    ]


@pytest.mark.parametrize("options", [{}, {"temperature": 1.5}])
def test_an_answer_is_cut_at_the_first_of_any(options):
    tower = tiny_decoders.causal()
    whole = answers(tower, None, **options)
    for ends in ((2, 5), (11, 1, 7), (3,), ()):
        places = [[i for i, token in enumerate(row) if token in ends] for row in whole]
        cut = [row[: p[0] + 1] if p else row for row, p in zip(whole, places, strict=True)]
        assert answers(tower, ends, **options) == cut


def test_none_of_them_comes_before_the_minimum():
    tower = tiny_decoders.causal()
    for row in answers(tower, tuple(range(0, 13, 2)), min_new_tokens=5):
        assert len(row) > 5 and all(token % 2 for token in row[:5])


@pytest.mark.parametrize("options", [{}, {"beams": 3}, {"temperature": 1.5}])
def test_the_last_token_is_one_of_several(options):
    tower = tiny_decoders.causal()
    for row in answers(tower, (1,), forced_eos=(7, 2), **options):
        assert row[-1] in ((7, 2) if len(row) == 12 else (1,))
    if not options:  # their scores are equal: the lower id, as argmax takes it
        assert {row[-1] for row in answers(tower, None, forced_eos=(7, 2))} == {2}


@pytest.mark.parametrize(("value", "last"), [([29, 8], (29, 8)), ([8], 8), (8, 8), (None, None)])
def test_the_checkpoints_last_tokens(value, last):
    fields = {} if value is None else {"forced_eos_token_id": value}
    settings, _ = defaults.completed(Config(fields, "c.json"), False, {})
    assert settings.get("forced_eos") == last


@pytest.mark.parametrize(
    ("value", "ends"), [([29, 8], (29, 8)), (8, (8,)), ([8], (8,)), (None, (2,)), ([], (2,))]
)
def test_the_checkpoints_ends_come_before_the_vocabularys(value, ends):
    vocab = dataclasses.make_dataclass("V", ["eos"])(2)
    fields = {} if value is None else {"eos_token_id": value}
    model = dataclasses.make_dataclass("M", ["vocab", "published"])(vocab, Config(fields, "c.json"))
    assert generating.ends_of(model) == ends


@pytest.mark.full
@pytest.mark.parametrize(
    "options", [{}, {"beams": 3}, {"beams": 2, "min_new_tokens": 3}, {"forced_eos": (7, 3)}]
)
def test_answers_are_those_of_transformers(tmp_path, options):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=12, n_layer=1, n_head=2, n_positions=48, vocab_size=30)
    torch.manual_seed(5)
    peer = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, p in peer.named_parameters():
            scale = 0.3 if "wte" in name else 1.0
            p.copy_(torch.randn_like(p) * scale + float("ln" in name and name.endswith("weight")))
    peer.save_pretrained(tmp_path)
    model = ptm_jax.load(tmp_path)
    tower = decode.Tower(model.module, model.params["main"])
    draw = np.random.default_rng(0)
    prompts = [draw.integers(0, 30, 4).astype(np.int32) for _ in range(12)]
    free = decode.decode(tower, prompts, Generation(max_new_tokens=6), head=model.head)
    tokens, counts = np.unique(free.tokens[:, 0, 1:], return_counts=True)
    ends = tuple(tokens[np.argsort(-counts)[1:4]].tolist())
    plan = Generation(max_new_tokens=12, length_rule="power", length_penalty=1.0,
        early_stopping=False, **options)  # fmt: skip
    names, last = {"beams": "num_beams", "forced_eos": "forced_eos_token_id"}, set()
    for prompt in prompts:
        theirs = peer.generate(
            torch.tensor(prompt)[None].long(), attention_mask=torch.ones(1, 4).long(),
            max_new_tokens=12, do_sample=False,
            eos_token_id=list(ends), pad_token_id=0,
            **{names.get(name, name): list(value) if isinstance(value, tuple) else value
               for name, value in options.items()},
        )[0, 4:].tolist()  # fmt: skip
        found = decode.decode(tower, [prompt], plan, head=model.head, eos=ends)
        ours = found.tokens[0][0][: found.lengths[0][0]].tolist()
        cut = next((i + 1 for i, token in enumerate(theirs) if token in ends), len(theirs))
        assert ours == theirs[:cut]
        last |= {ours[-1]} & set(ends)
    assert last
