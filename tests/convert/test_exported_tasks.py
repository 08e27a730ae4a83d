"""The export of every task loads by the Auto class of its card, with the same predictions."""

import dataclasses
import json

import numpy as np
import pytest

import ptm_jax
from ptm_jax.cli.main import main
from ptm_jax.convert.config import Config
from ptm_jax.convert.libraries import sentence_export, sentence_folder
from ptm_jax.core.errors import UserError
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.runs import card, publishing
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.kinds.base import kind_of
from ptm_jax.tuning import finetuning
from support import tiny_checkpoint, tiny_models

BASES = {
    "bert": {},
    "sentence": {},
    "roberta": {"model_type": "roberta", "architectures": ["RobertaModel"], "specials": "roberta",
        "kind": "bytebpe", "vocab": 290, "pad_token_id": 1, "max_position_embeddings": 66},
    "electra": {"model_type": "electra", "architectures": ["ElectraModel"], "embedding_size": 8},
    "albert": {"model_type": "albert", "architectures": ["AlbertModel"], "embedding_size": 8},
    "t5": {"model_type": "t5", "architectures": ["T5Model"], "specials": "t5", "kind": "unigram",
        "vocab": 30, "d_model": 16, "d_kv": 8, "num_heads": 2, "d_ff": 16, "num_layers": 1,
        "decoder_start_token_id": 0, "eos_token_id": 1},
}  # fmt: skip
TASKS = {"classify": "sst2", "pairs": "rte", "regression": "stsb", "tags": "conll2003",
         "answers": "squad", "choices": "copa"}  # fmt: skip
MISSING = {("t5", "choices")}
"""Families without a class of the task in Transformers."""


def base(folder, name):
    tiny_checkpoint.write(folder, **BASES[name])
    if name == "sentence":
        sentence_export.write(folder, sentence_folder.Sentence(normalize=True, width=16))
    return folder


def tuned(folder, task, seed=0):
    """A model as fine-tuning makes it, with drawn parameters."""
    examples = catalogue.get(task).examples
    if getattr(examples, "labels", None) == "found":
        examples = dataclasses.replace(examples, labels=("O", "B-PER", "I-PER"))
    before = ptm_jax.load(folder)
    system = finetuning.with_head(str(folder), examples)
    kind = kind_of(examples, system.towers["main"].encoder)
    system = dataclasses.replace(system, examples=examples, objective=kind.objective(examples))
    batch = {"input_ids": np.zeros((2 * examples.readings, 16), np.int32)}
    params = tiny_models.drawn(system, seed, 0.3, batch)
    return Pretrained(
        system, params, before.tokenizer, sentence=before.sentence,
        published=Config({}, str(folder / "config.json")),
    )  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", BASES)
def test_the_auto_class_of_the_card_predicts_the_same(tmp_path, name, task):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    folder = base(tmp_path / "base", name)
    if (name, task) in MISSING:
        with pytest.raises(UserError, match="is no architecture of the Hugging Face library"):
            publishing.export(tmp_path / "out", tuned(folder, TASKS[task]))
        return
    model = tuned(folder, TASKS[task])
    publishing.export(tmp_path / "out", model)
    assert not (tmp_path / "out" / "modules.json").exists()
    fields = json.loads((tmp_path / "out" / "config.json").read_text())
    lines = card.loading(str(tmp_path / "out"), fields, False)
    auto = lines[0].split()[3].rstrip(",")
    assert auto.startswith("AutoModelFor") and hasattr(transformers, auto)
    scope = {}
    exec("\n".join(lines), scope)  # the lines that the command prints
    peer = scope["model"].eval()
    assert type(peer).__name__ == fields["architectures"][0]
    draw, size = np.random.default_rng(1), model.vocab.size
    ids = draw.integers(5, min(size, 28), (2, 12)).astype(np.int32)
    if name == "t5" and task in ("classify", "pairs", "regression"):
        ids[:, -1] = 1  # the class reads the state of the end token
    types = np.repeat([[0, 1]], 6, 1).astype(np.int32).repeat(2, 0)
    typed = model.module.encoder.types > 1
    inputs = {"input_ids": torch.tensor(ids).long()}
    inputs |= {"token_type_ids": torch.tensor(types).long()} if typed else {}
    if task == "choices":
        inputs = {key: value[None] for key, value in inputs.items()}
    with torch.no_grad():
        found = peer(**inputs)
    theirs = (found.start_logits, found.end_logits) if task == "answers" else (found.logits,)
    (head,) = set(model.module.heads) - {"pool"}
    ours = model(ids, np.ones_like(ids), types if typed else None).scores[head]
    for one, other in zip(ours if isinstance(ours, tuple) else (ours,), theirs, strict=True):
        other = other.numpy()
        np.testing.assert_allclose(np.ravel(one), np.ravel(other), atol=3e-5)
    if task in ("classify", "pairs", "tags"):
        assert list(peer.config.id2label.values()) == list(model.examples.labels)
    if task == "regression":
        assert peer.config.problem_type == "regression" and peer.config.num_labels == 1


@pytest.mark.full
def test_layout_chooses_and_the_last_lines_load_it(tmp_path, capsys):
    folder = base(tmp_path / "base", "sentence")
    for layout, expected in (
        (None, True),
        ("sentence-transformers", True),
        ("transformers", False),
    ):
        out = tmp_path / f"out-{layout}"
        words = [] if layout is None else ["--layout", layout]
        assert main(["export", str(folder), "--out", str(out), *words]) == 0
        printed = capsys.readouterr().out
        assert (out / "modules.json").exists() == expected
        assert ("SentenceTransformer" in printed) == expected
        assert printed.rstrip().endswith(f"from_pretrained({str(out)!r})" if not expected else ")")
    model = tuned(folder, "sst2")
    with pytest.raises(UserError, match="has the head 'classify', which sentence-transformers"):
        publishing.export(tmp_path / "no", model, layout="sentence-transformers")


def test_every_architecture_has_its_line():
    for name, line in (
        ("BertForSequenceClassification", "AutoModelForSequenceClassification"),
        ("T5ForConditionalGeneration", "AutoModelForSeq2SeqLM"),
        ("GPT2LMHeadModel", "GPT2LMHeadModel"),
        ("BertModel", "AutoModel"),
        ("EncoderDecoderModel", "EncoderDecoderModel"),
        ("GPT2DoubleHeadsModel", "GPT2DoubleHeadsModel"),
        ("T5EncoderModel", "T5EncoderModel"),
    ):
        lines = card.loading("x", {"architectures": [name], "model_type": "m"}, False)
        assert f" {line}," in lines[0] and lines[1] == f"model = {line}.from_pretrained('x')"
    assert card.loading("x", {"architectures": ["N"], "model_type": "nezha"}, False)[-1] == (
        "model = ptm_jax.load('x')"
    )
