"""NT-ASGD against Algorithm 1 of Merity et al. 2018, step by step in plain Python."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.adapt.parameters.averaging import NTASGD
from ptm_jax.core.recipe import Phase
from ptm_jax.objectives.text.language import MLM
from ptm_jax.training.checkpoints import restore_params
from ptm_jax.training.loop import train
from support import tiny_runs as tiny


def algorithm(steps, losses, every, n):
    """w_0 ... w_K and the loss of each evaluation -> the mean of w_T ... w_K, or w_K where T stays
    0."""
    logs, trigger = [], None
    for k in range(len(steps)):
        if k and k % every == 0 and trigger is None:
            v, t = losses[k // every - 1], len(logs)
            if t > n and v > min(logs[: t - n]):
                trigger = k
            logs.append(v)
    return steps[-1] if trigger is None else np.mean(steps[trigger:], 0)


@pytest.mark.parametrize("n", [0, 2])
@pytest.mark.parametrize("losses", [[5, 4, 3, 4, 2, 6, 1, 9], [9, 8, 7, 6, 5, 4, 3, 2]])
def test_the_mean_is_that_of_algorithm_1(losses, n):
    every, steps = (
        2,
        np.random.default_rng(0).normal(size=(2 * len(losses) + 2, 3)).astype(np.float32),
    )
    value = NTASGD(patience=n)
    params = value.init({"main": {"w": jnp.asarray(steps[0])}}, None)
    for k in range(1, len(steps)):
        params = value.on_step({**params, "main": {"w": jnp.asarray(steps[k])}}, k - 1)
        if k % every == 0 and k // every <= len(losses):
            params = value.on_heldout(params, losses[k // every - 1])
    expected = algorithm(steps, losses, every, n)
    np.testing.assert_allclose(value.finish(params)["main"]["w"], expected, rtol=1e-5)
    np.testing.assert_array_equal(value.effective(params, True)["main"]["w"], steps[-1])
    assert list(value.finish(params)) == ["main"]


@pytest.mark.full
def test_a_run_averages_from_the_evaluation_that_its_log_names(tmp_path):
    """The mean in the last checkpoint equals the mean of the parameters of all checkpoints since
    the trigger."""
    text, last, patience = tiny.write_text(tmp_path / "text.txt"), 24, 1
    recipe = dataclasses.replace(
        tiny.system.recipe, phases=(Phase(steps=last, batch=8, length=16),), lr=0.1
    )
    system = dataclasses.replace(
        tiny.system, recipe=recipe, objective=MLM(), adapt=(NTASGD(patience=patience),)
    )
    config = dataclasses.replace(
        tiny.config, system=system, data=(text,), eval_every=2, save_every=1
    )
    with tiny.compiling(tmp_path / "compiled"):
        train(config, tmp_path / "run", quiet=True)
    lines = [
        x for x in tiny.metrics(tmp_path / "run") if x["split"] == "heldout" and x["step"] < last
    ]
    losses = [x["values"]["loss"] for x in lines]
    trigger = next(
        x["step"]
        for t, x in enumerate(lines)
        if t > patience and losses[t] > min(losses[: t - patience])
    )
    saved = [restore_params(tmp_path / "run", step=step)[0] for step in range(trigger, last + 1)]
    assert len(saved) == float(saved[-1]["average"]["count"]) > 2
    expected = jax.tree.map(
        lambda *leaves: np.mean(leaves, 0, dtype=np.float64), *(step["main"] for step in saved)
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
        saved[-1]["average"]["main"],
        expected,
    )
