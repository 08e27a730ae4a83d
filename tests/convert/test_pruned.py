"""Exported checkpoints without some heads: `pruned_heads` in the config, tensors of the heads that stay, and back."""

import json

import numpy as np
import pytest

from ptm_jax.compress import removal
from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten
from support.tiny_models import drawn

FIELDS = {
    "vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 6,
    "max_position_embeddings": 10, "pad_token_id": 0,
}  # fmt: skip


def pruned(kind, chosen):
    system, _ = checkpoint.record_of(Config({"model_type": kind, **FIELDS}))
    heads = lambda _, layers: removal.kept(layers, "heads", chosen)
    return removal.changed(system, drawn(system), ("main",), heads)


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra"])
@pytest.mark.parametrize("chosen", [[[0], [1, 2, 3], [0, 1, 2, 3]], [[1, 3], [0, 2], [2, 3]]], ids=["uneven", "even"])
def test_a_model_without_heads_goes_out_and_comes_back(kind, chosen, tmp_path):
    system, params = pruned(kind, chosen)
    checkpoint.write(tmp_path, system, params)
    fields = json.loads((tmp_path / "config.json").read_text())
    counts = {layer: len(heads) for layer, heads in fields["pruned_heads"].items()}
    assert counts == {str(i): 4 - len(heads) for i, heads in enumerate(chosen) if len(heads) < 4}
    assert fields["num_attention_heads"] == 4
    again = checkpoint.read(tmp_path)
    old, new = flatten(params), flatten(again.params)
    assert old.keys() == new.keys()
    for path, leaf in old.items():
        np.testing.assert_array_equal(new[path], leaf)


@pytest.mark.parametrize(
    ("removed", "words"),
    [({"7": [0]}, "of layer 7; it has 3 layers of 4 heads"), ({"0": [0, 1, 2, 3]}, "each keeps one"), ({"a": 1}, "must be")],
)
def test_heads_that_are_not_there(removed, words):
    with pytest.raises(UserError, match=words):
        checkpoint.record_of(Config({"model_type": "bert", **FIELDS, "pruned_heads": removed}))
