"""XLM and FlauBERT against `transformers`: random configs, all head classes; answers by beams."""

import numpy as np
import peers
import pytest

from ptm_jax.convert import checkpoint
from ptm_jax.core.towers import Tower
from ptm_jax.objectives.language import MLM

pytestmark = peers.LIVE


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
    words = dict(vocab_size=61) if kind == "XLNet" else words
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
    atol = 1e-5 if name == "narrow" else 1e-4
    peers.compare(tmp_path, config("XLM", **XLM[name]), classes("XLM"), given, atol=atol)


def test_adaptive_softmax(tmp_path, monkeypatch):
    """The library's own prediction fails on a batch: here it is given the rows' tokens one after the other."""
    from transformers.models.xlm.modeling_xlm import XLMPredLayer

    def flat(self, x, y=None):
        scores = self.proj.log_prob(x.flatten(0, 1)).reshape(*x.shape[:2], -1)
        chosen = None if y is None else y >= 0
        return (scores,) if y is None else (self.proj(x[chosen], y[chosen]).loss, scores)

    monkeypatch.setattr(XLMPredLayer, "forward", flat)
    asm = dict(asm=True, asm_cutoffs=[20, 40], asm_div_value=2.0, tie_word_embeddings=False)
    published, given = config("XLM", emb_dim=16, n_heads=2, n_layers=1, **asm), drawn("asm")
    peers.compare(tmp_path, published, classes("XLM")[:2], given, atol=1e-5)


@pytest.mark.parametrize("kind", ["XLM", "Flaubert", "XLNet"])
def test_answers_by_beams(kind, tmp_path):
    """The best starts, the best ends of each, and whether there is an answer; some places hold none."""
    torch, case = peers.torch, peers.Case(f"{kind}ForQuestionAnswering", ("answer",))
    sizes = dict(emb_dim=12, n_heads=2) if kind != "XLNet" else dict(d_model=12, n_head=2, n_layer=1, d_inner=9)
    words = dict(n_layers=1) if kind != "XLNet" else dict(use_mems_eval=False)
    (model,) = peers.torch_models(config(kind, **sizes, start_n_top=4, end_n_top=3, **words), [case])
    model.save_pretrained(tmp_path)
    found, given = checkpoint.read(tmp_path), drawn("untied")
    names, places = ("input_ids", "attention_mask"), given["attention_mask"] * (given["input_ids"] > 20)
    p_mask, cls = torch.tensor(1.0 - places).float(), torch.tensor(given["cls"]).long()
    with torch.no_grad():
        out = model(**{name: torch.tensor(given[name]) for name in names}, p_mask=p_mask, cls_index=cls)
    batch = {"input_ids": given["input_ids"], "segment_ids": given["attention_mask"], "answer_places": places}
    tower = Tower(found.system.towers["main"], found.params["main"])
    ours = tower.read("answer", tower(batch), batch)  # the classifying token is the last
    many = places.sum(1) >= 4  # where less than K places are left, the best are not the only ones
    assert many.sum() >= 2
    best = out.end_top_log_probs.reshape(-1, 3, 4).transpose(1, 2), out.end_top_index.reshape(-1, 3, 4).transpose(1, 2)
    theirs = (out.start_top_log_probs, out.start_top_index, *best)
    for mine, wanted in zip((ours.starts, ours.start_places, ours.ends, ours.end_places), theirs, strict=True):
        peers.close(np.asarray(mine)[many], wanted[torch.tensor(many)], 1e-5, kind)
    peers.close(np.asarray(ours.none)[many], out.cls_logits[torch.tensor(many)], 1e-5, kind)


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
    fields, atol = {"end_n_top": 3, **FLAUBERT[name]}, 1e-5 if name == "single" else 1e-4
    given = drawn(name, fields.get("n_langs", 0))
    peers.compare(tmp_path, config("Flaubert", **fields), classes("Flaubert"), given, atol=atol)


def _runnable(monkeypatch):
    """The library's layers that are normed before ask a cache for a layer's part, which it has not, and for maps that they
    do not ask their attention for."""
    from transformers.models.flaubert import modeling_flaubert as published

    attend = published.MultiHeadAttention.forward
    with_maps = lambda self, *given, cache=None, **words: attend(self, *given, **{**words, "output_attentions": True})
    monkeypatch.setattr(published.MultiHeadAttention, "forward", with_maps)
    monkeypatch.setattr(published.EncoderDecoderCache, "__getitem__", lambda self, layer: None, raising=False)
