"""UltraBERT and JinaEmbeddings-v3 against `transformers`: all classes with losses and gradients,
old fields of a config; files with the names in memory, of all families with two sets of names."""

import jax
import numpy as np
import peers
import pytest

from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.nn.attention.rotary import LocalLayers, Rotary

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
    ("Ultrabert", "plain"): dict(num_key_value_heads=2, prediction_head_size=10),
    ("Ultrabert", "left"): dict(
        num_hidden_layers=4,
        layer_types=["full_attention", "sliding_attention"] * 2,
        sliding_window=20,
        classifier_pooling="mean",
        tie_word_embeddings=True,
        prediction_head_size=30,
    ),
    ("JinaEmbeddingsV3", "plain"): dict(rope_parameters={"rope_theta": 100.0}),
    ("JinaEmbeddingsV3", "left"): dict(
        type_vocab_size=2, hidden_act="relu", tie_word_embeddings=False
    ),
}
TASKS = {
    "ForMaskedLM": "mlm",
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "tag",
    "ForQuestionAnswering": "span",
}
TORCH = pytest.mark.skipif(
    peers.torch is None, reason="make test-full installs torch and transformers"
)


@pytest.mark.full
@TORCH
@pytest.mark.parametrize(("prefix", "name"), CONFIGS)
def test_all_classes(prefix, name, tmp_path):
    words = {**SIZES, **CONFIGS[prefix, name], "num_labels": 3}
    kind = getattr(peers.transformers, f"{prefix}Config")
    config = kind(attn_implementation="eager", **words)
    side = "left" if name == "left" else "right"
    types = 1 if prefix == "Ultrabert" else config.type_vocab_size
    given = peers.drawn(61, 16, side=side, types=types, classes=3, seed=len(name))
    if prefix == "Ultrabert":
        del given["token_type_ids"]
    # An untied head of XLM-R has a second bias, which its class does not use.
    unused = () if config.tie_word_embeddings or prefix == "Ultrabert" else ("lm_head.bias",)
    cases = peers.cases(prefix, TASKS)
    peers.compare(tmp_path, config, cases, given, atol=1e-4, unused=unused)


def test_old_fields_list_the_window_and_theta_of_each_layer():
    fields = {"model_type": "ultrabert", **SIZES, "bos_token_id": 0, "eos_token_id": 0}
    old = {"attention_windows": [7, 7, None], "rope_theta": [10.0, 10.0, 500.0]}
    kinds = ["sliding_attention"] * 2 + ["full_attention"]
    thetas = {"full_attention": 500.0, "sliding_attention": 10.0}
    new = {
        "sliding_window": 7,
        "layer_types": kinds,
        "rope_parameters": {kind: {"rope_theta": theta} for kind, theta in thetas.items()},
    }
    one, other = (checkpoint.record_of(Config(fields | more))[0] for more in (old, new))
    assert one == other
    attention = one.towers["main"].encoder.stack.block.attention
    assert attention.local == LocalLayers(radius=7, every=3, phase=2)
    assert attention.rotary == Rotary(theta=500.0, local_theta=10.0)


@pytest.mark.full
@TORCH
@pytest.mark.parametrize(
    "name", ["NomicBertForMaskedLM", "GteModel", "JinaEmbeddingsV3Model", "UltrabertForMaskedLM"]
)
def test_a_file_with_the_names_in_memory(name, tmp_path):
    """`state_dict()` has other names than `save_pretrained` writes; both are the same model."""
    from safetensors.torch import save_file

    kind = getattr(peers.transformers, name)
    model = peers.randomise(kind(kind.config_class(**SIZES)), 1)
    model.save_pretrained(tmp_path)
    first = checkpoint.read(tmp_path)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    save_file(state, tmp_path / "model.safetensors")
    second = checkpoint.read(tmp_path)
    assert second.report.missing == () and second.system.towers == first.system.towers
    jax.tree.map(np.testing.assert_array_equal, second.params, first.params)
