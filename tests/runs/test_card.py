"""The model card of an export, as huggingface_hub reads it."""

import dataclasses
import json
import types

import huggingface_hub
import pytest

from ptm_jax.convert.libraries.sentence_folder import Sentence
from ptm_jax.core import spec
from ptm_jax.core.recipe import Phase, Recipe
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.nn.heads.text_vector import TextVector
from ptm_jax.runs.card import card, trained_length
from ptm_jax.runs.run import Run
from ptm_jax.systems import get
from ptm_jax.tasks.formats.text_groups import TextGroups
from ptm_jax.training import workdirs


def test_a_card_has_system_recipe_data_metrics_and_command(tmp_path):
    system = get("bert_mini")
    config = {
        "system": spec.to_json(system),
        "init": "org/name",
        "data": ["/home/me/corpus.txt", "pydocs"],
        "seed": 7,
    }
    record = {
        "config": config,
        "corpus": {"digest": "ab12", "tokenizer": "cd34"},
        "command": "ptm train bert_mini --data /home/me/corpus.txt",
    }
    workdirs.write(tmp_path, record, system)
    rows = [
        (1, "train", {"loss": 9.0}),
        (2, "heldout", {"loss": 4.5, "nll": float("nan")}),
        (3, "heldout", {"loss": 1.0}),
    ]
    lines = [
        json.dumps({"step": step, "split": split, "values": values}) for step, split, values in rows
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    model = types.SimpleNamespace(system=system, module=system.towers["main"])
    fields = {"architectures": ["BertForMaskedLM"], "model_type": "bert"}
    text = card(model, fields, False, Run(tmp_path, step=2))
    found = huggingface_hub.ModelCard(text)
    assert (found.data.library_name, found.data.pipeline_tag, found.data.base_model) == (
        "transformers",
        "fill-mask",
        "org/name",
    )
    (result,) = found.data.eval_results
    assert (result.metric_type, result.metric_value, result.dataset_name) == (
        "loss",
        4.5,
        "corpus.txt, held out",
    )
    for words in ("| hash of the data | ab12 |", "| data | corpus.txt, pydocs |", "| step | 2 |",
        "| loss | 4.5 |",
                  f"lr: {system.recipe.lr:g}",
                  "```\nptm train bert_mini --data corpus.txt\n```", "| seed | 7 |"):  # fmt: skip
        assert words in found.text, words
    assert "/home/me" not in text
    bare = huggingface_hub.ModelCard(card(model, fields, True))
    assert bare.data.eval_results is None and bare.data.library_name == "sentence-transformers"


@pytest.mark.parametrize(
    ("name", "tag"), [("bart_base", "text2text-generation"), ("gpt2", "text-generation")]
)
def test_a_model_that_reads_a_source_has_its_own_tag(name, tag):
    system = get(name)
    model = types.SimpleNamespace(system=system, module=system.towers["main"])
    fields = {"architectures": ["A"], "model_type": "a", "is_encoder_decoder": name == "bart_base"}
    assert huggingface_hub.ModelCard(card(model, fields, False)).data.pipeline_tag == tag


def test_a_card_of_a_sentence_encoder_counts_examples_and_names_its_length(tmp_path):
    system = get("bert_mini")
    module = dataclasses.replace(system.towers["main"], heads={"vector": TextVector()})
    system = dataclasses.replace(
        system,
        towers={"main": module},
        examples=TextGroups(negatives=1),
        recipe=Recipe(phases=(Phase(steps=2, batch=48, length=32),), lr=1e-3),
    )
    model = Pretrained(system, {}, None, sentence=Sentence(max_length=96))
    record = {"config": {"system": spec.to_json(system), "data": ["qa.jsonl"], "seed": 0}}
    workdirs.write(tmp_path, record, system)
    fields = {"architectures": ["BertModel"], "model_type": "bert"}
    text = card(model, fields, True, Run(tmp_path))
    assert "16 examples of 3 rows in a step" in text and "tokenizer(" not in text
    line = trained_length(model, True)
    assert "at most 32 tokens" in line and "first 96 (model.max_seq_length)" in line
    assert trained_length(model, False) is None
