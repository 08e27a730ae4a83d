"""T5 1.0, T5 1.1 and mT5 against `transformers`: random configs, all classes."""

import peers
import pytest

pytestmark = peers.LIVE

CONFIGS = {
    "plain": dict(d_model=24, num_heads=3, d_kv=8, feed_forward_proj="relu"),
    "odd": dict(d_model=10, num_heads=2, d_kv=3, feed_forward_proj="gated-silu", relative_attention_num_buckets=9),
    "v11": dict(d_model=12, num_heads=4, d_kv=2, feed_forward_proj="gated-gelu", tie_word_embeddings=False, num_layers=2),
    "left": dict(d_model=16, num_heads=1, d_kv=5, feed_forward_proj="gelu", num_decoder_layers=2, layer_norm_epsilon=1e-3),
}
FAMILIES = ("T5", "MT5")


def untied(model):
    """A table of its own for the output: Transformers 5 ties it at first, and not where a file has two."""
    model.lm_head.weight = peers.torch.nn.Parameter(model.lm_head.weight.detach().clone())


def config_of(family, name):
    words = dict(vocab_size=61, d_ff=14, num_layers=1, relative_attention_num_buckets=8, relative_attention_max_distance=12)
    words |= dict(num_labels=3, decoder_start_token_id=0)
    return getattr(peers.transformers, f"{family}Config")(**{**words, **CONFIGS[name]}, attn_implementation="eager")


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_pair(family, name, tmp_path):
    config = config_of(family, name)
    own = {"ready": untied} if family == "MT5" or name == "v11" else {}
    group = [
        peers.Case(f"{family}Model"),
        peers.Case(f"{family}ForConditionalGeneration", ("lm",), **own),
        peers.Case(f"{family}ForSequenceClassification", ("classify",)),
        peers.Case(f"{family}ForQuestionAnswering", ("span",)),
    ]
    given = peers.drawn(61, 16, side="left" if name == "left" else "right", seed=len(name))
    peers.compare(tmp_path, config, group, peers.paired(given, 61, 16, eos=1, seed=len(name)))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_encoder(family, name, tmp_path):
    group = [peers.Case(f"{family}EncoderModel"), peers.Case(f"{family}ForTokenClassification", ("tag",))]
    given = peers.drawn(61, 16, side="left" if name == "left" else "right", seed=len(name))
    peers.compare(tmp_path, config_of(family, name), group, given)
