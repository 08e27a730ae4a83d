"""BART, mBART and PEGASUS against `transformers`: random configs, all classes."""

import peers
import pytest

pytestmark = peers.LIVE

EOS = {"Bart": 2, "MBart": 2, "Pegasus": 1}
CONFIGS = {
    "plain": dict(d_model=24, encoder_attention_heads=3, decoder_attention_heads=2),
    "narrow": dict(d_model=8, encoder_attention_heads=1, decoder_attention_heads=4, activation_function="relu"),
    "untied": dict(d_model=12, encoder_layers=1, decoder_layers=2, tie_word_embeddings=False, scale_embedding=True),
    "left": dict(d_model=18, encoder_layers=2, activation_function="gelu_new", max_position_embeddings=30, dropout=0.0),
}


def group(family):
    names = [("Model", ()), ("ForConditionalGeneration", ("lm",))]
    if family != "Pegasus":
        names += [("ForSequenceClassification", ("classify",)), ("ForQuestionAnswering", ("span",))]
    return [peers.Case(family + name, tasks) for name, tasks in names]


def config_of(family, name):
    words = dict(vocab_size=61, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=10, decoder_ffn_dim=17)
    words |= dict(encoder_attention_heads=2, decoder_attention_heads=3, max_position_embeddings=16, num_labels=3)
    return getattr(peers.transformers, f"{family}Config")(**{**words, **CONFIGS[name]}, attn_implementation="eager")


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("family", EOS)
def test_pair(family, name, tmp_path):
    left, config = name == "left", config_of(family, name)
    given = peers.drawn(61, 16, side="left" if left else "right", seed=len(name))
    given = peers.paired(given, 61, 16, eos=EOS[family], seed=len(name))
    unused = () if config.tie_word_embeddings else ("shared.weight", "model.shared.weight")
    if family == "Pegasus":
        unused += tuple(f"{root}{side}.embed_positions.weight" for root in ("", "model.") for side in ("encoder", "decoder"))
    peers.compare(tmp_path, config, group(family), given, unused=unused)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("family", EOS)
def test_decoder(family, name, tmp_path):
    config = config_of(family, name)
    config.use_cache = False  # of transformers 5.23, which counts the encoder's layers for it
    given = peers.drawn(61, 16, side="left" if name == "left" else "right", seed=len(name))
    cross = [f"{n}.{p}" for n in ("k_proj", "v_proj", "q_proj", "out_proj") for p in ("weight", "bias")]
    names = [*(f"encoder_attn.{part}" for part in cross), "encoder_attn_layer_norm.weight", "encoder_attn_layer_norm.bias"]
    unused = [f"model.decoder.layers.{layer}.{part}" for layer in range(2) for part in names]
    unused += ["model.decoder.embed_positions.weight"] if family == "Pegasus" else []
    group = [peers.Case(f"{family}ForCausalLM", ("lm",))]
    peers.compare(tmp_path, config, group, peers.followers(given), unused=unused)
