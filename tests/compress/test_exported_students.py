"""Students in Hugging Face's classes: `ptm export` of a student gives there the logits and the
states of all layers that it has here, to 1e-4."""

import dataclasses
import json

import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.compress import catalogue
from ptm_jax.compress.students import mobile
from ptm_jax.core import spec
from ptm_jax.core.paths import flatten
from ptm_jax.core.system import adapted
from ptm_jax.core.types import Vocab
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.task_heads import SequenceHead
from ptm_jax.objectives.tasks.downstream import Classification
from ptm_jax.systems.transformers.mobilebert import TINY_IB, ib_bert
from support import tiny_checkpoint
from support.tiny_models import drawn

try:
    import torch
    import transformers
except ModuleNotFoundError:
    torch = transformers = None

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        torch is None,
        reason="torch and transformers are not installed; make test-full installs them",
    ),
]
LABELS = {"id2label": {"0": "0", "1": "1"}, "label2id": {"0": 0, "1": 1}}


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A classifier of 4 layers of 16 with parameters that matter."""
    fields = {"num_hidden_layers": 4, "architectures": ["BertForSequenceClassification"], **LABELS}
    model = ptm_jax.load(
        tiny_checkpoint.write(tmp_path_factory.mktemp("export") / "bert", **fields)
    )
    return dataclasses.replace(model, params=drawn(model.system))


@pytest.fixture(scope="module")
def ib_bert_classifier(bert):
    sizes = dataclasses.replace(
        TINY_IB, layers=2, states=16, inner=24, tables=8, heads=2, hidden=20
    )
    found = spec.respell(ib_bert("small", sizes), Vocab, bert.vocab)
    tower = found.towers["main"].clone(heads={"classify": SequenceHead(2, Summary("tanh"))})
    found = dataclasses.replace(
        found, towers={"main": tower}, objective=Classification(), examples=bert.system.examples
    )
    return Pretrained(found, drawn(found), bert.tokenizer)


def student_of(teacher, value):
    """The student as a run begins with it, its own parameters drawn."""
    system = adapted(
        dataclasses.replace(teacher.system, objective=Classification(), compress=(value,))
    )
    params = {**drawn(system, seed=1), "teacher": teacher.params["main"]}
    system, params = value.smaller(system, value.init(params, None), None)
    return dataclasses.replace(teacher, system=system, params=params)


CASES = {
    "distilbert(keep=2)": ("DistilBertForSequenceClassification", "distilbert"),
    "pkd(keep=2)": ("BertModel", "bert"),
    "pd(keep=2)": ("BertModel", "bert"),
    "tinybert": ("BertModel", "bert"),
    "minilm": ("BertModel", "bert"),
    "theseus": ("BertModel", "bert"),
    "mobilebert": ("MobileBertForSequenceClassification", "mobilebert"),
}


@pytest.mark.parametrize("method", CASES)
def test_an_exported_student_gives_there_what_it_gives_here(
    method, bert, ib_bert_classifier, tmp_path
):
    value, teacher = catalogue.read(method), bert
    if method in ("tinybert", "minilm"):
        student = dataclasses.replace(value.student, layers=2, width=12, heads=2, hidden=20)
        value = dataclasses.replace(value, student=student)
    if method == "mobilebert":
        teacher = ib_bert_classifier
        matches = tuple(match for match in value.matches if match.reads_states)
        value = dataclasses.replace(
            value, student=mobile.Mobile(inner=8, hidden=12, stacked=2), matches=matches
        )
    student = student_of(teacher, value)
    student.save(tmp_path / "student")
    assert main(["export", str(tmp_path / "student"), "--out", str(tmp_path / "hub")]) == 0
    name, kind = CASES[method]
    assert json.loads((tmp_path / "hub" / "config.json").read_text())["model_type"] == kind
    mask = np.ones((3, 10), np.int64)
    mask[1, 6:] = 0
    ids = np.random.default_rng(0).integers(5, bert.vocab.size, (3, 10)) * mask
    found = student(ids, mask, layers=True)
    words = {
        "input_ids": torch.tensor(ids),
        "attention_mask": torch.tensor(mask),
        "output_hidden_states": True,
    }
    classifier = name if "For" in name else "BertForSequenceClassification"
    for peer in {name, classifier}:
        model = (
            getattr(transformers, peer)
            .from_pretrained(tmp_path / "hub", attn_implementation="eager")
            .eval()
        )
        with torch.no_grad():
            out = model(**words)
        if "For" in peer:
            np.testing.assert_allclose(found.scores["classify"], out.logits.numpy(), atol=1e-4)
        states = np.stack([state.numpy() for state in out.hidden_states])
        np.testing.assert_allclose(
            found.layers * mask[..., None], states * mask[..., None], atol=1e-4
        )
    again = flatten(ptm_jax.load(tmp_path / "hub").params)
    same = flatten(student.params)
    assert (
        all(np.array_equal(again[path], same[path]) for path in same if path in again)
        and len(again) >= len(same) - 2
    )
