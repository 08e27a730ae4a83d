"""XLM's, FlauBERT's and XLNet's configs: old names, what is refused, and every class's record said as a config again."""

import dataclasses

import numpy as np
import pytest

from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.convert.family import families
from ptm_jax.core.errors import UserError
from ptm_jax.inference.inputs import batch_of
from ptm_jax.nn.layerdrop import DroppedBlock

SIZES = {"xlm": {"emb_dim": 8, "n_heads": 2, "n_layers": 2, "vocab_size": 61}}
SIZES |= {"flaubert": SIZES["xlm"], "xlnet": {"d_model": 8, "n_head": 2, "n_layer": 2, "d_inner": 12, "vocab_size": 61}}
ODD = {
    "xlm": {"n_langs": 3, "gelu_activation": False, "dropout": 0.3, "start_n_top": 2, "summary_type": "mean"},
    "flaubert": {"pre_norm": True, "layerdrop": 0.1, "tie_word_embeddings": False, "num_labels": 5, "causal": True},
    "xlnet": {"attn_type": "uni", "mem_len": None, "reuse_len": 3, "clamp_len": 4, "summary_use_proj": False},
}


def record(family, **fields):
    return checkpoint.record_of(Config({"model_type": family, **SIZES[family], **fields}))[0]


@pytest.mark.parametrize("family", SIZES)
def test_every_record_says_its_config(family):
    assert family in families.names()
    for architecture in families.get(family).heads:
        system = record(family, architectures=[architecture], **ODD[family])
        fields = families.get(family).config(system)
        assert record(family, architectures=[architecture], **fields).towers == system.towers, architecture


def test_old_configs_have_other_names():
    old = {"model_type": "xlm", "n_words": 61, "emb_dim": 8, "n_layers": 1, "n_heads": 2, "pad_index": 4, "n_langs": 2}
    encoder = checkpoint.record_of(Config(old))[0].towers["main"].encoder
    assert (encoder.embed.vocab.size, encoder.embed.vocab.pad, encoder.embed.languages) == (61, 4, 2)
    old = {"model_type": "xlnet", "n_token": 61, "d_model": 8, "n_layer": 1, "n_head": 2, "d_head": 4, "untie_r": True}
    encoder = checkpoint.record_of(Config({**old, "mem_len": None}))[0].towers["main"].encoder
    assert (encoder.embed.vocab.size, encoder.memory, encoder.reuse) == (61, 0, 1.0)


def test_layers_of_flaubert_are_left_out():
    block = record("flaubert", layerdrop=0.2).towers["main"].encoder.stack.block
    assert isinstance(block, DroppedBlock) and block.skip == 0.2
    assert not isinstance(record("flaubert").towers["main"].encoder.stack.block, DroppedBlock)
    assert {f.name for f in dataclasses.fields(block)} > {"attention", "ffn", "skip"}


@pytest.mark.parametrize(
    ("family", "fields", "said"),
    [
        ("xlm", {"is_encoder": False}, "no decoder"),
        ("xlm", {"summary_use_proj": False}, "states in the place of classes"),
        ("xlm", {"summary_type": "attn"}, "supported are first"),
        ("xlm", {"asm": True}, "asm_cutoffs"),
        ("xlnet", {"d_head": 3}, "another width"),
        ("xlnet", {"attn_type": "uni", "same_length": True}, "not supported"),
        ("xlnet", {"ff_activation": "gelu_newer"}, "supported are gelu"),
    ],
)
def test_what_cannot_be_read_is_one_line(family, fields, said):
    with pytest.raises(UserError, match=said) as caught:
        record(family, **fields)
    assert "\n" not in str(caught.value)


def test_languages_are_told_token_by_token():
    encoder = record("xlm", n_langs=3).towers["main"].encoder
    ids, vocab = np.full((2, 5), 7), encoder.embed.vocab
    batch = batch_of(encoder, vocab, ids, language_ids=ids - 5)
    assert batch["language_ids"].shape == (2, 16) and batch["language_ids"][0].tolist() == [2] * 5 + [0] * 11
    with pytest.raises(UserError, match="the languages of this model: 0 to 2"):
        batch_of(encoder, vocab, ids, language_ids=ids)
