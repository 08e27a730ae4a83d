"""ModernBERT against `transformers`: all head classes with losses and gradients, both spellings of
a config, and what is refused."""

import json

import jax
import numpy as np
import peers
import pytest

from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.core import towers
from ptm_jax.core.errors import UserError
from ptm_jax.nn.attention.rotary import LocalLayers

SIZES = dict(
    vocab_size=61,
    hidden_size=24,
    num_attention_heads=3,
    num_hidden_layers=4,
    intermediate_size=14,
    pad_token_id=0,
)
SPECIALS = dict(bos_token_id=1, cls_token_id=1, eos_token_id=2, sep_token_id=2)
# Windows that are longer than a row: a padding token that sees no key has the mean of all values
# there, and zeros here. tests/convert/test_drawn_configs.py compares short windows on real tokens.
CONFIGS = {
    "plain": dict(local_attention=32),
    "mean": dict(classifier_pooling="mean", num_hidden_layers=1, classifier_activation="relu"),
    "left": dict(
        local_attention=32,
        num_attention_heads=1,
        tie_word_embeddings=False,
        classifier_pooling="mean",
    ),
    "biases": dict(
        norm_bias=True,
        attention_bias=True,
        mlp_bias=True,
        classifier_bias=True,
        decoder_bias=False,
        hidden_activation="silu",
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
        num_hidden_layers=6,
    ),
}


@pytest.mark.full
@pytest.mark.skipif(peers.torch is None, reason="make test-full installs torch and transformers")
@pytest.mark.parametrize("name", CONFIGS)
def test_all_classes(name, tmp_path):
    words = {**SIZES, **SPECIALS, **CONFIGS[name], "num_labels": 3}
    config = peers.transformers.ModernBertConfig(attn_implementation="eager", **words)
    side = "left" if name == "left" else "right"
    given = peers.drawn(61, 16, side=side, types=1, classes=3, seed=len(name), least=4)
    del given["token_type_ids"]
    given["input_ids"] = np.where(given["attention_mask"], given["input_ids"], 0).astype(np.int32)
    peers.compare(tmp_path, config, peers.cases("ModernBert"), given, atol=1e-4)


def config_of(**fields):
    return Config({"model_type": "modernbert", **SIZES, **SPECIALS, **fields})


def system_of(**fields):
    return checkpoint.record_of(config_of(**fields), "ModernBertForMaskedLM")[0]


def params_of(system):
    ids = np.ones((1, 4), np.int32)
    return towers.init(system.towers, jax.random.key(0), {"input_ids": ids})


def test_both_spellings_of_the_angles():
    """Transformers 4 has two fields and the period of the full layers, version 5 has objects."""
    old = system_of(global_rope_theta=1e4, local_rope_theta=100.0, global_attn_every_n_layers=2)
    kinds = ["full_attention", "sliding_attention"] * 2
    thetas = {"full_attention": {"rope_theta": 1e4}, "sliding_attention": {"rope_theta": 100.0}}
    new = system_of(rope_parameters=thetas, layer_types=kinds)
    assert old == new
    attention = new.towers["main"].encoder.stack.block.attention
    assert (attention.rotary.theta, attention.rotary.local_theta) == (1e4, 100.0)
    assert attention.local == LocalLayers(radius=64, every=2)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"local_attention": 0}, "local_attention is 0; it must be at least 2"),
        ({"local_attention": 1}, "local_attention is 1; it must be at least 2"),
        ({"layer_types": ["full_attention"]}, "expected 4"),
        ({"layer_types": ["chunked_attention"] * 4}, "each"),
        (
            {"layer_types": [f"{kind}_attention" for kind in ("full", "full", "sliding", "full")]},
            "do not repeat",
        ),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "scaled"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "scaled"),
    ],
    ids=str,
)
def test_configs_that_are_refused(fields, words):
    with pytest.raises(UserError, match=words) as error:
        system_of(**fields)
    assert "\n" not in str(error.value)


def test_an_odd_head_width_is_refused():
    system = system_of(hidden_size=15)
    with pytest.raises(ValueError, match="even head width, not 5"):
        params_of(system)


def test_the_first_layer_has_no_norm_in_the_file(tmp_path):
    system = system_of()
    params = params_of(system)
    checkpoint.write(tmp_path, system, params)
    read = checkpoint.read(tmp_path)
    assert read.report.missing == () and read.report.extra == ()
    names = json.dumps(sorted(checkpoint.open_tensors(tmp_path).names()))
    assert "layers.1.attn_norm" in names and "layers.0.attn_norm" not in names
