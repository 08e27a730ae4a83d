"""ALBERT against `transformers`: random configs, layers in groups, all head classes."""

import peers
import pytest

pytestmark = peers.LIVE


PRETRAINING = {"mlm": ("labels", "prediction_logits"), "sop": ("sentence_order_label", "sop_logits")}
ALBERT = [*peers.cases("Albert"), peers.Case("AlbertForPreTraining", ("mlm", "sop"), PRETRAINING)]
CONFIGS = {
    "one": dict(hidden_size=24, embedding_size=10, num_attention_heads=3, num_hidden_layers=3),
    "groups": dict(hidden_size=8, embedding_size=8, num_hidden_layers=4, num_hidden_groups=2, hidden_act="relu"),
    "turns": dict(hidden_size=12, embedding_size=20, num_hidden_layers=2, inner_group_num=2, tie_word_embeddings=False),
    "both": dict(hidden_size=16, embedding_size=5, num_hidden_layers=4, num_hidden_groups=2, inner_group_num=2),
    "left": dict(hidden_size=20, embedding_size=6, num_hidden_layers=1, layer_norm_eps=1e-5, hidden_act="silu"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_albert(name, tmp_path):
    words = dict(vocab_size=61, max_position_embeddings=16, num_attention_heads=2, intermediate_size=14, num_labels=2)
    config = peers.transformers.AlbertConfig(**{**words, **CONFIGS[name]}, attn_implementation="eager")
    side = "left" if name == "left" else "right"
    given = peers.drawn(61, 16, side=side, classes=2, seed=len(name))
    unused = () if config.tie_word_embeddings else ("predictions.bias",)
    peers.compare(tmp_path, config, ALBERT, given, unused=unused, atol=1e-5 if config.num_hidden_layers == 1 else 1e-4)
