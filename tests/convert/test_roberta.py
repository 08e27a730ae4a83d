"""RoBERTa, XLM-R and CamemBERT against `transformers`: random configs, all head classes."""

import numpy as np
import peers
import pytest

pytestmark = peers.LIVE

CONFIGS = {
    "plain": dict(hidden_size=12, num_attention_heads=3, intermediate_size=20, hidden_act="gelu", num_hidden_layers=2),
    "narrow": dict(hidden_size=8, num_attention_heads=1, intermediate_size=7, hidden_act="relu", type_vocab_size=1),
    "untied": dict(hidden_size=12, num_attention_heads=4, intermediate_size=50, tie_word_embeddings=False, pad_token_id=0),
    "left": dict(hidden_size=20, num_attention_heads=2, intermediate_size=16, hidden_act="silu", pad_token_id=2),
    "causal": dict(hidden_size=8, num_attention_heads=2, intermediate_size=24, is_decoder=True, num_hidden_layers=2),
}


def compared(prefix, name, folder):
    """Every class of a prefix under one config; a language model from the left where the padding is not there."""
    words = dict(vocab_size=61, num_hidden_layers=1, num_labels=3, layer_norm_eps=1e-5, attn_implementation="eager")
    config = getattr(peers.transformers, f"{prefix}Config")(**{**words, **CONFIGS[name]})
    config.max_position_embeddings = 16 + config.pad_token_id + 1
    side = "left" if name == "left" else "right"
    given = peers.drawn(61, 16, side=side, types=config.type_vocab_size, seed=len(name), least=4)
    given["input_ids"] = np.where(given["attention_mask"], given["input_ids"], config.pad_token_id).astype(np.int32)
    group = peers.cases(prefix) + ([] if side == "left" else [peers.Case(f"{prefix}ForCausalLM", ("lm",))])
    unused = () if config.tie_word_embeddings else ("lm_head.bias",)
    peers.compare(folder, config, group, given, atol=1e-4 if config.num_hidden_layers > 1 else 1e-5, unused=unused)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("prefix", ["Roberta", "XLMRoberta", "Camembert"])
def test_roberta_and_its_kin(prefix, name, tmp_path):
    compared(prefix, name, tmp_path)
