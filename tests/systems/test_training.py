"""On real text the loss of every miniature falls below the unigram baseline of the same held-out text."""

import dataclasses
import json

import pytest

from ptm_jax import systems
from ptm_jax.core.system import Experiment
from ptm_jax.train import loop

WIKITEXT = "lm/wikitext-2/valid.txt"
SHAKESPEARE = "lm/tinyshakespeare/input.txt"


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "text", "margin"),
    [
        pytest.param("bert_tiny", WIKITEXT, 0.05, marks=pytest.mark.status("bert_tiny", "trains")),
        pytest.param("bert_mini", WIKITEXT, 0.1, marks=pytest.mark.status("bert_mini", "trains")),
        pytest.param("roberta_mini", WIKITEXT, 0.1, marks=pytest.mark.status("roberta_mini", "trains")),
        pytest.param("gpt_mini", SHAKESPEARE, 0.5, marks=pytest.mark.status("gpt_mini", "trains")),
    ],
)
def test_heldout_loss_is_below_the_unigram_baseline(name, text, margin, data, tmp_path):
    config = Experiment(system=systems.get(name), data=(str(data / text),), save_every=0)
    result = loop.train(config, tmp_path / "run", quiet=True)
    nll = next(value for metric, value in result.heldout.items() if metric.endswith("nll"))
    assert result.done
    assert nll < result.baseline - margin, (nll, result.baseline)
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["split"] == "heldout" and last["values"] == result.heldout


@pytest.mark.full
def test_bert_with_both_objectives_trains_through_its_two_lengths(data, tmp_path):
    """The published composition (pairs, MLM + NSP, short then long rows) in small."""
    parent, small = systems.get("bert_base"), systems.get("bert_tiny")
    phases = tuple(
        dataclasses.replace(phase, steps=steps, batch=16, length=length)
        for phase, steps, length in zip(parent.recipe.phases, (90, 10), (64, 128), strict=True)
    )
    system = dataclasses.replace(
        small,
        name="bert_pairs",
        examples=parent.examples,
        objective=parent.objective,
        recipe=dataclasses.replace(small.recipe, phases=phases),
    )
    result = loop.train(Experiment(system=system, data=(str(data / WIKITEXT),), save_every=0), tmp_path / "run", quiet=True)
    assert result.done and result.heldout["nsp_nll"] < 0.8
    assert result.heldout["mlm_nll"] < 7.5
