"""Ettin's decoders against `transformers`: all classes with losses and gradients, short windows,
decoding, and what is refused."""

import numpy as np
import peers
import pytest

from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.core.errors import UserError
from ptm_jax.inference.pretrained import Pretrained

SIZES = dict(
    vocab_size=61,
    hidden_size=24,
    num_attention_heads=3,
    num_hidden_layers=4,
    intermediate_size=14,
    pad_token_id=0,
    bos_token_id=1,
    cls_token_id=1,
    eos_token_id=2,
    sep_token_id=2,
)
CONFIGS = {
    "plain": dict(local_attention=40),
    "biases": dict(
        norm_bias=True,
        attention_bias=True,
        mlp_bias=True,
        classifier_bias=True,
        decoder_bias=False,
        tie_word_embeddings=False,
        local_attention=36,
        hidden_activation="silu",
        layer_types=["sliding_attention", "full_attention"] * 2,
    ),
}
TASKS = {"ForCausalLM": "lm", "ForSequenceClassification": "classify"}
TORCH = pytest.mark.skipif(
    peers.torch is None, reason="make test-full installs torch and transformers"
)


@pytest.mark.full
@TORCH
@pytest.mark.parametrize("name", CONFIGS)
def test_all_classes(name, tmp_path):
    words = {**SIZES, **CONFIGS[name], "num_labels": 3}
    config = peers.transformers.ModernBertDecoderConfig(attn_implementation="eager", **words)
    given = peers.drawn(61, 16, types=1, classes=3, seed=len(name), least=4)
    del given["token_type_ids"]
    peers.compare(tmp_path, config, peers.cases("ModernBertDecoder", TASKS), given, atol=1e-4)


@pytest.mark.full
@TORCH
@pytest.mark.parametrize("window", [4, 6, 10])
def test_short_windows_and_decoding(window, tmp_path):
    """Rows longer than the window, at once and token by token."""
    words = {**SIZES, "local_attention": window, "attn_implementation": "eager"}
    model = peers.transformers.ModernBertDecoderForCausalLM(
        peers.transformers.ModernBertDecoderConfig(**words)
    )
    peers.randomise(model, window).save_pretrained(tmp_path)
    read = checkpoint.read(tmp_path)
    ids = np.random.default_rng(window).integers(3, 61, (2, 13)).astype(np.int32)
    logits = model(peers.torch.tensor(ids)).logits.detach().numpy()
    np.testing.assert_allclose(Pretrained(read.system, read.params)(ids).logits, logits, atol=1e-4)
    core = read.system.towers["main"].encoder
    params = {"params": read.params["main"]["encoder"]}
    whole, cache = core.apply(params, {"input_ids": ids}).hidden, core.empty_cache(2, 16)
    for place in range(13):
        encoded = core.apply(params, {"input_ids": ids[:, place : place + 1]}, cache=cache)
        cache = encoded.cache
        np.testing.assert_allclose(encoded.hidden[:, 0], whole[:, place], atol=1e-4)


@pytest.mark.parametrize("window", [0, 1, 3])
def test_a_window_of_the_token_alone_is_refused(window):
    config = Config({"model_type": "modernbert-decoder", **SIZES, "local_attention": window})
    with pytest.raises(UserError, match=f"is {window}; it must be at least 4"):
        checkpoint.record_of(config)
