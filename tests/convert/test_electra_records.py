"""Configs of ELECTRA, ALBERT and MobileBERT: every class's record said as a config again, sizes, what is refused."""

import math

import pytest

from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.convert.family import families
from ptm_jax.core import towers
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten

SIZES = {"vocab_size": 61, "hidden_size": 8, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 12}
SIZES |= {"max_position_embeddings": 16, "embedding_size": 6, "intra_bottleneck_size": 4}
ODD = {
    "electra": {"hidden_act": "relu", "summary_type": "mean", "summary_last_dropout": 0.3, "is_decoder": True},
    "albert": {"num_hidden_groups": 2, "inner_group_num": 3, "classifier_dropout_prob": 0.2, "tie_word_embeddings": False},
    "mobilebert": {"normalization_type": "layer_norm", "key_query_shared_bottleneck": False, "intra_bottleneck_size": 8},
}
ODD["mobilebert"] |= {"classifier_activation": False, "layer_norm_eps": 1e-6, "trigram_input": False}


def record(family, **fields):
    return checkpoint.record_of(Config({"model_type": family, **SIZES, **fields}))[0]


@pytest.mark.parametrize("family", ODD)
def test_every_record_says_its_config(family):
    assert family in families.names()
    for architecture in families.get(family).heads:
        for odd in ({}, ODD[family]):
            system = record(family, architectures=[architecture], **odd)
            fields = {"model_type": family, **families.get(family).config(system), "architectures": [architecture]}
            assert checkpoint.record_of(Config(fields))[0].towers == system.towers, architecture
            assert families.get(family).architecture_of(system) == architecture


@pytest.mark.parametrize(
    ("family", "architecture", "fields", "count"),
    [
        ("mobilebert", "MobileBertForPreTraining", dict(hidden_size=512, num_hidden_layers=24), 36_860_220),
        ("electra", "ElectraForPreTraining", dict(hidden_size=256, num_hidden_layers=12), 13_549_057),
        ("albert", "AlbertForPreTraining", dict(hidden_size=4096, num_hidden_layers=12), 223_158_450),
    ],
)
def test_the_library_s_own_sizes(family, architecture, fields, count):
    """Numbers of parameters of the classes that the library makes of its default configs."""
    width = fields["hidden_size"]
    fields |= {"embedding_size": 128, "vocab_size": 30_000 if family == "albert" else 30_522, "intra_bottleneck_size": 128}
    fields |= {"intermediate_size": 512 if family == "mobilebert" else 4 * width, "max_position_embeddings": 512}
    system = record(family, architectures=[architecture], num_attention_heads=4, **fields)
    found = flatten(towers.abstract(system.towers, checkpoint.example(system))["main"])
    assert sum(math.prod(leaf.shape) for leaf in found.values()) == count


@pytest.mark.parametrize(
    ("family", "fields", "said"),
    [
        ("electra", {"summary_proj_to_labels": True}, "classes in the place of states"),
        ("electra", {"summary_type": "attn"}, "supported are first"),
        ("electra", {"position_embedding_type": "relative_key"}, "not supported"),
        ("albert", {"num_hidden_groups": 3}, "not a multiple of num_hidden_groups 3"),
        ("mobilebert", {"normalization_type": "rms"}, "supported are no_norm, layer_norm"),
        ("mobilebert", {"key_query_shared_bottleneck": False}, "intra_bottleneck_size is 4"),
        ("mobilebert", {"true_hidden_size": 5}, "true_hidden_size is 5"),
        ("mobilebert", {"embedding_size": 9, "architectures": ["MobileBertForMaskedLM"]}, "greater than hidden_size"),
    ],
)
def test_what_is_refused_is_one_line(family, fields, said):
    with pytest.raises(UserError, match=said) as caught:
        record(family, **fields)
    assert "\n" not in str(caught.value) and "config.json" in str(caught.value)
