"""Checkpoints with `pruned_heads`: what the whole model gives with these heads at zero, and the
field on export."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import ptm_jax
from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten
from ptm_jax.nn.uneven import UnevenStack
from support.tiny_models import drawn

FIELDS = {
    "model_type": "bert", "architectures": ["BertForSequenceClassification"], "vocab_size": 40,
    "hidden_size": 12,
    "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 10,
    "max_position_embeddings": 16,
    "pad_token_id": 0, "type_vocab_size": 2,
}  # fmt: skip
GONE = {"0": [1, 3], "2": [0]}
IDS = np.random.default_rng(1).integers(3, 40, (2, 7))


def without(tensors, gone, width=3):
    """The tensors with the rows and columns of these heads taken out (`prune_linear_layer` of
    Transformers 4)."""
    made = dict(tensors)
    for layer, heads in gone.items():
        stay = [i for i in range(12) if i // width not in heads]
        place = f"bert.encoder.layer.{layer}.attention."
        for name in ("query", "key", "value"):
            for part in ("weight", "bias"):
                made[f"{place}self.{name}.{part}"] = tensors[f"{place}self.{name}.{part}"][stay]
        made[f"{place}output.dense.weight"] = tensors[f"{place}output.dense.weight"][:, stay].copy()
    return made


def zeroed(tensors, gone, width=3):
    """The tensors with zeros where these heads are read."""
    made = dict(tensors)
    for layer, heads in gone.items():
        name = f"bert.encoder.layer.{layer}.attention.output.dense.weight"
        read = np.array([i // width not in heads for i in range(12)], np.float32)
        made[name] = tensors[name] * read
    return made


def written(folder, tensors, **more):
    folder.mkdir(exist_ok=True)
    save_file(
        {name: np.ascontiguousarray(value) for name, value in tensors.items()},
        folder / "model.safetensors",
    )
    (folder / "config.json").write_text(json.dumps({**FIELDS, **more}))
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pruned")
    system, _ = checkpoint.record_of(Config(FIELDS))
    checkpoint.write(folder, system, drawn(system, scale=0.3), config=FIELDS)
    return load_file(folder / "model.safetensors")


def test_a_checkpoint_without_heads_gives_what_zeros_give(whole, tmp_path):
    small = ptm_jax.load(written(tmp_path / "small", without(whole, GONE), pruned_heads=GONE))
    zeros = ptm_jax.load(written(tmp_path / "zeros", zeroed(whole, GONE)))
    stack = small.module.encoder.stack
    assert isinstance(stack, UnevenStack) and [block.attention.heads for block in stack.blocks] == [
        2,
        4,
        3,
    ]
    a, b = small(IDS, layers=True), zeros(IDS, layers=True)
    np.testing.assert_allclose(a.scores["classify"], b.scores["classify"], atol=1e-6)
    np.testing.assert_allclose(a.layers, b.layers, atol=1e-5)


@pytest.mark.parametrize("gone", [GONE, {"0": [2], "1": [0], "2": [3]}])
def test_the_export_has_the_field_and_the_same_tensors(whole, tmp_path, gone):
    """Heads that differ by layer, and as many of each; with the original config, and with one of
    the towers alone."""
    found = checkpoint.read(written(tmp_path / "small", without(whole, gone), pruned_heads=gone))
    for number, config in enumerate((dict(found.config), None)):
        out = tmp_path / str(number)
        checkpoint.write(out, found.system, found.params, config=config)
        fields = json.loads((out / "config.json").read_text())
        counts = {layer: len(heads) for layer, heads in fields["pruned_heads"].items()}
        assert (
            counts == {layer: len(heads) for layer, heads in gone.items()}
            and fields["num_attention_heads"] == 4
        )
        again, original = load_file(out / "model.safetensors"), without(whole, gone)
        assert again.keys() == original.keys() and all(
            np.array_equal(again[name], original[name]) for name in again
        )
        back = checkpoint.read(out)
        assert flatten(back.params).keys() == flatten(found.params).keys()
    assert fields["pruned_heads"]["0"][-1] == 3


@pytest.mark.parametrize(
    "gone", [{"3": [0]}, {"0": [0, 1, 2, 3]}, {"0": [4]}, {"x": [0]}, {"0": 1}]
)
def test_heads_that_are_not_there_are_refused(whole, tmp_path, gone):
    with pytest.raises(
        UserError, match="there are layers 0 to 2 of 4 heads, of which one stays"
    ) as error:
        checkpoint.read(written(tmp_path / "bad", whole, pruned_heads=gone))
    assert "\n" not in str(error.value)


def test_other_families_have_no_such_classes():
    fields = {
        "model_type": "albert",
        "hidden_size": 12,
        "num_attention_heads": 4,
        "vocab_size": 40,
        "embedding_size": 8,
    }
    fields |= {
        "intermediate_size": 10,
        "pruned_heads": {"0": [1]},
        "max_position_embeddings": 16,
        "num_hidden_layers": 2,
    }
    with pytest.raises(UserError, match="pruned_heads is for bert, camembert"):
        checkpoint.record_of(Config(fields))
