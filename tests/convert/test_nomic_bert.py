"""NomicBERT and GTE against `transformers`: all classes with losses and gradients, and what is
refused."""

import peers
import pytest

from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.core.errors import UserError

SIZES = dict(
    vocab_size=64,
    hidden_size=24,
    num_attention_heads=4,
    num_hidden_layers=3,
    intermediate_size=14,
    max_position_embeddings=32,
    pad_token_id=0,
)
CONFIGS = {
    ("NomicBert", "plain"): dict(rope_parameters={"rope_theta": 100.0}),
    ("NomicBert", "left"): dict(hidden_act="gelu", num_attention_heads=3, type_vocab_size=3),
    ("Gte", "plain"): dict(hidden_dropout_prob=0.0),
    ("Gte", "left"): dict(type_vocab_size=0, hidden_act="silu", tie_word_embeddings=False),
}
TASKS = {
    "ForMaskedLM": "mlm",
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "tag",
}


@pytest.mark.full
@pytest.mark.skipif(peers.torch is None, reason="make test-full installs torch and transformers")
@pytest.mark.parametrize(("prefix", "name"), CONFIGS)
def test_all_classes(prefix, name, tmp_path):
    words = {**SIZES, **CONFIGS[prefix, name], "num_labels": 3}
    kind = getattr(peers.transformers, f"{prefix}Config")
    config = kind(attn_implementation="eager", **words)
    side, types = ("left" if name == "left" else "right"), config.type_vocab_size
    given = peers.drawn(61, 16, side=side, types=max(types, 1), classes=3, seed=len(name))
    if prefix == "Gte":
        del given["token_type_ids"]
    peers.compare(tmp_path, config, peers.cases(prefix, TASKS), given, atol=1e-4)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "scaled"),
        ({"rotary_emb_fraction": 0.5}, "without rotary positions"),
        ({"type_vocab_size": -1}, "at least 1"),
        ({"hidden_act": "swiglu"}, "supported are"),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["nomic_bert", "gte"])
def test_configs_that_are_refused(kind, fields, words):
    config = Config({"model_type": kind, **SIZES, **fields})
    with pytest.raises(UserError, match=words) as error:
        checkpoint.record_of(config)
    assert "\n" not in str(error.value)
