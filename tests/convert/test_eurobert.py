"""EuroBERT against `transformers`: all classes with losses and gradients, shared heads of keys, and
what is refused."""

import numpy as np
import peers
import pytest

from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.core.errors import UserError

SIZES = dict(
    vocab_size=61,
    hidden_size=24,
    num_attention_heads=4,
    num_hidden_layers=3,
    intermediate_size=14,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    mask_token_id=3,
)
CONFIGS = {
    "late": dict(num_key_value_heads=2, rope_parameters={"rope_theta": 100.0}),
    "bos": dict(classifier_pooling="bos", attention_bias=True, mlp_bias=True, head_dim=10),
    "left": dict(classifier_pooling="mean", num_key_value_heads=1, tie_word_embeddings=True),
}
TASKS = {
    "ForMaskedLM": "mlm",
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "tag",
}


@pytest.mark.full
@pytest.mark.skipif(peers.torch is None, reason="make test-full installs torch and transformers")
@pytest.mark.parametrize("name", CONFIGS)
def test_all_classes(name, tmp_path):
    words = {**SIZES, **CONFIGS[name], "num_labels": 3}
    config = peers.transformers.EuroBertConfig(attn_implementation="eager", **words)
    side = "left" if name == "left" else "right"
    given = peers.drawn(61, 16, side=side, types=1, classes=3, seed=len(name), least=4)
    del given["token_type_ids"]
    peers.compare(tmp_path, config, peers.cases("EuroBert", TASKS), given, atol=1e-4)


def system_of(**fields):
    config = Config({"model_type": "eurobert", "max_position_embeddings": 64, **SIZES, **fields})
    return checkpoint.record_of(config, "EuroBertForMaskedLM")[0]


def test_theta_of_both_versions_of_transformers():
    new = system_of(rope_parameters={"rope_type": "default", "rope_theta": 250_000.0})
    assert system_of(rope_theta=250_000.0) == new
    assert new.towers["main"].encoder.stack.block.attention.rotary.theta == 250_000.0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "scaled"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "scaled"),
        ({"partial_rotary_factor": 0.5}, "without rotary positions"),
        ({"rope_theta": 0.0}, "above 0"),
        ({"classifier_pooling": "max"}, "late, bos, mean"),
    ],
    ids=str,
)
def test_configs_that_are_refused(fields, words):
    with pytest.raises(UserError, match=words) as error:
        system_of(**fields)
    assert "\n" not in str(error.value)


def test_heads_of_keys_that_do_not_divide_are_refused(tmp_path):
    system = system_of(num_key_value_heads=3)
    with pytest.raises(ValueError, match="not a multiple of 3 heads of keys"):
        checkpoint.towers.init(system.towers, np.uint32([0, 0]), checkpoint.example())
