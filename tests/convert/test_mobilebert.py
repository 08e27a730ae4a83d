"""MobileBERT against `transformers`: random configs, every kind of bottleneck, all head classes."""

import peers
import pytest

pytestmark = peers.LIVE

PRETRAINING = {"mlm": ("labels", "prediction_logits"), "nsp": ("next_sentence_label", "seq_relationship_logits")}
MOBILEBERT = [
    *peers.cases("MobileBert"),
    peers.Case("MobileBertForPreTraining", ("mlm", "nsp"), PRETRAINING),
    peers.Case("MobileBertForNextSentencePrediction", ("nsp",)),
]
CONFIGS = {
    "published": dict(hidden_size=20, embedding_size=6, intra_bottleneck_size=8, num_feedforward_networks=3),
    "inside": dict(hidden_size=12, embedding_size=12, intra_bottleneck_size=10, use_bottleneck_attention=True),
    "own": dict(hidden_size=8, embedding_size=5, intra_bottleneck_size=8, key_query_shared_bottleneck=False),
    "none": dict(hidden_size=16, embedding_size=16, use_bottleneck=False, trigram_input=False, hidden_act="gelu"),
    "untied": dict(hidden_size=24, embedding_size=7, intra_bottleneck_size=6, num_hidden_layers=1),
}
CONFIGS["inside"] |= dict(normalization_type="layer_norm", layer_norm_eps=1e-3, num_feedforward_networks=1)
CONFIGS["own"] |= dict(normalization_type="layer_norm", hidden_act="silu", classifier_activation=False)
CONFIGS["none"] |= dict(normalization_type="layer_norm", num_feedforward_networks=2)
CONFIGS["untied"] |= dict(tie_word_embeddings=False, trigram_input=False, type_vocab_size=3, num_attention_heads=3)

LAYERS = [f"encoder.layer.{i}.bottleneck.attention.{part}" for i in range(2) for part in ("dense", "LayerNorm")]
UNUSED = {"inside": LAYERS, "none": ["embeddings.embedding_transformation"]}
UNUSED = {name: [f"{root}{layer}.{leaf}" for root in ("", "mobilebert.") for layer in layers for leaf in ("weight", "bias")]
          for name, layers in UNUSED.items()}  # fmt: skip
UNUSED |= {name: [*layers, "cls.predictions.dense.weight"] for name, layers in UNUSED.items()}
UNUSED["untied"] = ["cls.predictions.bias"]
"""What the library holds and does not use; a layer of no columns is among it."""


@pytest.mark.parametrize("name", CONFIGS)
def test_mobilebert(name, tmp_path):
    words = dict(vocab_size=61, max_position_embeddings=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=14)
    words |= dict(num_labels=3, attn_implementation="eager")
    config = peers.transformers.MobileBertConfig(**{**words, **CONFIGS[name]})
    side = "left" if name == "own" else "right"
    given = peers.drawn(61, 16, side=side, types=config.type_vocab_size, seed=len(name))
    atol = 1e-5 if config.num_hidden_layers == 1 else 1e-4
    peers.compare(tmp_path, config, MOBILEBERT, given, unused=UNUSED.get(name, ()), atol=atol)
