"""Checkpoints whose tensors or configs have other names than Transformers writes today: tied tables
under one name of several, prefixes of wrappers, configs without `model_type`."""

import json

import numpy as np
import pytest

from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.convert.family import families
from ptm_jax.convert.formats import untyped
from ptm_jax.core import towers
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten, unflatten

BERT = dict(
    vocab_size=19,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=12,
    max_position_embeddings=10,
)
GPT = dict(vocab_size=19, n_embd=8, n_head=2, n_layer=2, n_positions=10, dff=12)
T5 = dict(vocab_size=19, d_model=8, num_heads=2, d_kv=4, d_ff=9, num_layers=1)
BART = dict(vocab_size=19, d_model=8, encoder_layers=1, decoder_layers=1, max_position_embeddings=9)
BART |= dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 9)
BART |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2)
CLASSES = {
    "BertForMaskedLM": BERT,
    "RobertaForMaskedLM": BERT,
    "CamembertForMaskedLM": BERT,
    "ErnieForMaskedLM": BERT,
    "MegatronBertForMaskedLM": BERT,
    "ElectraForMaskedLM": dict(BERT, embedding_size=6),
    "AlbertForMaskedLM": dict(BERT, embedding_size=6),
    "DistilBertForMaskedLM": dict(
        vocab_size=19, dim=8, n_layers=2, n_heads=2, hidden_dim=12, max_position_embeddings=10
    ),
    "GPT2LMHeadModel": GPT,
    "OpenAIGPTLMHeadModel": GPT,
    "CTRLLMHeadModel": GPT,
    "XLMWithLMHeadModel": dict(vocab_size=19, emb_dim=8, n_heads=2, n_layers=1),
    "XLNetLMHeadModel": dict(vocab_size=19, d_model=8, n_head=2, n_layer=1, d_inner=12),
    "T5ForConditionalGeneration": T5,
    "BartForConditionalGeneration": BART,
    "MBartForConditionalGeneration": BART,
}
FEW = ("BertForMaskedLM", "GPT2LMHeadModel", "T5ForConditionalGeneration")
NAMES = [pytest.param(name, marks=() if name in FEW else pytest.mark.full) for name in CLASSES]
FAMILIES = {head: name for name in families.names() for head in families.get(name).heads}


def written(folder, name):
    """Writes a checkpoint of a class with random parameters.
    Returns (config, {name: tensor}, parameters)."""
    fields = {"model_type": FAMILIES[name], "architectures": [name], **CLASSES[name]}
    system, _ = checkpoint.record_of(Config(fields))
    shapes = flatten(towers.abstract(system.towers, checkpoint.example(system)))
    rng = np.random.default_rng(0)
    params = unflatten(
        {path: rng.normal(size=leaf.shape).astype(np.float32) for path, leaf in shapes.items()}
    )
    checkpoint.write(folder, system, params, config=fields)
    tensors = checkpoint.open_tensors(folder)
    return fields, {tensor: np.array(tensors.read(tensor)) for tensor in tensors}, params


def rewritten(folder, fields, tensors):
    checkpoint.write_tensors(folder, tensors.items())
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def check(folder, params):
    for path, value in flatten(checkpoint.read(folder).params).items():
        np.testing.assert_array_equal(value, flatten(params)[path], err_msg=path)


@pytest.mark.parametrize("name", NAMES)
def test_a_tied_tensor_under_the_name_of_its_copy(name, tmp_path):
    fields, tensors, params = written(tmp_path, name)
    renamed = 0
    for copy, source in families.get(FAMILIES[name]).ties.items():
        moved = dict(tensors)
        if source in moved and copy not in moved:
            moved[copy] = moved.pop(source)
            check(rewritten(tmp_path, fields, moved), params)
            renamed += 1
    assert renamed


PREFIXES = ("module.", "_orig_mod.", "module._orig_mod.", "model.", "net.model.", "0.auto_model.")


@pytest.mark.parametrize(("name", "prefix"), zip(FEW * 2, PREFIXES, strict=True))
def test_the_prefix_of_a_wrapper(name, prefix, tmp_path):
    fields, tensors, params = written(tmp_path, name)
    check(rewritten(tmp_path, fields, {prefix + n: v for n, v in tensors.items()}), params)


def test_the_wrappers_of_single_layers(tmp_path):
    fields, tensors, params = written(tmp_path, "BertForMaskedLM")
    inner = {n.replace("layer.1.", "layer.1._fsdp_wrapped_module."): v for n, v in tensors.items()}
    assert inner.keys() != tensors.keys()
    check(rewritten(tmp_path, fields, inner), params)


@pytest.mark.parametrize("names", [("encoder", "decoder"), ("shared", "decoder")])
def test_two_tables_of_a_pair(names, tmp_path):
    """A table that the file lacks is the shared one, else the encoder's, as in Transformers."""
    fields, tensors, _ = written(tmp_path, "T5ForConditionalGeneration")
    table = tensors.pop("shared.weight")
    for number, name in enumerate(names):
        part = name if name == "shared" else f"{name}.embed_tokens"
        tensors[f"{part}.weight"] = table + number
    read = checkpoint.read(rewritten(tmp_path, fields, tensors))
    params = read.params["main"]
    np.testing.assert_array_equal(params["encoder"]["encoder"]["embed"]["token"], table)
    np.testing.assert_array_equal(params["encoder"]["decoder"]["embed"]["token"], table + 1)
    np.testing.assert_array_equal(params["heads_lm"]["table"], table)
    for config in (read.config, None):
        checkpoint.write(tmp_path / "out", read.system, read.params, config=config)
        again = checkpoint.read(tmp_path / "out")
        assert again.system.towers == read.system.towers
        check(tmp_path / "out", read.params)
    checkpoint.write(tmp_path / "out", read.system, read.params)
    names = set(checkpoint.open_tensors(tmp_path / "out"))
    tables = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"}
    assert tables <= names and "shared.weight" not in names


@pytest.mark.parametrize(
    ("name", "head", "bare"),
    [
        ("T5ForConditionalGeneration", "lm_head.weight", "T5EncoderModel"),
        ("BertForMaskedLM", "cls.predictions.decoder.weight", "BertModel"),
    ],
)
def test_the_table_of_a_head_that_a_class_lacks(name, head, bare, tmp_path):
    """It is not compared with the table of the tokens: nothing reads it. A class with the head
    refuses it where the config ties both."""
    fields, tensors, _ = written(tmp_path, name)
    table = "shared.weight" if head.startswith("lm") else "bert.embeddings.word_embeddings.weight"
    rewritten(tmp_path, fields, {**tensors, head: tensors[table] + 1})
    read = checkpoint.read(tmp_path, architecture=bare)
    assert head in read.report.extra
    with pytest.raises(UserError, match="which the config ties it to"):
        checkpoint.read(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_a_config_without_model_type_is_that_of_its_class(name, tmp_path):
    fields, tensors, params = written(tmp_path, name)
    del fields["model_type"]
    assert untyped.is_published(rewritten(tmp_path, fields, tensors))
    check(tmp_path, params)


@pytest.mark.parametrize("name", ["BertForMaskedLM", "DistilBertForMaskedLM", "GPT2LMHeadModel"])
def test_the_names_of_tensors_tell_a_missing_model_type(name, tmp_path):
    _, tensors, params = written(tmp_path, name)
    read = checkpoint.read(rewritten(tmp_path, CLASSES[name], tensors))
    assert read.config["model_type"] == FAMILIES[name]
    for path, value in flatten(read.params["main"]["encoder"]).items():
        np.testing.assert_array_equal(value, flatten(params["main"]["encoder"])[path])


def test_names_of_several_types(tmp_path):
    _, tensors, _ = written(tmp_path, "RobertaForMaskedLM")
    rewritten(tmp_path, BERT, tensors)
    with pytest.raises(UserError, match="its tensors fit roberta, xlm-roberta, .*add the field"):
        checkpoint.read(tmp_path)


def test_nothing_tells_the_type(tmp_path):
    fields, tensors, _ = written(tmp_path, "BertForMaskedLM")
    del fields["model_type"]
    rewritten(tmp_path, {**fields, "architectures": ["LlamaForCausalLM"]}, tensors)
    with pytest.raises(
        UserError, match="no field 'model_type', and neither .*Llama.*add the field"
    ):
        checkpoint.read(tmp_path)
