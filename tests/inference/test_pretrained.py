"""A loaded model in use: arrays, vectors of texts, masks, perplexity."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.cli.main import main
from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Vocab
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.vocabularies import make
from ptm_jax.data.tokenizers.words import spellings
from ptm_jax.inference import forward_pass
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.nn.embeddings.adaptive import AdaptiveHead
from ptm_jax.tuning.ensembles import Ensemble
from support.tiny_models import LIMIT, drawn


def ids_of(model, rows, length, seed=0):
    return np.random.default_rng(seed).integers(5, model.vocab.size - 1, (rows, length))


@pytest.mark.full
def test_the_record_has_what_was_asked_for(bert, gpt2):
    ids = ids_of(bert, 3, 7)
    out = bert(
        input_ids=ids,
        attention_mask=np.ones_like(ids),
        token_type_ids=ids % 2,
        layers=True,
        attention=True,
    )
    shapes = {
        name: array.shape
        for name, array in vars(out).items()
        if name != "scores" and array is not None
    }
    assert {name: scores.shape for name, scores in out.scores.items()} == {"nsp": (3, 2)}
    assert shapes == {
        "hidden": (3, 7, 16), "layers": (3, 3, 7, 16), "attention": (2, 3, 2, 7, 7),
        "pooled": (3, 16),
        "logits": (3, 7, bert.vocab.size),
    }  # fmt: skip
    assert all(isinstance(vars(out)[name], np.ndarray) for name in shapes)
    np.testing.assert_array_equal(out.layers[-1], out.hidden)
    np.testing.assert_allclose(out.attention.sum(-1), 1.0, atol=1e-5)
    plain = bert(input_ids=ids, logits=False)
    assert plain.layers is plain.attention is plain.logits is None
    out = gpt2(input_ids=ids_of(gpt2, 1, 3))
    assert out.pooled is None and out.logits.shape == (1, 3, gpt2.vocab.size)
    with pytest.raises(dataclasses.FrozenInstanceError):
        out.hidden = None


@pytest.mark.full
def test_padding_changes_nothing(bert, roberta):
    for model in (bert, roberta):
        ids = ids_of(model, 3, 9)
        alone = model(ids[:, :6]).hidden
        mask = np.repeat(np.arange(9)[None] < 6, 3, 0)
        padded = model(np.where(mask, ids, model.vocab.pad), attention_mask=mask).hidden
        np.testing.assert_allclose(padded[:, :6], alone, atol=1e-5, rtol=1e-5)
        longer = np.pad(ids[:, :6], ((0, 1), (0, 20)), constant_values=model.vocab.pad)
        found = model(longer, np.pad(mask, ((0, 1), (0, 17)))).hidden
        np.testing.assert_allclose(found[:3, :6], alone, atol=1e-5, rtol=1e-5)


def test_other_lengths_in_a_bucket_do_not_recompile(bert):
    bert(ids_of(bert, 3, 10))
    before = forward_pass.forward._cache_size()
    for rows, length in ((4, 16), (3, 1), (4, 13)):
        assert bert(ids_of(bert, rows, length)).hidden.shape == (rows, length, 16)
    assert forward_pass.forward._cache_size() == before
    assert bert(ids_of(bert, 1, LIMIT)).hidden.shape == (1, LIMIT, 16)


@pytest.mark.parametrize(
    "words, message",
    [
        ({"input_ids": np.zeros((1, LIMIT + 1), int)}, f"{LIMIT + 1} tokens.*holds {LIMIT}"),
        ({"input_ids": np.zeros(4, int)}, r"matrix \[B, L\].*\(4,\)"),
        ({"input_ids": np.zeros((1, 0), int)}, "at least one token"),
        ({"input_ids": np.zeros((1, 4))}, "whole numbers.*float64"),
        ({"input_ids": np.full((1, 4), 9999)}, "9999, outside the vocabulary"),
        ({"input_ids": np.full((1, 4), -1)}, "-1, outside the vocabulary"),
        (
            {"input_ids": np.zeros((1, 4), int), "attention_mask": np.ones((1, 5), int)},
            r"\(1, 5\).*\(1, 4\)",
        ),
        (
            {"input_ids": np.zeros((1, 4), int), "attention_mask": np.full((1, 4), 2)},
            "attention_mask holds 2",
        ),
        (
            {"input_ids": np.zeros((1, 4), int), "token_type_ids": np.full((1, 4), 2)},
            "token types of this model: 0 to 1",
        ),
        (
            {"input_ids": np.zeros((1, 4), int), "position_ids": np.full((1, 4), LIMIT)},
            "position table",
        ),
    ],
)
def test_bad_arrays_are_one_line(bert, words, message):
    with pytest.raises(UserError, match=message):
        bert(**words)


def test_encode_pools_real_tokens_and_ignores_batches(bert):
    texts = ["the king", "the queen sees the hat of the city.", "hat"]
    vectors = bert.encode(texts)
    assert vectors.shape == (3, 16) and bert.encode([]).shape == (0, 16)
    pooled = {name: bert.encode(texts, name, batch_size=1) for name in ("max", "cls")}
    for number, row in enumerate(bert.ids_of(texts)):
        assert row[0] == bert.vocab.cls and row[-1] == bert.vocab.sep
        hidden = bert(row[None], logits=False).hidden[0]
        np.testing.assert_allclose(vectors[number], hidden.mean(0), atol=1e-5)
        np.testing.assert_allclose(pooled["max"][number], hidden.max(0), atol=1e-5)
        np.testing.assert_allclose(pooled["cls"][number], hidden[0], atol=1e-5)
    units = bert.encode(texts, normalize=True)
    np.testing.assert_allclose(np.linalg.norm(units, axis=1), 1.0, atol=1e-5)
    np.testing.assert_allclose(
        units, vectors / np.linalg.norm(vectors, axis=1, keepdims=True), atol=1e-5
    )
    with pytest.raises(UserError, match="text 2 has .* tokens"):
        bert.encode(["hat", "hat " * 100])
    with pytest.raises(UserError, match="list of texts"):
        bert.encode("hat")
    with pytest.raises(UserError, match="'mean'"):
        bert.encode(["hat"], "men")


def test_fill_mask_agrees_with_the_logits(bert):
    text = "the [MASK] sees the <mask>."
    (masks,) = bert.fill_mask([text], top=3)
    assert len(masks) == 2 and all(len(fillings) == 3 for fillings in masks)
    pieces = bert.tokenizer.encode_batch(["the", "sees the", "."])
    mask = bert.vocab.mask
    ids = [bert.vocab.cls, *pieces[0], mask, *pieces[1], mask, *pieces[2], bert.vocab.sep]
    scores = np.array(jax.nn.softmax(bert(np.array([ids])).logits[0], -1))
    scores[:, list(bert.vocab.specials)] = 0
    for place, fillings in zip(np.flatnonzero(np.array(ids) == mask), masks, strict=True):
        best = np.argsort(-scores[place])[:3]
        np.testing.assert_allclose(
            [f.probability for f in fillings], scores[place][best], rtol=1e-4
        )
        assert [f.token for f in fillings] == [bert.tokenizer.piece(i) for i in best]
    token, probability, sentence = masks[0][0]
    assert (
        sentence == f"the {token} sees the [MASK]."
        or sentence == f"the{token.removeprefix('##')} sees the [MASK]."
    )
    assert 0 < probability < 1


def test_fill_mask_in_byte_level_bpe_takes_either_spelling(roberta):
    one, two = roberta.fill_mask(["the <mask> sees", "the [MASK] sees"], top=2)
    assert [(f.token, f.sentence) for f in one[0]] == [(f.token, f.sentence) for f in two[0]]


def test_what_cannot_be_filled(bert, gpt2):
    with pytest.raises(UserError, match="text 2 has no mask"):
        bert.fill_mask(["a [MASK]", "the king"])
    with pytest.raises(UserError, match="does not fill masks; load a run of .*BertForMaskedLM"):
        gpt2.fill_mask(["a [MASK]"])
    with pytest.raises(UserError, match="top is 0"):
        bert.fill_mask(["a [MASK]"], top=0)


def test_a_refusal_names_the_tower_that_fills_masks(bert, run, capsys):
    """ELECTRA: its discriminator has no vocabulary head, its generator has."""
    detector = dataclasses.replace(bert.module, heads={"pool": bert.module.heads["pool"]})
    towers = {"main": detector, "generator": bert.module}
    both = {"main": bert.params["main"], "generator": bert.params["main"]}
    electra = Pretrained(dataclasses.replace(bert.system, towers=towers), both, bert.tokenizer)
    with pytest.raises(
        UserError, match="does not fill masks; its tower generator does: give --tower generator"
    ):
        electra.fill_mask(["the [MASK]"])
    generator = dataclasses.replace(electra, tower="generator")
    assert generator.fill_mask(["the [MASK]"]) == bert.fill_mask(["the [MASK]"])
    assert (
        main(
            [
                "predict",
                str(run),
                "--task",
                "fill-mask",
                "--text",
                "the [MASK]",
                "--tower",
                "generator",
            ]
        )
        == 1
    )
    assert "unknown tower 'generator'" in capsys.readouterr().err


def test_perplexity_is_the_exponential_of_the_mean_loss(gpt2, bert):
    texts = ["the king sees the hat.", "hat"]
    found = gpt2.perplexity(texts)
    for text, value in zip(texts, found, strict=True):
        row = np.array([gpt2.vocab.bos, *gpt2.tokenizer.encode_batch([text])[0]])
        scores = np.asarray(jax.nn.log_softmax(gpt2(row[None]).logits[0], -1))
        expected = np.exp(-scores[np.arange(len(row) - 1), row[1:]].mean())
        np.testing.assert_allclose(value, expected, rtol=1e-4)
    with pytest.raises(UserError, match="no left-to-right model"):
        bert.perplexity(texts)


def test_an_ensemble_neither_writes_nor_fills_nor_embeds(bert, gpt2):
    """What each of its models does it does not do as one of them."""
    masked, causal = Ensemble([bert, bert]), Ensemble([gpt2, gpt2])
    for ask in (
        lambda: masked.fill_mask(["the [MASK] king"]), lambda: masked.encode(["the king"]),
        lambda: causal.generate(["the king"], max_new_tokens=8),
        lambda: causal.perplexity(["the king"]),
    ):  # fmt: skip
        with pytest.raises(
            UserError, match="only the mean of the scores of their task heads.*ptm average"
        ):
            ask()


@pytest.mark.full
def test_texts_are_spelled_for_a_model_that_reads_characters():
    texts = ["the king sees the house of the city.", "the queen loves a hat"]
    tokenizer = make(TokenizerSpec(kind="word", vocab=12, specials="t5"), texts)
    system = spec.respell(systems.get("cloze_cnn_mini"), Vocab, tokenizer.vocab)
    system = spec.respell(
        system, AdaptiveHead, lambda head: dataclasses.replace(head, cutoffs=(4, 8))
    )
    batch = {
        "input_ids": jnp.zeros((1, 4), jnp.int32),
        "characters": jnp.ones((1, 4, 16), jnp.int32),
    }
    model = Pretrained(system, drawn(system, scale=0.1, batch=batch), tokenizer)
    ids = model.ids_of(texts)
    out = model(ids[0][None])
    batch = {
        "input_ids": jnp.asarray(ids[0][None]),
        "characters": jnp.asarray(spellings(tokenizer, 16)[ids[0]][None]),
    }
    run = jax.jit(
        lambda params: model.module.apply({"params": params}, batch, method="encode").hidden
    )
    np.testing.assert_allclose(out.hidden, run(model.params["main"]), atol=1e-4)
    np.testing.assert_allclose(np.exp(out.logits).sum(-1), 1.0, atol=1e-4)


def test_languages_are_by_default_the_configs():
    small = {
        "emb_dim": 8,
        "n_layers": 1,
        "n_heads": 2,
        "max_position_embeddings": 16,
        "n_words": 30,
    }
    config = Config({"model_type": "xlm", "n_langs": 2, "lang_id": 1, **small})
    system, _ = checkpoint.record_of(config)
    model, ids = Pretrained(system, drawn(system), published=config), np.arange(5, 11)[None]
    found = model(ids).hidden
    np.testing.assert_array_equal(found, model(ids, language_ids=np.ones_like(ids)).hidden)
    assert np.abs(found - model(ids, language_ids=np.zeros_like(ids)).hidden).max() > 1e-3


def test_languages_that_nobody_gave_are_named_once(capsys):
    small = {
        "emb_dim": 8,
        "n_layers": 1,
        "n_heads": 2,
        "max_position_embeddings": 16,
        "n_words": 30,
    }
    config = Config({"model_type": "xlm", "n_langs": 2, "lang2id": {"en": 0, "fr": 1}, **small})
    system, _ = checkpoint.record_of(config)
    model, ids = Pretrained(system, drawn(system), published=config), np.arange(5, 11)[None]
    model(ids, language_ids=np.ones_like(ids))
    assert capsys.readouterr().err == ""
    model(ids), model(ids)
    (line,) = capsys.readouterr().err.splitlines()
    assert "has 2 languages and the input has none" in line
    assert "load(PATH, language=NAME) or language_ids [B, L]: en, fr" in line
    french = model.for_language("fr")(ids).hidden
    np.testing.assert_array_equal(
        french, model(ids, language_ids=np.ones_like(ids)).hidden, strict=True
    )
    np.testing.assert_array_equal(model.for_language("1")(ids).hidden, french, strict=True)
    assert capsys.readouterr().err == ""
    with pytest.raises(UserError, match="unknown language 'fra'.*en, fr"):
        model.for_language("fra")


def test_a_model_without_languages_refuses_one(bert):
    with pytest.raises(UserError, match="reads no language beside a text"):
        bert.for_language("en")


def test_special_tokens_in_texts_are_text_unless_asked_for(bert):
    """The option `specials`, False by default, of `ids_of` and `encode`."""
    mask, texts = bert.vocab.mask, ["the [MASK] sees"]
    asked = bert.ids_of(texts, specials=True)[0]
    assert mask not in bert.ids_of(texts)[0] and asked.tolist().count(mask) == 1
    wanted = bert(asked[None]).hidden[0].mean(0)
    np.testing.assert_allclose(bert.encode(texts, specials=True)[0], wanted, atol=1e-5)
    assert np.abs(bert.encode(texts)[0] - wanted).max() > 1e-3
