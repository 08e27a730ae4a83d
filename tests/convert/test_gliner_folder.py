"""GLiNER's folders against the package gliner 0.2.29 (tests/golden/make_gliner.py), without torch:
scores, losses and entities; and back, bit for bit."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import ptm_jax
from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.convert.files import open_tensors
from ptm_jax.convert.libraries import gliner_folder
from ptm_jax.convert.saving import write_tensors
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten
from ptm_jax.core.towers import bind
from ptm_jax.encoders.model import Model
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.inference.spans import named_entities
from ptm_jax.inference.text import tags
from ptm_jax.nn.heads.knowledge.named_spans import NamedSpans
from ptm_jax.objectives.tasks.span_names import SpanNames
from ptm_jax.runs import publishing
from ptm_jax.tasks.formats import taskrows
from ptm_jax.tasks.formats.entity_spans import Entities, EntitySpans, _Part
from support import tiny_models

GOLDEN = Path(__file__).parents[1] / "golden" / "gliner.npz"


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN) as file:
        return {name: file[name] for name in file.files}


@pytest.fixture(scope="module")
def folder(golden, tmp_path_factory):
    out = tmp_path_factory.mktemp("gliner")
    for name in ("gliner_config.json", "tokenizer.json", "tokenizer_config.json"):
        (out / name).write_text(str(golden[name]), encoding="utf8")
    start = "tensor/"
    write_tensors(
        out, [(k.removeprefix(start), v) for k, v in golden.items() if k.startswith(start)]
    )
    return out


@pytest.fixture(scope="module")
def model(folder):
    return ptm_jax.load(folder)


def test_an_export_has_the_same_bits_and_reads_as_the_same_model(model, folder, tmp_path):
    publishing.export(tmp_path / "out", model)
    before, after = open_tensors(folder), open_tensors(tmp_path / "out")
    assert {*before.names()} == {*after.names()}
    for name in before:
        np.testing.assert_array_equal(before.read(name), after.read(name), err_msg=name)
    again = ptm_jax.load(tmp_path / "out")
    assert again.module == model.module and again.tokenizer.pieces == model.tokenizer.pieces
    old, new = (
        json.loads((place / "gliner_config.json").read_text())
        for place in (folder, tmp_path / "out")
    )
    shared = (new.keys() & old.keys()) - {"encoder_config", "model_name"}
    assert {name: new[name] for name in shared} == {name: old[name] for name in shared}
    assert len(shared) > 15


@pytest.mark.full
def test_scores_losses_and_entities_are_the_packages(model, golden):
    texts, types, data, threshold = json.loads(str(golden["case"]))
    sentences = [one["tokenized_text"] for one in data]
    records = tags.records_of(model.tokenizer, sentences)
    prompt = named_entities.Prompt(model.tokenizer, types, 40)
    rows = [prompt.row(range(3), named_entities.words_of(record)) for record in records]
    for number, scores in enumerate(named_entities._scores(model, rows, 2)):
        for word, more in np.ndindex(len(scores), 3):
            if word + more < len(scores):
                wanted = golden["logits"][number, word, more]
                np.testing.assert_allclose(scores[word, more, :3], wanted, rtol=1e-4, atol=1e-5)
    for nested, theirs in zip((False, True), json.loads(str(golden["entities"])), strict=True):
        ours = model.entities(texts, types, threshold=threshold, nested=nested)
        for mine, its in zip(ours, theirs, strict=True):
            assert [[e[k] for k in ("start", "end", "text", "type")] for e in mine] == [
                [e[k] for k in ("start", "end", "text", "label")] for e in its
            ]
            np.testing.assert_allclose(
                [e["score"] for e in mine], [e["score"] for e in its], rtol=1e-5
            )
    spec = EntitySpans(labels=tuple(types), longest=3)
    examples = [
        Entities(tuple(one["tokenized_text"]), tuple((a, b + 1, t) for a, b, t in one["ner"]), "")
        for one in data
    ]
    groups, _ = spec.features(model.tokenizer, spec.encode(model.tokenizer, examples), 40)
    rows = [_Part.of(row).row(prompt, range(3)) for (row,) in groups]
    batch = taskrows.padded(rows, spec, model.vocab, 32, 2)
    towers = bind(model.system.towers, model.params)
    for objective, name in ((SpanNames(), "loss"), (SpanNames(alpha=0.75, gamma=2.0), "focal")):
        loss = float(objective(towers, batch, None).sum)
        np.testing.assert_allclose(loss, golden[name], rtol=1e-5)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("span_mode", "token_level", "span_mode is 'token_level'"),
        ("hidden_size", 16, "does not fit"),
        ("max_width", 0, "max_width is 0"),
        ("class_token_index", 5, "take the tokenizer of this model"),
        ("encoder_config", None, "has no encoder_config"),
        ("ent_token", "[X]", "ent_token is '\\[X\\]'"),
    ],
)
def test_another_kind_of_model_is_refused_in_one_line(folder, tmp_path, field, value, message):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "gliner_config.json").read_text())
    (tmp_path / "gliner_config.json").write_text(json.dumps({**config, field: value}))
    with pytest.raises(UserError, match=message) as caught:
        gliner_folder.read(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.full
def test_an_old_release_names_a_deberta_v3_and_has_no_config_of_it(tmp_path):
    fields = {
        "model_type": "deberta-v2", "vocab_size": 20, "hidden_size": 128, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 32, "position_buckets": 4,
        "relative_attention": True, "share_att_key": True, "pos_att_type": ["p2c", "c2p"],
        "norm_rel_ebd": "layer_norm", "position_biased_input": False, "type_vocab_size": 0,
        "max_relative_positions": -1, "max_position_embeddings": 512, "layer_norm_eps": 1e-7,
        "pad_token_id": 0,
    }  # fmt: skip
    system, _ = checkpoint.record_of(Config(fields), "DebertaV2Model")
    head = NamedSpans(longest=2, features=6, recurrent=1)
    system = dataclasses.replace(
        system, towers={"main": Model(encoder=system.towers["main"].encoder, heads={"spans": head})}
    )
    made = Pretrained(system, tiny_models.drawn(system, 0, 0.1))
    gliner_folder.write(tmp_path, made)
    file = tmp_path / "gliner_config.json"
    config = json.loads(file.read_text())
    del config["encoder_config"]
    file.write_text(json.dumps({**config, "model_name": "microsoft/deberta-v3-small"}))
    read, params, _ = gliner_folder.read(tmp_path)
    assert read.towers["main"].encoder == made.module.encoder
    before, after = flatten(made.params["main"]), flatten(params["main"])
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name], err_msg=name)
