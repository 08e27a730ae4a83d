"""A run of paragraph vectors from training to the command line."""

import dataclasses
import json

import numpy as np
import pytest

import ptm_jax
from ptm_jax import systems
from ptm_jax.cli.main import main
from ptm_jax.core.recipe import Phase
from ptm_jax.core.system import Experiment
from ptm_jax.inference.words.word_vectors import WordVectors
from ptm_jax.training.loop import train

KINDS = {
    "pets": "cat dog fur paw tail bark".split(),
    "money": "bank loan rate debt cash coin".split(),
}


@pytest.mark.full
def test_a_run_resumes_and_gives_vectors_of_documents_words_and_new_texts(tmp_path, capsys):
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(KINDS[("pets", "money")[n % 2]], 30)) for n in range(120)]
    (tmp_path / "texts.txt").write_text("\n\n".join(texts))
    system = systems.get("pv_dbow_words_mini")
    phase = Phase(steps=60, batch=16, length=40)
    recipe = dataclasses.replace(system.recipe, phases=(phase,), updates=4)
    examples = dataclasses.replace(system.examples, sample=None)
    words = dataclasses.replace(system.tokenizer, vocab=15)
    system = dataclasses.replace(system, recipe=recipe, examples=examples, tokenizer=words)
    config = Experiment(
        system=system, data=(str(tmp_path / "texts.txt"),), heldout=0.05, save_every=30
    )
    run = tmp_path / "run"
    assert train(config, run, quiet=True).done
    assert train(config, run, quiet=True).resumed_from == 60, (
        "the number of documents is no difference"
    )
    model = ptm_jax.load(run)
    assert (
        model.documents.shape[0]
        == json.loads((run / "data/manifest.json").read_text())["splits"]["train"]["documents"]
    )
    found = model.encode(
        ["dog cat tail", "paw fur bark", "loan cash debt"], normalize=True, epochs=50
    )
    assert found[0] @ found[1] > found[0] @ found[2] + 0.2
    assert {best.word for best in model.words.most_similar("dog", top=3)} < set(KINDS["pets"])
    assert main(["predict", str(run), "--task", "embed", "--text", "dog cat tail"]) == 0
    assert len(json.loads(capsys.readouterr().out)[0]["vector"]) == 64
    (tmp_path / "lines.txt").write_text("loan cash debt\npaw fur bark\n")
    words = [
        "--task",
        "similar",
        "--input",
        str(tmp_path / "lines.txt"),
        "--text",
        "dog cat tail",
        "--top",
        "1",
    ]
    assert main(["predict", str(run), *words]) == 0 and "paw" in capsys.readouterr().out
    assert (
        main(["export", str(run), "--out", str(tmp_path / "words.txt"), "--format", "word2vec"])
        == 0
    )
    assert isinstance(ptm_jax.load(tmp_path / "words.txt"), WordVectors)
    assert main(["predict", str(run), "--task", "embed", "--text", "dog", "--pooling", "max"]) == 1
    assert "pooling" in capsys.readouterr().err
