"""A published directory without torch: written, read again, and everything that can be wrong with
it."""

import json
import shutil

import jax
import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.convert import checkpoint, table
from ptm_jax.convert.config import Config
from ptm_jax.convert.table import Line
from ptm_jax.core import spec, towers
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten

FIELDS = {
    "model_type": "bert",
    "architectures": ["BertForPreTraining"],
    "vocab_size": 29,
    "hidden_size": 8,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 10,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "pad_token_id": 0,
}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """(directory, record, parameters) of a small BERT."""
    folder = tmp_path_factory.mktemp("bert")
    system, _ = checkpoint.record_of(Config(FIELDS))
    params = towers.init(system.towers, jax.random.key(3), checkpoint.example(system))
    checkpoint.write(folder, system, params, config=FIELDS)
    return folder, system, params


@pytest.fixture
def copy(original, tmp_path):
    """A copy to be damaged."""
    return shutil.copytree(original[0], tmp_path / "copy")


def equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def changed(folder, out, tensors):
    """Writes a checkpoint with other tensors beside the config of `folder`."""
    checkpoint.write_tensors(out, tensors.items())
    shutil.copy(folder / "config.json", out)
    return out


@pytest.mark.full
def test_what_is_written_is_read_again(original):
    folder, system, params = original
    found = checkpoint.read(folder)
    assert found.system.towers == system.towers and found.architecture == "BertForPreTraining"
    assert found.report.missing == found.report.extra == ()
    equal(found.params, params)


def test_the_record_alone_gives_the_config(original):
    family, fields, architecture = checkpoint.published(original[1])
    assert (family.model_type, architecture) == ("bert", "BertForPreTraining")
    assert {name: fields[name] for name in FIELDS} == FIELDS


@pytest.mark.full
def test_a_bare_checkpoint_has_no_root_and_fills_every_class(original, tmp_path):
    _, system, params = original
    bare = spec.override(
        system, {"towers.main.heads": {"pool": system.towers["main"].heads["pool"]}}
    )
    kept = {"main": {k: v for k, v in params["main"].items() if k in ("encoder", "heads_pool")}}
    checkpoint.write(tmp_path, bare, kept)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["BertModel"]
    names = checkpoint.open_tensors(tmp_path).names()
    assert "embeddings.word_embeddings.weight" in names and not any(
        name.startswith("bert.") for name in names
    )
    equal(checkpoint.read(tmp_path).params, kept)
    found = checkpoint.read(tmp_path, architecture="BertForSequenceClassification", seed=1)
    assert found.report.missing == ("heads_classify/classes/bias", "heads_classify/classes/kernel")
    pooler = found.params["main"]["heads_classify"]["summary"]["dense"]["kernel"]
    np.testing.assert_array_equal(pooler, params["main"]["heads_pool"]["dense"]["kernel"])
    other = checkpoint.read(tmp_path, architecture="BertForSequenceClassification", seed=2)

    def drawn(c):
        return np.asarray(c.params["main"]["heads_classify"]["classes"]["kernel"])

    assert not np.array_equal(drawn(found), drawn(other))
    with pytest.raises(
        UserError, match="no tensor 'cls.predictions.transform.dense.weight'|has no tensor"
    ):
        (tmp_path / "config.json").write_text(
            json.dumps({**FIELDS, "architectures": ["BertForMaskedLM"]})
        )
        checkpoint.read(tmp_path)


def test_the_names_of_tensorflow_s_norms_and_ties_are_known(original, tmp_path):
    folder, _, params = original
    tensors = checkpoint.open_tensors(folder)

    def old(name):
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        )

    values = {old(name): tensors.read(name) for name in tensors}
    values["cls.predictions.decoder.weight"] = values["bert.embeddings.word_embeddings.weight"]
    values["bert.embeddings.position_ids"] = np.arange(10, dtype=np.int64)[None]
    found = checkpoint.read(changed(folder, tmp_path, values))
    equal(found.params, params)
    assert found.report.extra == ()
    values["cls.predictions.decoder.weight"] = values["cls.predictions.decoder.weight"] + 1
    with pytest.raises(
        UserError,
        match="cls.predictions.decoder.weight differs from bert.embeddings.word_embeddings.weight",
    ):
        checkpoint.read(changed(folder, tmp_path, values))


def test_a_tensor_beside_the_model_is_reported(original, tmp_path):
    tensors = checkpoint.open_tensors(original[0])
    values = {name: tensors.read(name) for name in tensors} | {
        "something.else": np.zeros(3, np.float32)
    }
    report = checkpoint.read(changed(original[0], tmp_path, values)).report
    assert report.extra == ("something.else",) and report.lines() == [
        "in the checkpoint, not used: something.else"
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "burt"}, r"config.json: unknown model_type 'burt'.*Did you mean 'bert'"),
        ({"architectures": ["BertForCooking"]}, "unknown architecture 'BertForCooking'"),
        ({"hidden_size": None}, "config.json has no field 'hidden_size'"),
        ({"hidden_size": "8"}, "hidden_size is '8'; expected a whole number"),
        ({"hidden_size": -8}, "hidden_size is -8; it must be at least 1"),
        ({"num_attention_heads": 3}, "width 8 is not a multiple of 3 heads"),
        ({"hidden_act": "gulu"}, "hidden_act is 'gulu'; supported are .*Did you mean 'gelu'"),
        (
            {"intermediate_size": 13},
            r"layer.0.output.dense.weight has the shape \[8, 12\]; the config expects \[8, 13\]",
        ),
        (
            {"vocab_size": 30},
            r"word_embeddings.weight has the shape \[29, 8\]; the config expects \[30, 8\]",
        ),
        ({"num_hidden_layers": 4}, "no tensor 'bert.encoder.layer.3"),
    ],
)
def test_a_wrong_config_is_one_line(copy, change, message):
    fields = {k: v for k, v in {**FIELDS, **change}.items() if v is not None}
    (copy / "config.json").write_text(json.dumps(fields))
    with pytest.raises(UserError, match=message) as error:
        checkpoint.read(copy)
    assert "\n" not in str(error.value) and str(copy) in str(error.value)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_tensor_that_is_not_finite_is_named(original, tmp_path, value):
    tensors = checkpoint.open_tensors(original[0])
    values = {name: tensors.read(name).copy() for name in tensors}
    name = next(name for name in values if name.endswith("layer.1.output.dense.weight"))
    values[name][1, 2] = value
    with pytest.raises(
        UserError, match=f"safetensors: {name} has numbers that are NaN or infinite"
    ):
        checkpoint.read(changed(original[0], tmp_path, values))


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000])
def test_a_config_that_is_none(copy, text):
    (copy / "config.json").write_text(text)
    with pytest.raises(UserError, match="config.json is not a config"):
        checkpoint.read(copy)


def test_nothing_is_half_imported(copy, tmp_path, capsys):
    whole = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(whole[:-100])
    assert main(["import", str(copy), "--out", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err.strip()
    assert "model.safetensors" in error and len(error.splitlines()) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["copy"]


@pytest.mark.full
def test_import_show_and_export_by_command(original, tmp_path, capsys):
    folder, _, params = original
    model, back = tmp_path / "model", tmp_path / "back"
    folder = shutil.copytree(folder, tmp_path / "with settings")
    (folder / "generation_config.json").write_text('{"num_beams": 3, "early_stopping": true}')
    assert main(["import", str(folder), "--out", str(model), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (
        facts["missing"] == facts["extra"] == [] and facts["architecture"] == "BertForPreTraining"
    )
    assert facts["parameters"] == sum(leaf.size for leaf in jax.tree.leaves(params))
    assert main(["import", str(folder), "--out", str(model)]) == 1
    assert "is there already" in capsys.readouterr().err
    assert main(["show", str(folder)]) == 0
    assert f"main: {facts['parameters']:,}" in capsys.readouterr().out
    assert main(["show", str(model), "--json"]) == 0
    capsys.readouterr()
    assert main(["export", str(model), "--out", str(back)]) == 0
    assert (back / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert (
        ptm_jax.load(model).published["num_beams"]
        == ptm_jax.load(folder).published["num_beams"]
        == 3
    )
    assert (back / "generation_config.json").read_text() == (
        folder / "generation_config.json"
    ).read_text()
    assert json.loads((back / "config.json").read_text()) == json.loads(
        (folder / "config.json").read_text()
    )
    assert (
        main(["export", str(folder), "--out", str(tmp_path / "half"), "--dtype", "bfloat16"]) == 0
    )
    half = checkpoint.read(tmp_path / "half").params
    for path, leaf in flatten(params).items():
        np.testing.assert_allclose(flatten(half)[path], leaf, rtol=2**-8, err_msg=path)


def test_a_system_that_is_no_published_architecture_is_refused(original):
    _, system, _ = original
    odd = spec.override(system, {"towers.main.encoder.stack.block.norm": "none"})
    reason = r"\(bert: main.encoder.stack.block.norm is .none., there post\)"
    with pytest.raises(UserError, match=f"no architecture of the Hugging Face library {reason}"):
        checkpoint.published(odd)


@pytest.mark.full
def test_fixed_tables_are_written_and_others_are_refused(tmp_path):
    """PEGASUS's positions are a formula here, and a tensor in the file."""
    sizes = dict(
        vocab_size=9,
        d_model=4,
        encoder_layers=1,
        decoder_layers=1,
        encoder_ffn_dim=3,
        decoder_ffn_dim=3,
    )
    heads = dict(encoder_attention_heads=1, decoder_attention_heads=2, max_position_embeddings=5)
    system, _ = checkpoint.record_of(Config({"model_type": "pegasus", **sizes, **heads}))
    params = jax.tree.map(
        lambda leaf: np.ones(leaf.shape, "f4"),
        towers.abstract(system.towers, checkpoint.example(system)),
    )
    checkpoint.write(tmp_path, system, params)
    equal(checkpoint.read(tmp_path).params, params)
    tensors = checkpoint.open_tensors(tmp_path)
    values = {name: np.array(tensors.read(name)) for name in tensors}
    values["decoder.embed_positions.weight"][2, 3] += 0.01
    with pytest.raises(
        UserError, match="decoder.embed_positions.weight is not the fixed table of pegasus"
    ):
        checkpoint.read(changed(tmp_path, tmp_path / "other", values))


def test_lines_move_arrays_both_ways():
    """Against plain numpy: what a Linear, a Conv1D and a joined projection hold."""
    draw = np.random.default_rng(0)
    weight = draw.normal(size=(6, 4)).astype(np.float32)  # torch's Linear: [out, in]
    line = Line("a", "b", "dense")
    np.testing.assert_array_equal(line.read(weight, "kernel", (4, 2, 3)), weight.T.reshape(4, 2, 3))
    np.testing.assert_array_equal(line.write(weight.T.reshape(4, 2, 3), "kernel"), weight)
    out = table.attention("a", "b.", "qkvo")[3]
    np.testing.assert_array_equal(out.read(weight, "kernel", (2, 2, 6)), weight.T.reshape(2, 2, 6))
    np.testing.assert_array_equal(out.write(weight.T.reshape(2, 2, 6), "kernel"), weight)
    joined = draw.normal(size=(4, 18)).astype(np.float32)  # GPT-2's c_attn: [in, 3 out]
    parts, ours = table.joined("a", "b", "conv1d"), joined.reshape(4, 3, 2, 3).swapaxes(0, 1)
    for i, part in enumerate(parts):
        np.testing.assert_array_equal(part.read(joined, "kernel", (4, 2, 3)), ours[i])
    back = [part.write(ours[i], "kernel") for i, part in enumerate(parts)]
    np.testing.assert_array_equal(np.concatenate(back, -1), joined)
    for shape in ((4, 2, 3), (4, 6), (2, 2, 6)):
        with pytest.raises(ValueError):
            Line("a", "b", "dense").read(draw.normal(size=(5, 4)), "kernel", shape)
