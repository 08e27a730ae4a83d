"""DistilBERT, ERNIE and Megatron's BERT against `transformers`: random configs, all head classes."""

import numpy as np
import peers
import pytest
from safetensors.numpy import load_file, save_file

from ptm_jax.convert import checkpoint

pytestmark = peers.LIVE

WORDS = dict(vocab_size=61, max_position_embeddings=16, num_labels=3, attn_implementation="eager")

DISTILBERT = {
    "plain": dict(dim=12, n_heads=3, hidden_dim=20, n_layers=2),
    "narrow": dict(dim=8, n_heads=1, hidden_dim=7, n_layers=1, activation="relu"),
    "untied": dict(dim=12, n_heads=4, hidden_dim=50, n_layers=1, tie_word_embeddings=False, activation="gelu_new"),
    "left": dict(dim=20, n_heads=2, hidden_dim=16, n_layers=2, sinusoidal_pos_embds=True, activation="tanh"),
}
OTHERS = {
    "plain": dict(hidden_size=12, num_attention_heads=3, intermediate_size=20, hidden_act="gelu", num_hidden_layers=2),
    "narrow": dict(hidden_size=8, num_attention_heads=1, intermediate_size=7, hidden_act="relu", type_vocab_size=1),
    "untied": dict(hidden_size=12, num_attention_heads=4, intermediate_size=50, tie_word_embeddings=False),
    "left": dict(hidden_size=20, num_attention_heads=2, intermediate_size=16, hidden_act="gelu_new", layer_norm_eps=1e-5),
    "causal": dict(hidden_size=8, num_attention_heads=2, intermediate_size=24, is_decoder=True, num_hidden_layers=2),
}
TASKS = {"plain": 3, "narrow": 0, "untied": 1, "left": 5, "causal": 2}
"""How many pre-training tasks ERNIE tells apart under each config; 0: it does not."""


def classes(prefix, side):
    """All of them; a language model from the left where the padding is not there."""
    second = "sop" if prefix == "MegatronBert" else "nsp"
    outputs = {"mlm": ("labels", "prediction_logits"), second: ("next_sentence_label", "seq_relationship_logits")}
    group = [
        *peers.cases(prefix),
        peers.Case(f"{prefix}ForPreTraining", ("mlm", second), outputs),
        peers.Case(f"{prefix}ForNextSentencePrediction", (second,)),
    ]
    return group + ([] if side == "left" else [peers.Case(f"{prefix}ForCausalLM", ("lm",))])


@pytest.mark.parametrize("name", DISTILBERT)
def test_distilbert(name, tmp_path):
    config = peers.transformers.DistilBertConfig(**WORDS, **DISTILBERT[name])
    given = peers.drawn(61, 16, side="left" if name == "left" else "right", seed=sum(map(ord, name)))
    peers.compare(tmp_path, config, peers.cases("DistilBert"), given, atol=1e-4 if config.n_layers > 1 else 1e-5)


def others(prefix, name, folder, given=None, **words):
    config = getattr(peers.transformers, f"{prefix}Config")(**WORDS, **{"num_hidden_layers": 1, **OTHERS[name], **words})
    side = "left" if name == "left" else "right"
    given = {**peers.drawn(61, 16, side=side, types=config.type_vocab_size, seed=len(name)), **(given or {})}
    unused = () if config.tie_word_embeddings else ("cls.predictions.bias",)
    atol = 1e-4 if config.num_hidden_layers > 1 else 1e-5
    peers.compare(folder, config, classes(prefix, side), given, atol=atol, unused=unused)


@pytest.mark.parametrize("name", OTHERS)
def test_ernie(name, tmp_path):
    tasks, given = TASKS[name], {}
    if tasks > 1:  # with one, none is told: the first counts
        given["task_type_ids"] = np.random.default_rng(tasks).integers(0, tasks, (peers.ROWS, 16)).astype(np.int32)
    others("Ernie", name, tmp_path, given, use_task_id=tasks > 0, task_type_vocab_size=max(tasks, 1))


@pytest.mark.parametrize("name", OTHERS)
def test_megatron_bert(name, tmp_path):
    others("MegatronBert", name, tmp_path)


@pytest.mark.parametrize("prefix", ["Bert", "Ernie", "MegatronBert", "Roberta"])
def test_an_untied_head_of_before_version_5_has_its_bias_under_the_other_name(prefix, tmp_path):
    words = {**WORDS, **OTHERS["untied"], "num_hidden_layers": 1}
    model = getattr(peers.transformers, f"{prefix}ForMaskedLM")(getattr(peers.transformers, f"{prefix}Config")(**words))
    peers.randomise(model, 0).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    own = next(name for name in tensors if name.endswith("decoder.bias"))
    shared = own.replace("decoder.bias", "bias")
    wanted = tensors[shared] = tensors.pop(own)
    save_file(tensors, tmp_path / "model.safetensors")
    read = checkpoint.read(tmp_path)
    assert read.report.extra == () and np.array_equal(read.params["main"]["heads_mlm"]["bias"], wanted)
