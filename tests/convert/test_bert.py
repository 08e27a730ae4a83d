"""BERT and its kin against `transformers`: random configs, all head classes."""

import peers
import pytest

pytestmark = peers.LIVE

BERT = [
    *peers.cases("Bert"),
    peers.Case(
        "BertForPreTraining",
        ("mlm", "nsp"),
        {"mlm": ("labels", "prediction_logits"), "nsp": ("next_sentence_label", "seq_relationship_logits")},
    ),
    peers.Case("BertForNextSentencePrediction", ("nsp",)),
]
CONFIGS = {
    "plain": dict(hidden_size=24, num_attention_heads=3, intermediate_size=40, hidden_act="gelu"),
    "narrow": dict(hidden_size=8, num_attention_heads=1, intermediate_size=7, hidden_act="relu", num_hidden_layers=1),
    "untied": dict(hidden_size=12, num_attention_heads=4, intermediate_size=50, tie_word_embeddings=False),
    "left": dict(hidden_size=20, num_attention_heads=2, intermediate_size=16, hidden_act="gelu_new", layer_norm_eps=1e-5),
    "causal": dict(hidden_size=8, num_attention_heads=2, intermediate_size=24, is_decoder=True, num_hidden_layers=1),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_bert(name, tmp_path):
    words = dict(vocab_size=61, max_position_embeddings=16, num_hidden_layers=2, num_labels=3, attn_implementation="eager")
    config = peers.transformers.BertConfig(**{**words, **CONFIGS[name]})
    given = peers.drawn(61, 16, side="left" if name == "left" else "right", seed=len(name))
    group = BERT + ([] if name == "left" else [peers.Case("BertLMHeadModel", ("lm",))])
    unused = () if config.tie_word_embeddings else ("cls.predictions.bias",)
    peers.compare(tmp_path, config, group, given, atol=1e-4 if config.num_hidden_layers > 1 else 1e-5, unused=unused)
