"""Epochs of a small text: word vectors get steps and a subsampling that fit it, and few updates are
named."""

import dataclasses

import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.core.system import Experiment
from ptm_jax.training.start import differing, setup


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """About 60,000 words, with frequencies as 1 / rank."""
    draw, path = np.random.default_rng(0), tmp_path_factory.mktemp("text") / "text.txt"
    words = np.array([f"w{n}" for n in range(2000)])
    chances = 1 / np.arange(1, 2001)
    rows = draw.choice(words, (6000, 10), p=chances / chances.sum())
    path.write_text("\n\n".join(" ".join(row) for row in rows) + "\n")
    return path


@pytest.mark.parametrize("name", ["skipgram", "cbow", "skipgram_hs", "fasttext"])
def test_the_batch_and_the_subsampling_fit_the_text(text, tmp_path, name, capsys):
    system = systems.get(name)
    system = dataclasses.replace(
        system, tokenizer=dataclasses.replace(system.tokenizer, vocab=5000, min_count=2)
    )
    config = Experiment(system=system, data=(str(text),), epochs=5)
    resolved, corpus = setup.begin(config, tmp_path / "run")
    recipe, published = resolved.system.recipe, system.recipe
    assert resolved.system.examples.sample == pytest.approx(max(system.examples.sample, 1e-3))
    rows = [one.phases[0].batch // one.updates for one in (recipe, published)]
    assert rows[0] == rows[1] and recipe.lr == published.lr  # an update is what it was
    assert recipe.steps >= setup.FEW or recipe.updates == 1
    said = capsys.readouterr().err
    assert ("examples.sample is 0.001" in said) == (system.examples.sample < 1e-3)
    record = {"config": differing.spec.to_json(resolved), "corpus": setup.facts_of(corpus)}
    assert not differing.changes(record, config)  # the run can be resumed


def test_few_updates_are_named(text, tmp_path, capsys):
    system = systems.get("bert_mini")
    system = dataclasses.replace(
        system, tokenizer=dataclasses.replace(system.tokenizer, vocab=1000)
    )
    config = Experiment(system=system, data=(str(text),), epochs=1)
    resolved, _ = setup.begin(config, tmp_path / "run")
    said = capsys.readouterr().err
    assert (resolved.system.recipe.steps < setup.FEW) == ("updates are few" in said)
    assert resolved.system.recipe.steps < setup.FEW


def test_a_decay_keeps_its_share_of_the_epochs(text, tmp_path):
    """Of `modernbert_mini` 80 of 800 steps are the warm-up and 200 the decay."""
    system = systems.get("modernbert_mini")
    tokenizer = dataclasses.replace(system.tokenizer, vocab=1000)
    system = dataclasses.replace(system, tokenizer=tokenizer)
    config = Experiment(system=system, data=(str(text),), epochs=2)
    resolved, corpus = setup.begin(config, tmp_path / "run")
    recipe = resolved.system.recipe
    schedule = dataclasses.replace(
        system.recipe.schedule, warmup=round(recipe.steps / 10), decay=round(recipe.steps / 4)
    )
    assert recipe.steps < 800 and recipe.schedule == schedule
    record = {"config": differing.spec.to_json(resolved), "corpus": setup.facts_of(corpus)}
    assert not differing.changes(record, config)
