"""Decoders with attention to the states of another network, alone and beside it, against
`transformers`."""

import numpy as np
import peers
import pytest

pytestmark = peers.LIVE

BERT = dict(
    vocab_size=61, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=10,
    is_decoder=True,
    max_position_embeddings=20, layer_norm_eps=1e-5,
)  # fmt: skip
GPT2 = dict(vocab_size=61, n_positions=20, n_layer=2, n_head=3, n_embd=12, n_inner=10)
CONFIGS = {
    "Bert": ("BertLMHeadModel", BERT),
    "Roberta": ("RobertaForCausalLM", BERT),
    "Electra": ("ElectraForCausalLM", {**BERT, "embedding_size": 8}),
    "Ernie": ("ErnieForCausalLM", BERT),
    "GPT2": ("GPT2LMHeadModel", GPT2),
}


@pytest.mark.full
@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_decoder_with_attention_to_other_states(kind, beside, tmp_path):
    name, fields = CONFIGS[kind]
    more = {
        **fields,
        "pad_token_id": 0,
        "attn_implementation": "eager",
        "add_cross_attention": True,
    }
    config = peers.transformers.AutoConfig.for_model(kind.lower(), **more)
    given = peers.drawn(61, 16, seed=len(kind) + beside)
    del given["token_type_ids"]
    given["input_ids"] = np.where(given["attention_mask"], given["input_ids"], 0).astype(np.int32)
    mask = given["attention_mask"] > 0
    before = np.pad(mask[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    given["lm_labels"] = np.where(mask & before, given["input_ids"], peers.IGNORED)
    if beside:
        draw = np.random.default_rng(3)
        given["encoder_hidden_states"] = draw.normal(size=(len(mask), 7, 12)).astype(np.float32)
        given["encoder_attention_mask"] = (
            np.arange(7) < draw.integers(2, 8, (len(mask), 1))
        ).astype(np.int32)
    peers.compare(tmp_path, config, [peers.Case(name, ("lm",))], given)
