"""XLM and FlauBERT against `transformers`: random configs, all head classes; answers by beams."""

import numpy as np
import peers
import pytest

from ptm_jax.objectives.language import MLM

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(peers.torch is None, reason="torch and transformers are not installed; make test-full installs them"),
]


def classes(family):
    return [
        peers.Case(f"{family}Model"),
        # The library shifts no labels, whether the model is causal or not.
        peers.Case(f"{family}WithLMHeadModel", ("mlm",), objective=MLM()),
        peers.Case(f"{family}ForSequenceClassification", ("classify",)),
        peers.Case(f"{family}ForTokenClassification", ("tag",)),
        peers.Case(f"{family}ForMultipleChoice", ("choose",)),
        peers.Case(f"{family}ForQuestionAnsweringSimple", ("span",)),
        peers.Case(f"{family}ForQuestionAnswering", ("answer",)),
    ]


XLM = {
    "languages": dict(emb_dim=24, n_heads=3, n_langs=4),
    "narrow": dict(emb_dim=8, n_heads=1, n_layers=1, gelu_activation=False, summary_activation="tanh"),
    "untied": dict(emb_dim=12, n_heads=2, tie_word_embeddings=False, n_langs=3, use_lang_emb=False, summary_type="last"),
    "causal": dict(emb_dim=16, n_heads=4, sinusoidal_embeddings=True, causal=True, layer_norm_eps=1e-5),
}


def config(kind, **fields):
    words = dict(vocab_size=61, n_layers=2, num_labels=3, max_position_embeddings=16, embed_init_std=0.1)
    return getattr(peers.transformers, f"{kind}Config")(**{**words, **fields}, attn_implementation="eager")


def drawn(name, languages=0):
    side = "left" if name in ("untied", "dropped") else "right"
    given = peers.drawn(61, 16, side=side, seed=len(name), least=6)
    if languages:
        given["langs"] = np.random.default_rng(1).integers(0, languages, (peers.ROWS, 16)).astype(np.int32)
    return given


@pytest.mark.parametrize("name", XLM)
def test_xlm(name, tmp_path):
    given = drawn(name, XLM[name].get("n_langs", 0))
    if name == "narrow":
        del given["token_type_ids"]
    peers.compare(tmp_path, config("XLM", **XLM[name]), classes("XLM"), given)


FLAUBERT = {
    "post": dict(emb_dim=24, n_heads=2, n_langs=2),
    "pre": dict(emb_dim=16, n_heads=4, pre_norm=True, gelu_activation=False),
    "dropped": dict(emb_dim=12, n_heads=1, layerdrop=0.2, n_layers=3, tie_word_embeddings=False, summary_type="cls_index"),
    "single": dict(emb_dim=8, n_heads=2, pre_norm=True, layerdrop=0.1, n_layers=1, causal=True, summary_activation="relu"),
}


@pytest.mark.parametrize("name", FLAUBERT)
def test_flaubert(name, tmp_path, monkeypatch):
    if FLAUBERT[name].get("pre_norm"):
        _runnable(monkeypatch)
    fields = {"end_n_top": 3, **FLAUBERT[name]}
    peers.compare(tmp_path, config("Flaubert", **fields), classes("Flaubert"), drawn(name, fields.get("n_langs", 0)))


def _runnable(monkeypatch):
    """The library's layers that are normed before ask a cache for a layer's part, which it has not, and for maps that they
    do not ask their attention for."""
    from transformers.models.flaubert import modeling_flaubert as published

    attend = published.MultiHeadAttention.forward
    with_maps = lambda self, *given, cache=None, **words: attend(self, *given, **{**words, "output_attentions": True})
    monkeypatch.setattr(published.MultiHeadAttention, "forward", with_maps)
    monkeypatch.setattr(published.EncoderDecoderCache, "__getitem__", lambda self, layer: None, raising=False)
