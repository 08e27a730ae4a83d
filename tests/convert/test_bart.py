"""BART, mBART and PEGASUS against `transformers`: random configs, all classes."""

import peers
import pytest

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(peers.torch is None, reason="torch and transformers are not installed; make test-full installs them"),
]

EOS = {"Bart": 2, "MBart": 2, "Pegasus": 1}
CONFIGS = {
    "plain": dict(d_model=24, encoder_attention_heads=3, decoder_attention_heads=2),
    "narrow": dict(d_model=8, encoder_attention_heads=1, decoder_attention_heads=4, activation_function="relu"),
    "untied": dict(d_model=12, encoder_layers=1, decoder_layers=2, tie_word_embeddings=False, scale_embedding=True),
    "left": dict(d_model=18, encoder_layers=2, activation_function="gelu_new", scale_embedding=True, max_position_embeddings=30),
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
