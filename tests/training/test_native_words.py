"""Word vectors end to end: killed runs, shares of the rows, and tables sharded over eight forced
devices."""

import dataclasses
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.core import spec
from ptm_jax.core.recipe import SGD, Phase
from ptm_jax.core.system import Experiment
from ptm_jax.mesh import rules
from ptm_jax.runs.run import Run
from ptm_jax.training import loop
from ptm_jax.training.start import setup
from ptm_jax.training.steps.step import program
from support import elsewhere, tiny_runs


def experiment(name, text, steps=6):
    system = spec.with_field(systems.get(f"{name}_mini"), "width", 16)
    tokenizer = dataclasses.replace(system.tokenizer, vocab=200, min_count=2)
    recipe = dataclasses.replace(
        system.recipe,
        phases=(Phase(steps=steps, batch=16, length=74),),
        optimizer=SGD(),
        lr=3.0,
        updates=4,
    )
    system = dataclasses.replace(system, recipe=recipe, tokenizer=tokenizer)
    return Experiment(
        system=system,
        data=(str(text),),
        heldout=0.1,
        log_every=1,
        eval_every=0,
        save_every=2,
        keep=10,
        metrics=(),
    )


def logged(workdir, name):
    return [
        line["values"][name]
        for line in tiny_runs.metrics(Path(workdir))
        if line["split"] == "train"
    ]


@pytest.mark.full
@pytest.mark.parametrize("name", ["skipgram", "cbow", "fasttext"])
def test_a_killed_run_goes_on_and_shares_of_rows_make_the_same_bits(name, tmp_path):
    config = experiment(name, tiny_runs.write_text(tmp_path / "text.txt"))
    loop.train(config, tmp_path / "whole", quiet=True)
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    for step in (4, 6):
        shutil.rmtree(tmp_path / "killed" / "checkpoints" / f"step_{step:08d}")
    assert loop.train(config, tmp_path / "killed", quiet=True).resumed_from == 2
    tiny_runs.assert_same_run(tmp_path / "whole", tmp_path / "killed")
    assert all(norm > 0 for norm in logged(tmp_path / "whole", "grad_norm"))

    config, corpus = setup.begin(config, tmp_path / "whole")
    example = setup.example(config, corpus)
    work, _ = program(config.system, config.seed).on(
        rules.make_mesh(devices=jax.devices()[:1]), "replicated", example
    )
    assert work.native is not None
    step, state = jax.jit(work.step), work.init(example)
    shares = [setup.stream(config, corpus, 0, share=(index, 2)) for index in range(2)]
    for _ in range(config.system.recipe.steps):
        parts = [next(stream) for stream in shares]
        state, _ = step(
            state, {field: np.concatenate([part[field] for part in parts]) for field in parts[0]}
        )
    restored = Run(tmp_path / "whole").restore()[0]
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b), state.params, restored)


def sharded(text, workdir):
    """The losses of a run whose tables lie on eight devices."""
    config = dataclasses.replace(
        experiment("skipgram", text), mesh=(("model", 8),), rules="megatron"
    )
    loop.train(config, Path(workdir), quiet=True)
    return logged(workdir, "loss")


@pytest.mark.full
def test_tables_on_eight_devices_have_the_losses_of_the_kernel_on_one(tmp_path):
    text = str(tiny_runs.write_text(tmp_path / "text.txt"))
    eight = elsewhere.on_devices(8, sharded, text, str(tmp_path / "eight"))
    loop.train(experiment("skipgram", text), tmp_path / "one", quiet=True)
    np.testing.assert_allclose(eight, logged(tmp_path / "one", "loss"), rtol=1e-5)
    assert len(eight) == 6 and eight[-1] < eight[0]
