"""Classes of texts by their names, and `ptm predict` on models in use."""

import dataclasses
import json
import types

import numpy as np
import pytest

from ptm_jax.cli.main import main
from ptm_jax.convert import checkpoint
from ptm_jax.convert.config import Config
from ptm_jax.core.errors import UserError
from ptm_jax.inference.text import classifying
from ptm_jax.inference.uses import Request
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.tables.own_tables import OwnLabels
from support.tiny_models import bare, save_run


@pytest.fixture
def ptm(capsys):
    """`ptm predict`: (status, stdout, stderr)"""

    def run(*words):
        status = main(["predict", *map(str, words)])
        return status, *capsys.readouterr()

    return run


@pytest.fixture(scope="session")
def runs(tmp_path_factory, bart, classifier):
    """Workdirs of an encoder with a decoder and of a classifier."""
    folder = tmp_path_factory.mktemp("runs")
    return save_run(folder / "bart", bart), save_run(folder / "classifier", classifier)


@pytest.mark.full
def test_classes_have_their_names_and_probabilities(bart, classifier):
    model = classifier
    firsts, seconds = ["the king", "the queen sees the hat"], ["a hat", "the city"]
    found = model.classify(firsts, seconds)
    for first, second, one in zip(firsts, seconds, found, strict=True):
        ids, types = model.tokenizer.frame(first, second)
        scores = model(ids[None], token_type_ids=types[None]).scores["classify"][0]
        assert list(one) == ["sad", "glad", "none"]
        np.testing.assert_allclose(
            list(one.values()), np.exp(scores) / np.exp(scores).sum(), rtol=1e-5
        )
    assert model.classify(firsts) != found and model.classify([]) == []
    assert model.classify(firsts[::-1], seconds[::-1], batch_size=1)[0] == pytest.approx(
        found[1], rel=1e-4
    )
    with pytest.raises(UserError, match="2 texts and 1 pairs"):
        model.classify(firsts, ["a"])
    with pytest.raises(UserError, match="text 2 has .* tokens"):
        model.classify(["a", "hat " * 30])
    with pytest.raises(UserError, match="bart_tiny does not classify .*ForSequenceClassification"):
        bart.classify(["a"])


@pytest.mark.parametrize("name", ["mrpc", "boolq", "stsb", "sst2"])
def test_a_model_of_pairs_needs_the_second_text(name):
    """A run on pairs; a published model does not say what it reads."""
    examples = catalogue.get(name).examples
    (use,) = [one for one in classifying.USES if one.name == "classify"]
    calls = []
    model = types.SimpleNamespace(
        examples=examples, classify=lambda *texts: calls.append(texts) or [{"a": 1.0, "b": 0.0}]
    )
    request = Request(model="runs/own", text=("a",))
    if name == "sst2":
        assert use.run(model, request)[0]["label"] == "a"
        return
    with pytest.raises(UserError, match="runs/own was trained on pairs of texts; give every"):
        use.run(model, request)
    use.run(model, dataclasses.replace(request, pair=("b",)))
    assert calls == [(("a",), ("b",))]


def test_several_labels_of_pairs():
    assert OwnLabels(columns=("text", "more")).of_pairs and not OwnLabels().of_pairs


def test_labels_that_do_not_exclude_each_other_and_numbers():
    small = {
        "model_type": "bert",
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 9,
    }
    small |= {"intermediate_size": 8, "max_position_embeddings": 4}
    scores = np.array([[0.5, -3.0]])
    for fields, names, expected in [
        (
            {"problem_type": "multi_label_classification"},
            ["LABEL_0", "LABEL_1"],
            1 / (1 + np.exp(-scores)),
        ),
        (
            {"problem_type": "regression", "id2label": {"0": "warmth", "1": "light"}},
            ["warmth", "light"],
            scores,
        ),
        (
            {"id2label": {"0": "same", "1": "same"}},
            ["LABEL_0", "LABEL_1"],
            np.exp(scores) / np.exp(scores).sum(),
        ),
    ]:
        config = Config({**small, **fields})
        model = bare(checkpoint.record_of(config, "BertForSequenceClassification")[0], **config)
        assert classifying.labels_of(model) == names
        np.testing.assert_allclose(
            classifying._probabilities(scores, classifying.kind_of(model)), expected, rtol=1e-6
        )


def refused(ptm, folder, *cases):
    for words, message in cases:
        status, out, err = ptm(folder, *words)
        assert status == 1 and not out and message in err and err.count("\n") == 1


@pytest.mark.full
def test_predict_fills_compares_and_embeds(run, tmp_path, ptm):
    lines = tmp_path / "lines.txt"
    lines.write_text("the king\n\nthe hat of the queen\n")
    words = (
        "--task",
        "fill-mask",
        "--text",
        "the [MASK]",
        "--text",
        "[MASK] hat",
        "--top",
        "2",
        "--json",
    )
    status, out, _ = ptm(run, *words)
    found = json.loads(out)
    assert status == 0 and [len(f["masks"][0]) for f in found] == [2, 2]
    assert set(found[0]["masks"][0][0]) == {"token", "probability", "sentence"}
    status, out, _ = ptm(
        run, "--task", "similar", "--input", lines, "--text", "the king", "--top", "1"
    )
    assert status == 0 and "1.0000  the king" in out
    vectors = tmp_path / "v.npy"
    assert ptm(run, "--task", "embed", "--input", lines, "--output", vectors)[0] == 0
    stored = np.load(vectors)  # the empty line has a row too
    assert stored.shape == (3, 16) and np.isnan(stored).all(1).tolist() == [False, True, False]
    refused(
        ptm, run,
        (("--task", "generate", "--text", "x"), "does not generate"),
        (("--task", "similar", "--text", "x"), "give --input"),
        (("--task", "fill-mask", "--text", "x", "--beams", "2"), "--beams needs --task generate"),
        (("--task", "embed", "--text", "x", "--output", "v.txt"), "written as .npy, .jsonl"),
        (("--task", "fill-mask", "--input", vectors), "not UTF-8"),
    )  # fmt: skip


@pytest.mark.full
def test_predict_answers_and_classifies(bart, runs, ptm, tmp_path):
    source = "the king sees the house"
    status, out, _ = ptm(
        runs[0], "--task", "generate", "--text", source, "--max-new-tokens", "6", "--json"
    )
    assert status == 0 and json.loads(out) == [
        {"prompt": source, "text": bart.generate([source], max_new_tokens=6)[0]}
    ]
    words = ("--task", "classify", "--text", "the king", "--pair", "a hat")
    status, out, _ = ptm(runs[1], *words)
    assert (
        status == 0
        and out.startswith("the king | a hat\n")
        and out.count("%") == 3
        and " glad\n" in out
    )
    (found,) = json.loads(ptm(runs[1], *words, "--json")[1])
    assert (found["text"], found["pair"], list(found["labels"])) == (
        "the king",
        "a hat",
        ["sad", "glad", "none"],
    )
    assert found["label"] == max(found["labels"], key=found["labels"].get)
    teacher = tmp_path / "labels.json"
    assert ptm(runs[1], *words[:4], "--json", "--output", teacher)[0] == 0
    (example,) = catalogue.get("classify").examples.read(teacher)  # a student learns from it
    assert example.first == "the king" and example.label in found["labels"]
    refused(
        ptm, runs[1],
        (("--task", "classify", "--text", "x", "--text", "y", "--pair", "z"),
        "2 texts and 1 pairs"),
        (("--task", "embed", "--text", "x", "--pair", "z"), "--pair needs --task classify"),
        (("--task", "classify", "--text", "x", "--start", "z"), "--start needs --task generate"),
        (("--task", "generate", "--text", "x"), "does not generate text; gpt"),
    )  # fmt: skip
